"""
Times that a wrong clock recorded: an event says when it was, and every audit view tells it.

Rule: docs/adr/0012. What is recorded stays; a ledger without a correction is read as ever.
"""

from __future__ import annotations

import json
import random
from itertools import accumulate
from pathlib import Path

import pytest
from sqlalchemy import event

from ledger.domain.errors import InputError
from ledger.domain.log.events import (
    DriftFound,
    DriftResolved,
    NodeLost,
    SettingsChanged,
    TimeCorrected,
    encode_event,
)
from ledger.store.ddl.audit_views import corrected_views
from ledger.store.mending.correcting import check_correction, correct
from ledger.store.mending.voiding import declare_void, impossible_event
from ledger.store.open import Ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading import report_queries as queries
from ledger.store.reading.query import run_sql
from ledger.store.reading.timetravel import position_at
from ledger.store.reading.views import When
from tests.support.archives import afterwards, history, move
from tests.support.cli import CommandLine
from tests.support.forging import forge
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    health,
    node,
    planned,
    refused,
    released,
    reserved,
    share,
    start,
)

YEAR_SECONDS = 31_536_000
YEAR_US = YEAR_SECONDS * 1_000_000
WRONG = 4
"""The position that a clock a year ahead recorded."""


def fill(store: Store) -> None:
    """Let `a` hold card 0 for 22 hours, one clock read a year ahead, and `b` follow `a` there."""
    clock = Clock()
    with store.open() as ledger:
        start(ledger).append(
            [
                clock.new(node(), at_us=MONDAY_US + 1),
                clock.new(reserved("a", share(0, 100)), at_us=MONDAY_US + HOUR_US),
                clock.new(refused("big"), at_us=MONDAY_US + YEAR_US),
                clock.new(released("a"), at_us=MONDAY_US + 23 * HOUR_US),
                clock.new(reserved("b", share(0, 100)), at_us=MONDAY_US + 23 * HOUR_US + 5),
                clock.new(released("b"), at_us=MONDAY_US + 24 * HOUR_US),
            ]
        )


def corrected(
    ledger: Ledger, first: int = WRONG, last: int = WRONG, shift: int = -YEAR_SECONDS
) -> int:
    """Correct positions by a shift in seconds."""
    words = TimeCorrected(first=first, last=last, shift_seconds=shift, reason="host-3")
    check_correction(ledger, words)
    return correct(start(ledger, "tenure ledger correct-time"), words, wall_us=0)


def gpu_hours(ledger: Ledger) -> float:
    """Return what the only namespace used, whenever it was."""
    with ledger.connection.begin():
        (used,) = queries.usage(ledger.connection, "namespace", 0, MONDAY_US + 2 * YEAR_US)
    return used.gpu_hours


def holders(ledger: Ledger, at_us: int) -> list[str]:
    """Return who had card 0 at a moment."""
    when = When(at_us=at_us)
    with ledger.connection.begin():
        found = queries.device_holders(ledger.connection, when, node="n-1", minor=0)
    return [each.pod_name for each in found]


def rows(ledger: Ledger, query: str) -> list[tuple[object, ...]]:
    """Return what anyone's SQL is told."""
    return run_sql(ledger, query)[1]


def test_a_reading_a_year_ahead_counts_no_hours_once_it_is_corrected(store: Store) -> None:
    """8,760 GPU-hours become the 22 and the one that they were, and the true holder is told."""
    fill(store)
    act_us = MONDAY_US + 23 * HOUR_US + 10
    with store.open() as ledger:
        assert round(gpu_hours(ledger)) == 8_759
        assert holders(ledger, act_us) == ["a"]

        corrected(ledger)

        assert round(gpu_hours(ledger), 6) == 23
        assert holders(ledger, act_us) == ["b"]
        assert holders(ledger, MONDAY_US + YEAR_US) == []
        assert position_at(ledger, act_us) == 6
        assert ledger.now_us() == MONDAY_US + 24 * HOUR_US
        assert rows(ledger, "SELECT pod_name, opened_at_us, closed_at_us FROM audit_holdings") == [
            ("a", MONDAY_US + HOUR_US, MONDAY_US + 23 * HOUR_US),
            ("b", MONDAY_US + 23 * HOUR_US + 5, MONDAY_US + 24 * HOUR_US),
        ]
        days = "SELECT day, gpu_hours, cpu_hours FROM audit_usage_days"
        assert [row[:2] for row in rows(ledger, days)] == [("2026-03-02", pytest.approx(23))]
        capacity = "SELECT day, used_gpu_hours FROM audit_capacity_days"
        assert [row[1] for row in rows(ledger, capacity)] == [pytest.approx(23)]
        (told,) = rows(ledger, "SELECT at FROM audit_events WHERE position = 5")
        assert told == ("2026-03-02T23:00:00Z",)
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal
        assert verify(ledger).findings == ()
    with store.open() as ledger:  # the log's own time runs on where it is
        clock = Clock(now_us=MONDAY_US + 25 * HOUR_US)
        start(ledger, "next").append([clock.new(reserved("c", share(0, 100)), key="c")])
        assert holders(ledger, MONDAY_US + 25 * HOUR_US + 1_000_000) == ["c"]
        assert verify(ledger).findings == ()


def test_every_time_of_every_view_is_a_true_one_on_both_databases(
    sqlite_store: SqliteStore, postgres_store: PostgresStore
) -> None:
    """No column and no day is left a year ahead, and one database says what the other says."""
    told: list[dict[str, list[str]]] = []
    for store in (sqlite_store, postgres_store):
        clock = Clock()
        with store.open() as ledger:
            writer = history(ledger, clock, events=60)
            drift = DriftFound(drift_id="d", kind="OverHeld", node_uid="uid-n-1", detail="")
            settings = SettingsChanged(settings_hash="s", settings="{}", tenure_version="1")
            now_us = clock.now_us
            wrong = writer.append([clock.new(drift, at_us=now_us + YEAR_US)])
            clock.now_us = now_us
            writer.append(
                [
                    *afterwards(clock),
                    *clock.all(
                        settings,
                        planned("group", ("other", (1,)), node="n-2"),
                        refused("late"),
                        health(2, healthy=False),
                        DriftResolved(drift_id="d", how="gone"),
                        NodeLost(node_uid="uid-n-2", node_name="n-2", reason="deleted"),
                        released("again"),
                    ),
                ]
            )
            corrected(ledger, wrong, wrong)
            found = {}
            for view in corrected_views("sqlite"):
                names, values = run_sql(ledger, f"SELECT * FROM {view}")
                for row in values:
                    for name, value in zip(names, row, strict=True):
                        if name.endswith("_us"):
                            assert value is None or int(str(value)) <= clock.now_us, (view, name)
                        if name in {"day", "at", "opened_at", "closed_at"}:
                            assert value is None or str(value) < "2026-03-03", (view, name)
                found[view] = sorted(map(repr, values))
            assert verify(ledger).findings == ()
            told.append(found)
    assert told[0] == told[1]
    assert {view for view, values in told[0].items() if not values} <= {
        "audit_unknown_ranges",
        "audit_takeovers",
        "audit_checkpoints",
        "audit_usage_labels_days",
    }


def oracle(times: list[tuple[int, int]], corrections: list[tuple[int, int, int]]) -> list[int]:
    """Return the true time of every event: (recorded, clock) by position, corrections in order."""
    first = min(first for first, _, _ in corrections)
    told = []
    for position, (at_us, wall_us) in enumerate(times, 1):
        shifts = [shift for low, high, shift in corrections if low <= position <= high]
        if position < first:
            told.append(at_us)
        elif shifts:
            told.append((wall_us or at_us) + shifts[-1] * 1_000_000)
        else:
            told.append(min(at_us, wall_us) if wall_us else 0)
    return list(accumulate(told, max))


def test_true_times_are_those_of_a_plain_reading_of_the_rule(store: Store) -> None:
    """Clocks ahead and behind, events without a clock, corrections over one another."""
    rng = random.Random(13)
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        for number in range(60):
            hour = MONDAY_US + HOUR_US * (number + 1)
            at_us = rng.choice([hour, hour, hour, 0, hour + YEAR_US, hour - YEAR_US])
            pod = f"p{number // 2}"
            event = released(pod) if number % 2 else reserved(pod, share(0, 50))
            writer.append(
                [*([clock.new(node())] if not number else []), clock.new(event, at_us=at_us)]
            )
        done: list[tuple[int, int, int]] = []
        while len(done) < 5:
            first = rng.randint(5, 50)
            last = rng.randint(first, 60)
            shift = rng.choice([-YEAR_SECONDS, -3_600, 0, YEAR_SECONDS])
            try:
                corrected(ledger, first, last, shift)
            except InputError:
                continue  # before the ledger began
            done.append((first, last, shift))
            events = "SELECT at_us, wall_us FROM ledger_events ORDER BY position"
            expected = oracle([(int(str(a)), int(str(b))) for a, b in rows(ledger, events)], done)
            told = "SELECT at_us FROM audit_events ORDER BY position"
            assert [at_us for (at_us,) in rows(ledger, told)] == expected
            spans = "SELECT position, opened_at_us, closed_position, closed_at_us FROM audit_{}"
            for view in ("holdings", "reservations"):
                for row in rows(ledger, spans.format(view)):
                    opened, opened_us, closed, closed_us = (int(str(each)) for each in row)
                    assert opened_us == expected[opened - 1]
                    assert closed_us == expected[closed - 1]
            for at_us in (expected[20], expected[40] + 1, MONDAY_US):
                last_before = max((n for n, us in enumerate(expected, 1) if us <= at_us), default=0)
                assert position_at(ledger, at_us) == last_before
            assert verify(ledger).findings == ()


@pytest.mark.parametrize(
    ("first", "last", "shift", "fact"),
    [
        (4, 8, 0, "no such positions: first=4, last=8, head=7"),
        (5, 4, 0, "no such positions"),
        (4, 4, -2 * YEAR_SECONDS, "before the ledger began"),
        (1, 1, -60 * YEAR_SECONDS, "before the ledger began"),
        (4, 4, 8_000 * YEAR_SECONDS, "behind year 9999"),
    ],
)
def test_what_no_clock_can_have_said_is_refused(
    store: Store, first: int, last: int, shift: int, fact: str
) -> None:
    """Positions that are not there, times before the ledger began or behind the calendar."""
    fill(store)
    with store.open() as ledger:
        with pytest.raises(InputError, match=fact):
            corrected(ledger, first, last, shift)
        assert verify(ledger).findings == ()


def test_a_ledger_began_when_its_first_event_really_was(store: Store) -> None:
    """Two clocks that were off by other times are corrected one after the other."""
    fill(store)
    with store.open() as ledger:
        corrected(ledger, 1, 3, -YEAR_SECONDS)
        corrected(ledger, 4, 4, -2 * YEAR_SECONDS)
        with pytest.raises(InputError, match="before the ledger began"):
            corrected(ledger, 4, 4, -3 * YEAR_SECONDS)
        assert holders(ledger, MONDAY_US - YEAR_US + 2 * HOUR_US) == ["a"]
        assert verify(ledger).findings == ()


def test_without_a_correction_every_question_has_the_plan_that_it_had(
    sqlite_store: SqliteStore,
) -> None:
    """No view of such a ledger reads true times; who held a card is found in the index."""
    fill(sqlite_store)
    at = "node_name = 'n-1' AND minor = 0 AND opened_at_us <= 9 AND closed_at_us > 9"

    def plans() -> dict[str, str]:
        with sqlite_store.raw() as raw:
            return {
                view: " / ".join(
                    row[3]
                    for row in raw.execute(
                        f"EXPLAIN QUERY PLAN SELECT * FROM {view}"
                        + (f" WHERE {at}" if view == "audit_holdings" else "")
                    )
                )
                for view in corrected_views("sqlite")
            }

    before = plans()
    assert len(before) == 19
    assert not [view for view, plan in before.items() if "_true" in plan or "audit_times" in plan]
    searched = "i USING COVERING INDEX ix_ledger_holdings_device_no_closed_at_us_opened_at_us"
    assert searched in before["audit_holdings"]
    with sqlite_store.open() as ledger:
        corrected(ledger)
    assert all("_true" in plan for plan in plans().values())


def test_views_that_do_not_go_with_the_log_are_named(store: Store) -> None:
    """A correction past the command leaves views behind that do not tell it; the next one does."""
    fill(store)
    words = TimeCorrected(first=4, last=4, shift_seconds=60, reason="mine")
    forge(store, words.event_type, encode_event(words))
    with store.open() as ledger:
        found = {each.text for each in verify(ledger).findings}
        assert "a rule of the database was changed: view=audit_holdings" in found
        corrected(ledger)
        assert verify(ledger).findings == ()
        assert round(gpu_hours(ledger), 6) == 23


def test_a_correction_of_what_comes_later_is_named_and_can_be_void(store: Store) -> None:
    """Times that no clock has said yet are nobody's to correct."""
    fill(store)
    with store.open() as ledger:
        corrected(ledger)
    words = TimeCorrected(first=99, last=100, shift_seconds=0, reason="mine")
    at = forge(store, words.event_type, encode_event(words))
    with store.open() as ledger:
        assert at in {each.position for each in verify(ledger).findings}
        declare_void(start(ledger, "void"), impossible_event(ledger, at), "mine", wall_us=0)
        assert verify(ledger).findings == ()
        with pytest.raises(InputError, match="finds nothing wrong"):
            impossible_event(ledger, at - 1)


def test_a_correction_that_nobody_can_read_stops_nobody_once_it_is_void(store: Store) -> None:
    """The ledger is again one without a correction, and can get a good one."""
    fill(store)
    at = forge(store, "time.corrected.v1", '{"first":"x","last":4,"reason":"","shift_seconds":0}')
    with store.open() as ledger:
        declare_void(start(ledger, "void"), impossible_event(ledger, at), "mine", wall_us=0)
        assert verify(ledger).findings == ()
        assert round(gpu_hours(ledger)) == 8_759
        corrected(ledger)
        assert round(gpu_hours(ledger), 6) == 23
        assert verify(ledger).findings == ()


def test_corrected_events_stay_out_of_the_archive(store: Store, tmp_path: Path) -> None:
    """Views read them in the log; what is archived is not corrected any more."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(refused("r"), key=f"r{n}") for n in range(600)])
        corrected(ledger, 400, 400, -3)
        with pytest.raises(InputError, match="the events from position 399 on stay in the log"):
            move(ledger, tmp_path)
        assert ledger.head().position == 603
    assert not list(tmp_path.glob("segment-*"))


def test_the_command_corrects_and_status_tells_true_time(
    sqlite_store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run says which times these would be and changes nothing."""
    fill(sqlite_store)
    cli = CommandLine(sqlite_store.path, capsys)
    words = ("ledger", "correct-time", "--first", "4", "--last", "4", "--reason", "host-3")
    dry = cli.ask(*words, "--shift", str(-YEAR_SECONDS), "--dry-run")
    assert (dry.code, "would be corrected: positions 4 to 4" in dry.out) == (0, True), dry
    assert json.loads(cli.ask("status", "-o", "json").out)["head_at"].startswith("2027")

    assert cli.ask(*words, "--shift", str(-YEAR_SECONDS)).code == 0
    assert json.loads(cli.ask("status", "-o", "json").out)["head_at"].startswith("2026-03-0")
    assert cli.ask("verify").code == 0
    asked = cli.ask("who", "n-1/0", "--at", "2026-03-02T23:30:00Z")
    assert "team-a/b" in asked.out, asked
    assert cli.ask(*words, "--shift", str(-9 * YEAR_SECONDS)).code == 2


def test_whether_there_is_a_correction_is_asked_of_an_index(sqlite_store: SqliteStore) -> None:
    """Every command asks; the log is not read from end to end for it."""
    fill(sqlite_store)
    asked: list[str] = []
    with sqlite_store.open() as ledger:
        event.listen(ledger.engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
        ledger.now_us()
    (query,) = [text for text in asked if "time.corrected.v1" in text]
    with sqlite_store.raw() as raw:
        plan = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert all("ix_ledger_events_seldom" in step for step in plan), plan
