"""`tenure ledger clear`: the explicit act behind which a lost node's cards are granted again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.store.open import open_ledger
from ledger.store.proving.verify import verify
from scheduler.service.api.acts import ActRoutes
from tests.contract.test_ledger_machines import holder, lost, on_m
from tests.integration.test_live_answers import served
from tests.support.api_callers import Cluster as Callers
from tests.support.cli import CommandLine
from tests.support.ledgers import morning, write_ledger
from tests.support.reconciled import Cluster
from tests.support.recorded import Recorded
from tests.support.stores import Clock, SqliteStore

REASON = ("--reason", "powered off, ticket 12")


class Lost(Cluster):
    """A service, and a node that went while a Pod of ours ran there."""

    def __init__(self) -> None:
        super().__init__()
        self.bound_pods()
        self.server.delete("/api/v1/nodes/n0")
        self.settle()


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    """A node that was lost under its holder, and another node of the same machine."""
    found = SqliteStore(path=tmp_path / "ledger.db")
    with open_ledger(found.url, mode="create") as ledger:
        Recorded(ledger, on_m("n-1"), holder("a", "n-1"), lost("n-1"), on_m("n-2"))
    return found


def test_the_act_ends_the_lost_holders_and_says_which(
    store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a dry run first, which records nothing; then the card is granted through the new node."""
    line = CommandLine(store.path, capsys)
    said = "node=n-1, node_uid=uid-n-1, pod=team-a/a, pod_uid=uid-a\n"
    with store.open() as ledger:
        before = ledger.head()
    assert line.ask("ledger", "clear", "n-1", *REASON, "--dry-run").out == f"would end: {said}"
    with store.open() as ledger:
        assert ledger.head() == before

    assert line.ask("ledger", "clear", "uid-n-1", *REASON).out == f"ended: {said}"
    with store.open() as ledger:
        writer = ledger.start_epoch("test", ledger.head().origin, "0.1.0")
        writer.append([Clock().new(holder("b", "n-2"), key="behind the act")])
        assert verify(ledger).ok


def test_a_live_service_does_it_and_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a caller with the right in all namespaces; its answer is the command's."""
    live = Lost().live
    cluster = Callers(tokens={"good": "anna"}, may={"anna": {"ml"}})
    acts = ActRoutes(live.releasing, live.guard.gate, live.agents, cluster, why_not=str)
    line, ledger = CommandLine(tmp_path / "none.db", capsys), tmp_path / "asked.db"
    order = ("ledger", "clear", "n0", *REASON)
    said = "node=n0, node_uid=uid-n0-0, pod=ml/p, pod_uid=uid-p\n"
    with served(tmp_path, str(write_ledger(ledger, morning())), cluster, acts.routes()) as place:
        refused = line.run(*order, *place)
        assert (refused.code, refused.out) == (2, "")
        assert "in all namespaces" in refused.err
        cluster.may["anna"].add("")
        assert line.run(*order, *place, "--dry-run").out == f"would end: {said}"
        assert line.run(*order, *place).out == f"ended: {said}"
        again = line.run(*order, *place)
    assert again.code == 2
    assert "nothing is held by a lost Pod of this node" in again.err
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("n-9", *REASON), "no such node: node=n-9"),
        (("n-2", *REASON), "nothing is held by a lost Pod of this node: node=n-2"),
        (("n-1", "--reason", " "), "say who made sure that nothing runs, and how"),
    ],
    ids=["a node nobody knows", "a live node", "no reason"],
)
def test_what_is_not_lost_is_not_cleared(
    store: SqliteStore,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    """One error, and nothing is recorded."""
    with store.open() as ledger:
        before = ledger.head()
    answer = CommandLine(store.path, capsys).ask("ledger", "clear", *arguments)
    assert answer.code == 2
    assert message in answer.err
    with store.open() as ledger:
        assert ledger.head() == before


def test_a_second_act_finds_nothing(store: SqliteStore, capsys: pytest.CaptureFixture[str]) -> None:
    """What is cleared is not lost any more."""
    line = CommandLine(store.path, capsys)
    assert line.ask("ledger", "clear", "n-1", *REASON).code == 0
    answer = line.ask("ledger", "clear", "n-1", *REASON)
    assert answer.code == 2
    assert "nothing is held by a lost Pod" in answer.err
