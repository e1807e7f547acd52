"""
The folded state at any position or time: from the newest proven snapshot before it, and the tail.

Rule: design section 4. A snapshot is never trusted: it counts only when the log, whose chain the
tail is read along, has an event right behind it that commits to the digest of its text.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, func, select

from ledger.domain.errors import InputError, LedgerError
from ledger.domain.log.events import LedgerEvent, SnapshotTaken
from ledger.domain.log.state import Folding, LedgerState
from ledger.domain.log.state_codec import FORMAT, decode_state
from ledger.store import schema
from ledger.store.archives import segments as sealed
from ledger.store.archives.segment_files import SegmentFile
from ledger.store.mending.acts import TIMES, first_corrected, voids_of
from ledger.store.open import Ledger
from ledger.store.reading.read import read_events, recorded_event, replay
from ledger.store.reading.tables import few_collections, is_typed, other_types

SNAPSHOT_FORMAT: Final = f"{FORMAT}+zlib"
_events, _snapshots = schema.ledger_events.c, schema.ledger_snapshots.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """
    The state behind the event at `position`, and how it was come by.

    It was folded from `snapshot_position`, 0 for the first event on. `findings` are the snapshots
    that were left aside, newest first, and why.
    """

    position: int
    state: LedgerState
    snapshot_position: int
    findings: tuple[str, ...]


def load_state(ledger: Ledger) -> Loaded:
    """
    Return the state at the head, as a process that starts needs it.

    Raises:
        CorruptLedgerError: an event after the snapshot is not what was recorded.
    """
    return state_at(ledger, ledger.head().position)


@few_collections()
def state_at(ledger: Ledger, position: int, *, segments: Path | None = None) -> Loaded:
    """
    Return the state after the event at `position`; 0 is before the first one.

    Args:
        segments: the folder of the archive, for a position whose events moved there.

    Raises:
        InputError: the ledger has no such position, or it needs an archive's file.
        CorruptLedgerError: an event after the snapshot is not what was recorded.
    """
    head = ledger.head().position
    if not 0 <= position <= head:
        raise InputError(f"no such position: position={position}, head={head}")
    with ledger.connection.begin():
        archived = sealed.segments_of(ledger.connection)
    if archived and position < archived[-1].last:
        return _archived_state(ledger, archived, position, segments)
    base = sealed.end_of(archived[-1]) if archived else sealed.START
    first, state, findings = _newest_proven(ledger.connection, position, base)
    fold = Folding(state)
    for at, event in replay(ledger.connection, after=first, limit=position - first):
        fold.add(at, event)
    return Loaded(
        position=position,
        state=fold.state,
        snapshot_position=first,
        findings=tuple(findings),
    )


def _archived_state(
    ledger: Ledger, archived: Sequence[sealed.Segment], position: int, folder: Path | None
) -> Loaded:
    """Return the state inside of a segment: from the end of the one before, and its file."""
    number = next(n for n, segment in enumerate(archived) if position < segment.last)
    base = sealed.end_of(archived[number - 1]) if number else sealed.START
    fold = Folding(base.folded())
    if position > base.position:
        if folder is None:
            with ledger.connection.begin():
                raise sealed.in_archive(ledger.connection, position)
        file = SegmentFile(folder / archived[number].file_name, archived[number])
        fact = file.difference()
        if fact:
            raise InputError(fact)
        previous = base.chain_hash
        with ledger.connection.begin():
            voids = voids_of(ledger.connection)
        for row in islice(file.rows(), position - base.position):
            recorded = recorded_event(row, row[0], previous, voids)
            previous = recorded.chain_hash
            fold.add(row[0], recorded.event)
    return Loaded(position=position, state=fold.state, snapshot_position=base.position, findings=())


def position_at(ledger: Ledger, at_us: int) -> int:
    """
    Return the last position whose event is not after `at_us`; 0 if the first one is.

    Times rise with positions, so this halves the range: a few reads by key, whatever the size.
    Where the clock was corrected, it is true times that are compared.
    """
    with ledger.connection.begin():
        first = first_corrected(ledger.connection)
        if first is not None:
            query = select(func.max(TIMES.c.position)).where(TIMES.c.at_us <= at_us)
            found = ledger.connection.execute(query).scalar()
            if found is not None or first == 1:
                return found or 0
        ends = ledger.connection.execute(
            select(func.min(_events.position), func.max(_events.position))
        ).one()
        low, high = (ends[0] or 1) - 1, ends[1] or 0
        while low < high:
            middle = (low + high + 1) // 2
            found = _time_of(ledger.connection, middle)
            if found is None:
                raise LedgerError(f"an event is missing: position={middle}")
            low, high = (middle, high) if found <= at_us else (low, middle - 1)
    return low


def _time_of(connection: Connection, position: int) -> int | None:
    for table in (_events, schema.ledger_archived.c):
        query = select(table.at_us).where(table.position == position)
        found: int | None = connection.execute(query).scalar()
        if found is not None:
            return found
    return None


def unpacked(row: Sequence[Any]) -> LedgerState:
    """
    Return the state of a row of `ledger_snapshots`, which must give the digest beside it.

    Raises:
        InputError: it is damaged, or of another form.
    """
    if not is_typed(schema.ledger_snapshots, row):
        raise InputError(other_types(schema.ledger_snapshots, row))
    _, form, body, digest = row
    if form != SNAPSHOT_FORMAT:
        raise InputError(f"of a form that this version does not know: format={form}")
    try:
        text = sealed.unpacked_text(body, digest)
    except (zlib.error, ValueError, MemoryError) as error:
        raise InputError(f"it can't be unpacked: {error}") from error
    return decode_state(text)


def commits_to(event: LedgerEvent, position: int, digest: bytes) -> bool:
    """Tell whether the event behind a snapshot says that this one was taken."""
    return event == SnapshotTaken(at_position=position, digest=digest.hex())


def _newest_proven(
    connection: Connection, position: int, base: sealed.End
) -> tuple[int, LedgerState, list[str]]:
    """Return the newest snapshot that the log proves, else `base`, and what was left aside."""
    findings: list[str] = []
    for at in _positions(connection, position):
        try:
            return at, _proven(connection, at), findings
        except (InputError, LedgerError) as error:
            findings.append(f"the snapshot at position {at} is not used: {error}")
    return base.position, base.folded(), findings


def _positions(connection: Connection, position: int) -> list[int]:
    query = (
        select(_snapshots.position)
        .where(_snapshots.position.between(1, position))
        .order_by(_snapshots.position.desc())
    )
    with connection.begin():
        return [at for at in connection.execute(query).scalars() if type(at) is int]


def _proven(connection: Connection, position: int) -> LedgerState:
    """
    Return the state of one snapshot.

    Raises:
        InputError: the row is damaged, or the log does not commit to it.
        LedgerError: the event that should commit to it can't be read.
    """
    query = select(*schema.ledger_snapshots.columns).where(_snapshots.position == position)
    with connection.begin():
        row = connection.execute(query).one()
    state = unpacked(row)
    behind = next(read_events(connection, after=position, limit=1), None)
    if behind is None or not commits_to(behind.event, position, bytes(row.digest)):
        raise InputError("the event behind it does not commit to it")
    return state
