"""
The files that events move to: gzip of JSON lines, an export with the state at its end.

A header, one event a line, the state behind the last event, and a checkpoint of that size whose
extension line signs the state too. `tenure.offline` proves such a file with a public key alone.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.proofs.merkle import CompactRange, split_hashes
from ledger.signing import Checkpoint
from ledger.store import schema
from ledger.store.archives.segments import End, Segment
from ledger.store.reading.tables import UnreadableError
from ledger.store.writing.statements import Row

FORMAT: Final = "tenure.segment.v1"
STATE_LINE: Final = "tenure state "
LINE_BYTES_MAX: Final = 1 << 31
LEVEL: Final = 6
"""Of gzip: as small as the highest within a few percent, at half the time."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_NAMES: Final = tuple(schema.ledger_events.columns.keys())
_BYTES: Final = frozenset({"args_hash", "leaf_hash", "chain_hash"})
_DAMAGE: Final = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError)


def file_name(first: int, last: int) -> str:
    """Return the name of a segment's file; names sort as positions do."""
    return f"segment-{first:012}-{last:012}.jsonl.gz"


def signed_text(tree: Checkpoint, state_digest: bytes) -> str:
    """Return what is signed for a segment: its checkpoint, with the state in an extension line."""
    return f"{tree.text()}{STATE_LINE}{state_digest.hex()}\n"


def header_of(before: End, tree: Checkpoint, prefix: CompactRange) -> dict[str, Any]:
    """Return the header of a file that begins behind `before` and ends with `tree`."""
    return {
        "chain_hash": before.chain_hash.hex(),
        "first": before.position + 1,
        "format": FORMAT,
        "last": tree.size,
        "origin": tree.origin,
        "range": [each.hex() for each in split_hashes(prefix.to_bytes())],
        "root": tree.root.hex(),
    }


def header_read(path: Path) -> dict[str, Any]:
    """Return the header of a segment file, empty for what is none."""
    try:
        with gzip.open(path) as file:
            header: object = json.loads(file.readline(LINE_BYTES_MAX))
    except _DAMAGE:
        return {}
    return header if isinstance(header, dict) and header.get("format") == FORMAT else {}


def line_of(row: Row) -> str:
    """Return one row of `ledger_events` as a line, hashes in hex."""
    words = zip(_NAMES, row, strict=True)
    return canonical_json({name: each.hex() if name in _BYTES else each for name, each in words})


class SegmentFileWriter:
    """Writes one file, for its owner alone; `finish` forces it to the disk."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, _NEW, 0o600), "wb")
        self._packed = gzip.GzipFile(
            fileobj=self._file, mode="wb", filename="", mtime=0, compresslevel=LEVEL
        )

    def write(self, line: str) -> None:
        """Add one line."""
        self._packed.write(f"{line}\n".encode())

    def finish(self, end_text: str, note: str) -> None:
        """Add the state and the signed note, and see the file to the disk."""
        self.write(canonical_json({"state": end_text}))
        self.write(canonical_json({"checkpoint": note}))
        self._packed.close()
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file, whole or not."""
        self._packed.close()
        self._file.close()


class SegmentFile:
    """A file that is read back, told by the segment that it must be."""

    def __init__(self, path: Path, segment: Segment) -> None:
        self.path = path
        self.segment = segment

    def difference(self) -> str:
        """Return in which way the file's bytes are not those that were archived, if they aren't."""
        try:
            digest = file_digest(self.path)
        except OSError as error:
            return f"the segment file can't be read: file={self.path}, {error.strerror}"
        if digest == self.segment.digest:
            return ""
        between = f"{self.segment.first} to {self.segment.last}"
        return f"not the file that was archived: file={self.path}, positions={between}"

    def rows(self) -> Generator[Row, None, None]:
        """
        Yield the events as rows of `ledger_events`.

        Raises:
            UnreadableError: the file is damaged or another; every row before that was yielded.
        """
        lines = self._lines()
        header = next(lines, None)
        if header is None or header.get("format") != FORMAT:
            raise UnreadableError(f"not a segment file: file={self.path}")
        if (header.get("first"), header.get("last")) != (self.segment.first, self.segment.last):
            raise UnreadableError(
                f"the file holds other events: file={self.path},"
                f" first={header.get('first')}, expected={self.segment.first}"
            )
        for record in lines:
            if "state" in record:
                return
            yield self._row(record)
        raise UnreadableError(f"the segment file is cut off: file={self.path}")

    def _row(self, record: dict[str, Any]) -> Row:
        try:
            return tuple(
                bytes.fromhex(record[name]) if name in _BYTES else record[name] for name in _NAMES
            )
        except (KeyError, TypeError, ValueError) as error:
            fact = f"{type(error).__name__}: {error}"
            raise UnreadableError(f"a line is damaged: file={self.path}, {fact}") from error

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            with gzip.open(self.path) as file:
                for line in file:
                    value = json.loads(line)
                    if not line.endswith(b"\n") or not isinstance(value, dict):
                        raise ValueError("a line is cut off")
                    yield value
        except _DAMAGE as error:
            fact = f"{type(error).__name__}: {error}"
            raise UnreadableError(
                f"the segment file is damaged: file={self.path}, {fact}"
            ) from error


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
