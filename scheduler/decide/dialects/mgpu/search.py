"""
The depth-first search over the cards of one node that mGPU Pods are placed by.

Worked example, the proposal's: three containers ask 50, 40 and 30 core percent of a card each;
cards 0, 1, 2 have 100, 60 and 30 free. One level per container, cards in order:

    0           100 -> 50
      0, 0       50 -> 10     then 30 fits on 1 or 2: left 10,30,30 or 10,60,0
      0, 1       60 -> 20     then on 0 or 2:         left 20,20,30 or 50,20,0
    1            60 -> 10
      1, 0      100 -> 60     then on 0 or 2:         left 30,10,30 or 60,10,0
    2           30 < 50: nothing below it is looked at

`binpack` wants the mean of (left / 100) squared large: cards quite empty beside full ones. By core
alone 0, 0, 2 and 1, 0, 2 leave the same, 37/300, and the first of them is the answer. `spread`
wants it small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
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


STEPS_MAX: Final = 10_000
"""Containers placed and taken back in one search; beyond it the best so far is the answer."""

Assignment = tuple[Group, ...]
"""Per container the places of its cards in the given list, ascending."""


_Step = tuple[Group, tuple[list[CardState], int]]
"""Where a container was put, and what takes it off again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """
    The best assignment found, None when there is none, and whether the search was cut.

    Attributes:
        score: of the node after the assignment, over the cards given, exact; it compares
            assignments on one node and says nothing between nodes.
        cut: there may be a better one, or one at all where none was found.
        steps: containers placed one after the other, at most `STEPS_MAX`.
        placed: the most containers, from the first on, that were seen to fit together.
    """

    assignment: Assignment | None
    score: Fraction = Fraction(0)
    cut: bool = False
    steps: int = 0
    placed: int = 0


def best_assignment(
    demands: Sequence[DeviceDemand], cards: Sequence[CardView], settings: MGPUSettings
) -> SearchResult:
    """
    Find the assignment of containers to cards that leaves the node in the best state.

    Rule: GPU-sharing contract A.5; Volcano mGPU proposal, "Allocate".

    One level per container, cards ascending. Equal scores: the first assignment in that order,
    so the lowest indexes. Above `search_levels` containers the first fit is taken, and after
    `STEPS_MAX` steps the best so far, which may be none: both are marked as cut.

    Args:
        cards: open cards by minor, none of them held exclusively.
    """
    asked = tuple([_bare(demand) for demand in demands])
    return _searched(asked, tuple([shape_of(card) for card in cards]), settings, STEPS_MAX)


@lru_cache(maxsize=4096)
def _searched(
    demands: tuple[DeviceDemand, ...],
    cards: tuple[CardShape, ...],
    settings: MGPUSettings,
    steps_max: int,
) -> SearchResult:
    """Search once for nodes alike: a Pod that fits none of many is not searched for on each."""
    states = CardStates(cards, settings)
    search = _Search(states, states.asks(demands), steps_max)
    if not cards or states.cannot_hold(search.asks):
        return search.nothing()
    if len(demands) > settings.search_levels:
        return search.first_fit()
    return search.best()


def _bare(demand: DeviceDemand) -> DeviceDemand:
    """Return the demand without its containers, and without its hint, which has been followed."""
    return DeviceDemand(
        device_type=demand.device_type,
        count=demand.count,
        core_percent=demand.core_percent,
        memory_bytes=demand.memory_bytes,
        memory_ratio_percent=demand.memory_ratio_percent,
        exclusive=demand.exclusive,
        model_names=demand.model_names,
    )


class _Search:
    """One search: the cards as they are, the path taken and the best path seen."""

    def __init__(self, states: CardStates, asks: Sequence[Ask], steps_max: int) -> None:
        self._states = states
        self.asks = asks
        self._steps_max = steps_max
        self._in_order = range(len(asks))
        self._steps = 0
        self._deepest = 0
        self._seen: set[tuple[int, tuple[CardState, ...]]] = set()
        self._best: Assignment | None = None
        self._best_units = 0
        self._least_units: int | None = None

    def nothing(self) -> SearchResult:
        """Return that there is no assignment, with how far one can get."""
        self._filled(self._in_order)
        return self._result(None, 0, cut=False)

    def first_fit(self) -> SearchResult:
        """
        Return the first assignment in order, whatever its score.

        Where the search is cut before it has found one, the one that a greedy walk finds.
        """
        result = self._run(first_fit=True)
        if result.assignment is not None or not result.cut:
            return result
        found = self._greedy()
        return self._result(*(found or (None, 0)), cut=True)

    def best(self) -> SearchResult:
        """
        Return the first of the best assignments.

        What a greedy walk reaches is a floor that every branch must be able to reach; where the
        search is cut before it has found as good a one, it is the answer.
        """
        found = self._greedy()
        if found is not None:
            self._least_units = found[1]
        result = self._run(first_fit=False)
        if found is None or (self._best is not None and self._best_units >= found[1]):
            return result
        assert result.cut, "the search passed over what the greedy walk found"
        return self._result(*found, cut=True)

    def _run(self, *, first_fit: bool) -> SearchResult:
        """Walk the tree with an explicit stack: a Pod may have hundreds of containers."""
        asks, states = self.asks, self._states
        path: list[_Step] = []
        levels: list[Iterator[Group]] = [states.groups(asks[0])]
        while levels:
            if len(path) == len(levels):
                states.undo(*path.pop())
            group = next(levels[-1], None)
            if group is None:
                levels.pop()
                continue
            if self._steps >= self._steps_max:
                _take_off(states, path)
                return self._result(self._best, self._best_units, cut=True)
            self._steps += 1
            path.append((group, states.take(group, asks[len(path)])))
            self._deepest = max(self._deepest, len(path))
            if len(path) == len(asks):
                if self._best is None or states.units > self._best_units:
                    self._best = tuple(group for group, _ in path)
                    self._best_units = states.units
                if first_fit:
                    return self._result(self._best, self._best_units, cut=True)
            elif (first_fit or self._may_win(len(path))) and self._is_new(len(path)):
                levels.append(states.groups(asks[len(path)]))
        return self._result(self._best, self._best_units, cut=False)

    def _may_win(self, level: int) -> bool:
        bound = self._states.bound(self.asks[level:])
        if bound is None or (self._least_units is not None and bound < self._least_units):
            return False
        return self._best is None or bound > self._best_units

    def _is_new(self, level: int) -> bool:
        """
        Tell whether this level is reached with cards in these states for the first time.

        A second way to the same states, renamed cards included, can't end better than the first.
        """
        key = (level, tuple(sorted(self._states.states)))
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _greedy(self) -> tuple[Assignment, int] | None:
        """
        Return the best of a few assignments that are found without a search, with its score.

        Containers in order and by size, each on the cards that score best; and for a policy that
        spreads, by size on the fullest cards, which places most.
        """
        by_size = sorted(self._in_order, key=lambda number: -self._states.size(self.asks[number]))
        walks = [self._filled(self._in_order), self._filled(by_size)]
        if self._states.spreads:
            walks.append(self._filled(by_size, fullest=True))
        found = [walk for walk in walks if walk is not None]
        return max(found, key=lambda walk: walk[1], default=None)

    def _filled(
        self, order: Sequence[int], *, fullest: bool = False
    ) -> tuple[Assignment, int] | None:
        """Give each container in turn the cards it likes best now; None when one has no place."""
        states, path = self._states, list[_Step]()
        sign = 1 if fullest else -1
        for number in order:
            ask = self.asks[number]
            ranked = sorted(
                (sign * self._gain(place, ask), place) for place in states.admitted(ask)
            )
            if len(ranked) < ask.count:
                break
            group = tuple(sorted(place for _, place in ranked[: ask.count]))
            path.append((group, states.take(group, ask)))
        if order is self._in_order:
            self._deepest = max(self._deepest, len(path))
        units = states.units
        _take_off(states, path)
        if len(path) < len(order):
            return None
        groups = {number: group for number, (group, _) in zip(order, path, strict=True)}
        return tuple(groups[number] for number in self._in_order), units

    def _gain(self, place: int, ask: Ask) -> int:
        before = self._states.units
        taken = self._states.take((place,), ask)
        gain = self._states.units - before
        self._states.undo((place,), taken)
        return gain

    def _result(self, best: Assignment | None, units: int, *, cut: bool) -> SearchResult:
        score = Fraction(0) if best is None else self._states.score(units)
        return SearchResult(
            assignment=best, score=score, cut=cut, steps=self._steps, placed=self._deepest
        )


def _take_off(states: CardStates, path: Sequence[_Step]) -> None:
    for group, taken in reversed(path):
        states.undo(group, taken)
