"""
One body, one text: what databases, readers and verifiers could read differently is no event.

Rule: design section 4; RFC 8785.
"""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from ledger.domain.log.events import DriftFound, LedgerEvent, PodBound, encode_event
from ledger.store.proving.verify import verify
from tests.support.forging import forge
from tests.support.stores import Clock, Store, node, planned, refused, reserved, share, start

DRIFT = DriftFound(drift_id="d-1", kind="OverHeld", node_uid="uid-n-1", detail="two")
PLAN = planned("g", ("a", (0,)))


def fill(store: Store) -> None:
    """Make a ledger with a holder."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 60)), refused("b")))


def twice(event: LedgerEvent, name: str, value: str) -> str:
    """Return the body with a name once more, before the one that is there."""
    return encode_event(event).replace(f'"{name}":', f'"{name}":{value},"{name}":', 1)


REFUSED = {
    "a name twice": (DRIFT, twice(DRIFT, "drift_id", '"d-2"')),
    "a name twice in a device": (node(), twice(node(), "minor", "7")),
    "a name twice in a member": (PLAN, twice(PLAN, "pod_uid", '"me"')),
    "a name twice, once in escapes": (
        DRIFT,
        encode_event(DRIFT).replace("{", '{"drift\\u005fid":"d-2",', 1),
    ),
    "a name in escapes": (DRIFT, encode_event(DRIFT).replace("drift_id", "drift\\u005fid")),
    "a number with an exponent": (DRIFT, encode_event(DRIFT).replace('"minor":-1', '"minor":1e0')),
    "a number that is not exact": (
        DRIFT,
        encode_event(DRIFT).replace('"minor":-1', '"minor":9007199254740993'),
    ),
}


@pytest.mark.parametrize(("event", "body"), REFUSED.values(), ids=REFUSED)
def test_what_views_could_read_differently_is_not_let_in(
    store: Store, event: LedgerEvent, body: str
) -> None:
    """Both databases refuse it in the same words, whoever connects."""
    fill(store)
    with pytest.raises(DBAPIError, match="an event says each word once, in our form: position 5"):
        forge(store, event.event_type, body)
    with store.open("read") as ledger:
        assert verify(ledger).findings == ()


ESCAPED = {
    "a control character": "a\x1b[0m\x01",
    "what looks like an escape": "C:\\u0041 \\",
    "quotes and lines": 'say "so"\n',
}


@pytest.mark.parametrize("text", ESCAPED.values(), ids=ESCAPED)
def test_what_needs_an_escape_is_let_in(store: Store, text: str) -> None:
    """Our own form has escapes too."""
    fill(store)
    with store.open() as ledger:
        drift = DriftFound(drift_id="d-1", kind="OverHeld", node_uid="n", detail=text)
        start(ledger, "next").append([Clock().new(drift, key="drift")])
        assert verify(ledger).findings == ()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            twice(PodBound(pod_uid="a", attempt=1, node_uid="n"), "attempt", "1"), id="twice"
        ),
        pytest.param('{"attempt": 1, "node_uid": "n", "pod_uid": "a"}', id="spaces"),
        pytest.param('{"node_uid":"n","attempt":1,"pod_uid":"a"}', id="another order"),
    ],
)
def test_verify_names_a_body_of_another_form(store: Store, body: str) -> None:
    """Of Pods the views tell what stands in rows; their bodies are read by `verify`."""
    fill(store)
    position = forge(store, PodBound.event_type, body)
    with store.open("read") as ledger:
        first = verify(ledger).findings[0]
    assert (first.position, "not canonical" in first.text) == (position, True)
