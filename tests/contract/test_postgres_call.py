"""What the writer sends Postgres as arrays is what Postgres reads."""

from __future__ import annotations

from typing import Any

from ledger.store.writing.outbox import array_text
from tests.support.stores import PostgresStore

NUMBERS = [1, -2, 2**63 - 1, -(2**63), 0]
MAYBES = [None, 7, None, -1]
TEXTS = [
    "",
    "plain",
    "NULL",
    'a " and \\ and {',
    "gr\u00fc\u00df \U0001f600",
    " x, y ",
    "x" * 5_000,
]
BLOBS = [b"", bytes(32), bytes(range(256)) * 40]
READ = "SELECT %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bytea[]"


def test_columns_arrive_as_they_were_sent(postgres_store: PostgresStore) -> None:
    """Numbers up to 64 bits, NULL, empty and long texts, any bytes: nothing is read otherwise."""
    columns: tuple[list[Any], ...] = ([], NUMBERS, MAYBES, TEXTS, BLOBS)
    with postgres_store.raw() as raw:
        row = raw.execute(READ, [array_text(values) for values in columns]).fetchone()
    assert row == columns
