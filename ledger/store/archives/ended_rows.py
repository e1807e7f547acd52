"""
Digests of rows that ended in an archived segment, which no event in the log explains any more.

Rule: docs/adr/0034. Such a row never changes again, so the event that archives a segment commits to
all that ended in it. A row with a forged end is missing in one segment and too many in another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Final

import msgspec
from sqlalchemy import Connection, literal_column

from ledger.domain.log.events import SegmentArchived
from ledger.store.proving.proof import HISTORY
from ledger.store.reading.tables import (
    Report,
    UnreadableError,
    in_key_order,
    row_pages,
    typed_pages,
)
from ledger.store.writing.statements import Row

_LINES: Final = msgspec.json.Encoder().encode_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """Rows of `tables` that ended in `first`..`last`: without a digest, or unknown here."""

    tables: tuple[str, ...]
    first: int
    last: int


def digests_of_ended(
    connection: Connection, report: Report, lasts: Sequence[int], after: int = 0
) -> list[dict[str, str]]:
    """
    Return for each segment, named by its last position, the digests of the rows that ended in it.

    A digest is SHA-256, hex, over the rows in key order: each a JSON array and a line. Rows that
    ended up to `after`, the end of the segment before these, are not read; with 0 the first takes
    all.
    """
    found: list[dict[str, str]] = [{} for _ in lasts]
    for table in HISTORY:
        by = "closed_position" if "closed_position" in table.columns else "position"
        ended_by = itemgetter(table.columns.keys().index(by))
        query = in_key_order(table)
        for name in {"position", by}:
            query = query.where(literal_column(f"{table.name}.{name} <= {int(lasts[-1])}"))
        if after:
            query = query.where(literal_column(f"{table.name}.{by} > {int(after)}"))
        hashers = [sha256() for _ in lasts]
        try:
            with closing(row_pages(connection, query)) as pages:
                for page in typed_pages(table, pages, report):
                    rows: list[list[Row]] = [[] for _ in lasts]
                    for row in page:
                        rows[bisect_left(lasts, ended_by(row))].append(row)
                    for hasher, ended in zip(hashers, rows, strict=True):
                        hasher.update(_LINES(ended))
        except UnreadableError as error:
            report(None, f"{table.name} is unreadable: {error}")
        for digests, hasher in zip(found, hashers, strict=True):
            digests[table.name] = hasher.hexdigest()
    return found


def compare_ended(
    connection: Connection, report: Report, archived: Sequence[SegmentArchived]
) -> tuple[NotCompared, ...]:
    """Report what ended in a segment and is not what its event says; return what none speaks of."""
    unknown: list[NotCompared] = []
    digests = digests_of_ended(connection, report, [event.last for event in archived])
    for event, found in zip(archived, digests, strict=True):
        for name, digest in found.items():
            if event.rows.get(name, digest) != digest:
                between = f"a row that ended in the positions {event.first} to {event.last}"
                report(None, f"{name}: {between} was changed, added or taken away")
        differing = tuple(sorted(found.keys() ^ event.rows.keys()))
        if differing:
            unknown.append(NotCompared(tables=differing, first=event.first, last=event.last))
    return tuple(unknown)
