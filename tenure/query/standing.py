"""Where a Pod stands, by the ledger: one function for every command that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ledger.store.reading.report_rows import PodSummary, RefusalRow

WAITING: Final = "waiting"
PLACED: Final = "placed"
ENDED: Final = "ended"
REFUSED: Final = "refused"
"""At admission: the object never was, so nothing of it waits. Out of files: it is not decided."""
FITS: Final = "fits"
"""Out of files alone: it waits there, and would get a place."""


def state_of(pod: PodSummary, refusal: RefusalRow | None, *, held: bool) -> str:
    """Return where a Pod stands; `held`: its newest reservation is open, `refusal`: its newest."""
    from ledger.domain.log.events import STAGE_GONE
    from scheduler.service.api.words import WEBHOOK_ACTOR

    if held:
        return PLACED
    if pod.refused_position <= pod.reserved_position:
        return ENDED
    if refusal is not None and refusal.stage == STAGE_GONE:
        return ENDED
    return REFUSED if refusal is not None and refusal.actor == WEBHOOK_ACTOR else WAITING
