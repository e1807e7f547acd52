"""The cards of one node while mGPU containers are tried on them: what each has left, its score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import nlargest
from typing import Final, NamedTuple

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.cards.fit import asked_bytes
from scheduler.decide.outcome import CardView
from scheduler.decide.settings import MGPUSettings

SPREAD: Final = "spread"

CardState = tuple[int, int, int, int, bool]
"""Card class, core free, memory free, instances, whether anything is on the card."""

Group = tuple[int, ...]
"""Places of cards in the list of cards given, ascending."""


class CardShape(NamedTuple):
    """One card in all that decides whether and how well it serves mGPU."""

    core: int
    memory: int
    model: str
    core_free: int
    memory_free: int
    instances: int
    touched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """
    One container's demand against the cards of this node.

    Attributes:
        memory: bytes it takes of each card, by place.
        places: the cards that could serve it with nothing of the Pod on them yet.
    """

    count: int
    core: int
    memory: tuple[int, ...]
    exclusive: bool
    places: Group = ()


class CardStates:
    """
    What is left of each card, with the score of that, while containers come and go.

    Rule: GPU-sharing contract A.5, requests and score.

    Attributes:
        states: per card, by place.
        spreads: the policy evens cards out; else it fills them one by one.
        units: the score to be made as large as can be, in units of 1 / scale: an integer, so that
            no two scores differ by a rounding.
    """

    def __init__(self, cards: Sequence[CardShape], settings: MGPUSettings) -> None:
        self._instances_max = settings.max_containers_per_card
        self._cards = cards
        self._totals = [(card.core, card.memory) for card in cards]
        kinds = [(card.core, card.memory, card.model) for card in cards]
        classes = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        self.states: list[CardState] = [
            (classes[kind], card.core_free, card.memory_free, card.instances, card.touched)
            for card, kind in zip(cards, kinds, strict=True)
        ]
        self.spreads = settings.policy.lower() == SPREAD
        self._sign = -1 if self.spreads else 1
        self._largest = tuple(max(column, default=0) for column in zip(*self._totals, strict=True))
        self._weights, self._scale = _weights(self._totals, settings.weight_of_core)
        self.units = self._sign * sum(
            core * state[1] ** 2 + memory * state[2] ** 2
            for (core, memory), state in zip(self._weights, self.states, strict=True)
        )

    def asks(self, demands: Sequence[DeviceDemand]) -> list[Ask]:
        """Return the demands as asks of these cards; equal demands are one and the same ask."""
        known: dict[DeviceDemand, Ask] = {}
        found = []
        for demand in demands:
            if demand not in known:
                known[demand] = self._ask(demand)
            found.append(known[demand])
        return found

    def groups(self, ask: Ask) -> Iterator[Group]:
        """
        Yield the card groups that the container can take now, in ascending order.

        Of cards in the same state only the lowest free ones are taken: every other choice is the
        same node with two cards renamed, and comes later in the order.
        """
        return _lowest_of_equals(self.admitted(ask), self.states, ask.count)

    def admitted(self, ask: Ask) -> list[int]:
        """Return the cards that can take one share of the container now."""
        return [place for place in ask.places if self._fits(place, ask)]

    def take(self, group: Group, ask: Ask) -> tuple[list[CardState], int]:
        """Put the container on the cards; return what `undo` needs to take it off again."""
        before, units_before = [self.states[place] for place in group], self.units
        for place, state in zip(group, before, strict=True):
            self.states[place] = after = self._after(place, ask)
            by_core, by_memory = self._weights[place]
            change = by_core * (after[1] ** 2 - state[1] ** 2)
            change += by_memory * (after[2] ** 2 - state[2] ** 2)
            self.units += self._sign * change
        return before, units_before

    def undo(self, group: Group, taken: tuple[list[CardState], int]) -> None:
        """Take the container off again that was put on last."""
        before, self.units = taken
        for place, state in zip(group, before, strict=True):
            self.states[place] = state

    def size(self, ask: Ask) -> int:
        """Return how much of a card one share takes, by what it takes most of; to compare asks."""
        core, memory = self._largest
        return max(ask.core * memory, min(ask.memory) * core)

    def score(self, units: int) -> Fraction:
        """Return the contract's score, exact, for units of it."""
        return Fraction(units, self._scale) + (1 if self.spreads else 0)

    def cannot_hold(self, asks: Sequence[Ask]) -> bool:
        """
        Tell for sure that the cards have no room for all asks; False says nothing.

        For every size asked for: a card takes no more shares of that size or above than it has
        room for, one after the other, and no more than it may hold instances.
        """
        shares = [ask for ask in asks for _ in range(ask.count)]
        room = [max(0, self._instances_max - state[3]) for state in self.states]
        for sizes, free in (
            ([ask.core for ask in shares], [state[1] for state in self.states]),
            ([min(ask.memory) for ask in shares], [state[2] for state in self.states]),
        ):
            for size in {size for size in sizes if size > 0}:
                held = sum(
                    min(max(0, left) // size, most) for left, most in zip(free, room, strict=True)
                )
                if held < sum(other >= size for other in sizes):
                    return True
        return False

    def bound(self, asks: Sequence[Ask]) -> int | None:
        """
        Return units that no way to place all asks from here exceeds; None when one has no place.

        Each container is given the cards it likes best, as if the others left them as they are.
        For binpack, whose score of a card grows with what else is put there, as if all the others
        came to the same card.
        """
        most_core = most_memory = 0
        if not self.spreads:
            most_core = sum(ask.core for ask in asks)
            most_memory = sum(max(ask.memory) for ask in asks)
        total, known = self.units, dict[int, int]()
        for ask in asks:
            gain = known.get(id(ask))
            if gain is None:
                gains = [
                    self._gain(place, ask, most_core, most_memory) for place in self.admitted(ask)
                ]
                if len(gains) < ask.count:
                    return None
                gain = sum(nlargest(ask.count, gains)) if ask.count > 1 else max(gains)
                known[id(ask)] = gain
            total += gain
        return total

    def _ask(self, demand: DeviceDemand) -> Ask:
        ask = Ask(
            count=demand.count,
            core=demand.core_percent,
            memory=tuple(asked_bytes(demand, memory) for _, memory in self._totals),
            exclusive=demand.exclusive,
        )
        places = tuple(
            place
            for place, card in enumerate(self._cards)
            if (not demand.model_names or card.model in demand.model_names)
            and self._fits(place, ask)
        )
        return Ask(
            count=ask.count,
            core=ask.core,
            memory=ask.memory,
            exclusive=ask.exclusive,
            places=places,
        )

    def _fits(self, place: int, ask: Ask) -> bool:
        _, core_free, memory_free, instances, touched = self.states[place]
        if instances >= self._instances_max or core_free < ask.core:
            return False
        if ask.exclusive:
            return not touched and (core_free, memory_free) == self._totals[place]
        return memory_free >= ask.memory[place]

    def _after(self, place: int, ask: Ask) -> CardState:
        kind, core_free, memory_free, instances, _ = self.states[place]
        if ask.exclusive:
            return (kind, 0, 0, instances + 1, True)
        return (kind, core_free - ask.core, memory_free - ask.memory[place], instances + 1, True)

    def _gain(self, place: int, ask: Ask, most_core: int, most_memory: int) -> int:
        """
        Return the most that one share can add to the units on this card.

        The square of `free` falls by `x * (2 * free - x)` when `x` is taken. Shares that add up to
        `sum` take `share * (2 * free - sum)` each: most when alone, least when all come together.
        """
        _, core_free, memory_free, _, _ = self.states[place]
        by_core, by_memory = self._weights[place]
        if ask.exclusive:
            return -self._sign * (by_core * core_free**2 + by_memory * memory_free**2)
        core, memory = ask.core, ask.memory[place]
        if self.spreads:
            return by_core * core * (2 * core_free - core) + by_memory * memory * (
                2 * memory_free - memory
            )
        fall = by_core * core * (2 * core_free - min(core_free, most_core))
        return -fall - by_memory * memory * (2 * memory_free - min(memory_free, most_memory))


def shape_of(card: CardView) -> CardShape:
    """Return what of a card decides."""
    record = card.record
    return CardShape(
        core=record.core_percent,
        memory=record.memory_bytes,
        model=record.model,
        core_free=card.core_free,
        memory_free=card.memory_free,
        instances=card.instances,
        touched=card.tenants > 0 or card.instances > 0,
    )


def _weights(
    totals: Sequence[tuple[int, int]], weight_of_core: int
) -> tuple[list[tuple[int, int]], int]:
    """
    Return the factors of each card's squared free core and memory, and the scale of their sum.

    With common denominators the scores compare as integers.
    """
    core_square = math.lcm(*(core**2 for core, _ in totals if core))
    memory_square = math.lcm(*(memory**2 for _, memory in totals if memory))
    weight_of_memory = WHOLE_PERCENT - weight_of_core
    weights = [
        (
            weight_of_core * memory_square * (core_square // core**2) if core else 0,
            weight_of_memory * core_square * (memory_square // memory**2) if memory else 0,
        )
        for core, memory in totals
    ]
    return weights, WHOLE_PERCENT * max(1, len(totals)) * core_square * memory_square


def _lowest_of_equals(
    places: Sequence[int], states: Sequence[CardState], count: int
) -> Iterator[Group]:
    """Yield the groups of `count` places in which no place is left out below an equal one."""
    states = tuple(states)  # the search changes them between two groups
    if count == 1:
        seen = set[CardState]()
        for place in places:
            if states[place] not in seen:
                seen.add(states[place])
                yield (place,)
        return

    def extend(start: int, group: Group, skipped: frozenset[CardState]) -> Iterator[Group]:
        if len(group) == count:
            yield group
            return
        for position in range(start, len(places) - (count - len(group)) + 1):
            state = states[places[position]]
            if state not in skipped:
                yield from extend(position + 1, (*group, places[position]), skipped)
                skipped |= {state}

    yield from extend(0, (), frozenset())
