"""The depth-first search over the cards of one node that mGPU Pods are placed by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.requests import DeviceDemand
from scheduler.decide.cards.fit import asked_bytes
from scheduler.decide.outcome import CardView
from scheduler.decide.settings import MGPUSettings

STEPS_MAX: Final = 50_000
"""Containers placed and taken back in one search; beyond it the best so far is the answer."""

SPREAD: Final = "spread"

Assignment = tuple[tuple[int, ...], ...]
"""Per container the places of its cards in the given list, ascending."""

_State = tuple[int, int, int, int, bool]
"""Card class, core free, memory free, instances, whether anything is on the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """
    The best assignment found, None when there is none, and whether the search was cut.

    `score` is that of the node after the assignment, exact; it compares assignments on one node
    and says nothing between nodes.
    """

    assignment: Assignment | None
    score: Fraction = Fraction(0)
    cut: bool = False


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
    return _Search(demands, cards, settings).run()


class _Search:
    """One search: the cards as they are, the path taken and the best path seen."""

    def __init__(
        self, demands: Sequence[DeviceDemand], cards: Sequence[CardView], settings: MGPUSettings
    ) -> None:
        self.demands = demands
        self.settings = settings
        self.totals = [(card.record.core_percent, card.record.memory_bytes) for card in cards]
        self.models = [card.record.model for card in cards]
        kinds = list(zip(self.totals, self.models, strict=True))
        classes = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
        self.states: list[_State] = [
            (
                classes[kind],
                card.core_free,
                card.memory_free,
                card.instances,
                card.tenants > 0 or card.instances > 0,
            )
            for card, kind in zip(cards, kinds, strict=True)
        ]
        self.weights = _integer_weights(self.totals, settings.weight_of_core)
        self.sign = -1 if settings.policy.lower() == SPREAD else 1
        self.seen: set[tuple[int, tuple[_State, ...]]] = set()
        self.steps = 0

    def run(self) -> SearchResult:
        """Walk the tree with an explicit stack: a Pod may have hundreds of containers."""
        first_fit = len(self.demands) > self.settings.search_levels
        best: Assignment | None = None
        best_units = 0
        path: list[tuple[tuple[int, ...], list[_State]]] = []
        levels = [self._groups(self.demands[0])]
        while levels:
            if len(path) == len(levels):
                self._undo(*path.pop())
            group = next(levels[-1], None)
            if group is None:
                levels.pop()
                continue
            self.steps += 1
            path.append((group, self._take(group, self.demands[len(path)])))
            if len(path) == len(self.demands):
                units = self.sign * self._units()
                if best is None or units > best_units:
                    best, best_units = tuple(taken for taken, _ in path), units
                if first_fit:
                    return self._result(best, best_units, cut=True)
            elif self._is_new(len(path)):
                levels.append(self._groups(self.demands[len(path)]))
            if self.steps >= STEPS_MAX:
                return self._result(best, best_units, cut=True)
        return self._result(best, best_units, cut=False)

    def _groups(self, demand: DeviceDemand) -> Iterator[tuple[int, ...]]:
        """
        Yield the card groups that one container can take, in ascending order.

        Of cards in the same state only the lowest free ones are taken: every other choice is the
        same node with two cards renamed, and comes later in the order.
        """
        places = [place for place in range(len(self.states)) if self._fits(place, demand)]
        return _lowest_of_equals(places, self.states, demand.count)

    def _fits(self, place: int, demand: DeviceDemand) -> bool:
        _, core_free, memory_free, instances, touched = self.states[place]
        core_total, memory_total = self.totals[place]
        if instances >= self.settings.max_containers_per_card:
            return False
        if demand.model_names and self.models[place] not in demand.model_names:
            return False
        if demand.exclusive:
            untouched = (core_free, memory_free) == (core_total, memory_total)
            return not touched and untouched and core_total >= demand.core_percent
        return core_free >= demand.core_percent and memory_free >= asked_bytes(demand, memory_total)

    def _take(self, group: tuple[int, ...], demand: DeviceDemand) -> list[_State]:
        before = [self.states[place] for place in group]
        for place, (kind, core_free, memory_free, instances, _) in zip(group, before, strict=True):
            if demand.exclusive:
                self.states[place] = (kind, 0, 0, instances + 1, True)
            else:
                memory_left = memory_free - asked_bytes(demand, self.totals[place][1])
                core_left = core_free - demand.core_percent
                self.states[place] = (kind, core_left, memory_left, instances + 1, True)
        return before

    def _undo(self, group: tuple[int, ...], before: list[_State]) -> None:
        for place, state in zip(group, before, strict=True):
            self.states[place] = state

    def _is_new(self, level: int) -> bool:
        """
        Tell whether this level is reached with cards in these states for the first time.

        A second way to the same states, renamed cards included, can't end better than the first.
        """
        key = (level, tuple(sorted(self.states)))
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def _units(self) -> int:
        """Return the binpack score in units of 1 / scale, an integer."""
        by_core, by_memory, _ = self.weights
        return sum(
            core * state[1] ** 2 + memory * state[2] ** 2
            for core, memory, state in zip(by_core, by_memory, self.states, strict=True)
        )

    def _result(self, best: Assignment | None, best_units: int, *, cut: bool) -> SearchResult:
        scale = self.weights[2]
        binpack = Fraction(self.sign * best_units, scale)
        score = binpack if self.sign > 0 else 1 - binpack
        return SearchResult(assignment=best, score=score, cut=cut)


def _integer_weights(
    totals: Sequence[tuple[int, int]], weight_of_core: int
) -> tuple[list[int], list[int], int]:
    """
    Return the factor of each card's squared free core and memory, and the scale of their sum.

    With common denominators the scores compare as integers, so that no two differ by a rounding.
    """
    core_square = math.lcm(*(core**2 for core, _ in totals if core))
    memory_square = math.lcm(*(memory**2 for _, memory in totals if memory))
    weight_of_memory = WHOLE_PERCENT - weight_of_core
    by_core = [
        weight_of_core * memory_square * (core_square // core**2) if core else 0
        for core, _ in totals
    ]
    by_memory = [
        weight_of_memory * core_square * (memory_square // memory**2) if memory else 0
        for _, memory in totals
    ]
    return by_core, by_memory, WHOLE_PERCENT * max(1, len(totals)) * core_square * memory_square


def _lowest_of_equals(
    places: Sequence[int], states: Sequence[_State], count: int
) -> Iterator[tuple[int, ...]]:
    """Yield the groups of `count` places in which no place is left out below an equal one."""
    states = tuple(states)  # the search changes them between two groups

    def extend(
        start: int, group: tuple[int, ...], skipped: frozenset[_State]
    ) -> Iterator[tuple[int, ...]]:
        if len(group) == count:
            yield group
            return
        for position in range(start, len(places) - (count - len(group)) + 1):
            state = states[places[position]]
            if state not in skipped:
                yield from extend(position + 1, (*group, places[position]), skipped)
                skipped |= {state}

    return extend(0, (), frozenset())
