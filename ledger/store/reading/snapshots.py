"""Snapshots of the folded state: how one is taken, and how all of them are proved."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from ledger.domain.errors import InputError, LedgerError
from ledger.domain.log.events import LedgerEvent, SnapshotTaken
from ledger.domain.log.state import LedgerState
from ledger.domain.log.state_codec import encode_state, state_digest
from ledger.store import schema
from ledger.store.mending.acts import record_act
from ledger.store.open import Ledger
from ledger.store.reading.tables import Report, UnreadableError, in_key_order, rows_of
from ledger.store.reading.timetravel import SNAPSHOT_FORMAT, commits_to, state_at, unpacked
from ledger.store.writing.append import Writer
from ledger.store.writing.statements import Row

KEPT: Final = 3
"""The newest snapshots stay: a damaged one is left aside for the one before it."""


def take_snapshot(ledger: Ledger, writer: Writer, *, wall_us: int) -> SnapshotTaken:
    """
    Store the state at the writer's head, and record its digest right behind it.

    Rule: design section 4. The row and the event are one transaction. Where the last event is a
    snapshot's, there is nothing to take, and that one is returned.

    Raises:
        FencedError: another writer took over.
        LedgerError: the database failed; nothing is recorded.
    """
    position = writer.head.position
    for last in ledger.read_events(after=max(0, position - 1), limit=1):
        if isinstance(last.event, SnapshotTaken) and last.event.at_position == position - 1:
            return last.event
    picture = picture_of(position, state_at(ledger, position).state)
    return store_picture(writer, picture, wall_us=wall_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The state at a position, as it is stored."""

    position: int
    digest: bytes
    body: bytes


def picture_of(position: int, state: LedgerState) -> Picture:
    """Return the state at a position as it is stored."""
    text = encode_state(state)
    body = zlib.compress(text.encode())
    return Picture(position=position, digest=state_digest(text), body=body)


def store_picture(writer: Writer, picture: Picture, *, wall_us: int) -> SnapshotTaken:
    """
    Store the state at the writer's head, and record its digest right behind it.

    All but the last few snapshots go in the same transaction.

    Raises:
        FencedError, LedgerError: as `record_act`, or the head moved on; nothing is recorded.
    """
    position = picture.position
    if position != writer.head.position:
        raise LedgerError(f"the head moved on: position={position}, head={writer.head.position}")
    taken = SnapshotTaken(at_position=position, digest=picture.digest.hex())
    row = {
        "position": position,
        "format": SNAPSHOT_FORMAT,
        "body": picture.body,
        "digest": picture.digest,
    }

    def store(connection: Connection) -> None:
        connection.execute(insert(schema.ledger_snapshots), row)
        at = schema.ledger_snapshots.c.position
        last = connection.execute(select(at).order_by(at.desc()).limit(KEPT)).scalars()
        connection.execute(delete(schema.ledger_snapshots).where(at < min(last)))

    record_act(writer, taken, "snapshot", wall_us=wall_us, beside=store)
    return taken


class SnapshotProof:
    """
    Give it every event in order with the state behind it; it reports which do not hold.

    The snapshots are read along, one at a time, for each may be large. Close it.
    """

    def __init__(self, connection: Connection, report: Report) -> None:
        self._report = report
        self._rows = rows_of(connection, in_key_order(schema.ledger_snapshots))
        self._next = self._read()

    def add(self, position: int, event: LedgerEvent, state: Callable[[], LedgerState]) -> None:
        """
        Look at the snapshot that `event` should commit to, if there is one.

        Taking a snapshot changes no node, so the state behind the event is the one before it.
        """
        at = position - 1
        while self._next is not None and self._next[0] <= at:
            if self._next[0] < at:
                self._without_event(self._next)
            else:
                fact = _wrong(self._next, event, state())
                if fact:
                    self._report(position, f"the snapshot at position {at} {fact}")
            self._next = self._read()

    def finish(self) -> None:
        """Report the snapshots beyond the last event."""
        while self._next is not None:
            self._without_event(self._next)
            self._next = self._read()

    def close(self) -> None:
        """Let go of the query."""
        self._rows.close()

    def _without_event(self, row: Row) -> None:
        self._report(None, f"no event commits to a snapshot: position={row[0]}")

    def _read(self) -> Row | None:
        try:
            return next(self._rows, None)
        except UnreadableError as error:
            self._report(None, f"ledger_snapshots is unreadable: {error}")
            return None


def _wrong(row: Row, event: LedgerEvent, state: LedgerState) -> str:
    try:
        stored = unpacked(row)
    except InputError as error:
        return f"is damaged: {error}"
    if not commits_to(event, row[0], row[-1]):
        return "is not the one that the log commits to"
    return "" if stored == state else "is not the fold of the events"
