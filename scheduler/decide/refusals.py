"""Why no node takes a Pod: the first stage that fails on each node, over all nodes at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.requests import DeviceDemand, PodRequest
from scheduler.decide import reasons
from scheduler.decide.arrays import UNLIMITED, BoolArray, IntArray
from scheduler.decide.devices import DeviceArrays
from scheduler.decide.fitting import Fitting, asked_bytes
from scheduler.decide.fleet import Fleet
from scheduler.decide.outcome import NodeReasons, ReasonCount, Unfit, Unplaced
from scheduler.decide.pins import CpuPins
from scheduler.decide.predicates import Predicates, StaticVerdict
from scheduler.decide.reasons import Reason
from scheduler.decide.shapes import Shape
from scheduler.decide.shortfalls import (
    explain_closed,
    explain_cpu,
    explain_devices,
    explain_memory,
)

_BYTES_MAX: Final = 32 << 20
_FAR: Final = (1 << 31) - 1
_FITS: Final = 0
_PODS_BIT: Final = 1
_CPU_BIT: Final = 2
_MEMORY_BIT: Final = 4
_FIT_CODES: Final = 7
_INSUFFICIENT, _FRAGMENTED, _UNHEALTHY, _CONTAINERS, _UNKNOWN = range(5)
_KIND_COUNT: Final = 5
_CARD_SHORT: Final = 1000  # one card short is farther than any percent short on a card


@dataclass(slots=True)
class _Row:
    """
    The code of every node for one shape and memory request, as of `seen`.

    Attributes:
        codes: index into `texts`; 0 = the node passes every test over arrays.
        short: how far a node is from fitting, where its code says too little is left of devices.
        answer: the last answer, as long as nothing changed.
    """

    shape: Shape
    verdict: StaticVerdict
    texts: tuple[tuple[Reason, ...], ...]
    codes: npt.NDArray[np.int16]
    short: npt.NDArray[np.int32]
    seen: int
    answer: tuple[str, tuple[ReasonCount, ...], NodeReasons] | None = None


class Refusals:
    """
    Explains refusals.

    Rule: cli.md, Output (`unschedulable`). Stages in kube-scheduler's order: cordon and taints,
    node affinity, the resource fit (every resource that is short), then devices, then CPU sets.

    Args:
        places: where each node of the outer order stands in the fleet; None = the same order.
    """

    def __init__(
        self,
        fleet: Fleet,
        predicates: Predicates,
        fitting: Fitting,
        pins: CpuPins,
        places: IntArray | None,
    ) -> None:
        self._fleet = fleet
        self._places = places
        self._rows_max = max(1, _BYTES_MAX // max(1, 6 * len(fleet)))
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
        if row.answer is None or tried:
            row.answer = self._answer(request, row, tried)
        message, counts, nodes = row.answer
        if tried:
            row.answer = None
        return Unplaced(request=request, message=message, reasons=counts, nodes=nodes)

    def codes(self, request: PodRequest, shape: Shape) -> npt.NDArray[np.int16]:
        """Return 0 for each node that passes the tests over arrays, else a number that is not."""
        return self._row(request, shape).codes

    def _row(self, request: PodRequest, shape: Shape) -> _Row:
        key = (id(shape), request.memory_bytes)
        log = self._fleet.log
        row = self._rows.get(key)
        if row is None:
            row = self._new_row(request, shape)
            self._rows[key] = row
            if len(self._rows) > self._rows_max:
                self._rows.popitem(last=False)
        elif row.seen != log.position:
            self._rows.move_to_end(key)
            nodes = log.since(row.seen)
            if nodes is None or len(nodes) > len(self._fleet):
                nodes = self._fleet.everything
            self._judge(row, request, nodes)
        row.seen = log.position
        return row

    def _new_row(self, request: PodRequest, shape: Shape) -> _Row:
        verdict = self._predicates.verdict(shape.static)
        row = _Row(
            shape=shape,
            verdict=verdict,
            texts=_texts(verdict, shape),
            codes=np.zeros(len(self._fleet), dtype=np.int16),
            short=np.full(len(self._fleet), _FAR, dtype=np.int32),
            seen=0,
        )
        self._judge(row, request, self._fleet.everything)
        return row

    def _judge(self, row: _Row, request: PodRequest, nodes: IntArray) -> None:
        """Bring the codes of `nodes` up to date. The layout of codes is that of `_texts`."""
        fleet, shape, static = self._fleet, row.shape, len(row.verdict.reasons)
        codes = row.verdict.before.take(nodes)
        bits = np.zeros(len(nodes), dtype=np.int64)
        if shape.cpu_milli:
            bits += (fleet.cpu_free.take(nodes) < shape.cpu_milli) * _CPU_BIT
        if request.memory_bytes:
            bits += (fleet.memory_free.take(nodes) < request.memory_bytes) * _MEMORY_BIT
        if fleet.limits_pods:
            bits += (fleet.pods_free.take(nodes) < 1) * _PODS_BIT
        codes = np.where((codes == _FITS) & (bits > 0), static + bits - 1, codes)
        codes = np.where(codes == _FITS, row.verdict.after.take(nodes), codes)
        first = static + _FIT_CODES
        for demand in shape.demands:
            kinds, short = self._device_codes(demand, shape, nodes)
            fresh = (codes == _FITS) & (kinds >= 0)
            codes = np.where(fresh, first + kinds, codes)
            row.short[nodes[fresh]] = short[fresh]
            first += _KIND_COUNT
        if len(shape.demands) > 1:
            lacking = ~self._fitting.sums(shape, nodes)
            codes = np.where((codes == _FITS) & lacking, first, codes)
        if shape.cpuset is not None:
            lacking = self._pins.free_counts.take(nodes) < shape.cpuset.cpus
            codes = np.where((codes == _FITS) & lacking, first + 1, codes)
        row.codes[nodes] = codes
        row.answer = None

    def _device_codes(
        self, demand: DeviceDemand, shape: Shape, nodes: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return how the demand fails on each node (-1 = it does not), and how far off."""
        devices, count = self._devices(demand), demand.count
        asked = max(demand.core_percent, demand.memory_ratio_percent)
        left = devices.left.take(nodes, axis=0)
        if shape.is_plain and not devices.closed_count:
            fit = np.count_nonzero(left >= asked, axis=1)
            in_pieces = devices.left_total.take(nodes) >= count * asked
            kinds = np.where(in_pieces, _FRAGMENTED, _INSUFFICIENT)
        else:
            fit, kinds = self._closer_look(demand, shape, nodes)
        short = (count - fit) * _CARD_SHORT + np.maximum(asked - left.max(axis=1), 0)
        return np.where(fit >= count, -1, kinds), short

    def _closer_look(
        self, demand: DeviceDemand, shape: Shape, nodes: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return how many cards fit, and what is wrong where they are too few."""
        devices, count = self._devices(demand), demand.count
        can = self._fitting.shares(demand, nodes, shape.dialect)
        room = self._fitting.capacities(demand, nodes)
        is_open = devices.open.take(nodes, axis=0)
        kinds = np.where(self._in_pieces(demand, nodes, is_open), _FRAGMENTED, _INSUFFICIENT)
        kinds = np.where(np.count_nonzero(room & is_open, axis=1) >= count, _CONTAINERS, kinds)
        kinds = np.where(np.count_nonzero(can, axis=1) >= count, _UNHEALTHY, kinds)
        kinds = np.where(devices.unknown.take(nodes) > 0, _UNKNOWN, kinds)
        return np.count_nonzero(can & is_open, axis=1), kinds

    def _in_pieces(self, demand: DeviceDemand, nodes: IntArray, is_open: BoolArray) -> BoolArray:
        """Return where the cards would do if what is left on them were on fewer of them."""
        devices = self._devices(demand)
        usable = is_open & (devices.exclusive.take(nodes, axis=0) == 0)
        if demand.model_names:
            usable &= self._fitting.models(demand).take(nodes, axis=0)
        caps = devices.memory_cap.take(nodes, axis=0)
        mean = caps.sum(axis=1) // np.maximum(devices.present.take(nodes, axis=0).sum(axis=1), 1)
        core = (devices.core_free.take(nodes, axis=0) * usable).sum(axis=1)
        memory = (devices.memory_free.take(nodes, axis=0) * usable).sum(axis=1)
        enough: BoolArray = core >= demand.count * demand.core_percent
        enough &= memory >= demand.count * asked_bytes(demand, mean)
        enough &= usable.any(axis=1)
        return enough

    def _devices(self, demand: DeviceDemand) -> DeviceArrays:
        return self._fleet.devices.get(demand.device_type, self._fleet.no_devices)

    # --- The answer -------------------------------------------------------------------------

    def _answer(
        self, request: PodRequest, row: _Row, tried: Mapping[int, Unfit]
    ) -> tuple[str, tuple[ReasonCount, ...], NodeReasons]:
        codes, texts = row.codes, list(row.texts)
        if tried:
            codes = codes.copy()
            late: dict[str, int] = {}
            for node, unfit in tried.items():
                position = late.setdefault(unfit.reason, len(texts))
                if position == len(texts):
                    texts.append((Reason(text=unfit.reason),))
                codes[node] = position
        used = np.flatnonzero(np.bincount(codes, minlength=len(texts)))
        dense = np.zeros(len(texts), dtype=np.int64)
        dense[used] = np.arange(len(used))
        listed = dense.take(codes if self._places is None else codes.take(self._places))
        nodes = NodeReasons(
            texts=tuple(tuple(reason.text for reason in texts[code]) for code in used.tolist()),
            codes=_packed(listed, len(used)),
        )
        counts = self._counted(request, row, codes, [(code, texts[code]) for code in used.tolist()])
        message = reasons.message(
            len(self._fleet), [(count.reason, count.nodes) for count in counts]
        )
        return message, counts, nodes

    def _counted(
        self,
        request: PodRequest,
        row: _Row,
        codes: npt.NDArray[np.int16],
        found: Sequence[tuple[int, tuple[Reason, ...]]],
    ) -> tuple[ReasonCount, ...]:
        by_text: dict[str, tuple[Reason, list[int]]] = {}
        for code, several in found:
            for reason in several:
                by_text.setdefault(reason.text, (reason, []))[1].append(code)
        counts = []
        for reason, members in by_text.values():
            where = codes == members[0]
            for code in members[1:]:
                where |= codes == code
            nearest, detail, remedy = self._nearest(request, row, reason, where)
            counts.append(
                ReasonCount(
                    reason=reason.text,
                    nodes=int(np.count_nonzero(where)),
                    nearest_node=self._fleet.nodes[nearest].name,
                    detail=detail,
                    remedy=remedy,
                )
            )
        return tuple(sorted(counts, key=lambda count: (-count.nodes, count.reason)))

    def _nearest(
        self, request: PodRequest, row: _Row, reason: Reason, where: BoolArray
    ) -> tuple[int, str, str]:
        """Return the first of the nodes that lack least, the numbers there, and what would help."""
        fleet = self._fleet
        if reason is reasons.INSUFFICIENT_CPU:
            node = int(np.where(where, -fleet.cpu_free, UNLIMITED).argmin())
            return node, *explain_cpu(fleet, node, request)
        if reason is reasons.INSUFFICIENT_MEMORY:
            node = int(np.where(where, -fleet.memory_free, UNLIMITED).argmin())
            return node, *explain_memory(fleet, node, request)
        if reason.device_type:
            node = int(np.where(where, row.short, _FAR).argmin())
            demand = next(
                item for item in request.devices if item.device_type == reason.device_type
            )
            if reason == reasons.unhealthy(reason.device_type):
                return node, *explain_closed(fleet, node, demand)
            return node, *explain_devices(fleet, node, demand)
        return int(where.argmax()), "", reason.remedy


def _texts(verdict: StaticVerdict, shape: Shape) -> tuple[tuple[Reason, ...], ...]:
    """Return the reasons behind each code: static, fit bits, each demand's kinds, sums, CPUs."""
    fit = (reasons.TOO_MANY_PODS, reasons.INSUFFICIENT_CPU, reasons.INSUFFICIENT_MEMORY)
    texts: list[tuple[Reason, ...]] = [(reason,) for reason in verdict.reasons]
    texts.extend(
        tuple(reason for bit, reason in enumerate(fit) if bits >> bit & 1)
        for bits in range(1, _FIT_CODES + 1)
    )
    for demand in shape.demands:
        device_type = demand.device_type
        texts.append((reasons.insufficient_devices(device_type),))
        texts.append((reasons.fragmented(device_type),))
        texts.append((reasons.unhealthy(device_type),))
        texts.append((reasons.container_limit(device_type),))
        texts.append((reasons.UNKNOWN_CARD,))
    texts.append((reasons.NO_COMBINATION,))
    texts.append((reasons.INSUFFICIENT_CPUS,))
    return tuple(texts)


def _packed(codes: IntArray, distinct: int) -> Sequence[int]:
    """Return the codes as an immutable sequence, a byte each where that is enough."""
    return codes.astype(np.uint8).tobytes() if distinct <= 256 else tuple(codes.tolist())
