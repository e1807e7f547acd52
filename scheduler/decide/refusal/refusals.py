"""
Why no node takes a Pod: the first stage that fails on each node, over all nodes at once.

In words: each reason with its number of nodes, and the node that came closest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.log.events import RefusalReason
from ledger.domain.request.near_names import NOBODY
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.fit import asked_bytes
from scheduler.decide.dialects.registry import CHOOSERS, chooser_of
from scheduler.decide.filter.fitting import Fitting
from scheduler.decide.filter.predicates import Predicates, StaticVerdict
from scheduler.decide.nodes.arrays import (
    UNLIMITED,
    BoolArray,
    IntArray,
    row_counts,
    row_maxima,
    row_sums,
    with_rows,
)
from scheduler.decide.nodes.cpu_room import room_of
from scheduler.decide.nodes.node_arrays import NodeArrays, NodeRows
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.numa.state import NumaLoad
from scheduler.decide.outcome import NodeReasons, Unfit, Unplaced
from scheduler.decide.refusal import reasons, shortfalls
from scheduler.decide.refusal.possible import FREEING, Possible, Takes
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.shapes import Shape

FAR: Final = (1 << 31) - 1
"""How far a node is from fitting when no number says so."""

_OF_DIALECTS: Final = {reason.text: reason for each in CHOOSERS for reason in each.search_reasons}
_LOOKS_MAX: Final = 16
"""So many nodes are asked whether a remedy would help there."""
_BARS: Final = ("uncordon ", "tolerate ", "change the Pod's node ")
_NEEDS_ROOM: Final = (*FREEING, "open ", "add ", *_BARS)
"""Remedies that are in vain on a node which is too small."""

_IN_CLUSTER: Final = "in this cluster"
_AMONG_THESE: Final = "among these"
_ABSENT: Final = (reasons.NODE_ABSENT,)

Codes = npt.NDArray[np.int32]
Texts = Sequence[tuple[Reason, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCounts:
    """
    Why all nodes refuse.

    Attributes:
        nearest: the nodes that `counts` names, as rows.
        never: what no node of the cluster has, whoever holds what; empty where one has all of it.
    """

    message: str
    counts: tuple[RefusalReason, ...]
    nodes: NodeReasons
    nearest: frozenset[int]
    never: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """
    What `ReasonCounter.answer` is to put into words.

    Attributes:
        codes: index into `texts`, per node.
        short: orders nodes with reasons about devices.
        tried: the closer look's own words.
        helps: tells whether a remedy could ever help on the node at a row.
    """

    request: PodRequest
    texts: Texts
    codes: Codes
    short: npt.NDArray[np.int32]
    tried: Mapping[int, Unfit]
    helps: Callable[[int, str], bool]


class ReasonCounter:
    """
    Puts codes per node into words.

    Args:
        rows: where the nodes stand in the cluster that answers list, by number.
    """

    def __init__(self, arrays: NodeArrays, pins: CpuPins, rows: NodeRows) -> None:
        self._arrays = arrays
        self._pins = pins
        self._node_rows = rows

    def answer(self, asked: _Asked) -> ReasonCounts:
        """Return the answer for these codes."""
        if asked.tried:
            asked = _with_tried(asked)
        request, texts, codes = asked.request, asked.texts, asked.codes
        numbers: list[int] = np.bincount(codes, minlength=len(texts)).tolist()
        used = [code for code, number in enumerate(numbers) if number and texts[code] != _ABSENT]
        able = shortfalls.able_nodes(self._arrays, request)
        by_name: dict[str, tuple[Reason, list[int]]] = {}
        for code in used:
            for reason in texts[code]:
                by_name.setdefault(reason.name, (reason, []))[1].append(code)
        everywhere = _any_of(codes, used)  # rows of nodes that went are no nodes
        lacks = bool(used) and not (able & everywhere).any()
        admits = _any_of(codes, [c for c in used if not texts[c][0].remedy.startswith(_BARS)])
        instead = (
            shortfalls.not_offered_now(self._arrays, request, everywhere, admits) if lacks else ""
        )
        found = [
            (*self._count(asked, reason, _any_of(codes, members), able, instead), reason.text)
            for reason, members in by_name.values()
        ]
        found.sort(key=lambda each: (-each[0].nodes, each[0].reason))
        told = reasons.message(
            self._arrays.count, [(text, count.nodes) for count, _, text in found]
        )
        return ReasonCounts(
            message=f"{told} {instead}." if NOBODY in instead else told,
            counts=tuple([count for count, _, _ in found]),
            nodes=self._by_node(texts, codes, used),
            nearest=frozenset([row for _, row, _ in found]),
            never=shortfalls.never(self._arrays, request, everywhere, _IN_CLUSTER)
            if lacks and not instead
            else "",
        )

    def _count(
        self, asked: _Asked, reason: Reason, where: BoolArray, able: BoolArray, instead: str
    ) -> tuple[RefusalReason, int]:
        """Return a reason with the nodes that gave it, and the row of the closest of them."""

        def look(some: BoolArray) -> tuple[int, str, str]:
            row, detail, remedy = self._nearest(asked, reason, some)
            if not remedy:  # in the words that are true of this node: taints differ in effect
                told = asked.texts[asked.codes.item(row)]
                remedy = next(each.remedy for each in told if each.name == reason.name)
            return row, detail, remedy

        row, detail, remedy = self._helpful(asked, where, where & able, look, instead)
        count = RefusalReason(
            reason=reason.name,
            nodes=int(np.count_nonzero(where)),
            nearest_node=self._arrays.nodes[row].name,
            detail=detail,
            remedy=remedy,
        )
        return count, row

    def _helpful(
        self,
        asked: _Asked,
        where: BoolArray,
        able: BoolArray,
        look: Callable[[BoolArray], tuple[int, str, str]],
        told: str,
    ) -> tuple[int, str, str]:
        """
        Return the nearest of the nodes on which what would help could ever be, with its numbers.

        Where there is none: the nearest of them all, and what is told, else is to be asked for.
        """
        left = able.copy()
        for _ in range(_LOOKS_MAX):
            if not left.any():
                break
            row, detail, remedy = look(left)
            if asked.helps(row, remedy):
                return row, detail, remedy
            left[row] = False
        row, detail, remedy = look(where)
        if told or not remedy.startswith(_NEEDS_ROOM):
            return row, detail, told or remedy
        _, _, instead = remedy.partition(" or ")
        if remedy.startswith(FREEING) and able.any() and instead:
            return row, detail, instead
        fact = shortfalls.never(self._arrays, asked.request, where, _AMONG_THESE)
        instead = (
            "add a node that has it" if fact.endswith(shortfalls.THERE_IS_NONE) else "ask for less"
        )
        return row, detail, f"{instead}: {fact}"

    def _by_node(self, texts: Texts, codes: Codes, used: Sequence[int]) -> NodeReasons:
        """Return the reasons node by node; in the same state codes are the same, however made."""
        words = {
            code: tuple([(reason.text, reason.name) for reason in texts[code]]) for code in used
        }
        told = sorted(set(words.values()))
        numbers = {some: number for number, some in enumerate(told)}
        dense = np.zeros(len(texts), dtype=np.uint8 if len(told) <= 256 else np.int64)
        dense[used] = [numbers[words[code]] for code in used]
        listed = dense.take(codes.take(self._node_rows.listed()))
        return NodeReasons(
            texts=tuple([tuple([text for text, _ in some]) for some in told]),
            codes=listed.tobytes() if len(told) <= 256 else tuple(listed.tolist()),
            names=tuple([tuple([name for _, name in some]) for some in told]),
        )

    def _nearest(self, asked: _Asked, reason: Reason, where: BoolArray) -> tuple[int, str, str]:
        """
        Return the first of the nodes that lack least, the numbers there, and what would help.

        What would help is empty where the numbers do not say it.
        """
        arrays, request = self._arrays, asked.request
        if reason in {reasons.INSUFFICIENT_CPU, reasons.INSUFFICIENT_AMPLIFIED_CPU}:
            row = int(np.where(where, arrays.cpu_free, -UNLIMITED).argmax())
            return row, *shortfalls.explain_cpu(arrays, row, request)
        if reason is reasons.INSUFFICIENT_MEMORY:
            row = int(np.where(where, arrays.memory_free, -UNLIMITED).argmax())
            return row, *shortfalls.explain_memory(arrays, row, request)
        resource = reasons.resource_short(reason.text)
        if resource:
            row = arrays.extended.most_free(resource, where)
            return row, *shortfalls.explain_extended(arrays, row, request, resource)
        if not reason.device_type:
            alone = request.cpuset is not None and request.cpuset.alone
            return self._looked_at(reason, where, asked.tried, alone=alone)
        row = int(np.where(where, asked.short.astype(np.int64), FAR + 1).argmin())
        demand = next(item for item in request.devices if item.device_type == reason.device_type)
        if reason == reasons.unhealthy(reason.device_type):
            return row, *shortfalls.explain_closed(arrays, row, demand)
        if reason == reasons.visible(reason.device_type):
            return row, *shortfalls.explain_visible(arrays, row, demand)
        return row, *shortfalls.explain_devices(arrays, row, demand)

    def _looked_at(
        self, reason: Reason, where: BoolArray, tried: Mapping[int, Unfit], *, alone: bool
    ) -> tuple[int, str, str]:
        """Return the node of a closer look, and its numbers with what its NUMA nodes have left."""
        row, detail = int(where.argmax()), ""
        if reason is reasons.INSUFFICIENT_CPUS:
            free = self._pins.free_counts(alone=alone)
            row = int(np.where(where, free, -1).argmax())
        looked = _closest(tried, reason, where)
        if looked is not None:
            row, detail = looked
        if reasons.is_about_cpus(reason.text):
            load = NumaLoad(pinned=self._pins.pinned(row), parts=self._pins.parts(row))
            room = room_of(self._arrays.nodes[row], load, alone=alone)
            detail = "; ".join(filter(None, (detail, room.by_numa())))
        return row, detail, ""


def _with_tried(asked: _Asked) -> _Asked:
    known, texts, codes = dict[str, int](), list(asked.texts), asked.codes.copy()
    for node, unfit in asked.tried.items():
        code = known.setdefault(unfit.reason, len(texts))
        if code == len(texts):
            reason = _OF_DIALECTS.get(unfit.reason) or reasons.closer_look(unfit.reason)
            texts.append((reason,))
        codes[node] = code
    return replace(asked, texts=texts, codes=codes)


def _closest(
    tried: Mapping[int, Unfit], reason: Reason, where: BoolArray
) -> tuple[int, str] | None:
    counted = [
        (unfit.requested - unfit.available, node)
        for node, unfit in tried.items()
        if unfit.reason == reason.text
        and where[node]
        and min(unfit.requested, unfit.available) >= 0
    ]
    if not counted:
        return None
    _, node = min(counted)
    unfit = tried[node]
    return node, f"asks {unfit.requested} {unfit.unit}, {unfit.available} there"


def _any_of(codes: Codes, members: Sequence[int]) -> BoolArray:
    where: BoolArray = np.zeros(len(codes), dtype=np.bool_)
    for code in members:
        where |= codes == code
    return where


_BYTES_MAX: Final = 32 << 20
_FITS: Final = 0
_PODS_BIT: Final = 1
_CPU_BIT: Final = 2
_MEMORY_BIT: Final = 4
_AMPLIFIED_BIT: Final = 8
_FIT_BITS: Final = 4
_NAMES_MAX: Final = 4
"""So many extended resources of one Pod are told apart, each by a bit of its own."""
_INSUFFICIENT, _FRAGMENTED, _UNHEALTHY, _CONTAINERS, _UNKNOWN, _BY_NUMBER, _VISIBLE = range(7)
_KIND_COUNT: Final = 7
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
            answer = self._answers.answer(
                _Asked(
                    request=request,
                    texts=row.texts,
                    codes=row.codes,
                    short=row.short,
                    tried=tried,
                    helps=partial(self._possible.would_help, request, shape),
                )
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
        if row is not None and self._predicates.as_of_now(row.verdict).reasons is not row.static:
            row = None  # the layout of its codes has no place for what nodes have reasons for now
        if row is None:
            row = self._blank(shape)
            self._judge(row, request, self._arrays.everything)
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
        devices, count = self._arrays.devices_of(demand.device_type), demand.count
        asked = max(demand.core_percent, demand.memory_ratio_percent)
        left = devices.left.take(nodes, axis=0)
        best = row_maxima(left)
        if shape.is_plain and not devices.closed_count and not devices.is_counted:
            in_pieces = devices.left_total.take(nodes) >= count * asked
            in_pieces &= devices.count.take(nodes) >= count
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
        devices, count = self._arrays.devices_of(demand.device_type), demand.count
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
            grantable = can & devices.grantable.take(nodes, axis=0)
            kinds = np.where(row_counts(grantable) >= count, _VISIBLE, kinds)
            kinds = np.where(devices.unknown.take(nodes) > 0, _UNKNOWN, kinds)
        by_number = self._arrays.gpus.by_number.take(nodes)
        kinds = np.where(known, kinds, np.where(by_number, _BY_NUMBER, _UNKNOWN))
        return fit, kinds

    def _in_pieces(self, demand: DeviceDemand, nodes: IntArray, is_open: BoolArray) -> BoolArray:
        """Return where the cards would do if what is left on them were on fewer of them."""
        devices = self._arrays.devices_of(demand.device_type)
        usable = is_open & (devices.exclusive.take(nodes, axis=0) == 0)
        if demand.model_names:
            usable &= self._fitting.models(demand).take(nodes, axis=0)
        mean = devices.memory_total.take(nodes) // np.maximum(devices.count.take(nodes), 1)
        core = row_sums(devices.core_free.take(nodes, axis=0).clip(0) * usable)
        memory = row_sums(devices.memory_free.take(nodes, axis=0).clip(0) * usable)
        enough: BoolArray = core >= demand.count * demand.core_percent
        enough &= memory >= demand.count * asked_bytes(demand, mean)
        large = shortfalls.large_enough(self._arrays, demand).take(nodes, axis=0)
        enough &= row_counts(usable & large) >= demand.count
        return enough


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
        texts.append((reasons.visible(device_type),))
    texts.append((reasons.NO_COMBINATION,))
    texts.append((reasons.INSUFFICIENT_CPUS,))
    return tuple(texts)
