"""
Which Pods of a lower priority would have to end for one that waits for fragmentation alone.

Rule: docs/adr/0045.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import GONE, HELD_BY_CLAIM, OTHERS, PLACE, Holder
from scheduler.decide.outcome import Unplaced
from scheduler.decide.refusal.reasons import rows_in_pieces
from scheduler.whatif.releases import Ending
from scheduler.whatif.what_if import WhatIf

TRIES_MAX: Final = 1_000  # sets on all nodes together: 0.5 s; cheaper ones may be left then
LOWEST: Final = 1 << 31  # makes every priority count: a Pod more is never cheaper
_STAYS: Final = frozenset({OTHERS, HELD_BY_CLAIM, GONE})

Cost = tuple[int, ...]
_Pod = TypeVar("_Pod")


class Fragmentation(NamedTuple):
    """The nodes on which a Pod waits for fragmentation alone, and who would end, if that helps."""

    nodes: tuple[int, ...]
    ending: Ending | None


def fragmentation(refusal: Unplaced, what_if: WhatIf) -> Fragmentation | None:
    """Return where a Pod waits for fragmentation alone; None for nowhere, or a group's member."""
    nodes, request = rows_in_pieces(refusal), refusal.request
    if not nodes or group_name(request):
        return None
    return Fragmentation(tuple(nodes), cheapest_ending(request, what_if, nodes))


def cheapest_ending(
    request: PodRequest,
    what_if: WhatIf,
    nodes: Iterable[int],
    may_end: Callable[[Sequence[Holder]], bool] = lambda _: True,
) -> Ending | None:
    """Return the Pods of one of these nodes whose end makes room and costs least; None for none."""
    crews: dict[str, list[Holder]] = {}
    for holder in what_if.holders.values():
        crews.setdefault(holder.group or f"pod {holder.uid}", []).append(holder)
    search, best = Search[Holder](TRIES_MAX), -1

    def fits(node: int, gone: Sequence[Holder]) -> bool:
        for holder in gone:
            what_if.lift(holder)
        there = what_if.fits_on(request, node)
        for holder in gone:
            what_if.put_back(holder)
        return there

    def is_able(holder: Holder) -> bool:
        is_ours = holder.fixed not in _STAYS and not holder.uid.startswith(PLACE)
        return is_ours and holder.held.snapshot.priority < request.snapshot.priority

    able = [crew for crew in crews.values() if all(map(is_able, crew))]
    able.sort(key=_cost_of, reverse=True)
    for node in nodes:
        here = [crew for crew in able if all(each.node == node for each in crew)]
        cost = lambda gone: _cost_of(gone) if may_end(gone) else None  # noqa: E731
        best = node if search.look(here, partial(fits, node), cost) else best
    if search.ends is None:
        return None
    holders = sorted(search.ends, key=lambda holder: holder.path)
    return Ending(node=best, holders=tuple(holders))


def _cost_of(holders: Iterable[Holder]) -> Cost:
    return cost_of((holder.held.snapshot.priority, holder.since) for holder in holders)


def cost_of(pods: Iterable[tuple[int, int]]) -> Cost:
    """Return what the end of Pods costs, of (priority, since when they hold) each, by ADR 0045."""
    ends = list(pods)
    highest = max((priority for priority, _ in ends), default=-LOWEST)
    since = min((since for priority, since in ends if priority == highest), default=0)
    return highest, sum(priority + LOWEST for priority, _ in ends), len(ends), -since


@dataclass(slots=True)
class Search(Generic[_Pod]):
    """The Pods whose end makes room and costs least, looked for on one node after the other."""

    tries: int
    ends: Sequence[_Pod] | None = None
    _lowest: Cost = ()

    def look(
        self,
        crews: Sequence[Sequence[_Pod]],
        fits: Callable[[Sequence[_Pod]], bool],
        cost: Callable[[Sequence[_Pod]], Cost | None],
    ) -> bool:
        """
        Look for a cheaper set while tries are left, and tell whether there is one.

        Args:
            crews: who goes together, the dearest first: of the first set found nobody can stay.
            cost: of some, less than of more; None = they may not go, nor may more.
        """
        before = self.ends
        undecided: list[tuple[int, tuple[_Pod, ...], bool]] = [(0, (), True)]
        while undecided and self.tries:
            place, ends, is_new = undecided.pop()
            price = cost(ends)
            if price is None or (self.ends is not None and price >= self._lowest):
                continue
            if is_new:
                self.tries -= 1
                if not fits((*ends, *chain(*crews[place:]))):
                    continue
            if place == len(crews):
                self.ends, self._lowest = ends, price
                continue
            undecided.append((place + 1, (*ends, *crews[place]), False))
            undecided.append((place + 1, ends, True))
        return self.ends is not before
