"""
Volcano's vGPUs in a run without time: who may go where, card by card, as its scheduler reckons.

Rule: docs/contracts/volcano-vgpu.md, "In a simulation".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ledger.domain.annotations import volcano_vgpu as words
from ledger.domain.annotations.wire import a_quantity
from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.kube.object_fields import items_in, section
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.extended import held
from ledger.domain.request.requests import PodRequest
from ledger.domain.systems import VOLCANO, SystemPart
from scheduler.decide.engine import Limits
from scheduler.decide.outcome import Placement
from scheduler.record.core import ByClaims

SHORT: Final = "Insufficient vGPU cards"
UNKNOWN: Final = "node(s) have a Pod on an unknown card"


class VgpuAsk(NamedTuple):
    """What one container asks of each of so many different cards; a percentage where no MiB."""

    cards: int
    memory_mib: int
    percent: int
    core_percent: int


class _Card(NamedTuple):
    """A card with what is left of it, of `shares` that it is handed out at most."""

    size_mib: int
    memory_mib: int
    shares: int
    core_percent: int = WHOLE_PERCENT
    pods: int = 0

    def part(self, key: str, ask: VgpuAsk) -> SystemPart | None:
        """Return what a container gets of it: alone for all cores, else as it can; None = not."""
        memory, alone = ask.memory_mib or self.size_mib * ask.percent // 100, ask.core_percent > 99
        if memory > self.memory_mib or (alone and self.pods) or self.core_percent <= 0:
            return None
        if ask.core_percent > self.core_percent or self.pods >= self.shares:
            return None
        core = ask.core_percent
        return SystemPart(
            system=VOLCANO, card=key, memory_mib=memory, core_percent=core, whole=alone
        )


def chosen_by(body: Mapping[str, Any]) -> str:
    """Return the field by which a Pod chooses among cards, which is not looked at."""
    annotations = section(body, "metadata", "annotations")
    return next((f"metadata.annotations[{n}]" for n in words.CHOOSING if n in annotations), "")


def vgpus_asked(body: Mapping[str, Any]) -> tuple[VgpuAsk, ...]:
    """Return what a Pod asks for that can be decided. Raises InputError: an amount that is none."""
    if chosen_by(body):
        return ()
    limits = [section(each, "resources", "limits") for each in items_in(body, "spec", "containers")]
    asked = [[a_quantity(each.get(n, 0), n).ceil() for n in words.VGPU_NAMES] for each in limits]
    return tuple(
        VgpuAsk(cards, memory, percent or WHOLE_PERCENT, core)
        for cards, memory, core, percent in asked
        if cards
    )


def by_card(request: PodRequest) -> PodRequest:
    """Return a Pod's request without what kube-scheduler does not count of it."""
    counted = tuple(each for each in request.extended if each[0] not in words.VGPU_NAMES[1:])
    return replace(request, extended=counted)


class Vgpus:
    """Keeps what is left of the cards that Volcano's plugin registered, Pod by Pod."""

    def __init__(self, nodes: Sequence[NodeFacts], adopted: Iterable[PodObserved]) -> None:
        self._nodes = nodes
        self._left = [
            {
                card.key: _Card(card.memory_mib or 0, card.memory_mib or 0, card.share_count)
                for card in node.systems.cards
                if card.system == VOLCANO and card.mode == "shares" and not card.closed
            }
            for node in nodes
        ]
        self._unknown: set[int] = set()
        numbers = {node.uid: number for number, node in enumerate(nodes)}
        for pod in adopted:
            parts = [part for part in pod.parts if part.system == VOLCANO]
            if pod.node_uid and parts:
                _hold(self._left[numbers[pod.node_uid]], parts)
            elif pod.node_uid and (pod.counted.get(GPU) or words.VGPU_NUMBER in held(pod.snapshot)):
                self._unknown.add(numbers[pod.node_uid])

    def limits(self, asks: Sequence[VgpuAsk]) -> Limits:
        """Return the nodes whose cards don't do for these containers, and why."""
        found = {number: self._on(number, asks) for number in range(len(self._nodes))}
        return Limits(closed={n: told for n, told in found.items() if isinstance(told, str)})

    def never(self, asks: Sequence[VgpuAsk]) -> str:
        """Return that no node has as many cards as a container asks for; empty where one has."""
        most = max((len(node.systems.cards) for node in self._nodes), default=0)
        asked = max(ask.cards for ask in asks)
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
        left, parts = dict(self._left[number]), list[SystemPart]()
        for ask in asks:
            found = (left[key].part(key, ask) for key in reversed(left))
            given = [part for part in found if part is not None][: ask.cards]
            if len(given) < ask.cards:
                return SHORT
            _hold(left, given)
            parts += given
        return parts


def _hold(left: dict[str, _Card], parts: Iterable[SystemPart]) -> None:
    for part in parts:
        if (card := left.get(part.card)) is not None:
            memory = card.memory_mib - (part.memory_mib or 0)
            core = card.core_percent - (part.core_percent or 0)
            left[part.card] = _Card(card.size_mib, memory, card.shares, core, card.pods + 1)
