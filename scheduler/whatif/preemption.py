"""
Which Pods of a lower priority would have to end for one that waits for fragmentation alone.

Rule: docs/adr/0045. kube-scheduler before 1.38 ends nobody for such a Pod: it counts sums,
and these are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Generic, TypeVar

from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import GONE, HELD_BY_CLAIM, OTHERS, PLACE, Holder
from scheduler.decide.refusal.reasons import is_in_pieces
from scheduler.whatif.obstacles import Obstacle
from scheduler.whatif.releases import Ending
from scheduler.whatif.what_if import WhatIf

TRIES_MAX: Final = 1_000
"""Sets that are tried on all nodes together: about 0.5 s."""
LOWEST: Final = 1 << 31
"""Makes every priority count, so that a Pod more is never cheaper, as kube-scheduler does."""
_STAYS: Final = frozenset({OTHERS, HELD_BY_CLAIM, GONE})
"""Why a holder is none of ours, or has ended already."""

Cost = tuple[int, ...]
_Pod = TypeVar("_Pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """
    Where a Pod waits for fragmentation alone, and who would have to end for it.

    Attributes:
        nodes: indices.
        ending: None = no Pods of a lower priority make room there, as far as was looked.
        exact: no other Pods that make room are cheaper.
    """

    nodes: tuple[int, ...]
    ending: Ending | None
    exact: bool


def fragmentation(
    request: PodRequest, findings: Iterable[Obstacle], what_if: WhatIf
) -> Fragmentation | None:
    """Return the nodes that have enough in all, in pieces that are too small; None without any."""
    found: dict[int, list[str]] = {}
    for each in findings:
        found.setdefault(each.node, []).append(each.reason)
    nodes = tuple(node for node, names in found.items() if is_in_pieces(names, request))
    if not nodes or group_name(request):
        return None
    ending, exact = cheapest_ending(request, what_if, nodes)
    return Fragmentation(nodes=nodes, ending=ending, exact=exact)


def cheapest_ending(
    request: PodRequest,
    what_if: WhatIf,
    nodes: Iterable[int],
    *,
    tries: int = TRIES_MAX,
    may_end: Callable[[Sequence[Holder]], bool] = lambda _: True,
) -> tuple[Ending | None, bool]:
    """
    Return the Pods of one of these nodes whose end makes room and costs least, and if none do less.

    All have a lower priority, and of a gang all go or none. Ties: the first node.

    Args:
        may_end: tells whether all of these may go. Where they may not, nor may they with others.
    """
    crews: dict[str, list[Holder]] = {}
    for holder in what_if.holders.values():
        crews.setdefault(holder.group or f"pod {holder.uid}", []).append(holder)
    search, best = Search[Holder](tries=tries), -1
    for node in nodes:
        able = [
            tuple(crew)
            for crew in crews.values()
            if all(each.node == node and _may_end(each, request) for each in crew)
        ]
        is_better = search.look(
            sorted(able, key=_worth, reverse=True),
            partial(_fits_without, request, what_if, node),
            lambda gone: _cost_of(gone) if may_end(gone) else None,
        )
        best = node if is_better else best
    if search.ends is None:
        return None, search.is_exact
    holders = tuple(sorted(search.ends, key=lambda holder: holder.path))
    return Ending(node=best, holders=holders), search.is_exact


def _fits_without(
    request: PodRequest, what_if: WhatIf, node: int, holders: Sequence[Holder]
) -> bool:
    """Tell whether the node takes the request once these Pods have ended."""
    for holder in holders:
        what_if.lift(holder)
    fits = what_if.fits_on(request, node)
    for holder in holders:
        what_if.put_back(holder)
    return fits


def _may_end(holder: Holder, request: PodRequest) -> bool:
    is_ours = holder.fixed not in _STAYS and not holder.uid.startswith(PLACE)
    return is_ours and holder.held.snapshot.priority < request.snapshot.priority


def _cost_of(holders: Iterable[Holder]) -> Cost:
    return cost_of((holder.held.snapshot.priority, holder.since) for holder in holders)


def _worth(crew: Sequence[Holder]) -> tuple[int, int, Cost]:
    sizes = (holder.size[0] for holder in crew)
    return _cost_of(crew)[0], -sum(sizes), _cost_of(crew)


def cost_of(pods: Iterable[tuple[int, int]]) -> Cost:
    """
    Return what the end of Pods costs, of (priority, since when they hold) each: least is best.

    Rule: kube-scheduler 1.36, `pickOneNodeForPreemption`: the highest priority, the sum, how many,
    and of those of the highest priority who came first: the latest is best.
    """
    ends = list(pods)
    highest = max((priority for priority, _ in ends), default=-LOWEST)
    since = min((since for priority, since in ends if priority == highest), default=0)
    return highest, sum(priority + LOWEST for priority, _ in ends), len(ends), -since


@dataclass(slots=True)
class Search(Generic[_Pod]):
    """
    The set of Pods whose end costs least and makes room, looked for on one node after the other.

    Attributes:
        tries: how many more sets may be tried.
        ends: the best so far; None = none was found.
        is_exact: no other one that was looked for is cheaper.
    """

    tries: int
    ends: Sequence[_Pod] | None = None
    is_exact: bool = True
    _lowest: Cost = ()

    def look(
        self,
        crews: Sequence[Sequence[_Pod]],
        fits: Callable[[Sequence[_Pod]], bool],
        cost: Callable[[Sequence[_Pod]], Cost | None],
    ) -> bool:
        """
        Look for a cheaper set, and tell whether there is one.

        The first set that is found has of the crews, in their order, none that can stay.

        Args:
            crews: who goes together, the dearest first.
            fits: tells whether there is room without these; so there is without more.
            cost: of some; None = they may not go, nor with others. More cost more.
        """
        is_found = False
        undecided: list[tuple[int, tuple[_Pod, ...], bool]] = [(0, (), True)]
        while undecided:
            place, ends, is_new = undecided.pop()
            price = cost(ends)
            if price is None or (self.ends is not None and price >= self._lowest):
                continue
            if is_new:
                if not self.tries:
                    self.is_exact = False
                    break
                self.tries -= 1
                if not fits((*ends, *chain(*crews[place:]))):
                    continue
            if place == len(crews):
                self.ends, self._lowest, is_found = ends, price, True
                continue
            undecided.append((place + 1, (*ends, *crews[place]), False))
            undecided.append((place + 1, ends, True))
        return is_found
