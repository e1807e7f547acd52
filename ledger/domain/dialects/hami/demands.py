"""What a Pod asks for in HAMi's words: parts of different cards, each container its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.hami.annotations import words_of
from ledger.domain.dialects.hami.rules import check_container, check_wishes
from ledger.domain.dialects.hami.words import (
    CORES,
    MEMORY,
    MEMORY_PERCENT,
    NOUSE_ID,
    NOUSE_TYPE,
    SHARE_NAMES,
    USE_ID,
    USE_TYPE,
)
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import INIT, SIDECAR, ContainerSpec, PodSpec
from ledger.domain.request.asked import NOTHING, Asked, asking
from ledger.domain.request.requests import CardFilter, DeviceDemand
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, of_rule
from ledger.domain.resources import NVIDIA_GPU, TYPE_GPU

MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a container takes of each of its cards; memory in bytes or in percent of the card."""

    core_percent: int
    memory_bytes: int
    memory_ratio_percent: int

    @property
    def is_alone(self) -> bool:
        """Tell whether the card has no other holder (docs/contracts/hami.md 1, fact 3)."""
        return self.core_percent == WHOLE_PERCENT

    def beside(self, other: Part) -> Part:
        """Return what serves either of the two, which take turns; both count memory alike."""
        whole = WHOLE_PERCENT in {self.memory_ratio_percent, other.memory_ratio_percent}
        return Part(
            core_percent=max(self.core_percent, other.core_percent),
            memory_bytes=0 if whole else max(self.memory_bytes, other.memory_bytes),
            memory_ratio_percent=max(self.memory_ratio_percent, other.memory_ratio_percent),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """What one container asks for."""

    container: ContainerSpec
    cards: int
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """What the Pod takes of one of its cards, and the containers that use it."""

    part: Part
    places: tuple[str, ...]


def hami_demands(spec: PodSpec) -> Asked:
    """
    Return the demands of a Pod in HAMi's words: one for each run of cards that give alike.

    Rule: docs/contracts/hami.md 1 and 2; design section 3: containers and sidecars take different
    cards, an init container the first ones that no sidecar before it keeps.
    """
    found = [
        (container, amounts)
        for container, amounts in asking(spec, {NVIDIA_GPU, *SHARE_NAMES})
        if any(amounts.values())
    ]
    if not found:
        return NOTHING
    errors = [error for each in found for error in check_container(*each)]
    if errors:
        return Asked(errors=tuple(errors))
    asks = [
        _Ask(container=container, cards=amounts.get(NVIDIA_GPU, 1), part=part_of(amounts))
        for container, amounts in found
    ]
    errors = [*_check_turns(asks)]
    cards = [] if errors else _cards(asks)
    errors += check_wishes(
        spec.annotations,
        cards=len(cards),
        each_max=max(ask.cards for ask in asks),
        alone=all(card.part.is_alone for card in cards),
    )
    if errors:
        return Asked(errors=tuple(errors))
    return Asked(
        demands=tuple(_demands(cards)),
        counts={ask.container.place: ask.cards for ask in asks},
    )


def part_of(amounts: Mapping[str, int]) -> Part:
    """
    Return what a container takes of each card.

    Rule: docs/contracts/hami.md 1: without a word of memory all of it, and with all of it alone,
    unless the compute is said.
    """
    memory, percent = amounts.get(MEMORY, 0), amounts.get(MEMORY_PERCENT, 0)
    whole = not memory and percent in {0, WHOLE_PERCENT}
    core = amounts.get(CORES, 0)
    if not core and whole:
        core = WHOLE_PERCENT
    return Part(
        core_percent=core,
        memory_bytes=memory * MIB,
        memory_ratio_percent=WHOLE_PERCENT if whole else percent,
    )


def card_filter(annotations: Mapping[str, str]) -> CardFilter | None:
    """Return which cards a Pod takes, None for all (docs/contracts/hami.md 2)."""
    lists = {key: words_of(annotations.get(key, "")) for key in (USE_TYPE, NOUSE_TYPE)}
    ids = {key: words_of(annotations.get(key, "")) for key in (USE_ID, NOUSE_ID)}
    if not any((*lists.values(), *ids.values())):
        return None
    return CardFilter(
        models=lists[USE_TYPE],
        not_models=lists[NOUSE_TYPE],
        ids=ids[USE_ID],
        not_ids=ids[NOUSE_ID],
    )


@of_rule(Rule.HAMI_SHARE)
def _check_turns(asks: Sequence[_Ask]) -> Iterator[FieldError]:
    """Refuse what takes turns on a card and can't be compared: MiB beside percent of memory."""
    by_bytes = [ask for ask in asks if ask.part.memory_bytes]
    by_ratio = [ask for ask in asks if 0 < ask.part.memory_ratio_percent < WHOLE_PERCENT]
    if by_bytes and by_ratio and any(ask.container.kind == INIT for ask in asks):
        later, first = by_bytes[0].container, by_ratio[0].container
        fact = (
            "beside an init container that asks for cards memory is counted alike everywhere: "
            f"container {first.name} counts it in percent"
        )
        yield forbidden(later.field(MEMORY), fact)


def _cards(asks: Sequence[_Ask]) -> list[_Card]:
    """Return what each of the Pod's cards gives, in the order in which containers take them."""
    cards = [
        _Card(part=ask.part, places=(ask.container.place,))
        for ask in asks
        if ask.container.kind != INIT
        for _ in range(ask.cards)
    ]
    begin, kept = 0, set[int]()
    for ask in asks:
        if ask.container.kind != INIT:
            own = range(begin, begin + ask.cards)
            begin += ask.cards
            if ask.container.kind == SIDECAR:
                kept.update(own)
            continue
        free = [number for number in range(len(cards)) if number not in kept][: ask.cards]
        for number in free:
            card = cards[number]
            both = (*card.places, ask.container.place)
            cards[number] = _Card(part=card.part.beside(ask.part), places=both)
        more = _Card(part=ask.part, places=(ask.container.place,))
        cards.extend([more] * (ask.cards - len(free)))
    return cards


def _demands(cards: Sequence[_Card]) -> Iterator[DeviceDemand]:
    for part, run in groupby(cards, key=lambda card: card.part):
        alike = list(run)
        yield DeviceDemand(
            device_type=TYPE_GPU,
            count=len(alike),
            core_percent=part.core_percent,
            memory_bytes=part.memory_bytes,
            memory_ratio_percent=part.memory_ratio_percent,
            exclusive=part.is_alone,
            containers=tuple(dict.fromkeys(place for card in alike for place in card.places)),
        )
