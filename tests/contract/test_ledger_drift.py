"""Drift in the ledger, on either database: found, over, found again, and listed."""

from __future__ import annotations

import json

import pytest

from ledger.domain.log.drift import CLOCK_SKEW, HOLDER_GONE, OVER_HELD, UNGATED, repair_of
from ledger.domain.log.events import ClaimConsumed, DriftFound, DriftResolved, LedgerEvent
from ledger.domain.systems import Claimant
from ledger.store.proving.verify import verify
from ledger.store.reading.report_queries import open_drifts
from ledger.store.writing.append import Writer
from scheduler.service.beginning import begin
from tenure.cli import app
from tenure.exits import DONE, NO, run
from tests.support.drift_steps import Step, play
from tests.support.reconciled import Cluster, StoreLedger
from tests.support.stores import Clock, Store, node, reserved, seen_claim, share, start

GONE = DriftFound(
    drift_id=f"{HOLDER_GONE}/uid-n-1/uid-p/2",
    kind=HOLDER_GONE,
    node_uid="uid-n-1",
    detail="team-a/p on n-1: gone, and holds something",
    pod_uid="uid-p",
)
OVER = DriftFound(
    drift_id=f"{OVER_HELD}/uid-n-1/uid-q/1",
    kind=OVER_HELD,
    node_uid="uid-n-1",
    detail="more than there is",
    device_type="gpu",
    minor=3,
    pod_uid="uid-q",
)
SKEW = DriftFound(
    drift_id=f"{CLOCK_SKEW}/clock", kind=CLOCK_SKEW, node_uid="", detail="seconds=7.5"
)


def lived(writer: Writer) -> None:
    """Let drift of a Pod come, go and come again; of a card that nobody knows; of no node."""
    clock = Clock()
    events: tuple[LedgerEvent, ...] = (
        node(),
        reserved("p", share(0, 50)),
        GONE,
        DriftResolved(drift_id=GONE.drift_id, how="no longer so"),
        SKEW,
        OVER,
        GONE,
    )
    for number, event in enumerate(events):
        writer.append([clock.new(event, key=f"event-{number}")])


def test_what_is_planted_is_named_once_over_restarts(store: Store) -> None:
    """The whole service on a real writer: events that wait, come twice and in another order."""
    steps: list[Step] = [
        *(("plant", number) for number in range(5)),
        ("wait", 20),
        ("restart", 0),
        ("wait", 60),
        ("restart", 0),
        ("lag", 0),
        *(("mend", number) for number in range(3)),
        ("shuffle", 0),
        ("deliver", 0),
        ("wait", 40),
        ("plant", 0),
        ("wait", 50),
    ]
    with store.open() as ledger:
        play(Cluster(ledger=StoreLedger(ledger)).bound_pods(), steps)
        with ledger.connection.begin():
            kinds = sorted(one.kind for one in open_drifts(ledger.connection))
        assert verify(ledger).findings == ()
    assert kinds == ["AnnotationDiffers", "ClockSkew", "DeviceGone"]


def test_what_is_open_is_listed_with_its_pod_and_node(store: Store) -> None:
    """What was resolved is not; what was found again is, once, since then."""
    with store.open() as ledger:
        lived(start(ledger))
        with ledger.connection.begin():
            skew, over, gone = open_drifts(ledger.connection)
        head = ledger.head().position
    assert [skew.kind, over.kind, gone.kind] == [CLOCK_SKEW, OVER_HELD, HOLDER_GONE]
    assert (gone.position, gone.node_name, gone.pod_name) == (head, "n-1", "p")
    assert (over.device_type, over.minor, over.pod_name) == ("gpu", 3, None)
    assert (skew.node_uid, skew.node_name, skew.minor) == ("", None, None)


def test_a_process_that_starts_knows_what_is_open(store: Store) -> None:
    """So that it records nothing twice."""
    with store.open() as ledger:
        lived(start(ledger))
        begun = begin(ledger)
    assert list(begun.drifts) == [SKEW, OVER, GONE]


def test_the_command_lists_it_and_says_no(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 while there is any, whichever form is asked for."""
    with store.open() as ledger:
        lived(start(ledger))
    assert run(app, ["drift", "--ledger", store.url, "-o", "json"]) == NO
    told = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in told] == [CLOCK_SKEW, OVER_HELD, HOLDER_GONE]
    assert told[2]["node"] == "n-1"
    assert told[2]["pod"].endswith("/p")
    assert told[2]["words"] == GONE.detail
    assert told[2]["repair"] == repair_of(HOLDER_GONE) != ""
    assert run(app, ["drift", "--ledger", store.url]) == NO
    assert capsys.readouterr().out.startswith("KIND")


def test_a_claim_is_named_with_the_pods_that_use_it_now(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of its last word, whatever other claims and attempts say; without one no Pod."""
    clock, users = Clock(), [Claimant(name=name, uid=name) for name in ("x", "y", "z")]
    of_a = {"claim_uid": "uid-a", "node_uid": "uid-n-1"}
    found = [
        DriftFound(
            drift_id=f"{UNGATED}/uid-n-1/{uid}",
            kind=UNGATED,
            node_uid="uid-n-1",
            detail="allocated past the gate",
            pod_uid=uid,
        )
        for uid in ("uid-a", "uid-b")
    ]
    events: tuple[LedgerEvent, ...] = (
        node(),
        seen_claim("a", share(0, 50)),
        seen_claim("b", share(1, 50)),
        ClaimConsumed(**of_a, attempt=2, consumers=tuple(users[2:])),
        ClaimConsumed(**of_a, attempt=1, consumers=tuple(users[2:])),
        ClaimConsumed(**of_a, attempt=1, consumers=tuple(users[:2])),
        ClaimConsumed(claim_uid="uid-b", node_uid="uid-n-1", attempt=1, consumers=()),
        *found,
    )
    with store.open() as ledger:
        writer = start(ledger)
        for number, event in enumerate(events):
            writer.append([clock.new(event, key=f"event-{number}")])
    assert run(app, ["drift", "--ledger", store.url]) == NO
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "claim team-c/a (x, y)" in first
    assert "claim team-c/b (no Pod)" in second
    assert run(app, ["drift", "--ledger", store.url, "-o", "json"]) == NO
    told = json.loads(capsys.readouterr().out)
    assert [(one["pod"], one["holder"], one["consumers"]) for one in told] == [
        ("team-c/a", "claim", ["x", "y"]),
        ("team-c/b", "claim", []),
    ]


def test_the_command_says_yes_where_nothing_is_open(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty list, exit 0."""
    with store.open() as ledger:
        start(ledger).append([Clock().new(node())])
    assert run(app, ["drift", "--ledger", store.url, "-o", "json"]) == DONE
    assert json.loads(capsys.readouterr().out) == []
