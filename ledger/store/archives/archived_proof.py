"""
What is proved of events that moved to files: from the files, or from what the ledger kept of them.

The tree's tiles hold the leaf hash of every event there ever was, so the chain is computed again
over all of them, and what stayed of an old event is held against its leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, literal_column, select

from ledger.domain.errors import CorruptLedgerError, InputError, UnknownEventError
from ledger.domain.log.events import PositionVoided, SegmentArchived, TimeCorrected, decode_event
from ledger.domain.log.state import NodeState
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.proofs.hashing import GENESIS, chain_hash, row_leaf
from ledger.domain.proofs.merkle import compact_range, split_hashes
from ledger.store import schema
from ledger.store.archives import segments as sealed
from ledger.store.archives.ended_rows import NotCompared, compare_ended
from ledger.store.archives.segment_files import SegmentFile, file_name
from ledger.store.proving.tree import node_reader
from ledger.store.reading.kept import seldom_of
from ledger.store.reading.tables import Report, in_key_order, is_typed, other_types, rows_of
from ledger.store.writing.statements import Row

_reservations = schema.ledger_reservations.c
_LEAF: Final = [column.name for column in schema.ledger_events.columns].index("leaf_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPast:
    """
    What was before the first event in the log: up to position `last`, 0 for nothing archived.

    `chains` are chain values, hex, at the positions asked for. `known` are (Pod UID, attempt) of
    the Pods asked for.
    """

    last: int = 0
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    chains: Mapping[int, str] = field(default_factory=dict)
    known: AbstractSet[tuple[str, int]] = frozenset()


def archived_past(
    connection: Connection, positions: AbstractSet[int], uids: AbstractSet[str]
) -> ArchivedPast:
    """
    Return what is known of archived events, in the transaction that is open.

    Raises:
        CorruptLedgerError: the segment, its state or a tile is damaged.
    """
    segment = sealed.last_segment(connection)
    if segment is None:
        return ArchivedPast()
    query = select(_reservations.pod_uid, _reservations.attempt).where(
        _reservations.position <= segment.last
    )
    known = {(uid, attempt) for uid, attempt in connection.execute(query) if uid in uids}
    chains: dict[int, str] = {}
    if any(position <= segment.last for position in positions):
        value = GENESIS
        for position, leaf in enumerate(tile_leaves(connection, segment.last), 1):
            value = chain_hash(value, leaf)
            if position in positions:
                chains[position] = value.hex()
    return ArchivedPast(
        last=segment.last, nodes=sealed.end_of(segment).folded().nodes, chains=chains, known=known
    )


_tiles, _events = schema.ledger_tiles.c, schema.ledger_events.c


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofStart:
    """
    Where a proof of the whole ledger begins, and what it then reads.

    Attributes:
        start: the state before the first event that is read.
        seals: the segments that are read from their files, by their last position.
        files: one per segment; empty where their events are not read.
        not_compared: rows of archived events that the log says nothing of, unless they are read.
    """

    start: sealed.End
    segments: tuple[sealed.Segment, ...]
    seals: Mapping[int, sealed.Segment]
    files: tuple[SegmentFile, ...]
    not_compared: tuple[NotCompared, ...] = ()

    def rows(self, connection: Connection, report: Report) -> Iterator[Row]:
        """Yield the rows that are to be proved, from the files first."""
        last = self.segments[-1].last if self.segments else 0
        with closing(rows_of(connection, log_behind(last))) as live:
            yield from self._archived(connection, report)
            yield from live

    def _archived(self, connection: Connection, report: Report) -> Iterator[Row]:
        """Yield the rows of the files, and name the first that is not the one that was archived."""
        if not self.files:
            return
        same = True
        leaves = tile_leaves(connection, self.segments[-1].last)
        for file in self.files:
            for row in file.rows():
                if same and row[_LEAF] != next(leaves, None):
                    same = False
                    report(row[0], f"the event is another than was archived: file={file.path}")
                yield row


NO_PAST: Final = ProofStart(start=sealed.START, segments=(), seals={}, files=())
"""Nothing was archived: the log is read from its first event on."""


def past_of(connection: Connection, report: Report, folder: Path | None) -> ProofStart:
    """
    Return where to begin, and prove what stays of archived events on the way.

    Raises:
        CorruptLedgerError: the segments, or the state at the last one's end, are damaged.
    """
    segments = sealed.segments_of(connection)
    if not segments:
        return NO_PAST
    last = sealed.end_of(segments[-1])
    _compare_seals(connection, report, segments)
    for segment in segments[:-1]:
        try:
            sealed.end_of(segment)
        except CorruptLedgerError as error:
            report(segment.last, str(error))
    archived = [_compare_sealing(connection, report, segment) for segment in segments]
    _compare_kept(connection, report, last)
    _compare_acts(connection, report, segments)
    unknown = compare_ended(connection, report, archived)
    if folder is None:
        return ProofStart(start=last, segments=segments, seals={}, files=(), not_compared=unknown)
    files = tuple(SegmentFile(folder / segment.file_name, segment) for segment in segments)
    for file in files:
        fact = file.difference()
        if fact:
            report(None, fact)
    seals = {segment.last: segment for segment in segments}
    return ProofStart(start=sealed.START, segments=segments, seals=seals, files=files)


def log_behind(position: int) -> Any:  # noqa: ANN401 - a query
    """Return the query for the events behind a position, in order."""
    query = in_key_order(schema.ledger_events)
    return query.where(literal_column(f"position > {int(position)}")) if position else query


def log_between(first: int, last: int) -> Any:  # noqa: ANN401 - a query
    """Return the query for the events of a range, in order."""
    query = in_key_order(schema.ledger_events)
    return query.where(literal_column(f"position BETWEEN {int(first)} AND {int(last)}"))


def tile_leaves(connection: Connection, last: int) -> Iterator[bytes]:
    """
    Yield the leaf hashes of the positions 1..last, a multiple of 256, from the tiles.

    Raises:
        CorruptLedgerError: a tile is missing.
    """
    query = (
        select(_tiles.number, _tiles.hashes)
        .where(_tiles.level == literal_column("0"))
        .order_by(_tiles.number)
    )
    number = 0
    with closing(rows_of(connection, query)) as rows:
        for found, hashes in rows:
            if number * 256 >= last or found != number:
                break
            yield from split_hashes(hashes)
            number += 1
    if number * 256 < last:
        fact = f"a tile is missing: level=0, number={number}"
        raise CorruptLedgerError(fact, position=number * 256 + 1)


def _compare_seals(
    connection: Connection, report: Report, segments: tuple[sealed.Segment, ...]
) -> None:
    """Compare the chain and the roots of the segments with the tiles."""
    read = node_reader(connection)
    ends = {segment.last: segment for segment in segments}
    value = GENESIS
    for position, leaf in enumerate(tile_leaves(connection, segments[-1].last), 1):
        value = chain_hash(value, leaf)
        segment = ends.get(position)
        if segment is None:
            continue
        if segment.chain_hash != value:
            report(position, "the segment's chain value is not the one over its leaf hashes")
        if segment.root != compact_range(read, position).root():
            report(position, "the segment's root is not the one of the tree")


def _compare_sealing(
    connection: Connection, report: Report, segment: sealed.Segment
) -> SegmentArchived:
    """Compare a segment with the event that seals it; return that, as it must be."""
    query = select(_events.event_type, _events.body).where(_events.position == segment.position)
    row = connection.execute(query).first()
    try:
        found = decode_event(*row) if row is not None else None
    except (InputError, UnknownEventError):
        found = None
    expected = segment.event(found.rows if isinstance(found, SegmentArchived) else {})
    if found != expected:
        report(segment.position, f"the event does not archive the segment up to {segment.last}")
    if segment.file_name != file_name(segment.first, segment.last):
        fact = f"key=({segment.last},), file_name={segment.file_name!r} is another"
        report(segment.position, f"ledger_segments: {fact}")
    return expected


def _compare_acts(
    connection: Connection, report: Report, segments: tuple[sealed.Segment, ...]
) -> None:
    """Report events that archive no segment, or change what was in an archive by then."""
    seals = {segment.position: segment.last for segment in segments}
    with suppress(InputError):  # what can't be read is reported as the log is walked
        for at, event in seldom_of(connection, SegmentArchived, PositionVoided, TimeCorrected):
            last = max((seals[each] for each in seals if each < at), default=0)
            match event:
                case SegmentArchived() if at not in seals:
                    report(at, f"the event archives no segment: {event.first} to {event.last}")
                case PositionVoided(position=first) if first <= last:
                    report(at, f"the event changes what is in an archive: {first}")
                case TimeCorrected(first=first) if last and first <= last + 1:
                    report(at, f"the event changes what is in an archive: {first}")
                case _:
                    pass


def _compare_kept(connection: Connection, report: Report, end: sealed.End) -> None:
    """Compare what stays of archived events with their leaf hashes, and see that nothing lacks."""
    kept = rows_of(connection, log_between(-INTEGER_MAX, end.position))
    keys = rows_of(connection, in_key_order(schema.ledger_archived))
    value = GENESIS
    running = sealed.START.keys
    with closing(kept), closing(keys):
        row, key = next(kept, None), next(keys, None)
        while row is not None and row[0] < 1:
            report(row[0], "the log begins at position 1")
            row = next(kept, None)
        for position, leaf in enumerate(tile_leaves(connection, end.position), 1):
            value = chain_hash(value, leaf)
            if row is not None and row[0] == position:
                fact = _kept_fact(row, leaf, value)
                if fact:
                    report(position, fact)
                row = next(kept, None)
            elif key is not None and key[0] == position:
                if not is_typed(schema.ledger_archived, key):
                    report(position, other_types(schema.ledger_archived, key))
                    return
                running = sealed.add_keys(running, [key])
                key = next(keys, None)
            else:
                report(position, "an archived event lacks its idempotency key")
                return
    if key is not None:
        report(key[0], "an archived key is of no archived event")
    elif running != end.keys:
        report(None, f"the archived keys are not those of the events 1 to {end.position}")


def _kept_fact(row: Row, leaf: bytes, value: bytes) -> str:
    if not is_typed(schema.ledger_events, row):
        return other_types(schema.ledger_events, row)
    if row[3] not in schema.KEPT:
        return "an event is both in an archive and in the log"
    if row_leaf(row) != leaf or row[13] != leaf or row[14] != value:
        return "the event was altered: its words do not give its hash"
    return ""
