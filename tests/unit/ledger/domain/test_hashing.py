from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.proofs.hashing import GENESIS, chain_hash, row_leaf
from tests.support.declared import values
from tests.support.log_proofs import leaf_hash

ENVELOPE = Envelope(
    position=7,
    stream="node/n1",
    stream_version=3,
    event_type="pod.bound.v1",
    body='{"attempt":1,"node_uid":"n1","pod_uid":"u1"}',
    actor="scheduler",
    epoch=2,
    causation_position=6,
    correlation_id="u1/1",
    idempotency_key="bind:u1:1",
    args_hash="ab" * 32,
    at_us=1767225600000001,
    wall_us=1767225600000000,
)
LEAF = "34e52975ae8206c2a68ce7ff74bbb8a7e535820b6b84a3c7d60c528ac489fd74"
CHAIN = "f7b8202b760a372d1a490408a260aed4df5900a4562725fb87f00379e37d9c78"
CHANGED: dict[str, Any] = {
    "position": 8,
    "stream": "node/n2",
    "stream_version": 4,
    "event_type": "pod.assigned.v1",
    "body": '{"attempt":1,"node_uid":"n1","pod_uid":"u2"}',
    "actor": "agent",
    "epoch": 3,
    "causation_position": None,
    "correlation_id": "u1/2",
    "idempotency_key": "bind:u1:2",
    "args_hash": "ac" * 32,
    "at_us": 1767225600000002,
    "wall_us": 1767225600000001,
}


def test_the_leaf_is_what_it_says() -> None:
    """RFC 6962 leaf: 0x00 before the canonical envelope, the body as its own hash."""
    fields = structs.asdict(ENVELOPE)
    fields["body_sha256"] = hashlib.sha256(fields.pop("body").encode()).hexdigest()
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))

    assert leaf_hash(ENVELOPE) == hashlib.sha256(b"\x00" + text.encode()).digest()


@given(envelope=values(Envelope, st.text(st.characters(exclude_categories=["Cs"]))))
def test_the_text_of_a_leaf_is_canonical(envelope: Envelope) -> None:
    """Whatever the words: as another writer sorts and escapes them; a row gives the same."""
    envelope = structs.replace(envelope, args_hash="ab" * 32)
    fields = structs.asdict(envelope)
    row = [*fields.values()]
    row[[*fields].index("args_hash")] = bytes.fromhex(envelope.args_hash)
    fields["body_sha256"] = hashlib.sha256(fields.pop("body").encode()).hexdigest()

    expected = hashlib.sha256(b"\x00" + canonical_json(fields).encode()).digest()
    assert leaf_hash(envelope) == row_leaf(row, fields["body_sha256"]) == expected


def test_the_leaf_never_changes() -> None:
    """Ledgers that exist are hashed so: another value here breaks every one of them."""
    assert leaf_hash(ENVELOPE).hex() == LEAF
    assert chain_hash(GENESIS, leaf_hash(ENVELOPE)).hex() == CHAIN


@pytest.mark.parametrize("name", CHANGED)
def test_every_field_of_the_envelope_is_in_the_leaf(name: str) -> None:
    """Whoever changes anything about an event changes its hash."""
    assert set(CHANGED) == set(Envelope.__struct_fields__)
    changed = structs.replace(ENVELOPE, **{name: CHANGED[name]})

    assert leaf_hash(changed) != leaf_hash(ENVELOPE)


def test_the_chain_depends_on_everything_before() -> None:
    """0x02 before the previous value and the leaf: order and content both count."""
    one, two = hashlib.sha256(b"one").digest(), hashlib.sha256(b"two").digest()

    assert chain_hash(one, two) == hashlib.sha256(b"\x02" + one + two).digest()
    assert chain_hash(chain_hash(GENESIS, one), two) != chain_hash(chain_hash(GENESIS, two), one)


def test_the_chain_starts_from_nothing() -> None:
    """32 zero bytes before the first event."""
    assert bytes(32) == GENESIS
