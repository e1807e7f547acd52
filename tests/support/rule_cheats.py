"""What somebody with a SQL prompt tries, so that every rule of a ledger refuses once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledger.domain.log.events import NodeLost
from ledger.domain.request.requests import PodSnapshot
from ledger.signing import sign_note
from ledger.store import schema
from ledger.store.ddl.rules.table import KEPT
from ledger.store.open import Ledger
from ledger.store.proving.checkpoints import checkpoint_at, store_checkpoint
from ledger.store.reading.snapshots import take_snapshot
from tests.support.archives import KEY, history, move
from tests.support.stores import (
    Clock,
    gpu,
    health,
    node,
    observed,
    planned,
    released,
    reserved,
    share,
    start,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """
    Statements of which the last one is refused.

    Attributes:
        scene: the ledger in which they are tried.
    """

    scene: str
    statements: tuple[str, ...]


def copied(table: str, where: str, **values: str) -> str:
    """Return the SQL that adds the copy of a row, with other values in some columns."""
    names = [column.name for column in schema.METADATA.tables[table].columns]
    assert values.keys() <= set(names), values
    taken = ", ".join(values.get(name, name) for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {taken} FROM {table} WHERE {where}"


LAST: Final = "(SELECT position FROM ledger_head)"
AHEAD: Final = "UPDATE ledger_head SET position = position + 1, at_us = at_us + 1"
"""The head is where one more event may stand."""


def event(event_type: str = "event_type", body: str = "body", *, of: int = 3, **more: str) -> str:
    """Return the SQL that puts one more event behind the last one, like that at a position."""
    words = {
        "position": LAST,
        "stream": "'forged'",
        "stream_version": "1",
        "event_type": event_type,
        "body": body,
        "idempotency_key": "'forged'",
        "at_us": "(SELECT at_us FROM ledger_head)",
    }
    return copied("ledger_events", f"position = {of}", **words | more)


def _world(ledger: Ledger, folder: Path) -> None:
    """Record machines and holders of every kind."""
    del folder
    lse = PodSnapshot(qos="LSE")
    writer, clock = start(ledger), Clock()
    for each in (
        node(cpus=4, refs=2),
        reserved("a", share(0, 100), cpus=(0,)),  # position 3
        reserved("b", share(1, 50)),
        observed("x", share(4, 100)),
        observed("y", share(5, 10, gib=80)),
        reserved("m", share(6, 10, gib=80)),
        reserved("e", share(2, 10, exclusive=True)),
        reserved("l", cpus=(1,), snapshot=lse),
        node(gpus=7, cpus=3, refs=2),  # position 10: card 7 and CPU 3 are gone
        health(3, healthy=False),
        node("n-2", gpus=2),
        observed("u", node="n-2", unknown_types=("gpu",)),
        node("n-3", devices=(gpu(0, device_id="GPU-w", unique_id=True),)),
        node("n-4", devices=(gpu(0, device_id="GPU-w", unique_id=True),)),
        node("n-5"),
        NodeLost(node_uid="uid-n-5", node_name="n-5", reason="gone"),
        node("n-6", gpus=1, system_uuid="six"),
        reserved("s", share(0, 10, node="n-6"), node="n-6"),
        node("n-6", gpus=1, system_uuid="other"),
        node("n-7", gpus=2),
        planned("g", ("p", (0,)), node="n-7"),
        node("n-8", system_uuid="m", machine_id="m", devices=(gpu(0, device_id=""),)),
        reserved("h", share(0, 10, device_id=""), node="n-8"),
        node("n-9", system_uuid="m", machine_id="m", devices=(gpu(0, node="m"),)),
        node("n-8", system_uuid="m", machine_id="m", devices=(gpu(0, node="m"),)),
        released("l"),
        reserved("k", cpus=(1,), snapshot=lse),
    ):
        writer.append([clock.new(each)])


def _archived(ledger: Ledger, folder: Path) -> None:
    """Record a history with a snapshot, whose first events are in a file."""
    writer = history(ledger, Clock(), events=300)
    checkpoint = checkpoint_at(ledger)
    store_checkpoint(writer, checkpoint, sign_note(checkpoint.text(), KEY), wall_us=0)
    take_snapshot(ledger, writer, wall_us=0)
    move(ledger, folder)


SCENES: Final[Mapping[str, Callable[[Ledger, Path], None]]] = {
    "world": _world,
    "archived": _archived,
}
_ZEROES: Final = "zeroblob({})"


def _card(minor: int, node_name: str = "n-1") -> str:
    return (
        f"minor = {minor} AND device_type = 'gpu' AND node_no ="
        f" (SELECT node_no FROM ledger_nodes WHERE node_name = '{node_name}')"
    )


def _takes(minor: int, node_name: str = "n-1", **values: str) -> str:
    """Return the SQL that counts one more tenant of a card."""
    changes = {"tenants": "tenants + 1", **values}
    pairs = ", ".join(f"{name} = {value}" for name, value in changes.items())
    return f"UPDATE ledger_devices SET {pairs} WHERE {_card(minor, node_name)}"


def _node_no(name: str) -> str:
    return f"(SELECT node_no FROM ledger_nodes WHERE node_name = '{name}')"


def _opened(**values: str) -> tuple[str, ...]:
    """Return the SQL that opens a reservation by an event of its own."""
    words = {"position": LAST, "phase_position": LAST, "phase": "'reserved'", "pod_uid": "'f'"}
    return AHEAD, event(), copied("ledger_reservations", "position = 3", **words | values)


_CPU: Final = (
    "INSERT INTO ledger_cpu_holdings (position, cpu, machine_no, kind, opened_at_us)"
    " SELECT position, {}, 1, kind, opened_at_us FROM ledger_reservations WHERE position = {}"
)
_SLOT: Final = (
    "INSERT INTO ledger_slot_holdings (position, slot, machine_no, device_no, kind, opened_at_us)"
    " SELECT {}, slot, machine_no, device_no, '{}', opened_at_us FROM ledger_slot_holdings"
)
_PLACE: Final = (
    "INSERT INTO ledger_planned_cards"
    " (position, device_no, node_no, group_name, pod_uid, opened_at_us)"
)
_PLAN: Final = (
    "replace(replace(body, '\"whole\":[0]', '\"whole\":[{minor}]'), 'uid-n-7', 'uid-{node}')"
)


def _waits(minor: int, node_name: str) -> tuple[str, ...]:
    """Return the SQL that lets a card wait, by a plan of its own."""
    place = (
        f"{_PLACE} SELECT {LAST}, device_no, node_no, 'g', 'uid-p', (SELECT at_us FROM ledger_head)"
        f" FROM ledger_devices WHERE {_card(minor, node_name)}"
    )
    return AHEAD, event(body=_PLAN.format(minor=minor, node=node_name), of=22), place


_INVENTORY: Final = (
    AHEAD,
    event(body="replace(body, '\"core_percent\":100', '\"core_percent\":-1')", of=10),
    f"UPDATE ledger_nodes SET fact_position = {LAST} WHERE node_name = 'n-1'",
)
_ENDED_NOW: Final = f"closed_position = {LAST}, closed_at_us = (SELECT at_us FROM ledger_head)"
_WORLD: Final[Mapping[str, tuple[str, ...]]] = {
    "an event of another stream's version": (AHEAD, event(stream_version="7")),
    "an event whose key is known": (AHEAD, event(idempotency_key="idempotency_key")),
    "an event that nobody knows": (AHEAD, event("'pod.resered.v1'")),
    "an end of drift that never was": (
        AHEAD,
        event("'drift.resolved.v1'", '\'{"drift_id":"x","how":"x"}\''),
    ),
    "an event that says a word twice": (AHEAD, event("'node.lost.v1'", '\'{"a":1,"a":2}\'')),
    "an event with a name in other letters": (
        AHEAD,
        event("'node.lost.v1'", "'{\"\\u0061\":1}'"),
    ),
    "a reservation that is closed at once": _opened(
        closed_position=LAST, closed_at_us="opened_at_us", end_reason="'x'"
    ),
    "a reservation on a lost node": _opened(node_no=_node_no("n-5")),
    "a reservation on a node that moved": _opened(node_no=_node_no("n-6")),
    "a reservation of no event": (copied("ledger_reservations", "position = 3", position="2"),),
    "a reservation that is lost by no event": (
        (
            "UPDATE ledger_reservations SET lost_position = 17, counted_until_us = 1,"
            " lost_boot_id = '', phase = 'lost' WHERE position = 3"
        ),
    ),
    "a reservation that is bound by no event": (
        ("UPDATE ledger_reservations SET phase = 'bound', phase_position = 11 WHERE position = 3"),
    ),
    "a node that is lost by no event": (
        "UPDATE ledger_nodes SET lost_position = 17 WHERE node_name = 'n-1'",
    ),
    "a machine that gets another name": (
        "UPDATE ledger_machines SET machine_id = 'x', fact_position = 99 WHERE machine_no = 1",
    ),
    "a machine out of nothing": ("INSERT INTO ledger_machines VALUES (99, 'a', 'b', 2)",),
    "a card that is gone": (_takes(7),),
    "a card that is ill": (_takes(3),),
    "more core than a card has": (_takes(1, core_used="core_used + 60"),),
    "more memory than a card has": (_takes(1, memory_used="memory_reported + 1"),),
    "a second holder of an exclusive card": (_takes(2, core_used="core_used + 1"),),
    "a card whose core others hold": (_takes(4),),
    "a card whose memory others hold": (_takes(5),),
    "nothing of a card without core": (_takes(0),),
    "nothing of a card without memory": (_takes(6),),
    "a card of one's own that somebody holds": (
        _takes(1, exclusive_holders="1", core_used="core_used + 1"),
    ),
    "a card that a Pod on an unknown one may hold": (
        copied(
            "ledger_holdings",
            "position = 4",
            position="3",
            device_no=f"(SELECT device_no FROM ledger_devices WHERE {_card(1, 'n-2')})",
        ),
    ),
    "a card of two machines": (_takes(0, "n-4", core_used="core_used + 1"),),
    "a card that may be held from before it had an id": (
        (
            "UPDATE ledger_devices SET tenants = tenants + 1, core_used = core_used + 1"
            " WHERE device_id = 'GPU-m-0'"
        ),
    ),
    "a card that waits for another Pod": (
        *_opened(node_no=_node_no("n-7"), opened_at_us="1"),
        copied(
            "ledger_holdings",
            "position = 4",
            position=LAST,
            minor="0",
            opened_at_us="1",
            device_no=f"(SELECT device_no FROM ledger_devices WHERE {_card(0, 'n-7')})",
        ),
    ),
    "a card with less than nothing": (
        *_INVENTORY,
        (
            "UPDATE ledger_devices SET core_reported = -1, node_no = node_no,"
            f" fact_position = {LAST} WHERE {_card(1)}"
        ),
    ),
    "a new card with less than nothing": (
        AHEAD,
        event(
            body="replace(replace(body, '\"core_percent\":100', '\"core_percent\":-1'),"
            " 'GPU-n-1-6', 'GPU-new')",
            of=10,
        ),
        f"UPDATE ledger_nodes SET fact_position = {LAST} WHERE node_name = 'n-1'",
        copied(
            "ledger_devices",
            _card(1),
            device_no="(SELECT max(device_no) + 1 FROM ledger_devices)",
            device_id="'GPU-new'",
            minor="6",
            core_reported="-1",
            core_cap="-1",
            core_used="0",
            memory_used="0",
            tenants="0",
            memory_cap="memory_reported",
            fact_position=LAST,
        ),
    ),
    "a card in the place of another": (
        AHEAD,
        event(body="replace(body, '\"minor\":1', '\"minor\":0')", of=10),
        f"UPDATE ledger_nodes SET fact_position = {LAST} WHERE node_name = 'n-1'",
        f"UPDATE ledger_devices SET minor = 0, fact_position = {LAST} WHERE {_card(1)}",
    ),
    "a CPU that is gone": (_CPU.format(3, 4),),
    "a CPU beside an LSE Pod": (_CPU.format(1, 4),),
    "a holding of a CPU that ends": (
        "UPDATE ledger_cpu_holdings SET closed_position = 9, closed_at_us = 9 WHERE position = 3",
    ),
    "a slot that is held": (_SLOT.format(4, "granted"),),
    "a slot that nobody asked for": (_SLOT.format(5, "observed"),),
    "a holding of a slot that ends": (
        "UPDATE ledger_slot_holdings SET closed_position = 9, closed_at_us = 9",
    ),
    "a place of no plan": (
        f"""{_PLACE}
        SELECT position, 1, node_no, 'g', pod_uid, opened_at_us FROM ledger_planned_cards""",
    ),
    "a place on a card that waits": _waits(0, "n-7"),
    "a place on a card that is gone": _waits(7, "n-1"),
    "a place on a card that is ill": _waits(3, "n-1"),
    "a place on a card that is held": _waits(1, "n-1"),
    "a place on a card that may be held": _waits(1, "n-2"),
    "a place that closes by itself": (f"UPDATE ledger_planned_cards SET {_ENDED_NOW}",),
}
_ARCHIVED: Final[Mapping[str, tuple[str, ...]]] = {
    "a smaller tree": ("UPDATE ledger_tree SET size = size - 1",),
    "a tree beyond the head": ("UPDATE ledger_tree SET size = size + 1",),
    "a second tree": ("INSERT INTO ledger_tree SELECT 2, size, range FROM ledger_tree",),
    "a tile too many": (f"INSERT INTO ledger_tiles VALUES (0, 1, {_ZEROES.format(8192)})",),
    "another tile": ("UPDATE ledger_tiles SET number = 1",),
    "a checkpoint beyond the head": ("INSERT INTO ledger_checkpoints VALUES (99999, 'x')",),
    "a checkpoint of no event": (
        "INSERT INTO ledger_checkpoints SELECT size + 1, 'x' FROM ledger_checkpoints",
    ),
    "another checkpoint": ("UPDATE ledger_checkpoints SET note = 'x'",),
    "a snapshot of no event": (
        f"INSERT INTO ledger_snapshots VALUES (1, 'x', {_ZEROES.format(1)}, {_ZEROES.format(32)})",
    ),
    "another snapshot": ("UPDATE ledger_snapshots SET format = 'x'",),
    "a segment out of order": (copied("ledger_segments", "true", last="300", first="200"),),
    "a segment of no event": (
        "UPDATE ledger_head SET position = 512",
        copied("ledger_segments", "true", last="512", first="257", position=LAST),
    ),
    "another segment": ("UPDATE ledger_segments SET file_name = 'x'",),
    "a key of no segment": (
        copied("ledger_archived", "position = 20", position="257", idempotency_key="'k'"),
    ),
    "another key": ("UPDATE ledger_archived SET stream = 'x'",),
    "an event that no segment holds": ("DELETE FROM ledger_events WHERE position = 300",),
    **{f"deleting {what}": (f"DELETE FROM {table}",) for table, what in KEPT},
}
CHEATS: Final[Mapping[str, Cheat]] = {
    **{name: Cheat(scene="world", statements=each) for name, each in _WORLD.items()},
    **{name: Cheat(scene="archived", statements=each) for name, each in _ARCHIVED.items()},
}
"""Every cheat, by what is tried."""
