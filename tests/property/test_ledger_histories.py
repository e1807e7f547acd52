"""Whatever happens in whatever order: the tables are the fold, and no card is promised twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.domain.errors import CapacityError
from ledger.domain.log.events import (
    ClaimConsumed,
    ClaimReleased,
    ClaimReserved,
    ClaimVoided,
    LedgerEvent,
    PodReserved,
    PodVoided,
)
from ledger.domain.log.state import NodeState, node_uid_of
from ledger.domain.systems import Claimant
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from tests.support.examples import examples
from tests.support.folding import apply, fold
from tests.support.stores import (
    GIB,
    Clock,
    SqliteStore,
    bound,
    claim,
    claim_bound,
    claim_ended,
    gpu,
    health,
    node,
    observed,
    refused,
    released,
    reserved,
    seen_claim,
    share,
    start,
)
from tests.support.violations import machine_violations, violations

PODS = st.sampled_from([f"p{i}" for i in range(8)])
NODES = st.sampled_from(["n-1", "n-2"])
CORES = st.sampled_from([0, 10, 50, 60, 100])
SHARES = st.lists(
    st.tuples(st.integers(0, 2), CORES, st.sampled_from([0, 8, 40, 80]), st.booleans()),
    max_size=2,
    unique_by=lambda each: each[0],
)
CPUS = st.sets(st.integers(0, 3), max_size=2).map(tuple)
ATTEMPTS = st.integers(1, 2)


MAKERS: list[Callable[..., LedgerEvent]] = [
    *(reserved, reserved, reserved, observed),
    *(claim, claim, seen_claim),
]


@st.composite
def holders(draw: st.DrawFn) -> LedgerEvent:
    """Return a reservation, or now and then something that others hold."""
    name = draw(NODES)
    parts = [
        share(minor, core, node=name, gib=gib, exclusive=exclusive)
        for minor, core, gib, exclusive in sorted(draw(SHARES))
    ]
    make = draw(st.sampled_from(MAKERS))
    event: LedgerEvent = make(
        draw(PODS), *parts, node=name, attempt=draw(ATTEMPTS), cpus=draw(CPUS)
    )
    return event


@st.composite
def inventories(draw: st.DrawFn) -> LedgerEvent:
    """Return an inventory in which a card may be smaller, sick, gone, or another one."""
    name = draw(NODES)
    cards = []
    for minor in range(3):
        kind = draw(st.sampled_from(["same", "same", "smaller", "sick", "gone", "other"]))
        changes: dict[str, dict[str, Any]] = {
            "smaller": {"core_percent": 50, "memory_bytes": 40 * GIB},
            "sick": {"healthy": False},
            "other": {"device_id": f"GPU-{name}-{minor}-b"},
        }
        if kind != "gone":
            cards.append(gpu(minor, node=name, **changes.get(kind, {})))
    return node(name, devices=tuple(cards), cpus=4)


ENDINGS = st.builds(
    lambda make, pod, name, attempt: make(pod, node=name, attempt=attempt),
    st.sampled_from([released, bound]),
    PODS,
    NODES,
    ATTEMPTS,
)
VOIDED = st.builds(
    lambda pod, name: PodVoided(
        pod_uid=f"uid-{pod}", attempt=1, node_uid=f"uid-{name}", reason="fenced"
    ),
    PODS,
    NODES,
)
CLAIM_ENDINGS = st.builds(
    lambda name, where, attempt, kind: claim_ended(name, node=where, attempt=attempt, kind=kind),
    PODS,
    NODES,
    ATTEMPTS,
    st.sampled_from([ClaimReleased, ClaimVoided]),
)
CLAIM_CHANGES = st.builds(
    lambda name, where, attempt, users: (
        claim_bound(name, node=where, attempt=attempt)
        if users is None
        else ClaimConsumed(
            claim_uid=f"uid-{name}",
            attempt=attempt,
            node_uid=f"uid-{where}",
            consumers=tuple(Claimant(name=each, uid=f"uid-{each}") for each in users),
        )
    ),
    PODS,
    NODES,
    ATTEMPTS,
    st.none() | st.lists(st.sampled_from(["u", "v"]), unique=True),
)
DEATHS = st.builds(
    lambda minor, healthy, name: health(minor, healthy=healthy, node=name),
    st.integers(0, 2),
    st.booleans(),
    NODES,
)
EVENTS = st.one_of(
    *(holders(), holders(), ENDINGS, ENDINGS, VOIDED, DEATHS, inventories()),
    *(CLAIM_ENDINGS, CLAIM_CHANGES),
)
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=4), max_size=12)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("histories") / "empty.db")
    store.open("create").close()
    return store


@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=BATCHES)
def test_the_tables_are_the_fold_of_the_events(
    empty: SqliteStore, tmp_path: Path, batches: list[list[LedgerEvent]]
) -> None:
    """
    The holdings in the tables are those of the pure fold.

    The fold finds no broken promise at any position, verify agrees, a rebuild has nothing to do.
    """
    path = tmp_path / "ledger.db"
    for old in tmp_path.iterdir():
        old.unlink()
    shutil.copy(empty.path, path)
    clock = Clock()
    with SqliteStore(path=path).open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node("n-1", cpus=4, gpus=3), node("n-2", cpus=4, gpus=3)))
        for batch in batches:
            with suppress(CapacityError):
                writer.append(clock.all(*batch, refused("w")))
        recorded = [(each.envelope.position, each.event) for each in ledger.read_events()]
        rows = ledger.connection.exec_driver_sql(
            "SELECT node_uid, pod_uid, attempt, position, phase FROM audit_reservations"
            " WHERE closed_position IS NULL ORDER BY position"
        ).all()
        ledger.connection.rollback()

        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal

    held = [
        (uid, holding.pod_uid, holding.attempt, holding.opened_position, holding.phase)
        for uid, state in fold(recorded).items()
        for holding in state.everyone()
    ]
    assert sorted(held, key=lambda each: each[3]) == [tuple(row) for row in rows]
    assert list(broken(recorded)) == []


def broken(recorded: list[tuple[int, LedgerEvent]]) -> Iterator[tuple[int, str]]:
    """Yield what the pure fold finds promised twice, with the position of the promise."""
    nodes: dict[str, NodeState | None] = {}
    for position, event in recorded:
        uid = node_uid_of(event)
        if uid is None:
            continue
        state = nodes[uid] = apply(nodes.get(uid), position, event)
        if state is not None and isinstance(event, PodReserved | ClaimReserved):
            known = [each for each in nodes.values() if each is not None]
            for violation in (*violations(state), *machine_violations(known)):
                yield position, str(violation)
