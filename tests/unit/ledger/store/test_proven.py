"""A page is proved as a whole exactly when each of its rows is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ledger.domain.errors import CorruptLedgerError
from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.hashing import GENESIS, chain_hash
from ledger.store.reading.read import checked, leaf_hashes, proven_chain
from ledger.store.writing.statements import Row
from tests.support.log_proofs import leaf_hash

COLUMNS = [
    *Envelope.__struct_fields__,
    "leaf_hash",
    "chain_hash",
]
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
NUMBERS = st.integers(1, 2**53 - 1)
ENVELOPES = st.builds(
    Envelope,
    position=NUMBERS,
    stream=WORDS,
    stream_version=NUMBERS,
    event_type=WORDS,
    body=WORDS,
    actor=WORDS,
    epoch=NUMBERS,
    causation_position=st.one_of(st.none(), NUMBERS),
    correlation_id=WORDS,
    idempotency_key=WORDS,
    args_hash=st.binary(min_size=32, max_size=32).map(bytes.hex),
    at_us=NUMBERS,
    wall_us=NUMBERS,
)

ENVELOPE = Envelope(
    position=1,
    stream="node/n",
    stream_version=1,
    event_type="pod.bound.v1",
    body="{}",
    actor="a",
    epoch=1,
    causation_position=None,
    correlation_id="c",
    idempotency_key="k",
    args_hash="ab" * 32,
    at_us=1,
    wall_us=1,
)


def rows_of(envelopes: list[Envelope], after: int = 0, previous: bytes = GENESIS) -> list[Row]:
    """Return envelopes as the rows that a writer records of them behind `after`."""
    rows: list[Row] = []
    for position, each in enumerate(envelopes, after + 1):
        envelope = structs.replace(each, position=position)
        leaf = leaf_hash(envelope)
        previous = chain_hash(previous, leaf)
        words = [getattr(envelope, name) for name in COLUMNS[:13]]
        words[10] = bytes.fromhex(words[10])
        rows.append((*words, leaf, previous))
    return rows


@given(envelopes=st.lists(ENVELOPES, min_size=1, max_size=5))
def test_the_leaves_are_those_of_the_domain(envelopes: list[Envelope]) -> None:
    """Byte for byte, whatever the words."""
    rows = rows_of(envelopes)

    assert leaf_hashes(list(zip(*rows, strict=True))) == [row[13] for row in rows]


@given(envelopes=st.lists(ENVELOPES, min_size=1, max_size=5), after=st.integers(0, 9))
def test_what_a_writer_recorded_is_proved(envelopes: list[Envelope], after: int) -> None:
    """The chain value behind the page is the last row's."""
    rows = rows_of(envelopes, after, b"\x07" * 32)

    assert proven_chain(rows, after, b"\x07" * 32) == rows[-1][14]
    assert proven_chain([], after, b"\x07" * 32) == b"\x07" * 32


def changes() -> list[Any]:
    """Return one change of every column, and one of its type."""
    others: dict[type, object] = {int: 77, str: "altered", bytes: bytes(32), type(None): 5}
    return [
        pytest.param(at, turn, id=f"{name}: {word}")
        for at, name in enumerate(COLUMNS)
        for word, turn in (
            ("another value", lambda old: others[type(old)]),
            ("another type", lambda old: str(old) if type(old) is not str else old.encode()),
        )
    ]


@pytest.mark.parametrize(("at", "turn"), changes())
def test_one_altered_value_is_seen_and_named_with_its_place(at: int, turn: Any) -> None:  # noqa: ANN401
    """The page is not proved, and looked at row by row the third one is the bad one."""
    rows = rows_of([ENVELOPE] * 5)
    third = list(rows[2])
    third[at] = turn(third[at])
    rows[2] = tuple(third)

    assert proven_chain(rows, 0, GENESIS) is None
    page = checked(rows, 0, GENESIS)
    assert page.rows == rows[:2]
    assert isinstance(page.error, CorruptLedgerError)
    assert page.error.position == 3


@pytest.mark.parametrize("order", [(0, 2), (0, 0, 1), (1, 0), (1, 2)])
def test_rows_out_of_their_places_are_not_proved(order: tuple[int, ...]) -> None:
    """A gap, a repeat, two that changed places, a page that begins too late."""
    rows = rows_of([ENVELOPE] * 3)

    assert proven_chain([rows[i] for i in order], 0, GENESIS) is None
    assert checked([rows[i] for i in order], 0, GENESIS).error is not None
