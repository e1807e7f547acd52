"""No number is recorded that no machine has and no calendar writes: refused with its field."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import Table, bindparam, insert
from sqlalchemy.exc import DBAPIError

from ledger.domain.bounds import TIME_MAX_US, WALL_MAX_US
from ledger.domain.cpuset import CPU_ID_MAX
from ledger.domain.errors import InputError
from ledger.domain.log.events import LedgerEvent, decode_event
from ledger.domain.log.recorded import NewEvent
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.topology import Cpu
from ledger.store import schema
from ledger.store.failures import fact_of
from ledger.store.fitting import UnfitNumberError
from ledger.store.proving.verify import verify
from ledger.store.reading.query import run_sql
from ledger.store.writing.commands import Command, Refused
from tests.support.cli import CommandLine
from tests.support.stores import (
    Clock,
    SqliteStore,
    Store,
    bound,
    gpu,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

I53, I31 = 2**53, 2**31
ABSURD: dict[str, LedgerEvent] = {
    "attempt": released("a", attempt=I31),
    "cpu_milli": reserved("a", cpu_milli=100_000_001),
    "memory_bytes": node(memory_bytes=I53),
    "shares[0].core_percent": reserved("a", share(0, 8_000_001, gib=1)),
    "shares[0].memory_bytes": observed("a", share(0, memory_bytes=-1)),
    "shares[0].minor": reserved("a", share(I31)),
    "shares[0].instances": reserved("a", share(0, instances=-1)),
    "shares[0].memory_ratio_percent": reserved("a", share(0, memory_ratio_percent=I53)),
    "devices[0].minor": node(devices=(gpu(-2),)),
    "devices[0].core_percent": node(devices=(gpu(0, core_percent=I53),)),
    "devices[0].memory_bytes": node(devices=(gpu(0, memory_bytes=I53),)),
    "devices[1].core_percent": node(devices=(gpu(0), gpu(1, core_percent=-1))),
    "devices[1].memory_bytes": node(devices=(gpu(0), gpu(1, memory_bytes=-1))),
    "cpus[0].id": structs.replace(node(), cpus=(Cpu(id=CPU_ID_MAX + 1, core=0, socket=0, numa=0),)),
    "cpus[0].numa": structs.replace(node(), cpus=(Cpu(id=0, core=0, socket=0, numa=-2),)),
    "cpu_ref_count_max": node(cpu_ref_count_max=I53),
    "snapshot.priority": reserved("a", snapshot=PodSnapshot(priority=I31)),
    "snapshot.created_at_us": reserved("a", snapshot=PodSnapshot(created_at_us=-1)),
    "gpu_core_percent": structs.replace(refused("a"), gpu_core_percent=1_000_000_001),
}


def at(wall_us: int) -> NewEvent:
    """Return an event of that moment."""
    return Clock().new(node(), at_us=wall_us)


@pytest.mark.parametrize(("field", "event"), ABSURD.items(), ids=list(ABSURD))
def test_an_absurd_number_is_refused_with_its_field(
    store: Store, field: str, event: LedgerEvent
) -> None:
    """By append and among commands; nothing is recorded, and the next append works."""
    words = f"a number is out of its bounds: event_type={event.event_type}, field={field}"
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        with pytest.raises(UnfitNumberError) as caught:
            writer.append([clock.new(node()), clock.new(event)])
        [outcome] = writer.record([Command(events=(clock.new(event),))])
        assert isinstance(outcome, Refused)
        assert str(caught.value) == str(outcome.error) == words
        assert writer.append([clock.new(node())]) == 2
        assert verify(ledger).ok


@pytest.mark.parametrize("field", ["wall_us", "causation_position"])
@pytest.mark.parametrize("number", [1.0, True])
def test_only_an_integer_stands_around_an_event(store: Store, field: str, number: Any) -> None:  # noqa: ANN401 - no integer
    """What SQLite would store as another value than was hashed is refused first."""
    with store.open() as ledger:
        writer = start(ledger)
        with pytest.raises(UnfitNumberError, match=rf"field={field}$"):
            writer.append([structs.replace(at(1), **{field: number})])
        assert verify(ledger).ok


@pytest.mark.parametrize("wall_us", [-1, WALL_MAX_US + 1, TIME_MAX_US + 1, 2**63 - 1, 2**64])
def test_an_absurd_clock_is_refused(store: Store, wall_us: int) -> None:
    """Before it could end every later append, or every later question."""
    with store.open() as ledger:
        writer = start(ledger)
        with pytest.raises(UnfitNumberError, match=r"field=wall_us$"):
            writer.append([at(wall_us)])
        with pytest.raises(UnfitNumberError, match=r"field=wall_us$"):
            ledger.start_epoch("next", "simulation/test", "1", wall_us=wall_us)
        assert writer.append([at(0)]) == 2


def test_the_latest_clock_leaves_time_for_what_follows(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes after the last moment goes on by a microsecond, and every question is answered."""
    with store.open() as ledger:
        writer = start(ledger)
        clock = Clock(now_us=WALL_MAX_US - 2_000_000)
        writer.append(
            [clock.new(node(), at_us=WALL_MAX_US), clock.new(reserved("a", share(0, 50)), at_us=0)]
        )
        writer.append([clock.new(bound("a"), at_us=0), clock.new(released("a"), at_us=0)])
        assert ledger.head().at_us == WALL_MAX_US + 3
        assert verify(ledger).ok
        for view in ("audit_usage_days", "audit_capacity_days", "audit_events"):
            assert run_sql(ledger, f"SELECT * FROM {view}")[1]
    cli = CommandLine(store.path if isinstance(store, SqliteStore) else store.url, capsys)  # type: ignore[arg-type]
    for question in (("who", "n-1"), ("usage",), ("status",), ("verify",)):
        answer = cli.ask(*question)
        assert answer.code == 0, answer


@pytest.mark.parametrize(
    ("event_type", "body", "field"),
    [
        ("pod.bound.v1", '{"attempt":2147483648,"node_uid":"n","pod_uid":"p"}', "attempt"),
        ("pod.bound.v1", '{"attempt":-1,"node_uid":"n","pod_uid":"p"}', "attempt"),
        ("snapshot.taken.v1", '{"at_position":-1,"digest":""}', "at_position"),
    ],
)
def test_an_absurd_body_is_not_read(event_type: str, body: str, field: str) -> None:
    """Beyond either end; verify names it by its position."""
    with pytest.raises(InputError, match=rf"{event_type}.{field}: expected `int` [<>]="):
        decode_event(event_type, body)


def _bounded() -> list[tuple[Table, str, int, int]]:
    """Return every bounded column with its bounds."""
    found = []
    for table in schema.METADATA.sorted_tables:
        for constraint in table.constraints:
            text = str(getattr(constraint, "sqltext", ""))
            if str(constraint.name).endswith("_bounds"):
                column, _, low, _, high = text.split()
                found.append((table, column, int(low), int(high)))
    return found


BOUNDED = _bounded()


def test_every_column_that_a_clock_or_a_machine_fills_is_bounded() -> None:
    """Times, amounts, numbers of things: those that are not copies of one that is."""
    names = {(table.name, column) for table, column, _, _ in BOUNDED}
    assert names >= {("ledger_events", "wall_us"), ("ledger_events", "at_us")}
    assert len(names) == len(BOUNDED) == 31


@pytest.mark.parametrize("end", ["low", "high"])
def test_the_database_refuses_it_too(store: Store, end: str) -> None:
    """In the same words on both, for each column, with every rule of ours out of the way."""
    facts = set()
    with store.open() as ledger:
        start(ledger)
        connection = ledger.connection
        for table, column, low, high in BOUNDED:
            value = low - 1 if end == "low" else high + 1
            values: dict[str, Any] = {
                each.name: bytes(32) if each.type.python_type is bytes else 0
                if each.type.python_type is int else ""
                for each in table.columns
            }  # fmt: skip
            values |= {c: lo for t, c, lo, _ in BOUNDED if t is table}
            values |= {column: value, "kind": "granted"} if "kind" in values else {column: value}
            values |= {
                name: 2**62 for name in ("core_cap", "memory_cap", "ref_max") if name in values
            }
            values |= {"id": 1} if "id" in values else {}
            values |= {"decided_on": None} if "decided_on" in values else {}
            with connection.begin() as transaction:
                if connection.dialect.name == "sqlite":
                    for (name,) in connection.exec_driver_sql(
                        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
                    ).all():
                        connection.exec_driver_sql(f"DROP TRIGGER {name}")
                else:
                    connection.exec_driver_sql("SET session_replication_role = replica")
                    connection.exec_driver_sql("SET tenure.migration = 'on'")
                    _without_rules(connection, table.name)
                if table.name == "ledger_head":
                    connection.exec_driver_sql("DELETE FROM ledger_head")
                with pytest.raises(DBAPIError) as caught:
                    connection.execute(insert(table).values(
                        {name: bindparam(name) for name in values}
                    ), values)  # fmt: skip
                facts.add(fact_of(caught.value))
                transaction.rollback()
    assert facts == {
        f"a constraint is not met: ck_{table.name}_{column}_bounds" for table, column, *_ in BOUNDED
    }


def _without_rules(connection: Any, table: str) -> None:  # noqa: ANN401
    connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    if table == "ledger_events":
        connection.exec_driver_sql("ALTER TABLE ledger_events_0 DISABLE TRIGGER USER")


def test_a_row_from_before_is_named_by_verify(
    sqlite_store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever wrote it past the constraints; status and who still answer."""
    with sqlite_store.open() as ledger:
        start(ledger).append(Clock().all(node()))
    with sqlite_store.raw() as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("DROP TRIGGER ledger_events_no_update")
        raw.execute("DROP TRIGGER ledger_head_forward")
        raw.execute(f"UPDATE ledger_head SET at_us = {2**62}")
        raw.execute(
            f"UPDATE ledger_events SET wall_us = {2**62}, at_us = {2**62} WHERE position = 2"
        )
    with sqlite_store.open("read") as ledger:
        found = [str(each) for each in verify(ledger).findings]
    assert any("position 2: a time is out of its bounds" in each for each in found), found
    answer = CommandLine(sqlite_store.path, capsys).ask("status")
    assert (answer.code, f"{2**62} us after 1970" in answer.out) == (0, True), answer
