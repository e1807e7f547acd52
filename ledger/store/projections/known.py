"""What a projection remembers of the past, out of rows: the tables, or what a segment ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import Connection, Table, select

from ledger.store import schema
from ledger.store.projections.inventory import (
    KnownDevice,
    KnownMachine,
    KnownMachines,
    KnownNode,
    KnownStand,
)
from ledger.store.writing.statements import Row

FACTS: Final[Mapping[Table, tuple[str, ...]]] = {
    schema.ledger_machines: ("machine_no", "system_uuid", "machine_id"),
    schema.ledger_nodes: (
        *("node_no", "node_uid", "machine_no", "moved_position", "lost_position"),
    ),
    schema.ledger_stands: ("node_no", "machine_no", "boot_id", "by_agent", "fact_position"),
    schema.ledger_devices: (
        *("machine_no", "node_no", "device_no", "device_type", "minor", "device_id", "unique_id"),
        *("model", "present", "healthy", "core_reported", "memory_reported"),
    ),
    schema.ledger_cpus: ("machine_no", "cpu", "node_no"),
}
"""The columns that are read of every row, in key order: a large ledger has a million CPUs."""
OPEN: Final = (
    *("node_no", "pod_uid", "attempt", "position", "kind", "lost_position", "lost_boot_id"),
)
"""The columns that are read of every open reservation."""


def load_nodes(connection: Connection) -> tuple[dict[str, KnownNode], KnownMachines]:
    """Return what the tables say of nodes, by UID, of machines and of open reservations."""
    facts = {
        table.name: connection.execute(
            select(*(table.columns[name] for name in names)).order_by(*table.primary_key.columns)
        )
        for table, names in FACTS.items()
    }
    held = schema.ledger_reservations.columns
    query = select(*(held[name] for name in OPEN)).where(held.closed_position.is_(None))
    return known(facts, connection.execute(query))


def columns_of(table: Table, names: Iterable[str], rows: Iterable[Row]) -> list[Row]:
    """Return these columns of rows that begin with all columns of the table, in its order."""
    order = table.columns.keys()
    places = [order.index(name) for name in names]
    return [tuple(row[place] for place in places) for row in rows]


def known(
    facts: Mapping[str, Iterable[Row]], held: Iterable[Row]
) -> tuple[dict[str, KnownNode], KnownMachines]:
    """
    Return what a projection remembers, out of rows.

    Args:
        facts: the columns of `FACTS`, by the table's name, in key order.
        held: the columns of `OPEN` of every open reservation.
    """
    machines = {
        number: KnownMachine(number=number, identity=(system_uuid, machine_id))
        for number, system_uuid, machine_id in facts["ledger_machines"]
    }
    nodes: dict[str, KnownNode] = {}
    by_number: dict[int, KnownNode] = {}
    for number, uid, machine_no, moved, lost in facts["ledger_nodes"]:
        nodes[uid] = by_number[number] = KnownNode(
            number=number,
            machine=machines[machine_no],
            moved_position=moved,
            lost_position=lost,
        )
    for node_no, machine_no, boot, by_agent, fact in facts["ledger_stands"]:
        node, machine = by_number[node_no], machines[machine_no]
        machine.stands[node_no] = KnownStand(
            boot_id=boot, by_agent=bool(by_agent), fact_position=fact
        )
        if machine is not node.machine:
            node.former.append(machine)
    for row in facts["ledger_devices"]:
        device = _device(row)
        machines[device.machine].devices.append(device)
    for machine_no, cpu, node_no in facts["ledger_cpus"]:
        machines[machine_no].cpus[cpu] = node_no
    for node in nodes.values():
        node.index()
    for node_no, pod_uid, attempt, position, kind, lost, boot in held:
        node, key = by_number[node_no], (pod_uid, attempt)
        node.open[key] = (position, kind)
        if lost is not None:
            node.lost_open[key] = (lost, boot)
    return nodes, KnownMachines(machines.values())


def _device(row: Row) -> KnownDevice:
    machine_no, node_no, number, device_type, minor, device_id, unique, *rest = row
    model, present, healthy, core, memory = rest
    return KnownDevice(
        number=number,
        machine=machine_no,
        node=node_no,
        device_type=device_type,
        minor=minor,
        device_id=device_id,
        unique_id=bool(unique),
        model=model,
        present=bool(present),
        healthy=bool(healthy),
        core_percent=core,
        memory_bytes=memory,
    )
