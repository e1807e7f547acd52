"""An act of somebody who mends a ledger: one event, and what goes with it in its transaction."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ledger.domain.log.events import CheckpointWithdrawn, PositionVoided, TimeCorrected
from ledger.domain.log.recorded import NewEvent
from ledger.store.failures import unavailable
from ledger.store.writing.append import Writer


def record_act(
    writer: Writer,
    event: PositionVoided | CheckpointWithdrawn | TimeCorrected,
    name: str,
    *,
    wall_us: int,
    beside: Callable[[Connection], None] | None = None,
) -> int:
    """
    Record an act and return its position; the same act may be repeated at another one.

    Args:
        name: tells acts apart that are recorded at one position, such as `void:12`.
        beside: writes what goes with it, in the same transaction.

    Raises:
        FencedError: another writer took over.
        LedgerError: the database failed; nothing is recorded.
    """
    new = NewEvent(
        stream="sys",
        event=event,
        actor=writer.head.holder,
        idempotency_key=f"{name}:{writer.head.position}",
        wall_us=wall_us,
    )
    try:
        return writer.commit([new], beside=beside)
    except DBAPIError as error:
        raise unavailable(error) from error
