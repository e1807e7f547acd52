"""
Volcano's vGPUs in a run without time: who may go where, card by card, as its scheduler reckons.

Rule: docs/contracts/volcano-vgpu.md, "In a simulation".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ledger.domain.annotations import volcano_vgpu as words
from ledger.domain.annotations.wire import a_quantity
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.kube.object_fields import items_in, section
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request import extended
from ledger.domain.request.requests import PodRequest
from ledger.domain.systems import VOLCANO, SystemPart
from scheduler.decide.engine import Limits
from scheduler.decide.outcome import Placement
from scheduler.record.core import ByClaims

SHORT: Final = "Insufficient vGPU cards"
UNKNOWN: Final = "node(s) have a Pod on an unknown card"


_BY_CARD: Final = frozenset(words.VGPU_NAMES) - {words.VGPU_NUMBER}


class VgpuAsk(NamedTuple):
    """What one container asks of each of so many different cards; a percentage where no MiB."""

    cards: int
    memory_mib: int
    percent: int
    core_percent: int


class _Left(NamedTuple):
    memory_mib: int
    core_percent: int
    pods: int


def vgpus_asked(body: Mapping[str, Any]) -> tuple[VgpuAsk, ...]:
    """Return what a Pod asks for. Raises InputError: an amount that is none."""
    limits = [section(each, "resources", "limits") for each in items_in(body, "spec", "containers")]
    asked = [[a_quantity(each.get(n, 0), n).ceil() for n in words.VGPU_NAMES] for each in limits]
    return tuple(
        VgpuAsk(cards, memory, percent or WHOLE_PERCENT, core)
        for cards, memory, core, percent in asked
        if cards
    )


def by_card(request: PodRequest) -> PodRequest:
    """Return a Pod's request without what kube-scheduler does not count of it."""
    counted = tuple(each for each in request.extended if each[0] not in _BY_CARD)
    return replace(request, extended=counted)


def not_by_card(request: PodRequest, asked: Container[str]) -> str:
    """Return the resource of Volcano's that a Pod which is not among these asks for."""
    is_some = words.VGPU_NUMBER in dict(request.extended) and request.uid not in asked
    return words.VGPU_NUMBER if is_some else ""


class Vgpus:
    """Keeps what is left of the cards that Volcano's plugin registered, Pod by Pod."""

    def __init__(self, nodes: Sequence[NodeFacts], adopted: Iterable[PodObserved]) -> None:
        self._nodes = nodes
        self._size = [
            {
                card.key: card.memory_mib or 0
                for card in node.systems.cards
                if card.system == VOLCANO and card.mode == "shares" and not card.closed
            }
            for node in nodes
        ]
        self._left = [
            {key: _Left(size, WHOLE_PERCENT, 0) for key, size in cards.items()}
            for cards in self._size
        ]
        self._unknown: set[int] = set()
        numbers = {node.uid: number for number, node in enumerate(nodes)}
        for pod in adopted:
            parts = [part for part in pod.parts if part.system == VOLCANO]
            if pod.node_uid and parts:
                _hold(self._left[numbers[pod.node_uid]], parts)
            elif pod.node_uid and extended.held(pod.snapshot).get(words.VGPU_NUMBER):
                self._unknown.add(numbers[pod.node_uid])

    def limits(self, asks: Sequence[VgpuAsk]) -> Limits:
        """Return the nodes whose cards don't do for these containers, and why."""
        found = {number: self._on(number, asks) for number in range(len(self._nodes))}
        return Limits(closed={n: told for n, told in found.items() if isinstance(told, str)})

    def never(self, asks: Sequence[VgpuAsk]) -> str:
        """Return that no node has as many cards as a container asks for; empty where one has."""
        most, asked = max(map(len, self._size), default=0), max(ask.cards for ask in asks)
        fact = f"a container asks for {asked} different cards of Volcano's"
        return f"{fact}; the most of a node is {most}" if asked > most else ""

    def take(self, asks: Sequence[VgpuAsk], placement: Placement) -> ByClaims:
        """Give a Pod the cards that were found on the node that was chosen."""
        parts = self._on(placement.node, asks)
        assert not isinstance(parts, str), placement
        _hold(self._left[placement.node], parts)
        return ByClaims(parts=tuple(parts))

    def _on(self, number: int, asks: Sequence[VgpuAsk]) -> list[SystemPart] | str:
        """Return the last cards that fit, as Volcano looks for them, container by container."""
        if number in self._unknown:
            return UNKNOWN
        left, size, parts = dict(self._left[number]), self._size[number], list[SystemPart]()
        for ask in asks:
            fits = [key for key in reversed(left) if _fits(ask, left[key], size[key])][: ask.cards]
            if len(fits) < ask.cards:
                return SHORT
            given = [_part(ask, key, size[key]) for key in fits]
            _hold(left, given)
            parts += given
        return parts


def _part(ask: VgpuAsk, card: str, size: int) -> SystemPart:
    return SystemPart(
        system=VOLCANO,
        card=card,
        memory_mib=ask.memory_mib or size * ask.percent // 100,
        core_percent=ask.core_percent,
        whole=ask.core_percent >= WHOLE_PERCENT,
    )


def _fits(ask: VgpuAsk, left: _Left, size: int) -> bool:
    """Tell whether a card takes a container: alone where it asks for all cores, else as it can."""
    if left.memory_mib < (ask.memory_mib or size * ask.percent // 100):
        return False
    if ask.core_percent >= WHOLE_PERCENT and left.pods:
        return False
    return ask.core_percent <= left.core_percent and left.core_percent > 0


def _hold(left: dict[str, _Left], parts: Iterable[SystemPart]) -> None:
    for part in parts:
        if (before := left.get(part.card)) is not None:
            memory = before.memory_mib - (part.memory_mib or 0)
            core = before.core_percent - (part.core_percent or 0)
            left[part.card] = _Left(memory, core, before.pods + 1)
