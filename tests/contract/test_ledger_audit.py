"""The audit views are what docs/audit.md says, and every question in it has its answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.errors import InputError
from ledger.domain.events import LedgerEvent
from ledger.store.query import run_sql
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    Clock,
    SqliteStore,
    health,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

TEXT = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
VIEWS = dict(re.findall(r"^### (audit_\w+)\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL))
QUESTIONS = dict(
    re.findall(r"^### ([A-Z][^\n]*\?)\n.*?```sql\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL)
)
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "Who held GPU 0 of n-1 on Monday at 14:05?": [
        ("team-a", "train-1", 60),
        ("team-b", "serve", 40),
    ],
    "Who holds what now?": [
        ("n-1", "gpu", 0, "team-b", "serve", 40, "granted"),
        ("n-1", "gpu", 1, "kube", "legacy", 100, "observed"),
        ("n-1", "gpu", 2, "team-a", "train-1", 60, "granted"),
    ],
    "Who had CPU 1 of n-1, and until when?": [
        ("train-1", MONDAY_US + 10 * HOUR_US, MONDAY_US + 15 * HOUR_US, "card died")
    ],
    "Was any card ever above 100 %?": [(100,)],
    "How many GPU-hours did each namespace use on Monday?": [
        ("team-a", pytest.approx(0.6 * 5 + 0.6 * 8)),  # 10:00 to 15:00, 16:00 to midnight
        ("kube", pytest.approx(6.0)),  # from 18:00
        ("team-b", pytest.approx(0.4 * 12)),  # from noon
    ],
    "Which cards take no grants, and why?": [
        ("n-1", "gpu", 0, "unhealthy"),
        ("n-1", "gpu", 1, "held by others"),
        ("n-2", "gpu", 0, "gone"),
    ],
    "Who was on a card when it died?": [
        ("n-1", 0, "Xid79", "team-a", "train-1"),
        ("n-1", 0, "Xid79", "team-b", "serve"),
    ],
    "Which Pods were refused most often, and what were they told last?": [
        ("team-a", "big", 2, "0/2 nodes are available: 2 GpuFragmented."),
        ("team-a", "typo", 1, "0/1 nodes are available: 1 Insufficient GPU."),
    ],
    "Which Pods waited longest for their first reservation?": [
        ("team-b", "serve", 12 * HOUR_US),
        ("team-a", "train-1", 10 * HOUR_US),
    ],
    "Which cards has nobody held for longest?": [("n-1", 3, None)],
    "What happened to one Pod?": [
        (4, 1, "n-1", 1, "released", "card died"),
        (10, 2, "n-1", 1, "reserved", None),
    ],
    "Who changed what?": [
        ("test", "device.health_changed.v1", 1),
        ("test", "epoch.started.v1", 1),
        ("test", "node.inventoried.v1", 3),
        ("test", "pod.observed.v1", 1),
        ("test", "pod.released.v1", 1),
        ("test", "pod.reserved.v1", 3),
        ("test", "request.refused.v1", 3),
    ],
}


@pytest.fixture
def monday(store: SqliteStore) -> SqliteStore:
    """One day of two nodes, known by heart; the last event is at midnight."""
    clock = Clock()
    day: list[tuple[float, LedgerEvent]] = [
        (9, node(gpus=4, cpus=2)),
        (9.1, node("n-2", gpus=1)),
        (10, reserved("train-1", share(0, 60), cpus=(0, 1))),
        (12, reserved("serve", share(0, 40), namespace="team-b")),
        (13, refused("big")),
        (14, refused("typo")),
        (14.5, health(0, healthy=False)),
        (15, released("train-1", reason="card died")),
        (16, reserved("train-1", share(2, 60), attempt=2)),
        (18, observed("legacy", share(1, 100))),
        (20, refused("big", "0/2 nodes are available: 2 GpuFragmented.")),
        (24, node("n-2", gpus=0)),
    ]
    with store.open() as ledger:
        start(ledger).append(
            [clock.new(event, at_us=MONDAY_US + int(hour * HOUR_US)) for hour, event in day]
        )
    return store


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_documented_columns(store: SqliteStore, view: str) -> None:
    """Names and order of the columns are those of the table under the view's heading."""
    documented = re.findall(r"^\| `(\w+)` \|", VIEWS[view], re.MULTILINE)
    with store.open("read") as ledger:
        columns, rows = run_sql(ledger, f"SELECT * FROM {view}")

    assert list(columns) == documented
    assert rows == []


def test_every_view_is_documented(store: SqliteStore) -> None:
    """No audit view without a heading, no heading without a view."""
    with store.open("read") as ledger:
        _, rows = run_sql(ledger, "SELECT name FROM sqlite_master WHERE type = 'view'")

    assert {name for (name,) in rows} == set(VIEWS)


def test_every_question_has_an_answer_here() -> None:
    """A question added to the document is answered in this test."""
    assert set(QUESTIONS) == set(ANSWERS)
    assert len(QUESTIONS) >= 10


@pytest.mark.parametrize("question", ANSWERS)
def test_a_worked_question_is_answered(monday: SqliteStore, question: str) -> None:
    """The SQL as printed gives the answer that the day's story says."""
    with monday.open("read") as ledger:
        _, rows = run_sql(ledger, QUESTIONS[question])

    assert rows == ANSWERS[question]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM ledger_refusals",
        "UPDATE ledger_head SET epoch = 9",
        "INSERT INTO ledger_streams VALUES ('x', 1)",
        "CREATE TABLE mine (a)",
        "CREATE TEMP TABLE mine (a)",
        "DROP VIEW audit_events",
        "ATTACH '/etc/passwd' AS x",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = OFF",
        "SELECT load_extension('x')",
        "BEGIN",
        "VACUUM",
        "SELECT 1; DELETE FROM ledger_refusals",
        "SELEC 1",
        "",
    ],
)
def test_only_a_query_is_run(monday: SqliteStore, sql: str) -> None:
    """Everything that is not one SELECT is an input error, and changes nothing."""
    with monday.raw() as raw:
        before = list(raw.iterdump())
    with monday.open("read") as ledger, pytest.raises(InputError):
        run_sql(ledger, sql)
    with monday.raw() as raw:
        assert list(raw.iterdump()) == before


def test_a_query_reads_what_is_committed(monday: SqliteStore) -> None:
    """Columns by name, rows as tuples, tables described; a writer beside it does not matter."""
    with monday.open() as ledger:
        start(ledger)
        columns, rows = run_sql(ledger, "SELECT epoch, position AS last FROM ledger_head")
        described, _ = run_sql(ledger, "PRAGMA table_info(ledger_head)")

    assert (columns, rows) == (("epoch", "last"), [(2, 14)])
    assert "name" in described
