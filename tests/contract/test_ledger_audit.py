"""The audit views are what docs/audit.md says, and every question in it has its answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.errors import InputError
from ledger.domain.log.events import (
    DriftFound,
    DriftResolved,
    GroupPlanned,
    LedgerEvent,
    LedgerRecovered,
    PlanDropped,
    PlannedMember,
    RequestRefused,
    SettingsChanged,
)
from ledger.store.reading.query import run_sql
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
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
SETTINGS = '{"node_policy":"binpack","seed":42}'
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
        ("team-b", "serve", 1, "mallory bound team-b/serve to n-2"),
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
        ("test", "drift.found.v1", 2),
        ("test", "drift.resolved.v1", 1),
        ("test", "epoch.started.v1", 1),
        ("test", "group.plan_dropped.v1", 1),
        ("test", "group.planned.v1", 1),
        ("test", "ledger.recovered.v1", 1),
        ("test", "node.inventoried.v1", 3),
        ("test", "pod.observed.v1", 1),
        ("test", "pod.released.v1", 1),
        ("test", "pod.reserved.v1", 3),
        ("test", "request.refused.v1", 4),
        ("test", "settings.changed.v1", 1),
    ],
    "Prove that no card was ever above 100 %: which were?": [],
    "Which Pods shared a CPU at the same time?": [],
    "How many GPU-hours did each namespace use in the week of 2026-03-02?": [
        ("team-a", pytest.approx(7.8)),
        ("kube", pytest.approx(6.0)),
        ("team-b", pytest.approx(4.8)),
    ],
    "How many GPU-hours did each team use, by its label?": [("a", pytest.approx(12.6))],
    "How much GPU capacity was stranded, and how much was idle?": [
        ("n-1", "2026-03-02", *map(pytest.approx, (60.0, 18.6, 31.5, 3.8, 5.1))),
        ("n-2", "2026-03-02", *map(pytest.approx, (14.9, 0.0, 14.4, 0.0, 0.0))),
    ],
    "What is there that nobody knows?": [
        (19, 25, "second", "2026-03-02T22:00:00Z", "2026-03-02T22:30:00Z")
    ],
    "What happened to GPU 0 of n-1?": [
        ("2026-03-02T09:00:00Z", "inventoried", None, 100, ""),
        ("2026-03-02T10:00:00Z", "held", "train-1", 60, "granted"),
        ("2026-03-02T12:00:00Z", "held", "serve", 40, "granted"),
        ("2026-03-02T14:30:00Z", "closed", None, None, "Xid79"),
        ("2026-03-02T15:00:00Z", "freed", "train-1", 60, "card died"),
    ],
    "What did one Pod hold, and until when?": [
        ("n-1/cpu/0", "2026-03-02T10:00:00Z", "2026-03-02T15:00:00Z", "card died"),
        ("n-1/cpu/1", "2026-03-02T10:00:00Z", "2026-03-02T15:00:00Z", "card died"),
        ("n-1/0", "2026-03-02T10:00:00Z", "2026-03-02T15:00:00Z", "card died"),
        ("n-1/2", "2026-03-02T16:00:00Z", None, None),
    ],
    "Which Pods hold CPUs of n-1 now?": [],
    "Why are Pods refused?": [
        ("scheduling", "0/1 nodes are available: 1 Insufficient GPU.", 2, 2),
        ("scheduling", "0/2 nodes are available: 2 GpuFragmented.", 1, 1),
        ("takeover", "mallory bound team-b/serve to n-2", 1, 1),
    ],
    "Who tried to bind our Pods?": [
        ("2026-03-02T19:00:00Z", "team-b", "serve", "mallory bound team-b/serve to n-2")
    ],
    "Which drift is open now?": [
        ("Orphan", "n-1", None, "a process without a holding", "2026-03-02T18:30:00Z")
    ],
    "How long did drift last, by kind?": [("Orphan", 1, 0, None), ("OverHeld", 1, 1, 1_800)],
    "Who wrote the ledger, and how much?": [(1, "test", "2026-03-02T00:00:00Z", None, 21)],
    "Who changed the settings, and to what?": [
        ("2026-03-02T18:52:30Z", "test", '{"node_policy":"binpack","seed":42}')
    ],
    "Which groups were planned, and what became of it?": [
        ("ring", "ring-0", "n-2", "[0]", "timeout"),
        ("ring", "ring-1", "n-2", "[]", "timeout"),
    ],
    "Up to where is the log signed?": [(0, 0, 21)],
}


def drift_found(drift_id: str, kind: str, detail: str, minor: int = -1) -> DriftFound:
    """Return a disagreement about n-1."""
    return DriftFound(
        drift_id=drift_id,
        kind=kind,
        node_uid="uid-n-1",
        detail=detail,
        device_type="" if minor < 0 else "gpu",
        minor=minor,
    )


def stolen() -> RequestRefused:
    """Return the refusal of a Binding that is not ours."""
    return RequestRefused(
        pod_uid="uid-serve",
        namespace="team-b",
        pod_name="serve",
        stage="takeover",
        message="mallory bound team-b/serve to n-2",
    )


def member(pod: str, *minors: int) -> PlannedMember:
    """Return a member that is to get these cards of n-2."""
    return PlannedMember(
        pod_uid=f"uid-{pod}", namespace="team-a", pod_name=pod, node_uid="uid-n-2", minors=minors
    )


def recovered() -> LedgerRecovered:
    """Return the recovery after the plan was dropped, as event 20."""
    return LedgerRecovered(
        lost_from=19, lost_to=25, incarnation="second", lost_incarnation="first", began_at=20
    )


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def empty(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A ledger without events on each database, to be asked and nothing else."""
    if request.param == "sqlite":
        made: SqliteStore = request.getfixturevalue("empty_ledger")
        yield made.copy(tmp_path_factory.mktemp("empty") / "ledger.db")
        return
    store: PostgresStore = request.getfixturevalue("empty_postgres").copy()
    yield store
    store.server.drop(store.database)


@pytest.fixture(scope="module")
def monday(empty: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The ledger of that day, to be asked and nothing else."""
    store = empty.copy(tmp_path_factory.mktemp("monday") / "ledger.db")
    record_monday(store)
    yield store
    if isinstance(store, PostgresStore):
        store.server.drop(store.database)


def record_monday(store: Store) -> None:
    """Record one day of two nodes, known by heart; the last event is at midnight."""
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
        (18.25, drift_found("d-1", "OverHeld", "held by others", minor=1)),
        (18.5, drift_found("d-2", "Orphan", "a process without a holding")),
        (18.75, DriftResolved(drift_id="d-1", how="adopted")),
        (18.875, SettingsChanged(settings_hash="h", settings=SETTINGS, tenure_version="0.1.0")),
        (19, stolen()),
        (20, refused("big", "0/2 nodes are available: 2 GpuFragmented.")),
        (21, GroupPlanned(group="ring", members=(member("ring-0", 0), member("ring-1")))),
        (22, PlanDropped(group="ring", reason="timeout")),
        (22.5, recovered()),
        (24, node("n-2", gpus=0)),
    ]
    with store.open() as ledger:
        start(ledger).append(
            [clock.new(event, at_us=MONDAY_US + int(hour * HOUR_US)) for hour, event in day]
        )


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_documented_columns(empty: Store, view: str) -> None:
    """Names and order of the columns are those of the table under the view's heading."""
    documented = re.findall(r"^\| `(\w+)` \|", VIEWS[view], re.MULTILINE)
    with empty.open("read") as ledger:
        columns, rows = run_sql(ledger, f"SELECT * FROM {view}")

    assert list(columns) == documented
    assert rows == []


def test_every_view_is_documented(empty: Store) -> None:
    """No audit view without a heading, no heading without a view."""
    catalogue = "SELECT viewname FROM pg_views WHERE schemaname = 'public'"
    if isinstance(empty, SqliteStore):
        catalogue = "SELECT name FROM sqlite_master WHERE type = 'view'"
    with empty.open("read") as ledger:
        _, rows = run_sql(ledger, catalogue)

    assert {name for (name,) in rows} == set(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_plain_values(monday: Store, view: str) -> None:
    """Values are integers, floats and text, whatever types the database has of its own."""
    with monday.open("read") as ledger:
        _, rows = run_sql(ledger, f"SELECT * FROM {view}")

    assert {type(value) for row in rows for value in row} <= {int, float, str, type(None)}


def test_every_question_has_an_answer_here() -> None:
    """A question added to the document is answered in this test."""
    assert set(QUESTIONS) == set(ANSWERS)
    assert len(QUESTIONS) >= 20


@pytest.mark.parametrize("question", ANSWERS)
def test_a_worked_question_is_answered(monday: Store, question: str) -> None:
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
def test_only_a_query_is_run(monday: Store, sql: str) -> None:
    """Everything that is not one SELECT is an input error, and changes nothing."""
    before = contents(monday)
    with monday.open("read") as ledger, pytest.raises(InputError):
        run_sql(ledger, sql)
    assert contents(monday) == before


def contents(store: Store) -> list[str]:
    """Return what is in the database: every definition and row, or what a query could have hit."""
    if isinstance(store, SqliteStore):
        with store.raw() as raw:
            return list(raw.iterdump())
    with store.raw() as server:
        names = server.execute("SELECT relname FROM pg_class ORDER BY relname").fetchall()
        tables = ("ledger_head", "ledger_refusals", "ledger_streams")
        rows = [server.execute(f"SELECT * FROM {name}".encode()).fetchall() for name in tables]
    return [repr(names), *map(repr, rows)]


def test_a_query_reads_what_is_committed(store: Store) -> None:
    """Columns by name, rows as tuples; a writer beside it does not matter."""
    record_monday(store)
    with store.open() as ledger:
        start(ledger)
        columns, rows = run_sql(ledger, "SELECT epoch, position AS last FROM ledger_head")

    assert (columns, rows) == (("epoch", "last"), [(2, 22)])


def test_sums_are_plain_numbers(monday: Store) -> None:
    """An integer stays one when it is summed, and an average is a float."""
    sql = "SELECT sum(core_percent) AS total, avg(core_percent + 0.5) AS mean FROM audit_holdings"
    with monday.open("read") as ledger:
        _, [(total, mean)] = run_sql(ledger, sql)

    assert (total, type(total)) == (260, int)
    assert (mean, type(mean)) == (65.5, float)


def test_a_table_is_described(sqlite_store: SqliteStore) -> None:
    """A reader of the file may ask what a table has."""
    with sqlite_store.open("read") as ledger:
        described, _ = run_sql(ledger, "PRAGMA table_info(ledger_head)")

    assert "name" in described


def test_a_query_that_does_not_end_is_stopped(sqlite_store: SqliteStore) -> None:
    """After its time the answer is an input error that says how long it had."""
    endless = (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    )
    with sqlite_store.open("read") as ledger:
        with pytest.raises(InputError, match=r"ran too long and was stopped: limit=0\.05 s"):
            run_sql(ledger, endless, seconds=0.05)
        _, rows = run_sql(ledger, "SELECT count(*) FROM audit_events")

    assert rows == [(0,)]


def test_a_planned_place_ends_when_its_pod_takes_it(store: Store) -> None:
    """Only that Pod on that node, and only while the plan stands; the rest of the plan waits on."""
    clock, name = Clock(), "ring"

    def plan(group: str, *pods: str) -> GroupPlanned:
        return GroupPlanned(group=group, members=tuple(member(pod) for pod in pods))

    taken = share(0, 50, node="n-2")
    history: list[LedgerEvent] = [
        node(gpus=2),
        node("n-2", gpus=4),
        plan(name, "a", "b", "c"),
        reserved("a", taken, node="n-2"),
        reserved("b", share(1)),
        PlanDropped(group=name, reason="timeout"),
        reserved("c", taken, node="n-2"),
        plan("pair", "d"),
    ]
    with store.open() as ledger:
        start(ledger).append(clock.all(*history))
        _, rows = run_sql(
            ledger,
            "SELECT pod_name, closed_position, end_reason, closed_at FROM audit_plans"
            " ORDER BY position, pod_name",
        )

    dropped = (7, "timeout", "2026-03-02T00:00:06Z")
    assert rows == [
        ("a", 5, "taken", "2026-03-02T00:00:04Z"),
        ("b", *dropped),
        ("c", *dropped),
        ("d", None, None, None),
    ]


def test_views_of_seldom_events_use_their_index(sqlite_store: SqliteStore) -> None:
    """They find their events by type, and do not read the log from end to end."""
    for view in ("audit_drift", "audit_epochs", "audit_plans", "audit_settings"):
        with sqlite_store.raw() as raw:
            plan = raw.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {view}").fetchall()
        steps = [row[-1] for row in plan]
        assert any("ix_ledger_events_seldom" in step for step in steps), (view, steps)
        assert not any(step in ("SCAN e", "SCAN ledger_events") for step in steps), (view, steps)


WHO_HELD = (
    "SELECT pod_name FROM audit_holdings WHERE node_name = 'n-1' AND device_type = 'gpu'"
    " AND minor = 0 AND opened_at_us <= 1000 AND (closed_at_us IS NULL OR closed_at_us > 1000)"
)
BY_NAME = {
    "audit_holdings": WHO_HELD,
    "audit_cpu_holdings": "SELECT pod_name FROM audit_cpu_holdings WHERE node_name = 'n-1'",
    "audit_intervals": "SELECT pod_name FROM audit_intervals WHERE node_name = 'n-1'",
}


@pytest.mark.parametrize("question", BY_NAME.values(), ids=BY_NAME)
def test_a_question_by_name_scans_no_holdings(sqlite_store: SqliteStore, question: str) -> None:
    """It goes from the Node over its machines to what is held there."""
    with sqlite_store.raw() as raw:
        plan = raw.execute(f"EXPLAIN QUERY PLAN {question}").fetchall()
    steps = [row[-1] for row in plan if not row[-1].startswith("SCAN audit_")]

    assert any("holdings" in step for step in steps)
    assert not any(step.startswith("SCAN ") for step in steps), steps


def test_a_question_by_name_scans_no_holdings_on_postgres(postgres_store: PostgresStore) -> None:
    """The same where a statistic says that there are many."""
    clock, many = Clock(), "generate_series(1, 2000) AS i"
    with postgres_store.open() as ledger:
        names = [f"n-{number}" for number in range(8)]
        pods = [reserved(name, share(0, 60, node=name), node=name) for name in names]
        start(ledger).append(clock.all(*map(node, names), *pods))
    with postgres_store.raw() as raw, raw.transaction():
        raw.execute("SET LOCAL tenure.migration = 'on'")
        for table in ("ledger_reservations", "ledger_holdings"):
            raw.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            moved = (
                "jsonb_build_object('position', t.position + 100 * i, 'opened_at_us', i,"
                " 'closed_at_us', i + 1, 'closed_position', t.position + 100 * i + 50)"
            )
            raw.execute(
                f"INSERT INTO {table} SELECT (jsonb_populate_record(t, {moved})).*"
                f" FROM {table} AS t, {many}"
            )
    with postgres_store.raw() as raw:
        raw.execute("ANALYZE")
        plan = "\n".join(line for (line,) in raw.execute(f"EXPLAIN {WHO_HELD}"))

    assert "Index Cond: ((device_no = d.device_no)" in plan, plan
    assert not re.search(r"Seq Scan on ledger_(holdings|reservations)", plan), plan


def test_datasette_opens_a_ledger_as_it_is(sqlite_store: SqliteStore) -> None:
    """Its views are there as tables, with the rows that the ledger has."""
    clock = Clock()
    with sqlite_store.open() as ledger:
        start(ledger).append(clock.all(node(gpus=1), reserved("train-1", share(0, 60))))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "datasette", str(sqlite_store.path)),
            *("--get", "/ledger/audit_holdings.json?_shape=array"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr

    (row,) = json.loads(done.stdout)
    assert (row["node_name"], row["minor"], row["pod_name"]) == ("n-1", 0, "train-1")
    assert row["opened_at"] == "2026-03-02T00:00:02Z"
