"""
Segments: where events went that are no longer in the log, and what is known at each one's end.

Rule: design section 4. With `segment.archived` the log commits to a segment's file, and to the
state from which a reader starts who has no files.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, select

from ledger.domain.errors import CorruptLedgerError, InputError
from ledger.domain.log.events import EpochStarted, SegmentArchived
from ledger.domain.log.state import LedgerState
from ledger.domain.log.state_codec import decode_state
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.proofs.hashing import GENESIS
from ledger.store import schema
from ledger.store.failures import DAMAGE, advised, fact_of
from ledger.store.reading.tables import is_typed, other_types
from ledger.store.writing.statements import Row

STATE_FORMAT: Final = "tenure.segment_state.v1"
TILE_EVENTS: Final = 256
"""A segment ends where a tile of the tree is full, so that its leaf hashes stay in the ledger."""
STATE_BYTES_MAX: Final = 1 << 31
"""More than any state has; what claims to unpack to more is damaged."""
_segments = schema.ledger_segments.c
_NO_KEYS: Final = bytes(32)
NOBODY: Final = EpochStarted(epoch=0, holder="", origin="", tenure_version="")

ROWS: Final = (
    schema.ledger_machines,
    schema.ledger_nodes,
    schema.ledger_stands,
    schema.ledger_devices,
    schema.ledger_cpus,
    schema.ledger_reservations,
    schema.ledger_holdings,
    schema.ledger_cpu_holdings,
    schema.ledger_slot_holdings,
    schema.ledger_planned_cards,
)
"""Tables whose rows a segment's end knows: facts as they were, and what was open then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One row of `ledger_segments`, see there."""

    first: int
    last: int
    position: int
    file_name: str
    digest: bytes
    root: bytes
    chain_hash: bytes
    state_digest: bytes
    state: bytes
    at_us: int

    def event(self, rows: Mapping[str, str]) -> SegmentArchived:
        """Return the event that commits to it, and to the digests of the rows that ended in it."""
        return SegmentArchived(
            first=self.first,
            last=self.last,
            digest=self.digest.hex(),
            root=self.root.hex(),
            chain_hash=self.chain_hash.hex(),
            state_digest=self.state_digest.hex(),
            rows=rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """
    What is known behind the event at `position`; the default is before the first one.

    Attributes:
        state: the text of the folded state (`ledger.domain.log.state_codec`).
        streams: the last version of every stream.
        writer: the epoch that was started last.
        rows: by table, in key order: facts, and what was open, without the columns of an ending.
        keys: a running hash over `ledger_archived` up to here.
    """

    position: int = 0
    at_us: int = 0
    chain_hash: bytes = GENESIS
    epoch: int = 0
    writer: EpochStarted = NOBODY
    streams: Mapping[str, int] = field(default_factory=dict)
    state: str = ""
    rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    keys: bytes = _NO_KEYS

    def folded(self) -> LedgerState:
        """Return the folded state."""
        return decode_state(self.state) if self.state else LedgerState()

    def text(self) -> str:
        """Return the canonical JSON text, whose SHA-256 the log commits to."""
        writer = self.writer
        return canonical_json(
            {
                "format": STATE_FORMAT,
                "position": self.position,
                "at_us": self.at_us,
                "chain_hash": self.chain_hash.hex(),
                "epoch": self.epoch,
                "holder": writer.holder,
                "origin": writer.origin,
                "tenure_version": writer.tenure_version,
                "streams": dict(self.streams),
                "state": self.state,
                "rows": {name: [list(row) for row in rows] for name, rows in self.rows.items()},
                "keys": self.keys.hex(),
            }
        )


START: Final = End()


def packed(text: str) -> tuple[bytes, bytes]:
    """Return the compressed text of an end, and its digest."""
    return zlib.compress(text.encode()), sha256(text.encode()).digest()


def parsed_end(text: str) -> End:
    """
    Return the end that `text` says.

    Raises:
        InputError: it says none.
    """
    try:
        value: dict[str, Any] = json.loads(text)
        if value["format"] != STATE_FORMAT:
            raise InputError(f"of a form that this version does not know: {value['format']}")
        writer = EpochStarted(
            epoch=value["epoch"],
            holder=value["holder"],
            origin=value["origin"],
            tenure_version=value["tenure_version"],
        )
        return End(
            position=value["position"],
            at_us=value["at_us"],
            chain_hash=bytes.fromhex(value["chain_hash"]),
            epoch=value["epoch"],
            writer=writer,
            streams=value["streams"],
            state=value["state"],
            rows={
                table.name: tuple(tuple(row) for row in value["rows"].get(table.name, ()))
                for table in ROWS
            },
            keys=bytes.fromhex(value["keys"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise InputError(f"it can't be read: {type(error).__name__}: {error}") from error


def end_of(segment: Segment) -> End:
    """
    Return what is known at a segment's end, as the segment's own digest has it.

    Raises:
        CorruptLedgerError: it is damaged.
    """
    try:
        return _unpacked(segment)
    except (zlib.error, ValueError, MemoryError, InputError) as error:
        raise CorruptLedgerError(
            f"the state at a segment's end is damaged: file={segment.file_name}: {error}",
            position=segment.last,
        ) from error


def unpacked_text(body: bytes, digest: bytes) -> str:
    """
    Return a compressed text, which must give the digest beside it, with nothing behind it.

    Raises:
        InputError: it gives another one.
        zlib.error, ValueError, MemoryError: it can't be unpacked.
    """
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(body, STATE_BYTES_MAX)
    if not unpacker.eof or unpacker.unused_data or sha256(text).digest() != digest:
        raise InputError("its text does not give its digest")
    return text.decode()


def _unpacked(segment: Segment) -> End:
    end = parsed_end(unpacked_text(segment.state, segment.state_digest))
    known = {"last": end.position, "chain_hash": end.chain_hash, "at_us": end.at_us}
    for name, value in known.items():
        if getattr(segment, name) != value:
            raise InputError(f"ledger_segments: key=({segment.last},), {name} is another")
    return end


def segments_of(connection: Connection) -> tuple[Segment, ...]:
    """
    Return every segment, oldest first, in the transaction that is open.

    Raises:
        CorruptLedgerError: they do not follow one another, or a row is damaged.
    """
    query = select(*schema.ledger_segments.columns).order_by(_segments.last)
    try:
        rows = connection.execute(query).all()
    except DAMAGE as error:
        fact = f"the segments are unreadable: {fact_of(error)}"
        raise CorruptLedgerError(fact, position=0) from error
    found: list[Segment] = []
    for row in rows:
        segment = _segment(row)
        if segment.first != (found[-1].last if found else 0) + 1:
            raise CorruptLedgerError("a segment is missing", position=segment.first)
        found.append(segment)
    return tuple(found)


def last_segment(connection: Connection) -> Segment | None:
    """Return the segment behind which the log is whole, in the transaction that is open."""
    query = select(*schema.ledger_segments.columns).order_by(_segments.last.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else _segment(row)


def _segment(row: Sequence[Any]) -> Segment:
    if not is_typed(schema.ledger_segments, row):
        raise CorruptLedgerError(other_types(schema.ledger_segments, row), position=0)
    return Segment(**dict(zip(schema.ledger_segments.columns.keys(), row, strict=True)))


def archived_up_to(connection: Connection) -> tuple[int, bytes]:
    """Return the last archived position, 0 for none, and the chain value there."""
    query = select(_segments.last, _segments.chain_hash).order_by(_segments.last.desc()).limit(1)
    row = connection.execute(query).first()
    return (row.last, bytes(row.chain_hash)) if row is not None else (0, GENESIS)


def in_archive(connection: Connection, position: int) -> InputError:
    """Return the refusal of a question that needs an archived event."""
    last, _ = archived_up_to(connection)
    around = (_segments.first <= position, _segments.last >= position)
    name = connection.execute(select(_segments.file_name).where(*around)).scalar() or "unknown"
    fact = f"the event is in an archive: position={position}, archived=1-{last}, file={name}"
    step = "name the folder of the archive where the command takes it: --segments DIR"
    return advised(InputError(fact), step)


def add_keys(before: bytes, rows: Iterable[Row]) -> bytes:
    """Return the running hash over more rows of `ledger_archived`, in the order of positions."""
    value = before
    for position, key, stream, event_type, args_hash, at_us in rows:
        words = {"key": key, "stream": stream, "type": event_type, "args": args_hash.hex()}
        line = canonical_json({"position": position, "at_us": at_us, **words})
        value = sha256(value + line.encode()).digest()
    return value
