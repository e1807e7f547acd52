"""What events name by reference: requests by digest, and positions that were decided on."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from ledger.domain.errors import LedgerError
from ledger.domain.log.events import LedgerEvent, RequestDescribed
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.request.requests import PodRequest
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading.query import run_sql
from tests.support.archives import history, move
from tests.support.stores import Clock, Store, node, reserved, share, start

ASKED = recorded_request(
    PodRequest(uid="u", namespace="ml", name="p", cpu_milli=1000, memory_bytes=0)
)


@pytest.mark.parametrize("said", [(0, 1), (1, 0), (1,)], ids=["before", "behind", "never"])
def test_a_request_that_is_named_and_was_not_described_before_is_found(
    store: Store, said: tuple[int, ...]
) -> None:
    """Whoever decides again, or learns, would not know what the Pod asked for."""
    digest = request_digest(ASKED)
    named = structs.replace(reserved("a", share(0, 60)), request=digest)
    events: list[LedgerEvent] = [RequestDescribed(request=ASKED), named]
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(gpus=2), *(events[i] for i in said)))
        findings = [(each.position, each.text) for each in verify(ledger).findings]

    fact = f"the event names a request that was never described: {digest}"
    assert findings == ([] if said == (0, 1) else [(3, fact)])
    with store.open() as ledger:
        rebuilt = rebuild(ledger)
    assert rebuilt.equal
    assert rebuilt.untold == (() if said == (0, 1) else (f"position 3: {fact}",))


@pytest.mark.parametrize("described", [True, False], ids=["described", "never described"])
@pytest.mark.parametrize("with_files", [True, False], ids=["files read", "files away"])
def test_a_request_that_was_described_before_an_archive_is_known_behind_it(
    store: Store, tmp_path: Path, *, described: bool, with_files: bool
) -> None:
    """What was described stays in the log, so that one that never was is found there too."""
    clock = Clock()
    digest = request_digest(ASKED)
    named = structs.replace(reserved("a", node="n-3"), request=digest)
    with store.open() as ledger:
        writer = start(ledger)
        if described:
            writer.append(clock.all(RequestDescribed(request=ASKED)))
        history(ledger, clock, events=300)
        move(ledger, tmp_path)
        start(ledger, "next").append(clock.all(node("n-3", gpus=2), named))
        last = ledger.head().position
        proof = verify(ledger, segments=tmp_path if with_files else None)
        findings = [(each.position, each.text) for each in proof.findings]
        rebuilt = rebuild(ledger, segments=tmp_path)

    fact = f"the event names a request that was never described: {digest}"
    assert findings == ([] if described else [(last, fact)])
    assert rebuilt.equal
    assert rebuilt.untold == (() if described else (f"position {last}: {fact}",))


def test_a_decision_on_what_comes_later_is_refused_by_the_database_and_found(
    store: Store,
) -> None:
    """A position of the ledger that cards were chosen on is before the reservation's own."""
    right = structs.replace(reserved("a", share(0, 60)), decided_on=2)
    with store.open() as ledger:
        writer = start(ledger)
        clock = Clock()
        writer.append(clock.all(node(gpus=2), right))
        wrong = structs.replace(reserved("b", share(1, 60)), decided_on=4)
        with pytest.raises(LedgerError, match="ck_ledger_reservations_decided_on"):
            writer.append(clock.all(wrong))
        assert verify(ledger).findings == ()
        sql = "SELECT pod_name, decided_on FROM audit_reservations"
        assert run_sql(ledger, sql)[1] == [("a", 2)]
        assert rebuild(ledger).equal
