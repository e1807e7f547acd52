"""
Move old events to a file: written, forced to the disk and proved before a single row goes.

Rule: design section 4. A process killed in between leaves the ledger whole; the next run replaces
the file, which nothing names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import CorruptLedgerError, InputError, LedgerError
from ledger.domain.log.recorded import NewEvent
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.proofs.merkle import compact_range
from ledger.signing import Checkpoint
from ledger.store import schema
from ledger.store.archives import segment_files as written
from ledger.store.archives.archived_proof import ProofStart, log_between, past_of
from ledger.store.archives.ended_rows import digests_of_ended
from ledger.store.archives.segments import TILE_EVENTS, End, Segment, add_keys, packed, segments_of
from ledger.store.failures import advised, fact_of, refused_by_rule, unavailable
from ledger.store.mending.acts import first_corrected
from ledger.store.mending.correcting import expect_right
from ledger.store.open import Ledger
from ledger.store.profile_postgres import one_snapshot, take_your_time
from ledger.store.proving.checkpoints import reader_of
from ledger.store.proving.tree import stored_range
from ledger.store.proving.verify import Walk
from ledger.store.reading.read import checked_head
from ledger.store.reading.tables import rows_of
from ledger.store.writing.append import Writer
from ledger.store.writing.statements import Row

_events = schema.ledger_events.c
_PATTERN: Final = "segment-*.jsonl.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A segment that moved to a file, by the event at `position`; `kept` of its events stayed."""

    first: int
    last: int
    kept: int
    path: Path
    size_bytes: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """A file that is proved, on the disk, and not yet in the ledger."""

    segment: Segment
    path: Path
    kept: int
    rows: Mapping[str, str]


Sign = Callable[[str], str]
Check = Callable[[Path], None]


def archive(
    ledger: Ledger,
    folder: Path,
    *,
    up_to: int,
    sign: Sign,
    check: Check,
    holder: str,
    version: str,
    wall_us: int,
) -> Archived | None:
    """
    Move the events behind the last segment, up to `up_to` at most, to a file in `folder`.

    A segment ends at a multiple of 256. Takes the ledger over for the event that tells of it; the
    same transaction deletes the rows. Returns None where no whole 256 events may go.

    Args:
        sign: makes a signed note of a text.
        check: proves the file by other means than ours, or raises, before anything goes.

    Raises:
        CorruptLedgerError: the events do not verify; nothing was changed.
        InputError: nobody wrote to the ledger, the role may not, or another file is in the way.
        LedgerError: another writer took over, or the database failed; the file may be there.
    """
    with ledger.connection.begin():  # the log's rows are deleted by the role that owns them
        expect_right(ledger, "SELECT has_table_privilege('ledger_events', 'DELETE')", "archive")
    sealed = _sealed(ledger, folder, up_to, sign, check)
    if sealed is None:
        return None
    origin = ledger.head().origin
    writer = ledger.start_epoch(holder, origin, version, wall_us=wall_us)
    segment = replace(sealed.segment, position=writer.head.position + 1)
    _move(writer, segment, sealed, wall_us)
    return Archived(
        first=segment.first,
        last=segment.last,
        kept=sealed.kept,
        path=sealed.path,
        size_bytes=sealed.path.stat().st_size,
        position=segment.position,
    )


def orphans(ledger: Ledger, folder: Path) -> tuple[Path, ...]:
    """Return this ledger's segment files in `folder` that no segment of it names."""
    with ledger.connection.begin():
        named = {segment.file_name for segment in segments_of(ledger.connection)}
        origin = checked_head(ledger.connection).origin
    found = (path for path in sorted(folder.glob(_PATTERN)) if path.name not in named)
    return tuple(path for path in found if written.header_read(path).get("origin") == origin)


def _sealed(ledger: Ledger, folder: Path, up_to: int, sign: Sign, check: Check) -> _Sealed | None:
    """Write the file, read it back, prove it, and give it its name."""
    connection = ledger.connection
    with connection.begin() as transaction:
        one_snapshot(connection)
        take_your_time(connection)
        head = checked_head(connection)
        if head.epoch == 0:
            raise InputError("the ledger has no origin yet: nobody wrote to it", place=ledger.url)
        before = past_of(connection, _refuse, None).start
        last = min(up_to, head.position) // TILE_EVENTS * TILE_EVENTS
        if last <= before.position:
            return None
        _expect_true_times(connection, last)
        if stored_range(connection).size < last:
            raise LedgerError("the tree is not grown: start the service of this release once")
        path = folder / written.file_name(before.position + 1, last)
        partial = _partial(path)
        try:
            sealed = _written(connection, path, before, last, sign)
            check(partial)
            _expect_room(path, sealed.segment)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(folder)
        transaction.rollback()
    return sealed


def _expect_true_times(connection: Connection, last: int) -> None:
    """Refuse to move events that a correction of the clock concerns: views read them in the log."""
    first = first_corrected(connection)
    if first is not None and last >= first:
        fact = f"the clock was corrected: the events from position {first} on stay in the log"
        raise advised(InputError(fact), f"archive the events before: --before {first}")


def _written(connection: Connection, path: Path, before: End, last: int, sign: Sign) -> _Sealed:
    """Write the file under a passing name, and prove what is on the disk."""
    partial = _partial(path)
    origin = checked_head(connection).origin
    first = before.position + 1
    out = written.SegmentFileWriter(partial)
    with closing(out), closing(_Proved(connection, before)) as proved:
        read = reader_of(connection)
        tree = Checkpoint(origin=origin, size=last, root=compact_range(read, last).root())
        out.write(
            canonical_json(written.header_of(before, tree, compact_range(read, before.position)))
        )
        proved.take(_copied(rows_of(connection, log_between(first, last)), out))
        end = proved.end(last)
        if proved.root() != tree.root:
            raise CorruptLedgerError("the tree is not the one over the events", position=last)
        state, digest = packed(end.text())
        out.finish(end.text(), sign(written.signed_text(tree, digest)))
    segment = Segment(
        first=first,
        last=last,
        position=0,
        file_name=path.name,
        digest=written.file_digest(partial),
        root=tree.root,
        chain_hash=end.chain_hash,
        state_digest=digest,
        state=state,
        at_us=end.at_us,
    )
    _read_back(connection, written.SegmentFile(partial, segment), before, end, tree)
    rows = _rows_of(connection, segment)
    return _Sealed(segment=segment, path=path, kept=proved.kept, rows=rows)


def _rows_of(connection: Connection, segment: Segment) -> Mapping[str, str]:
    return digests_of_ended(connection, _refuse, [segment.last], segment.first - 1)[0]


class _Proved:
    """A walk over the events of one segment that stops at the first finding."""

    def __init__(self, connection: Connection, before: End) -> None:
        self.kept = 0
        self._keys = before.keys
        past = ProofStart(start=before, segments=(), seals={}, files=())
        self._walk = Walk(connection, _refuse, past=past)

    def take(self, rows: Generator[Row, None, None]) -> None:
        """Check the rows, and count what stays of them."""
        with closing(rows):
            self._walk.take(self._counted(rows))

    def end(self, last: int) -> End:
        """Return what is known behind the last row, which must be the one at `last`."""
        end = replace(self._walk.end(), keys=self._keys)
        if end.position != last:
            raise CorruptLedgerError("an event is missing", position=end.position + 1)
        if self._walk.proof is not None:
            self._walk.proof.stop(last)
        return end

    def root(self) -> bytes:
        return self._walk.tree.root()

    def close(self) -> None:
        self._walk.close()

    def _counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            yield row
            if row[3] in schema.KEPT:
                self.kept += 1
            else:
                key = (row[0], row[9], row[1], row[3], row[10], row[11])
                self._keys = add_keys(self._keys, [key])


def _refuse(position: int | None, text: str) -> None:
    error = CorruptLedgerError(f"the ledger does not verify: {text}", position=position or 0)
    raise advised(error, "run `tenure verify` for every finding, then restore a copy")


def _copied(
    rows: Generator[Row, None, None], out: written.SegmentFileWriter
) -> Generator[Row, None, None]:
    with closing(rows):
        for row in rows:
            out.write(written.line_of(row))
            yield row


def _read_back(
    connection: Connection, file: written.SegmentFile, before: End, end: End, tree: Checkpoint
) -> None:
    """Prove the file as it lies on the disk: chain, leaf hashes, tree, and state by folding."""
    fact = file.difference()
    with closing(_Proved(connection, before)) as proved:
        proved.take(file.rows())
        if fact or proved.end(end.position) != end or proved.root() != tree.root:
            raise LedgerError(f"the file can't be read back: {fact or file.path}")


def _expect_room(path: Path, segment: Segment) -> None:
    if not path.exists():
        return
    if written.header_read(path).get("root") != segment.root.hex():  # else it has these very events
        raise InputError("a file with other events is in the way", place=str(path))


def _move(writer: Writer, segment: Segment, sealed: _Sealed, wall_us: int) -> None:
    """Record the segment and let its events go, in one transaction, if its rows are as proved."""
    new = NewEvent(
        stream="sys",
        event=segment.event(sealed.rows),
        actor=writer.head.holder,
        idempotency_key=f"segment:{segment.first}-{segment.last}",
        wall_us=wall_us,
    )

    def move(connection: Connection) -> None:
        take_your_time(connection)
        if _rows_of(connection, segment) != sealed.rows:
            raise LedgerError("a row that ended in the segment was changed since it was proved")
        connection.execute(insert(schema.ledger_segments), asdict(segment))
        _let_go(connection, segment, sealed.kept)

    try:
        writer.commit([new], beside=move)
    except DBAPIError as error:
        if refused_by_rule(error):
            raise LedgerError(f"the ledger refused the segment: {fact_of(error)}") from error
        raise unavailable(error) from error


def _let_go(connection: Connection, segment: Segment, kept: int) -> None:
    """Keep the keys of what goes, and delete the rows; every one of them or none."""
    goes = _events.position.between(segment.first, segment.last) & _events.event_type.not_in(
        schema.KEPT
    )
    names = list(schema.ledger_archived.columns.keys())
    keys = select(*(_events[name] for name in names)).where(goes)
    connection.execute(insert(schema.ledger_archived).from_select(names, keys))
    gone = connection.execute(delete(schema.ledger_events).where(goes)).rowcount
    sealed = segment.last - segment.first + 1 - kept
    if gone != sealed:
        raise LedgerError(f"other events than were sealed would go: sealed={sealed}, gone={gone}")
    old = schema.ledger_snapshots.c.position < segment.last
    connection.execute(delete(schema.ledger_snapshots).where(old))


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the name too is on disk
    finally:
        os.close(descriptor)
