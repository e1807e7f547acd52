"""A refusal in words: each reason with its number of nodes, and the node that came closest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.log.events import RefusalReason
from ledger.domain.request.requests import PodRequest
from scheduler.decide.dialects.registry import CHOOSERS
from scheduler.decide.nodes.arrays import UNLIMITED, BoolArray
from scheduler.decide.nodes.cpu_room import room_of
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.nodes.node_rows import NodeRows
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.numa.state import NumaLoad
from scheduler.decide.outcome import NodeReasons, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.refusal.possible import FREEING
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.refusal.shortfalls import (
    THERE_IS_NONE,
    able_nodes,
    explain_closed,
    explain_cpu,
    explain_devices,
    explain_extended,
    explain_memory,
    never,
)

FAR: Final = (1 << 31) - 1
"""How far a node is from fitting when no number says so."""

_OF_DIALECTS: Final = {reason.text: reason for each in CHOOSERS for reason in each.search_reasons}
_LOOKS_MAX: Final = 16
"""So many nodes are asked whether a remedy would help there."""
_NEEDS_ROOM: Final = (*FREEING, "open ", "add ", "uncordon ", "tolerate ", "change the Pod's node ")
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
    """What `ReasonCounter.answer` is to put into words."""

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

    def answer(
        self,
        request: PodRequest,
        texts: Texts,
        codes: Codes,
        short: npt.NDArray[np.int32],
        tried: Mapping[int, Unfit],
        *,
        helps: Callable[[int, str], bool],
    ) -> ReasonCounts:
        """
        Return the answer for codes that index `texts`.

        `short` orders nodes with reasons about devices; `tried` has the closer look's own words;
        `helps` tells whether a remedy could ever help on the node at a row.
        """
        if tried:
            texts, codes = _with_tried(texts, codes, tried)
        numbers: list[int] = np.bincount(codes, minlength=len(texts)).tolist()
        used = [code for code, number in enumerate(numbers) if number and texts[code] != _ABSENT]
        able = able_nodes(self._arrays, request)
        asked = _Asked(
            request=request, texts=texts, codes=codes, short=short, tried=tried, helps=helps
        )
        by_name: dict[str, tuple[Reason, list[int]]] = {}
        for code in used:
            for reason in texts[code]:
                by_name.setdefault(reason.name, (reason, []))[1].append(code)
        found = [
            (*self._count(asked, reason, _any_of(codes, members), able), reason.text)
            for reason, members in by_name.values()
        ]
        found.sort(key=lambda each: (-each[0].nodes, each[0].reason))
        everywhere = _any_of(codes, used)  # rows of nodes that went are no nodes
        return ReasonCounts(
            message=reasons.message(
                self._arrays.count, [(text, count.nodes) for count, _, text in found]
            ),
            counts=tuple([count for count, _, _ in found]),
            nodes=self._by_node(texts, codes, used),
            nearest=frozenset([row for _, row, _ in found]),
            never=""
            if not used or (able & everywhere).any()
            else never(self._arrays, request, everywhere, _IN_CLUSTER),
        )

    def _count(
        self, asked: _Asked, reason: Reason, where: BoolArray, able: BoolArray
    ) -> tuple[RefusalReason, int]:
        """Return a reason with the nodes that gave it, and the row of the closest of them."""

        def look(some: BoolArray) -> tuple[int, str, str]:
            row, detail, remedy = self._nearest(
                asked.request, reason, some, asked.short, asked.tried
            )
            if not remedy:  # in the words that are true of this node: taints differ in effect
                told = asked.texts[asked.codes.item(row)]
                remedy = next(each.remedy for each in told if each.name == reason.name)
            return row, detail, remedy

        row, detail, remedy = self._helpful(asked.request, where, where & able, look, asked.helps)
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
        request: PodRequest,
        where: BoolArray,
        able: BoolArray,
        look: Callable[[BoolArray], tuple[int, str, str]],
        helps: Callable[[int, str], bool],
    ) -> tuple[int, str, str]:
        """
        Return the nearest of the nodes on which what would help could ever be, with its numbers.

        Where there is none: the nearest of them all, and what is to be asked for.
        """
        left = able.copy()
        for _ in range(_LOOKS_MAX):
            if not left.any():
                break
            row, detail, remedy = look(left)
            if helps(row, remedy):
                return row, detail, remedy
            left[row] = False
        row, detail, remedy = look(where)
        if not remedy.startswith(_NEEDS_ROOM):
            return row, detail, remedy
        _, _, instead = remedy.partition(" or ")
        if remedy.startswith(FREEING) and able.any() and instead:
            return row, detail, instead
        fact = never(self._arrays, request, where, _AMONG_THESE)
        instead = "add a node that has it" if fact.endswith(THERE_IS_NONE) else "ask for less"
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

    def _nearest(
        self,
        request: PodRequest,
        reason: Reason,
        where: BoolArray,
        short: npt.NDArray[np.int32],
        tried: Mapping[int, Unfit],
    ) -> tuple[int, str, str]:
        """
        Return the first of the nodes that lack least, the numbers there, and what would help.

        What would help is empty where the numbers do not say it.
        """
        arrays = self._arrays
        if reason in {reasons.INSUFFICIENT_CPU, reasons.INSUFFICIENT_AMPLIFIED_CPU}:
            row = int(np.where(where, arrays.cpu_free, -UNLIMITED).argmax())
            return row, *explain_cpu(arrays, row, request)
        if reason is reasons.INSUFFICIENT_MEMORY:
            row = int(np.where(where, arrays.memory_free, -UNLIMITED).argmax())
            return row, *explain_memory(arrays, row, request)
        resource = reasons.resource_short(reason.text)
        if resource:
            row = arrays.extended.most_free(resource, where)
            return row, *explain_extended(arrays, row, request, resource)
        if not reason.device_type:
            alone = request.cpuset is not None and request.cpuset.alone
            return self._looked_at(reason, where, tried, alone=alone)
        row = int(np.where(where, short.astype(np.int64), FAR + 1).argmin())
        demand = next(item for item in request.devices if item.device_type == reason.device_type)
        if reason == reasons.unhealthy(reason.device_type):
            return row, *explain_closed(arrays, row, demand)
        return row, *explain_devices(arrays, row, demand)

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


def _with_tried(
    texts: Texts, codes: Codes, tried: Mapping[int, Unfit]
) -> tuple[list[tuple[Reason, ...]], Codes]:
    """Return texts and codes with those of the nodes that were looked at closely."""
    known, longer, codes = dict[str, int](), list(texts), codes.copy()
    for node, unfit in tried.items():
        code = known.setdefault(unfit.reason, len(longer))
        if code == len(longer):
            longer.append((_reason_of(unfit.reason),))
        codes[node] = code
    return longer, codes


def _reason_of(text: str) -> Reason:
    """Return the reason that a closer look gave, with its remedy if it has one."""
    return _OF_DIALECTS.get(text) or reasons.closer_look(text)


def _closest(
    tried: Mapping[int, Unfit], reason: Reason, where: BoolArray
) -> tuple[int, str] | None:
    """Return the node of a closer look that lacks least, and its numbers."""
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
