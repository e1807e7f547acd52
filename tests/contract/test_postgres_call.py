"""What the writer sends Postgres in binary is what Postgres reads."""

from __future__ import annotations

import pytest
from psycopg.pq import ExecStatus, Format

from ledger.store.writing import outbox
from tests.support.stores import PostgresStore

NUMBERS = [(1, -2), (2**63 - 1, -(2**63)), (0,)]
MAYBES = [(None, 7), (None,), (-1,)]
TEXTS = [("", "plain", "NULL"), ('a " and \\ and {', "gr\u00fc\u00df \U0001f600"), ("x" * 5_000,)]
BLOBS = [(b"", bytes(32)), (bytes(range(256)) * 40,)]
READ = b"""SELECT $1 = ARRAY[1, 2, 3] AND $2 = '{}' AND $3 = ARRAY[1, -2, 9223372036854775807,
  '-9223372036854775808'::bigint, 0] AND $4 IS NOT DISTINCT FROM ARRAY[NULL, 7, NULL, -1]::bigint[],
  array_to_string($5, '|'),
  (SELECT string_agg(encode(b, 'hex'), '|' ORDER BY n)
    FROM unnest($6) WITH ORDINALITY AS u(b, n))"""


def test_columns_arrive_as_they_were_sent(postgres_store: PostgresStore) -> None:
    """Numbers up to 64 bits, NULL, empty and long texts, any bytes: nothing is read otherwise."""
    words = (
        outbox.integers_sent((1, 2, 3)),
        outbox.integers_sent(()),
        outbox.numbers_sent(NUMBERS),
        outbox.maybes_sent(MAYBES),
        outbox.texts_sent(TEXTS),
        outbox.blobs_sent(BLOBS),
    )
    with postgres_store.raw() as raw:
        binary = [Format.BINARY] * len(words)
        result = raw.pgconn.exec_params(READ, words, outbox.OIDS, binary)
        assert result.status == ExecStatus.TUPLES_OK, result.error_message
        same, texts, blobs = (result.get_value(0, column) for column in range(3))
    assert same == b"t"
    assert (texts or b"").decode() == "|".join(text for column in TEXTS for text in column)
    assert (blobs or b"").decode() == "|".join(blob.hex() for column in BLOBS for blob in column)


def test_a_number_beyond_64_bits_is_not_sent() -> None:
    """It is the error that SQLite's driver raises, before anything is on its way."""
    with pytest.raises(OverflowError, match="beyond 64 bits"):
        outbox.numbers_sent([(1, 2**63)])
