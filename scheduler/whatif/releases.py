"""The fewest Pods of one node whose end makes room for a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.whatif.bench import Bench

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


def fewest_endings(
    request: PodRequest,
    bench: Bench,
    *,
    may_end: Callable[[Holder], bool] = lambda _: True,
    decisions_max: int,
) -> Ending | None:
    """
    Return the fewest Pods whose end makes room for the request on some node, None for none.

    Every answer is decided. First a minimal set per node (all lifted, the small ones put back
    while it still fits), then every smaller number up to `EXACT_MAX` over all nodes. Ties: the
    first node, then the Pods of lowest priority.

    Args:
        decisions_max: the search ends after so many decisions; what it found so far is not exact.
    """
    end = bench.decisions + decisions_max
    minimal: dict[int, list[Holder]] = {}
    complete = True
    for node in range(len(bench.nodes)):
        if bench.decisions >= end:
            complete = False
            break
        found = minimal_set(request, bench, node, may_end)
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
            there = _by_priority(bench, node, may_end)
            for some in combinations(there, count):
                if bench.decisions >= end:
                    return Ending(node=best, holders=tuple(fewest), exact=False)
                if fits_without(request, bench, node, some):
                    return Ending(node=node, holders=some, exact=True)
    return Ending(node=best, holders=tuple(fewest), exact=complete)


def minimal_set(
    request: PodRequest, bench: Bench, node: int, may_end: Callable[[Holder], bool]
) -> list[Holder] | None:
    """Return Pods of the node that must all end, none of them in vain; None for a lost cause."""
    lifted = [holder for holder in bench.on(node) if may_end(holder)]
    for holder in lifted:
        bench.lift(holder)
    try:
        if not bench.fits_on(request, node):
            return None
        needed = list(lifted)
        for holder in _to_put_back(lifted):
            bench.put_back(holder)
            needed.remove(holder)
            if not bench.fits_on(request, node):
                bench.lift(holder)
                needed.append(holder)
        lifted = needed
        return sorted(needed, key=lambda holder: holder.path)
    finally:
        for holder in lifted:
            bench.put_back(holder)


def _to_put_back(lifted: Sequence[Holder]) -> list[Holder]:
    """Return the Pods in the order of staying: small ones, then high priority, then late names."""
    by_name = sorted(lifted, key=lambda holder: holder.path, reverse=True)
    return sorted(by_name, key=lambda holder: (holder.size, -holder.held.snapshot.priority))


def fits_without(request: PodRequest, bench: Bench, node: int, holders: Sequence[Holder]) -> bool:
    """Tell whether the node takes the request once these Pods have ended."""
    for holder in holders:
        bench.lift(holder)
    fits = bench.fits_on(request, node)
    for holder in holders:
        bench.put_back(holder)
    return fits


def _by_priority(bench: Bench, node: int, may_end: Callable[[Holder], bool]) -> list[Holder]:
    there = [holder for holder in bench.on(node) if may_end(holder)]
    return sorted(there, key=lambda holder: (holder.held.snapshot.priority, holder.path))
