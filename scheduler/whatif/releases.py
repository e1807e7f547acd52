"""Pods of one node whose end makes room for a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledger.domain.annotations.kai import keeps_a_place
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.whatif.what_if import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Pods of one node; when all of them have ended, the request fits there."""

    node: int
    holders: tuple[Holder, ...]


def smallest_ending(
    request: PodRequest, what_if: WhatIf, *, decisions_max: int
) -> tuple[Ending | None, bool]:
    """
    Return the smallest of the nodes' minimal sets, and if a bound left nodes out.

    None of its Pods ends in vain; another set may have fewer. Ties: the first node.

    Args:
        decisions_max: no further node is looked at after so many decisions.
    """
    end = what_if.decisions + decisions_max
    best: Ending | None = None
    for node in range(len(what_if.nodes)):
        if what_if.decisions >= end:
            return best, True
        found = minimal_set(request, what_if, node)
        if found is not None and (best is None or len(found) < len(best.holders)):
            best = Ending(node=node, holders=tuple(found))
        if best is not None and len(best.holders) <= 1:
            break
    return best, False


def minimal_set(
    request: PodRequest,
    what_if: WhatIf,
    node: int,
    may_end: Callable[[Holder], bool] = lambda _: True,
) -> list[Holder] | None:
    """
    Return Pods of the node that must all end, none of them in vain; None for a lost cause.

    One that keeps a card's place for others ends with them, and never by itself.
    """
    lifted = [
        one
        for one in what_if.on(node)
        if may_end(one)
        and not keeps_a_place(one.held.pod_name, one.held.namespace, one.held.source)
    ]
    for holder in lifted:
        what_if.lift(holder)
    try:
        if not what_if.fits_on(request, node):
            return None
        needed = list(lifted)
        # In the order of staying: small ones, then high priority, then late names.
        staying = sorted(lifted, key=lambda holder: holder.path, reverse=True)
        staying.sort(key=lambda holder: (holder.size, -holder.held.snapshot.priority))
        for holder in staying:
            what_if.put_back(holder)
            needed.remove(holder)
            if not what_if.fits_on(request, node):
                what_if.lift(holder)
                needed.append(holder)
        lifted = needed
        if len(needed) > 1 and (one := _alone(request, what_if, node, needed, staying)):
            return [one]
        return sorted(needed, key=lambda holder: holder.path)
    finally:
        for holder in lifted:
            what_if.put_back(holder)


def _alone(
    request: PodRequest, what_if: WhatIf, node: int, lifted: list[Holder], ending: list[Holder]
) -> Holder | None:
    """Return one of these whose end alone makes room; what was lifted is so afterwards."""

    def fits_without(holder: Holder) -> bool:
        what_if.lift(holder)
        fits = what_if.fits_on(request, node)
        what_if.put_back(holder)
        return fits

    for holder in lifted:
        what_if.put_back(holder)
    found = next(filter(fits_without, ending), None)
    for holder in lifted:
        what_if.lift(holder)
    return found
