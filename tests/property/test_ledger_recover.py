"""Wherever a history is cut, the live Pods put back what they hold, and nothing else is held."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent
from ledger.store.proving.verify import verify
from tests.support.examples import examples
from tests.support.recovery import live_pods, open_holdings, recovered, witness
from tests.support.stores import (
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    node,
    released,
    reserved,
    share,
    start,
)

PODS = st.integers(0, 5)
PLACES = st.tuples(st.sampled_from(["n-1", "n-2"]), st.integers(0, 2))
STEPS = st.lists(
    st.tuples(PODS, PLACES, st.sampled_from([0, 30, 50, 100]), st.sets(st.integers(0, 3))),
    min_size=1,
    max_size=14,
)


Steps = list[tuple[int, tuple[str, int], int, set[int]]]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("recover") / "empty.db")
    store.open("create").close()
    return store


def _history(steps: Steps) -> list[LedgerEvent]:
    """Return a history in which a Pod's second turn is its end, its third the next attempt."""
    held: dict[int, tuple[str, int]] = {}
    attempts: dict[int, int] = {}
    events: list[LedgerEvent] = []
    for pod, (name, minor), core, cpus in steps:
        if pod in held:
            where, attempt = held.pop(pod)
            events.append(released(f"p{pod}", node=where, attempt=attempt))
            continue
        attempts[pod] = attempt = attempts.get(pod, 0) + 1
        held[pod] = (name, attempt)
        shares = (share(minor, core, node=name),) if core else ()
        events.append(
            reserved(f"p{pod}", *shares, node=name, attempt=attempt, cpus=tuple(sorted(cpus)))
        )
    return events


def check_a_cut_history(empty: Store, folder: Path, steps: Steps, cut: int) -> None:
    """
    Cut a history and recover it: the same is held as before.

    Nobody is promised twice, what is held proves itself, and recovering once is enough.
    """
    clock = Clock()
    history = _history(steps)
    store = empty.copy(folder / "ledger.db")
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node("n-1", cpus=4, gpus=3), node("n-2", cpus=4, gpus=3)))
        for event in history[:cut]:
            with suppress(CapacityError):
                writer.append([clock.new(event)])
    backup = store.copy(folder / "backup.db")
    try:
        with store.open() as ledger:
            writer = start(ledger)
            for event in history[cut:]:
                with suppress(CapacityError):
                    writer.append([clock.new(event)])
            pods, held, seen = live_pods(ledger), open_holdings(ledger), witness(ledger)
        with backup.open() as ledger:
            recovered(ledger, pods, [seen], all_pods=True)
            assert open_holdings(ledger) == held
            assert verify(ledger).findings == ()

            head = ledger.head()
            recovered(ledger, pods, [seen], incarnation="i3", all_pods=True)
            assert ledger.head() == head
    finally:
        for each in (store, backup):
            if isinstance(each, PostgresStore):
                each.server.drop(each.database)
        for left in folder.iterdir():
            left.unlink()


CHECKS = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=CHECKS)
@given(steps=STEPS, data=st.data())
def test_a_cut_history_is_made_whole_by_its_live_pods(
    empty: SqliteStore, tmp_path: Path, steps: Steps, data: st.DataObject
) -> None:
    """Wherever it is cut, in a file."""
    check_a_cut_history(empty, tmp_path, steps, data.draw(st.integers(0, len(steps)), label="cut"))


@pytest.mark.integration
@settings(max_examples=6, deadline=None, suppress_health_check=CHECKS)
@given(steps=STEPS, data=st.data())
def test_a_cut_history_is_made_whole_on_postgres_too(
    empty_postgres: PostgresStore, tmp_path: Path, steps: Steps, data: st.DataObject
) -> None:
    """Fewer histories, for each has two databases."""
    cut = data.draw(st.integers(0, len(steps)), label="cut")
    check_a_cut_history(empty_postgres, tmp_path, steps, cut)
