"""
Rows that no event in the log explains any more, for they ended in a segment: digests of them.

Rule: docs/adr/0034. Such a row never changes again, so that the event that archives a segment can
commit to all that ended in it. A row belongs where its own words say that it ended: one that was
changed to have ended elsewhere is missing here and is too many there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Select, Table, literal_column

from ledger.store.proving.proof import HISTORY
from ledger.store.reading.tables import (
    UnreadableError,
    in_key_order,
    row_pages,
    typed_pages,
)
from ledger.store.writing.statements import Row

Report = Callable[[int | None, str], None]
_LINES: Final = msgspec.json.Encoder().encode_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """Rows of `tables` that ended in the events `first`..`last`, of which nothing is known."""

    tables: tuple[str, ...]
    first: int
    last: int


def digests_of_ended(
    connection: Connection, report: Report, lasts: Sequence[int]
) -> tuple[dict[str, str], ...]:
    """
    Return for each segment, named by its last position, the digests of the rows that ended in it.

    A digest is SHA-256, hex, over the rows in key order: each a JSON array and a line. What comes
    before the first segment counts to it.
    """
    found: tuple[dict[str, str], ...] = tuple({} for _ in lasts)
    for table in HISTORY:
        hashers = [sha256() for _ in lasts]
        ended_by = itemgetter(_ended_by(table))
        try:
            with closing(row_pages(connection, _ended(table, lasts[-1]))) as pages:
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
    connection: Connection,
    report: Report,
    segments: Sequence[tuple[int, int]],
    committed: Sequence[Mapping[str, str]],
) -> tuple[NotCompared, ...]:
    """
    Report what ended in a segment, `first` to `last`, and is not what its event commits to.

    Returns:
        What can't be compared, for the event says nothing of it.
    """
    unknown: list[NotCompared] = []
    digests = digests_of_ended(connection, report, [last for _, last in segments])
    for (first, last), said, found in zip(segments, committed, digests, strict=True):
        for name in sorted(said.keys() & found.keys()):
            if said[name] != found[name]:
                between = f"a row that ended in the positions {first} to {last}"
                report(None, f"{name}: {between} was changed, added or taken away")
        lacking = tuple(name for name in found if name not in said)
        if lacking:
            unknown.append(NotCompared(tables=lacking, first=first, last=last))
    return tuple(unknown)


def _ended_by(table: Table) -> int:
    names = [column.name for column in table.columns]
    return names.index("closed_position" if "closed_position" in names else "position")


def _ended(table: Table, last: int) -> Select[Any]:
    """Return the query for the rows that ended up to `last`."""
    query = in_key_order(table)
    for name in {"position", table.columns[_ended_by(table)].name}:
        query = query.where(literal_column(f"{table.name}.{name} <= {int(last)}"))
    return query
