"""What events name by reference, which only events before them can tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ledger.domain.log import events
from ledger.domain.log.recorded_request import request_digest

_NAMING: Final = frozenset(
    {
        events.RequestDescribed,
        events.PodReserved,
        events.PodObserved,
        events.RequestRefused,
        events.GroupPlanned,
    }
    | {events.DriftFound, events.DriftResolved}
)
"""The events that tell of requests or drift, or name one."""


class Quotes:
    """
    Finds events that name what no event before them tells, in the order of the log.

    Rule: docs/adr/0011. Who reads such an event can't know what was decided on.

    Args:
        before: what tells of requests and drift before the first event that is taken.
    """

    def __init__(self, before: Iterable[events.LedgerEvent] = ()) -> None:
        self._described: set[str] = set()
        self._drift: set[str] = set()  # what is open
        for event in before:
            tuple(self.untold(0, event))

    def untold(self, position: int, event: events.LedgerEvent) -> Iterable[str]:
        """Take the event at a position; return what it names that is not told before it."""
        return self._untold(position, event) if type(event) in _NAMING else ()

    def _untold(self, position: int, event: events.LedgerEvent) -> Iterator[str]:
        quoted: tuple[str | None, ...] = ()
        match event:
            case events.RequestDescribed():
                self._described.add(request_digest(event.request))
            case events.PodReserved() | events.PodObserved() | events.RequestRefused():
                quoted = (event.request,)
            case events.GroupPlanned():
                quoted = tuple(each.request for each in (*event.waiting, *event.to_come))
            case events.DriftFound():
                self._drift.add(event.drift_id)
            case events.DriftResolved():
                if event.drift_id not in self._drift:
                    yield f"the event resolves a drift that is not open: {event.drift_id}"
                self._drift.discard(event.drift_id)
            case _:
                pass
        for digest in quoted:
            if digest is not None and digest not in self._described:
                yield f"the event names a request that was never described: {digest}"
        if isinstance(event, events.PodReserved) and (event.decided_on or 0) >= position:
            yield f"the event was decided on a position that is not before it: {event.decided_on}"
