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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.dialects.mgpu.states import (
    Ask,
    CardShape,
    CardState,
    CardStates,
    Group,
    shape_of,
)
from scheduler.decide.outcome import CardView
from scheduler.decide.settings import MGPUSettings

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
                self._offer(path)
                if first_fit:
                    return self._result(self._best, self._best_units, cut=True)
            elif (first_fit or self._may_win(len(path))) and self._is_new(len(path)):
                levels.append(states.groups(asks[len(path)]))
        return self._result(self._best, self._best_units, cut=False)

    def _offer(self, path: Sequence[_Step]) -> None:
        """Keep the path when it is better than every one before it."""
        if self._best is None or self._states.units > self._best_units:
            self._best = tuple(group for group, _ in path)
            self._best_units = self._states.units

    def _may_win(self, level: int) -> bool:
        """Tell whether a path through here can be the answer."""
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
        """Return what one share on this card does to the score now."""
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
