"""Whatever is done to the projections, `rebuild` makes them again, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Table

from ledger.store import schema
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from tests.support.stores import (
    Clock,
    SqliteStore,
    health,
    node,
    observed,
    planned,
    refused,
    released,
    reserved,
    share,
    start,
)

TABLES = (*schema.PROJECTIONS, schema.ledger_streams)
TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"


@pytest.fixture(scope="module")
def full_once(empty_ledger: SqliteStore, tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A ledger with rows in every projection, which nobody changes."""
    store, clock = empty_ledger.copy(tmp_path_factory.mktemp("full") / "ledger.db"), Clock()
    virtual = share(0, 100, device_type="rdma", device_id="R-0", vf_bus_ids=("0000:1f:00.2",))
    card = {"device_type": "rdma", "device_id": "R-0", "memory_bytes": 0}
    with store.open() as ledger:
        first = node("n-1", gpus=3, cpus=4)
        nic = type(first.devices[0])(minor=0, **card)  # type: ignore[arg-type]
        first = node("n-1", devices=(*first.devices, nic), cpus=4, gpus=3)
        writer = start(ledger)
        writer.append(clock.all(first, reserved("a", share(0, 50), cpus=(0, 1)), refused("w")))
        writer.append(clock.all(reserved("v", share(1, 10), cpus=(2,))))
        writer.append(clock.all(planned("g", ("m", (2,))), health(0, healthy=False)))
        writer.append(clock.all(observed("x", virtual), observed("y", share(1, 20))))
        writer.append(clock.all(released("a")))
        assert verify(ledger).findings == ()
    return store


@pytest.fixture
def full(full_once: SqliteStore, tmp_path: Path) -> SqliteStore:
    """A copy of it, which a test may do anything to."""
    return full_once.copy(tmp_path / "ledger.db")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.name))
@pytest.mark.parametrize("harm", ["all rows are gone", "the last column is another"])
def test_a_harmed_projection_is_made_again(full: SqliteStore, table: Table, harm: str) -> None:
    """With its rules taken away by hand a table is harmed; rebuild makes it what it was."""
    with full.open() as ledger:
        before = rebuild(ledger)
    assert before.equal
    with full.raw() as raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        raw.execute("PRAGMA ignore_check_constraints = ON")
        rows = raw.execute(f"SELECT * FROM {table.name}").fetchall()
        assert rows, "the ledger must have a row to lose"
        triggers = raw.execute(TRIGGERS).fetchall()
        for name, _ in triggers:
            raw.execute(f"DROP TRIGGER {name}")
        column = next(each for each in reversed(table.columns) if not each.primary_key)
        value = "7001" if column.type.python_type is int else "'harmed'"
        if harm == "all rows are gone":
            raw.execute(f"DELETE FROM {table.name}")
        else:
            raw.execute(f"UPDATE {table.name} SET {column.name} = {value}")
        for _, sql in triggers:
            raw.execute(sql)
    with full.open() as ledger:
        report = rebuild(ledger)
        assert not report.equal
        assert any(text.startswith(table.name) for text in report.differences)
        assert report.digest == before.digest
        again = rebuild(ledger)
        assert (again.equal, again.digest) == (True, before.digest)
        assert verify(ledger).findings == ()
    with full.raw() as raw:
        assert raw.execute(f"SELECT * FROM {table.name}").fetchall() == rows
