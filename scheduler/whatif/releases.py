"""The fewest Pods of one node whose end makes room for a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.whatif.what_if import WhatIf

EXACT_MAX: Final = 3
"""So many Pods are searched for exactly; above it the first minimal set found is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """
    Pods of one node; when all of them have ended, the request fits there.

    Attributes:
        exact: no fewer Pods do, on this node or any other.
    """

    node: int
    holders: tuple[Holder, ...]
    exact: bool


def fewest_endings(request: PodRequest, what_if: WhatIf, *, decisions_max: int) -> Ending | None:
    """
    Return the fewest Pods whose end makes room for the request on some node, None for none.

    Every answer is decided. First a minimal set per node (all lifted, the small ones put back
    while it still fits), then every smaller number up to `EXACT_MAX` over all nodes. Ties: the
    first node, then the Pods of lowest priority.

    Args:
        decisions_max: the search ends after so many decisions; what it found so far is not exact.
    """
    end = what_if.decisions + decisions_max
    minimal: dict[int, list[Holder]] = {}
    complete = True
    for node in range(len(what_if.nodes)):
        if what_if.decisions >= end:
            complete = False
            break
        found = minimal_set(request, what_if, node)
        if found is not None and len(found) <= 1:
            return Ending(node=node, holders=tuple(found), exact=True)  # fewer is what there is now
        if found is not None:
            minimal[node] = found
    if not minimal:
        return None
    best = min(minimal, key=lambda node: (len(minimal[node]), node))
    fewest = minimal[best]
    for count in range(1, len(fewest) if complete else 1):
        if count > EXACT_MAX:
            complete = False
            break
        for node in minimal:
            there = _by_priority(what_if.on(node))
            for some in combinations(there, count):
                if what_if.decisions >= end:
                    return Ending(node=best, holders=tuple(fewest), exact=False)
                if fits_without(request, what_if, node, some):
                    return Ending(node=node, holders=some, exact=True)
    return Ending(node=best, holders=tuple(fewest), exact=complete)


def minimal_set(
    request: PodRequest,
    what_if: WhatIf,
    node: int,
    may_end: Callable[[Holder], bool] = lambda _: True,
) -> list[Holder] | None:
    """Return Pods of the node that must all end, none of them in vain; None for a lost cause."""
    lifted = [holder for holder in what_if.on(node) if may_end(holder)]
    for holder in lifted:
        what_if.lift(holder)
    try:
        if not what_if.fits_on(request, node):
            return None
        needed = list(lifted)
        for holder in _to_put_back(lifted):
            what_if.put_back(holder)
            needed.remove(holder)
            if not what_if.fits_on(request, node):
                what_if.lift(holder)
                needed.append(holder)
        lifted = needed
        return sorted(needed, key=lambda holder: holder.path)
    finally:
        for holder in lifted:
            what_if.put_back(holder)


def _to_put_back(lifted: Sequence[Holder]) -> list[Holder]:
    """Return the Pods in the order of staying: small ones, then high priority, then late names."""
    by_name = sorted(lifted, key=lambda holder: holder.path, reverse=True)
    return sorted(by_name, key=lambda holder: (holder.size, -holder.held.snapshot.priority))


def fits_without(
    request: PodRequest, what_if: WhatIf, node: int, holders: Sequence[Holder]
) -> bool:
    """Tell whether the node takes the request once these Pods have ended."""
    for holder in holders:
        what_if.lift(holder)
    fits = what_if.fits_on(request, node)
    for holder in holders:
        what_if.put_back(holder)
    return fits


def _by_priority(there: Iterable[Holder]) -> list[Holder]:
    return sorted(there, key=lambda holder: (holder.held.snapshot.priority, holder.path))
