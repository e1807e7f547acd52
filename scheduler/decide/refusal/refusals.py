"""Why no node takes a Pod: the first stage that fails on each node, over all nodes at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.filter.fitting import Fitting, asked_bytes
from scheduler.decide.filter.predicates import Predicates, StaticVerdict
from scheduler.decide.nodes.arrays import (
    BoolArray,
    IntArray,
    row_counts,
    row_maxima,
    row_sums,
    with_rows,
)
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.nodes.node_rows import NodeRows
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.outcome import Unfit, Unplaced
from scheduler.decide.refusal import reasons
from scheduler.decide.refusal.counts import FAR, ReasonCounter, ReasonCounts
from scheduler.decide.refusal.possible import Possible, Takes
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.shapes import Shape

_BYTES_MAX: Final = 32 << 20
_FITS: Final = 0
_PODS_BIT: Final = 1
_CPU_BIT: Final = 2
_MEMORY_BIT: Final = 4
_AMPLIFIED_BIT: Final = 8
_FIT_BITS: Final = 4
_NAMES_MAX: Final = 4
"""So many extended resources of one Pod are told apart, each by a bit of its own."""
_INSUFFICIENT, _FRAGMENTED, _UNHEALTHY, _CONTAINERS, _UNKNOWN, _BY_NUMBER = range(6)
_KIND_COUNT: Final = 6
_CARD_SHORT: Final = 1000  # one card short is farther than any percent short on a card


@dataclass(slots=True)
class _Row:
    """
    The code of every node for one shape and memory request, as of `seen`.

    Attributes:
        static: the verdict's reasons, which are those of the first codes.
        codes: index into `texts`; 0 = the node passes every test over arrays.
        short: how far a node is from fitting, where its code says too little is left of devices.
        answer: the last answer, as long as it holds: nothing was given back (`returns` of the
            change log), every node has the code it had, and the nearest ones are as near.
    """

    shape: Shape
    verdict: StaticVerdict
    static: tuple[Reason, ...]
    texts: tuple[tuple[Reason, ...], ...]
    codes: npt.NDArray[np.int32]
    short: npt.NDArray[np.int32]
    seen: int
    answer: ReasonCounts | None = None
    returns: int = -1


class Refusals:
    """
    Explains refusals.

    Rule: cli.md, Output (`unschedulable`). Stages in kube-scheduler's order: cordon and taints,
    node affinity, the resource fit (every resource that is short), then devices, then CPU sets.

    Args:
        rows: where the nodes stand in the cluster that answers list, by number.
        takes: whether a node that is alone and empty takes a request.
    """

    def __init__(
        self,
        arrays: NodeArrays,
        predicates: Predicates,
        fitting: Fitting,
        pins: CpuPins,
        rows: NodeRows,
        *,
        takes: Takes,
    ) -> None:
        self._arrays = arrays
        self._possible = Possible(arrays, takes)
        self._answers = ReasonCounter(arrays, pins, rows)
        self._predicates = predicates
        self._fitting = fitting
        self._pins = pins
        self._rows: OrderedDict[tuple[int, int], _Row] = OrderedDict()

    def explain(self, request: PodRequest, shape: Shape, tried: Mapping[int, Unfit]) -> Unplaced:
        """
        Return why the request is refused, given that no node takes it.

        `tried` holds the answer of the closer look at each node that passed the tests over arrays.
        """
        row = self._row(request, shape)
        answer = row.answer
        if answer is None or tried:
            helps = partial(self._possible.would_help, request, shape)
            answer = self._answers.answer(
                request, row.texts, row.codes, row.short, tried, helps=helps
            )
            row.answer = None if tried else answer
            row.returns = self._arrays.log.returns
        return Unplaced(
            request=request,
            message=answer.message,
            reasons=answer.counts,
            nodes=answer.nodes,
            never=answer.never,
        )

    def forget(self) -> None:
        """Drop every row that is remembered."""
        self._rows.clear()
        self._possible.forget()

    def codes(self, request: PodRequest, shape: Shape) -> npt.NDArray[np.int32]:
        """Return 0 for each node that passes the tests over arrays, else a number that is not."""
        return self._row(request, shape).codes

    def why(
        self, request: PodRequest, shape: Shape, nodes: IntArray
    ) -> tuple[IntArray, int, tuple[tuple[Reason, ...], ...]]:
        """
        Return the code of each of these nodes, which all fail, and the reasons that codes index.

        Codes below the number in the middle are about what a node is, whatever it holds.
        """
        row = self._blank(shape)
        self._judge(row, request, nodes, all_fail=True)
        return row.codes.take(nodes).astype(np.int64), len(row.static), row.texts

    def _row(self, request: PodRequest, shape: Shape) -> _Row:
        key = (id(shape), request.memory_bytes)
        log = self._arrays.log
        row = self._rows.get(key)
        if row is not None and self._is_relaid(row):
            row = None
        if row is None:
            row = self._new_row(request, shape)
            self._rows[key] = row
            if len(self._rows) > max(1, _BYTES_MAX // max(1, 8 * len(self._arrays))):
                self._rows.popitem(last=False)
        elif row.seen != log.position:
            self._rows.move_to_end(key)
            row.codes = with_rows(row.codes, len(self._arrays))
            row.short = with_rows(row.short, len(self._arrays))
            nodes = log.since(row.seen)
            if nodes is None or len(nodes) > len(self._arrays):
                nodes = self._arrays.everything
            self._judge(row, request, nodes)
        row.seen = log.position
        return row

    def _is_relaid(self, row: _Row) -> bool:
        """Tell whether nodes have reasons now that the layout of a row's codes has no place for."""
        return self._predicates.as_of_now(row.verdict).reasons is not row.static

    def _new_row(self, request: PodRequest, shape: Shape) -> _Row:
        row = self._blank(shape)
        self._judge(row, request, self._arrays.everything)
        return row

    def _blank(self, shape: Shape) -> _Row:
        verdict = self._predicates.verdict(shape.static)
        return _Row(
            shape=shape,
            verdict=verdict,
            static=verdict.reasons,
            texts=_texts(verdict, shape),
            codes=np.zeros(len(self._arrays), dtype=np.int32),
            short=np.zeros(len(self._arrays), dtype=np.int32),
            seen=0,
        )

    def _judge(
        self, row: _Row, request: PodRequest, nodes: IntArray, *, all_fail: bool = False
    ) -> None:
        """
        Bring the codes of `nodes` up to date. The layout of codes is that of `_texts`.

        With `all_fail` what no earlier stage explains is put down to the last without a test.
        """
        verdict, shape = row.verdict, row.shape
        static = len(row.static)
        bits = self._fit_bits(shape, request, nodes)
        codes = np.where(bits > 0, bits + (static - 1), _FITS)
        if verdict.admits is not None:
            before = verdict.before.take(nodes)
            codes = np.where(before == _FITS, codes, before)
            codes = np.where(codes == _FITS, verdict.after.take(nodes), codes)
        first = static + _fit_codes(shape)
        row.short[nodes] = FAR
        for demand in shape.demands:
            left = np.flatnonzero(codes == _FITS)
            some = nodes if len(left) == len(nodes) else nodes.take(left)
            kinds, short = self._device_codes(demand, shape, some)
            fails = kinds >= 0
            codes[left[fails]] = first + kinds[fails]
            row.short[some[fails]] = short[fails]
            first += _KIND_COUNT
        if len(shape.demands) > 1:
            left = np.flatnonzero(codes == _FITS)
            if not all_fail or shape.cpuset is not None:
                left = left[~self._fitting.together(shape, nodes.take(left))]
            codes[left] = first
        if shape.cpuset is not None:
            lacking = self._pins.lacks(shape.cpuset, nodes)
            codes = np.where((codes == _FITS) & lacking, first + 1, codes)
        if not self._still_holds(row, codes, nodes):
            row.answer = None
        row.codes[nodes] = codes

    def _fit_bits(self, shape: Shape, request: PodRequest, nodes: IntArray) -> IntArray:
        """Return what is short of Pod slots, cpu, memory and the rest: a sum of bits."""
        arrays = self._arrays
        bits: IntArray = np.zeros(len(nodes), dtype=np.int64)
        if shape.cpu_milli:
            short = arrays.cpu_free.take(nodes) < shape.cpu_milli
            bits += short * np.where(arrays.amplified.take(nodes), _AMPLIFIED_BIT, _CPU_BIT)
        if request.memory_bytes:
            bits += (arrays.memory_free.take(nodes) < request.memory_bytes) * _MEMORY_BIT
        if arrays.limits_pods:
            bits += (arrays.pods_free.take(nodes) < 1) * _PODS_BIT
        for number, (name, amount) in enumerate(shape.extended):
            bit = 1 << (_FIT_BITS + min(number, _NAMES_MAX))
            bits |= arrays.extended.lacking(name, amount, nodes) * bit
        return bits

    def _still_holds(self, row: _Row, codes: IntArray, nodes: IntArray) -> bool:
        """Tell whether the last answer holds with these new codes: the rest is only farther."""
        return (
            row.answer is not None
            and row.returns == self._arrays.log.returns
            and row.answer.nearest.isdisjoint(nodes.tolist())
            and bool((row.codes.take(nodes) == codes).all())
        )

    def _device_codes(
        self, demand: DeviceDemand, shape: Shape, nodes: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return how the demand fails on each node (-1 = it does not), and how far off."""
        devices, count = self._devices(demand), demand.count
        asked = max(demand.core_percent, demand.memory_ratio_percent)
        left = devices.left.take(nodes, axis=0)
        best = row_maxima(left)
        if shape.is_plain and not devices.closed_count and not devices.is_counted:
            in_pieces = devices.left_total.take(nodes) >= count * asked
            kinds = np.where(in_pieces, _FRAGMENTED, _INSUFFICIENT)
            fit = (best >= asked).astype(np.int64) if count == 1 else row_counts(left >= asked)
        else:
            fit, kinds = self._closer_look(demand, shape, nodes)
        short = (count - fit) * _CARD_SHORT + np.maximum(asked - best, 0)
        return np.where(fit >= count, -1, kinds), short

    def _closer_look(
        self, demand: DeviceDemand, shape: Shape, nodes: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return how many cards fit, and what is wrong where they are too few."""
        devices, count = self._devices(demand), demand.count
        room = self._fitting.capacities(demand, nodes)
        can = self._fitting.within_limit(room, demand, nodes, shape.dialect)
        is_open = devices.open.take(nodes, axis=0)
        known = self._fitting.knows_cards(shape, nodes)
        fit = np.where(known, row_counts(can & is_open), 0)
        kinds = np.where(self._in_pieces(demand, nodes, is_open), _FRAGMENTED, _INSUFFICIENT)
        if can is not room:
            kinds = np.where(row_counts(room & is_open) >= count, _CONTAINERS, kinds)
        if devices.closed_count:
            kinds = np.where(row_counts(can) >= count, _UNHEALTHY, kinds)
            kinds = np.where(devices.unknown.take(nodes) > 0, _UNKNOWN, kinds)
        by_number = self._arrays.gpus.by_number.take(nodes)
        kinds = np.where(known, kinds, np.where(by_number, _BY_NUMBER, _UNKNOWN))
        return fit, kinds

    def _in_pieces(self, demand: DeviceDemand, nodes: IntArray, is_open: BoolArray) -> BoolArray:
        """Return where the cards would do if what is left on them were on fewer of them."""
        devices = self._devices(demand)
        usable = is_open & (devices.exclusive.take(nodes, axis=0) == 0)
        if demand.model_names:
            usable &= self._fitting.models(demand).take(nodes, axis=0)
        mean = devices.memory_total.take(nodes) // np.maximum(devices.count.take(nodes), 1)
        core = row_sums(devices.core_free.take(nodes, axis=0).clip(0) * usable)
        memory = row_sums(devices.memory_free.take(nodes, axis=0).clip(0) * usable)
        enough: BoolArray = core >= demand.count * demand.core_percent
        enough &= memory >= demand.count * asked_bytes(demand, mean)
        enough &= row_counts(usable) > 0
        return enough

    def _devices(self, demand: DeviceDemand) -> DeviceArrays:
        return self._arrays.devices.get(demand.device_type, self._arrays.no_devices)


def _fit_codes(shape: Shape) -> int:
    """Return how many codes tell what of the resource fit is short: one for each sum of bits."""
    return (1 << (_FIT_BITS + min(len(shape.extended), _NAMES_MAX + 1))) - 1


def _texts(verdict: StaticVerdict, shape: Shape) -> tuple[tuple[Reason, ...], ...]:
    """Return the reasons behind each code: static, fit bits, each demand's kinds, sums, CPUs."""
    named = [reasons.insufficient_resource(name) for name, _ in shape.extended[:_NAMES_MAX]]
    fit = (
        reasons.TOO_MANY_PODS,
        reasons.INSUFFICIENT_CPU,
        reasons.INSUFFICIENT_MEMORY,
        reasons.INSUFFICIENT_AMPLIFIED_CPU,
        *named,
        reasons.MANY_RESOURCES,
    )
    limit = chooser_of(shape.dialect).limit
    setting = "" if limit is None else limit.setting
    texts: list[tuple[Reason, ...]] = [(reason,) for reason in verdict.reasons]
    texts.extend(
        tuple(reason for bit, reason in enumerate(fit) if bits >> bit & 1)
        for bits in range(1, _fit_codes(shape) + 1)
    )
    for demand in shape.demands:
        device_type = demand.device_type
        texts.append((reasons.insufficient_devices(device_type),))
        texts.append((reasons.fragmented(device_type),))
        texts.append((reasons.unhealthy(device_type),))
        texts.append((reasons.container_limit(device_type, setting),))
        texts.append((reasons.UNKNOWN_CARD,))
        texts.append((reasons.BY_NUMBER,))
    texts.append((reasons.NO_COMBINATION,))
    texts.append((reasons.INSUFFICIENT_CPUS,))
    return tuple(texts)
