"""
Anyone with the file and a SQL prompt: what the database itself refuses, past our own code.

Rule: design section 4, "Append-only by the database, not by habit".

Every statement runs on a plain connection of Python's sqlite3 with default pragmas: no foreign
keys, no recursive triggers.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ledger.domain.log.events import LedgerEvent
from ledger.store.proving.verify import verify
from tests.support.stores import (
    Clock,
    SqliteStore,
    gpu,
    health,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

FULL = "(SELECT device_no FROM ledger_devices WHERE device_type = 'gpu' AND minor = 0)"
FREE = "(SELECT device_no FROM ledger_devices WHERE device_type = 'gpu' AND minor = 7)"
HOLDING = (
    "INSERT {how} INTO ledger_holdings (position, device_no, minor, core_percent, memory_bytes,"
    " memory_ratio_percent, exclusive, instances, kind, opened_at_us)"
    " SELECT {position}, {device}, 0, {core}, {memory}, 0, 0, 1, '{kind}', opened_at_us"
    " FROM ledger_reservations WHERE position = 4"
)


def holding(
    *,
    how: str = "",
    position: int | str = 4,
    device: str = FULL,
    core: int = 10,
    memory: int = 1,
    kind: str = "granted",
) -> str:
    """Return the SQL that puts one more holder on a card."""
    return HOLDING.format(
        how=how, position=position, device=device, core=core, memory=memory, kind=kind
    )


EVENT = (
    "INSERT {how} INTO ledger_events SELECT {position}, stream, {version}, event_type, body, actor,"
    " epoch, causation_position, correlation_id, {key}, args_hash, at_us, wall_us, leaf_hash,"
    " chain_hash FROM ledger_events WHERE position = 3"
)


def full_events() -> tuple[LedgerEvent, ...]:
    """Return a ledger whose card n-1/gpu/0 is full: events 2 to 9."""
    return (
        node(cpus=2),
        reserved("a", share(0, 60), cpus=(0,)),  # position 3
        reserved("b", share(0, 40), share(1, 50)),
        refused("c"),
        health(3, healthy=False),
        reserved("d", share(2, 10)),
        released("d"),
        observed("x", share(4, 30)),
    )


@pytest.fixture(scope="module")
def full_once(empty_ledger: SqliteStore, tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A ledger whose card n-1/gpu/0 is full, and that nobody changes."""
    store = empty_ledger.copy(tmp_path_factory.mktemp("full") / "ledger.db")
    with store.open() as ledger:
        start(ledger).append(Clock().all(*full_events()))
    return store


@pytest.fixture
def full(full_once: SqliteStore, tmp_path: Path) -> SqliteStore:
    """A copy of it, which a test may do anything to."""
    return full_once.copy(tmp_path / "ledger.db")


REFUSED = {
    "editing an event": (
        "UPDATE ledger_events SET body = '{}' WHERE position = 3",
        "events are append-only: position 3 cannot be changed",
    ),
    "editing an event, ignoring conflicts": (
        "UPDATE OR IGNORE ledger_events SET actor = 'me' WHERE position = 3",
        "events are append-only: position 3 cannot be changed",
    ),
    "editing an event over another one": (
        "UPDATE OR REPLACE ledger_events SET position = 2 WHERE position = 3",
        "events are append-only: position 3 cannot be changed",
    ),
    "deleting an event": (
        "DELETE FROM ledger_events WHERE position = 3",
        "events are append-only: position 3 cannot be deleted",
    ),
    "deleting every event": ("DELETE FROM ledger_events", "position 1 cannot be deleted"),
    "replacing an event": (
        EVENT.format(how="OR REPLACE", position=3, version=2, key="'x'"),
        "events are append-only: the next position is 10, not 3",
    ),
    "replacing an event through its key": (
        EVENT.format(how="OR REPLACE", position=10, version=9, key="idempotency_key"),
        "position 10 is beyond the head: only the writer of the current epoch appends",
    ),
    "replacing an event on conflict": (
        EVENT.format(how="", position=3, version=2, key="idempotency_key")
        + " ON CONFLICT (position) DO UPDATE SET body = '{}'",
        "the next position is 10, not 3",
    ),
    "leaving a gap": (
        EVENT.format(how="", position=12, version=9, key="'x'"),
        "the next position is 10, not 12",
    ),
    "appending without the writer": (
        EVENT.format(how="", position=10, version=9, key="'x'"),
        "only the writer of the current epoch appends",
    ),
    "a second holder of a full card": (
        holding(position=9),
        "card n-1/gpu/0 (GPU-n-1-0) has 0 of 100 percent core left, 10 asked",
    ),
    "a second holder that ignores conflicts": (
        holding(how="OR IGNORE", position=99),
        "card n-1/gpu/0 (GPU-n-1-0) has 0 of 100 percent core left, 10 asked",
    ),
    "a second holder in place of the first": (
        holding(how="OR REPLACE"),
        "a holding opens once: position 4, card n-1/gpu/0 (GPU-n-1-0) has 0 of 100 percent",
    ),
    "a holder that gives less than nothing": (
        holding(device=FREE, core=-50),
        "a holding is never less than nothing: position 4, core_percent=-50",
    ),
    "a holder without a reservation": (
        holding(device=FREE, position=99),
        "no reservation at position 99 asks for this card",
    ),
    "one card more for a reservation": (
        holding(device=FREE),
        "no reservation at position 4 asks for this card",
    ),
    "an observed holder made up": (
        holding(kind="observed", position=99),
        "no reservation at position 99 asks for this card",
    ),
    "a holder of no card": (holding(device="4711"), "no reservation at position 4 asks"),
    "making a holding larger": (
        "UPDATE ledger_holdings SET core_percent = 99 WHERE position = 4",
        "a holding only ends with its reservation: position 4",
    ),
    "moving a holding": (
        f"UPDATE ledger_holdings SET device_no = {FULL} WHERE position = 4 AND minor = 1",
        "a holding only ends with its reservation",
    ),
    "ending a holding by hand": (
        "UPDATE ledger_holdings SET closed_position = 9, closed_at_us = 9 WHERE position = 4",
        "a holding only ends with its reservation",
    ),
    "deleting a holding": ("DELETE FROM ledger_holdings", "holdings are never deleted"),
    "ending a reservation without an event": (
        "UPDATE ledger_reservations SET closed_position = 9, closed_at_us = 9 WHERE position = 4",
        "no event at position 9 ends the reservation of pod team-a/b",
    ),
    "ending a reservation with the end of another": (
        (
            "UPDATE ledger_reservations SET closed_position = 8, closed_at_us = (SELECT at_us"
            " FROM ledger_events WHERE position = 8) WHERE position = 4"
        ),
        "no event at position 8 ends the reservation of pod team-a/b",
    ),
    "opening an ended reservation": (
        (
            "UPDATE ledger_reservations SET closed_position = NULL, closed_at_us = NULL"
            " WHERE pod_name = 'd'"
        ),
        "a reservation only ends, it does not change",
    ),
    "giving a reservation to another Pod": (
        "UPDATE ledger_reservations SET pod_uid = 'me' WHERE position = 4",
        "a reservation only ends, it does not change: position 4, pod team-a/b",
    ),
    "another number for a reservation, by its other name": (
        "UPDATE ledger_reservations SET rowid = 99 WHERE position = 4",
        "a reservation only ends, it does not change: position 4, pod team-a/b",
    ),
    "another number for an event, by its other name": (
        "UPDATE ledger_events SET _rowid_ = 99 WHERE position = 3",
        "events are append-only: position 3 cannot be changed",
    ),
    "a reservation without an event": (
        "INSERT OR REPLACE INTO ledger_reservations SELECT * FROM ledger_reservations",
        "no event at position 3 opens this reservation",
    ),
    "deleting a reservation": (
        "DELETE FROM ledger_reservations WHERE position = 4",
        "reservations are never deleted",
    ),
    "emptying a card's counters": (
        "UPDATE ledger_devices SET core_used = 0, memory_used = 0, tenants = 0",
        "what is used of a card is the sum of its holdings: n-1/gpu/0",
    ),
    "filling a card's counters": (
        "UPDATE ledger_devices SET core_used = 100 WHERE minor = 7",
        "what is used of a card is the sum of its holdings: n-1/gpu/7",
    ),
    "a larger card": (
        "UPDATE ledger_devices SET core_reported = 200, core_cap = 200 WHERE minor = 0",
        "facts of a card change with an event that says so",
    ),
    "a larger card, with the number of an event": (
        (
            "UPDATE ledger_devices SET core_reported = 200, core_cap = 200, fact_position = 5"
            " WHERE minor = 0"
        ),
        "facts of a card change with an event that says so",
    ),
    "a healthy card": (
        "UPDATE ledger_devices SET healthy = 1 WHERE minor = 3",
        "facts of a card change with an event that says so",
    ),
    "another number for a card, by its other name": (
        "UPDATE ledger_devices SET rowid = 99 WHERE minor = 0",
        "facts of a card change with an event that says so",
    ),
    "another number for a card, by its oldest name": (
        "UPDATE ledger_devices SET oid = 99, _rowid_ = 99 WHERE minor = 0",
        "facts of a card change with an event that says so",
    ),
    "another card in place of the full one": (
        "INSERT OR REPLACE INTO ledger_devices SELECT * FROM ledger_devices WHERE minor = 0",
        "no event at position 2 brings in a device",
    ),
    "deleting a card": ("DELETE FROM ledger_devices", "cards are never deleted"),
    "a second holder of a CPU": (
        (
            "INSERT INTO ledger_cpu_holdings (position, cpu, machine_no, kind, opened_at_us)"
            " SELECT position, 0, node_no, kind, opened_at_us FROM ledger_reservations"
            " WHERE position = 4"
        ),
        "cpu n-1/cpu/0 has 1 of 1 holders, one more asked",
    ),
    "a CPU for a reservation without CPUs": (
        (
            "INSERT INTO ledger_cpu_holdings (position, cpu, machine_no, kind, opened_at_us)"
            " SELECT position, 1, node_no, kind, opened_at_us FROM ledger_reservations"
            " WHERE position = 4"
        ),
        "no reservation at position 4 asks for CPU 1",
    ),
    "freeing a CPU": (
        "UPDATE ledger_cpus SET ref_used = 0",
        "what is used of a CPU is the count of its holders: n-1/cpu/0",
    ),
    "more holders for a CPU": (
        "UPDATE ledger_cpus SET ref_reported = 2, ref_max = 2",
        "facts of a CPU change with an event that says so",
    ),
    "deleting a CPU's holder": (
        "DELETE FROM ledger_cpu_holdings",
        "CPU holdings are never deleted",
    ),
    "moving the head back": (
        "UPDATE ledger_head SET position = 3",
        "the head only moves forward: it is at position 9",
    ),
    "an older epoch": ("UPDATE ledger_head SET epoch = 0", "the head only moves forward"),
    "another origin": (
        "UPDATE ledger_head SET origin = 'me'",
        "a ledger keeps its origin: simulation/test",
    ),
    "another origin with an epoch": (
        "UPDATE ledger_head SET origin = 'me', epoch = epoch + 1",
        "a ledger keeps its origin",
    ),
    "another head id": ("UPDATE ledger_head SET id = 2", "the head only moves forward"),
    "another chain at the same head": (
        "UPDATE ledger_head SET chain_hash = zeroblob(32)",
        "the head only moves forward",
    ),
    "taking over without an epoch": (
        "UPDATE ledger_head SET holder = 'evil'",
        "the holder changes with the epoch: it is epoch 1",
    ),
    "leaving epochs out": (
        "UPDATE ledger_head SET epoch = epoch + 7",
        "an epoch is followed by the next one: it is epoch 1",
    ),
    "a second head": (
        "INSERT OR REPLACE INTO ledger_head SELECT * FROM ledger_head",
        "there is one head",
    ),
    "deleting the head": ("DELETE FROM ledger_head", "heads are never deleted"),
    "setting a stream back": (
        "UPDATE ledger_streams SET version = 1",
        "a stream moves by one with each event",
    ),
    "making up a stream": (
        "INSERT OR REPLACE INTO ledger_streams VALUES ('sys', 1)",
        "a stream moves by one with each event: sys",
    ),
    "deleting a stream": ("DELETE FROM ledger_streams", "streams are never deleted"),
    "editing a refusal": (
        "UPDATE ledger_refusals SET message = ''",
        "a refusal does not change: position 5",
    ),
    "editing a card's past": (
        "UPDATE ledger_device_health SET healthy = 1",
        "a change of health does not change: position 6",
    ),
    "making up a death": (
        "INSERT INTO ledger_device_health VALUES (3, 1, 1, 0, 'made up')",
        "no event at position 3 is a change of health",
    ),
    "renaming a node": (
        "UPDATE ledger_nodes SET node_name = 'n-2'",
        "facts of a node change with an event that says so",
    ),
    "deleting where a node stood": (
        "DELETE FROM ledger_stands",
        "nodes on machines are never deleted",
    ),
    "making up a node": (
        ("INSERT INTO ledger_nodes SELECT 9, 'u', 'n-9', 1, '', '', '{}', 1, 1, 1, NULL, NULL, 3"),
        "no event at position 3 brings in a node",
    ),
}


@pytest.mark.parametrize(
    "pragma", ["", "PRAGMA ignore_check_constraints = ON"], ids=["", "unchecked"]
)
@pytest.mark.parametrize(("sql", "message"), REFUSED.values(), ids=REFUSED)
def test_the_database_refuses(full: SqliteStore, sql: str, message: str, pragma: str) -> None:
    """It names the place, changes nothing, and the ledger still proves itself."""
    with full.raw() as raw:
        raw.execute(pragma)
        before = list(raw.iterdump())
        with pytest.raises(sqlite3.Error) as refusal:
            raw.execute(sql)

        assert message in str(refusal.value)
        assert list(raw.iterdump()) == before


def test_a_ledger_that_was_tried_still_proves_itself(full: SqliteStore) -> None:
    """After every refused statement in a row, all of it verifies."""
    with full.raw() as raw:
        for sql, _ in REFUSED.values():
            with pytest.raises(sqlite3.Error):
                raw.execute(sql)
    with full.open("read") as ledger:
        assert verify(ledger).findings == ()


def test_a_rule_that_was_dropped_is_missed(full: SqliteStore) -> None:
    """What a file's owner can do, verify names: no trigger goes, comes or changes unseen."""
    with full.raw() as raw:
        raw.execute("DROP TRIGGER ledger_events_no_update")
        raw.execute("DROP TRIGGER ledger_holdings_take")
        raw.execute(
            "CREATE TRIGGER ledger_holdings_take AFTER INSERT ON ledger_holdings"
            " BEGIN SELECT 1; END"
        )
        raw.execute("CREATE TRIGGER mine AFTER INSERT ON ledger_events BEGIN SELECT 1; END")
        raw.execute("CREATE VIEW my_view AS SELECT 1")
    with full.open("read") as ledger:
        texts = [finding.text for finding in verify(ledger).findings]

    assert texts == [
        "a rule of the database is missing: trigger=ledger_events_no_update",
        "a rule of the database was changed: trigger=ledger_holdings_take",
        "a trigger was added to the database: trigger=mine, table=ledger_events",
    ]


CARD = "node_no = 1 AND device_type = 'gpu' AND minor = {minor}"
FACTS_CARD = "facts of a card change with an event that says so"
NEW_CARD = (
    "INSERT INTO ledger_devices SELECT {number}, {node}, {node}, device_type, {minor}, {uuid}, 0,"
    " model, 1, 1, {core}, memory_reported, {core}, memory_reported, 0, 0, 0, 0, 0, 0, 0,"
    " {position} FROM ledger_devices WHERE node_no = 1 AND minor = 0"
)


def new_card(
    *,
    number: str = "(SELECT max(device_no) + 1 FROM ledger_devices)",
    node: int = 1,
    minor: int = 0,
    uuid: str = "device_id",
    core: int = 100,
    position: int,
) -> str:
    """Return the SQL that brings in one more card, made like n-1/gpu/0."""
    return NEW_CARD.format(
        number=number, node=node, minor=minor, uuid=uuid, core=core, position=position
    )


def facts(on: int, **values: str | int) -> str:
    """Return the SQL that changes facts of a card of n-1."""
    pairs = ", ".join(f"{name} = {value}" for name, value in values.items())
    return f"UPDATE ledger_devices SET {pairs} WHERE {CARD.format(minor=on)}"


def borrowed_events() -> tuple[LedgerEvent, ...]:
    """Return cards whose events a cheat may point at: n-1 at 2 and 8, n-2 at 9, a death at 10."""
    return (
        node(cpus=2),
        reserved("a", share(0, 100)),
        health(3, healthy=False),  # position 4
        health(3, healthy=True, reason="replaced"),
        health(3, healthy=False),
        refused("c"),
        node(cpus=2, devices=tuple(gpu(m, healthy=m != 3) for m in range(8))),
        node("n-2", cpus=2, refs=9, devices=(gpu(0, node="n-2", core_percent=300),)),
        health(0, node="n-2", healthy=False),
    )


@pytest.fixture
def borrowed(sqlite_store: SqliteStore) -> SqliteStore:
    """Cards whose events a cheat may point at."""
    with sqlite_store.open() as ledger:
        start(ledger).append(Clock().all(*borrowed_events()))
    return sqlite_store


BORROWED = {
    "another name for a held card": (
        facts(0, device_id="'GPU-x'", minor=9, fact_position=9),
        FACTS_CARD,
    ),
    "another name for a held card, by its own inventory": (
        facts(0, device_id="'GPU-x'", fact_position=8),
        FACTS_CARD,
    ),
    "the name of another card": (
        facts(0, device_id="'GPU-n-1-1'", minor=1, fact_position=8),
        FACTS_CARD,
    ),
    "the name of another card, replacing it": (
        facts(0, device_id="'GPU-n-1-1'", fact_position=8).replace("UPDATE", "UPDATE OR REPLACE"),
        FACTS_CARD,
    ),
    "the same card again": (new_card(position=8), "is named twice: position=8"),
    "the same card again on another node": (
        new_card(position=9, node=2),
        "no event at position 9 brings in a device",
    ),
    "a card with a number of its own": (
        new_card(number="9999", position=8),
        "no event at position 8 brings in a device",
    ),
    "a nameless card of an older inventory": (
        new_card(uuid="''", position=2),
        "no event at position 2 brings in a device",
    ),
    "a card out of nothing": (
        new_card(uuid="'GPU-x'", minor=9, position=8),
        "no event at position 8 brings in a device",
    ),
    "a larger card by the inventory of another node": (
        facts(0, core_reported=300, core_cap=300, fact_position=9),
        FACTS_CARD,
    ),
    "a larger card by its own inventory": (
        facts(0, core_reported=300, core_cap=300, fact_position=8),
        FACTS_CARD,
    ),
    "life by an older event": (facts(3, healthy=1, fact_position=5), FACTS_CARD),
    "life by an inventory that says dead": (facts(3, healthy=1, fact_position=8), FACTS_CARD),
    "death by the event of another node": (facts(1, healthy=0, fact_position=10), FACTS_CARD),
    "a card away by its inventory": (
        facts(
            1,
            present=0,
            core_reported=0,
            core_cap=0,
            memory_reported=0,
            memory_cap=0,
            fact_position=8,
        ),
        FACTS_CARD,
    ),
    "a card on another node": (facts(1, node_no=2, fact_position=9), FACTS_CARD),
    "a node's name by the inventory of another": (
        "UPDATE ledger_nodes SET node_name = 'n-9', fact_position = 9 WHERE node_no = 1",
        "facts of a node change with an event that says so",
    ),
    "a node's row moved on alone": (
        "UPDATE ledger_nodes SET fact_position = 9 WHERE node_no = 1",
        "facts of a node change with an event that says so",
    ),
    "a second node by the inventory of the first": (
        (
            "INSERT INTO ledger_nodes SELECT 3, 'u', 'n-9', machine_no, system_uuid, machine_id,"
            " labels, cpu_milli, memory_bytes, cpu_ref_max, NULL, NULL, 8"
            " FROM ledger_nodes WHERE node_no = 1"
        ),
        "no event at position 8 brings in a node",
    ),
    "a node on the machine of another": (
        "INSERT INTO ledger_stands VALUES (1, 2, '', 0, 8)",
        "no event at position 8 brings in a node on a machine",
    ),
    "a node on its machine once more": (
        "INSERT INTO ledger_stands VALUES (1, 1, '', 0, 8)",
        "no event at position 8 brings in a node on a machine",
    ),
    "a boot by the inventory of another node": (
        "UPDATE ledger_stands SET boot_id = 'x', fact_position = 9 WHERE node_no = 1",
        "facts of a node on a machine change with an event that says so",
    ),
    "an agent's word by the inventory that it has": (
        "UPDATE ledger_stands SET by_agent = 1 WHERE node_no = 1",
        "facts of a node on a machine change with an event that says so",
    ),
    "a CPU with many holders": (
        "INSERT INTO ledger_cpus VALUES (1, 9, 1, 0, 0, 0, 1, 9, 9, 0, 0, 9)",
        "no event at position 9 brings in a CPU",
    ),
    "a CPU out of nothing": (
        "INSERT INTO ledger_cpus VALUES (1, 9, 1, 0, 0, 0, 1, 1, 1, 0, 0, 8)",
        "no event at position 8 brings in a CPU",
    ),
    "more holders for a CPU by another node": (
        (
            "UPDATE ledger_cpus SET ref_reported = 9, ref_max = 9, fact_position = 9"
            " WHERE node_no = 1 AND cpu = 0"
        ),
        "facts of a CPU change with an event that says so",
    ),
    "a CPU away": (
        (
            "UPDATE ledger_cpus SET present = 0, ref_reported = 0, ref_max = 0, core = -1,"
            " socket = -1, numa = -1, fact_position = 8 WHERE node_no = 1 AND cpu = 0"
        ),
        "facts of a CPU change with an event that says so",
    ),
    "a death on another card": (
        (
            "INSERT INTO ledger_device_health SELECT 10, 1, at_us, 0, 'Xid79' FROM ledger_events"
            " WHERE position = 10"
        ),
        "no event at position 10 is a change of health",
    ),
    "a death by an inventory that says nothing of it": (
        (
            "INSERT INTO ledger_device_health SELECT 8, 1, at_us, 0, 'gone' FROM ledger_events"
            " WHERE position = 8"
        ),
        "no event at position 8 is a change of health",
    ),
    "a refusal of someone else": (
        (
            "INSERT INTO ledger_refusals SELECT 8, at_us, 'u', namespace, pod_name, stage, message,"
            " shape, gpu_core_percent, policy, owner FROM ledger_refusals"
        ),
        "no event at position 8 is a refusal",
    ),
}


@pytest.mark.parametrize(("sql", "message"), BORROWED.values(), ids=BORROWED)
def test_an_event_speaks_for_its_own_rows_only(
    borrowed: SqliteStore, sql: str, message: str
) -> None:
    """A row that points at an event must be what the body of that event says, and of its node."""
    with borrowed.raw() as raw:
        before = list(raw.iterdump())
        with pytest.raises(sqlite3.Error) as refusal:
            raw.execute(sql)

        assert message in str(refusal.value)
        assert list(raw.iterdump()) == before
    with borrowed.open("read") as ledger:
        assert verify(ledger).findings == ()


def test_a_share_of_nothing_is_no_second_holder(sqlite_store: SqliteStore) -> None:
    """A reservation whose card was never taken cannot take a full one by asking for nothing."""
    with sqlite_store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 100)), reserved("b")))
    with sqlite_store.raw() as raw:
        with pytest.raises(sqlite3.Error) as refusal:
            raw.execute(
                "INSERT INTO ledger_holdings (position, device_no, minor, core_percent,"
                " memory_bytes, memory_ratio_percent, exclusive, instances, kind, opened_at_us)"
                " SELECT position, 1, 0, 0, 0, 0, 0, 1, kind, opened_at_us"
                " FROM ledger_reservations WHERE pod_name = 'b'"
            )
        assert "has 0 of 100 percent core left, 0 asked" in str(refusal.value)
