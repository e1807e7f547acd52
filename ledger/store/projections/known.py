"""What a projection remembers, out of the tables or a segment's end; which cards wait for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from sys import intern
from typing import Any, Final

from sqlalchemy import Connection, Select, Table, bindparam, func, select

from ledger.domain.devices import GPU
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import GroupPlanned, PlannedMember
from ledger.store import schema
from ledger.store.projections import inventory
from ledger.store.writing.statements import Row

_PARTS: Final[Mapping[Table, tuple[str, ...]]] = {
    schema.ledger_devices: (
        *("machine_no", "node_no", "device_no", "device_type", "minor", "device_id", "unique_id"),
        *("model", "present", "healthy", "core_reported", "memory_reported"),
    ),
    schema.ledger_cpus: ("machine_no", "cpu", "node_no"),
}
_NODES: Final[Mapping[Table, tuple[str, ...]]] = {
    schema.ledger_machines: ("machine_no", "system_uuid", "machine_id"),
    schema.ledger_nodes: (
        *("node_no", "node_uid", "machine_no", "moved_position", "lost_position"),
    ),
    schema.ledger_stands: ("node_no", "machine_no", "boot_id", "by_agent", "fact_position"),
}
FACTS: Final = {**_NODES, **_PARTS}
"""The columns that are read of every row, in key order."""
OPEN: Final = (
    *("node_no", "pod_uid", "attempt", "position", "kind", "lost_position", "lost_boot_id"),
)
"""The columns that are read of every open reservation."""


def load_nodes(
    connection: Connection,
) -> tuple[dict[str, inventory.KnownNode], inventory.KnownMachines]:
    """
    Return what the tables say of nodes, by UID, of machines and of open reservations.

    What a machine has is read when something is first done to it, under the head's lock and before
    anything of it is written.
    """
    facts = {table.name: connection.execute(_in_order(table)) for table in _NODES}
    held = schema.ledger_reservations.columns
    query = select(*(held[name] for name in OPEN)).where(held.closed_position.is_(None))
    last = connection.execute(select(func.max(schema.ledger_devices.c.device_no))).scalar()
    read = partial(_parts_of, connection)
    nodes, by_number = _nodes_of(facts, connection.execute(query), read)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA shrink_memory")  # none of these pages is read again
    return nodes, inventory.KnownMachines(by_number.values(), last or 0)


def _in_order(table: Table) -> Select[Any]:
    return select(*(table.columns[name] for name in FACTS[table])).order_by(
        *table.primary_key.columns
    )


def _parts_of(connection: Connection, machine_no: int) -> inventory.KnownParts:
    """Return what a machine has."""
    asked = {"machine_no": machine_no}
    devices, cpus = (connection.execute(_of_machine(table), asked) for table in _PARTS)
    return inventory.KnownParts(
        devices=[_device(row) for row in devices],
        cpus={cpu: node_no for _, cpu, node_no in cpus},
    )


@cache
def _of_machine(table: Table) -> Select[Any]:
    return _in_order(table).where(table.c.machine_no == bindparam("machine_no"))


def columns_of(table: Table, names: Iterable[str], rows: Iterable[Row]) -> list[Row]:
    """Return these columns of rows that begin with all columns of the table, in its order."""
    order = table.columns.keys()
    places = [order.index(name) for name in names]
    return [tuple(row[place] for place in places) for row in rows]


def known(
    facts: Mapping[str, Iterable[Row]], held: Iterable[Row]
) -> tuple[dict[str, inventory.KnownNode], inventory.KnownMachines]:
    """
    Return what a projection remembers, out of rows with the columns of `FACTS` and `OPEN`.

    `facts` are by the table's name, in key order; `held` is every open reservation.
    """
    parts: dict[int, inventory.KnownParts] = {}
    last = 0
    for row in facts["ledger_devices"]:
        device = _device(row)
        last = max(last, device.number)
        parts.setdefault(device.machine, inventory.KnownParts()).devices.append(device)
    for machine_no, cpu, node_no in facts["ledger_cpus"]:
        parts.setdefault(machine_no, inventory.KnownParts()).cpus[cpu] = node_no
    nodes, by_number = _nodes_of(
        facts, held, lambda number: parts.get(number) or inventory.KnownParts()
    )
    return nodes, inventory.KnownMachines(by_number.values(), last)


def _nodes_of(
    facts: Mapping[str, Iterable[Row]],
    held: Iterable[Row],
    read: Callable[[int], inventory.KnownParts],
) -> tuple[dict[str, inventory.KnownNode], dict[int, inventory.KnownMachine]]:
    """Return nodes by UID and machines by number; `read` tells what a machine has."""
    machines = {
        number: inventory.KnownMachine(number=number, identity=(system_uuid, machine_id), read=read)
        for number, system_uuid, machine_id in facts["ledger_machines"]
    }
    nodes: dict[str, inventory.KnownNode] = {}
    by_number: dict[int, inventory.KnownNode] = {}
    for number, uid, machine_no, moved, lost in facts["ledger_nodes"]:
        nodes[intern(uid)] = by_number[number] = inventory.KnownNode(
            number=number,
            machine=machines[machine_no],
            moved_position=moved,
            lost_position=lost,
        )
    for node_no, machine_no, boot, by_agent, fact in facts["ledger_stands"]:
        node, machine = by_number[node_no], machines[machine_no]
        machine.stands[node_no] = inventory.KnownStand(
            boot_id=boot, by_agent=bool(by_agent), fact_position=fact
        )
        if machine is not node.machine:
            node.former.append(machine)
    for node_no, pod_uid, attempt, position, kind, lost, boot in held:
        node, key = by_number[node_no], (intern(pod_uid), attempt)
        node.open[key] = (position, intern(kind))
        if lost is not None:
            node.lost_open[key] = (lost, boot)
    return nodes, machines


def _device(row: Row) -> inventory.KnownDevice:
    machine_no, node_no, number, device_type, minor, device_id, unique, *rest = row
    model, present, healthy, core, memory = rest
    return inventory.KnownDevice(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCardRow:
    """One open row of `ledger_planned_cards`."""

    position: int
    device_no: int
    node_uid: str
    group: str
    pod_uid: str


class PlannedCardRows:
    """The open places, one per card."""

    def __init__(self, places: Iterable[PlannedCardRow] = ()) -> None:
        self._by_device = {place.device_no: place for place in places}

    def close_group(self, group: str) -> list[PlannedCardRow]:
        """Forget the places of a group, and return them."""
        return self._close([each for each in self._by_device.values() if each.group == group])

    def close_pod(self, pod_uid: str, node_uid: str) -> list[PlannedCardRow]:
        """Forget the places that wait for a Pod on a node, and return them."""
        taken = (pod_uid, node_uid)
        found = [e for e in self._by_device.values() if (e.pod_uid, e.node_uid) == taken]
        return self._close(found)

    def open(
        self, position: int, event: GroupPlanned, nodes: Mapping[str, inventory.KnownNode]
    ) -> list[PlannedCardRow]:
        """
        Remember the places of a plan, and return them in the order of their cards.

        Raises:
            CapacityError: a card is not there, or named twice.
        """
        found: dict[int, PlannedCardRow] = {}
        for member, device in _cards(event, nodes):
            if device.number in found:
                fact = f"pod_uid={member.pod_uid}, node_uid={member.node_uid}"
                card = f"{GPU}/{device.minor}"
                raise CapacityError(f"the plan names a card twice: {fact}, card={card}")
            found[device.number] = PlannedCardRow(
                position=position,
                device_no=device.number,
                node_uid=member.node_uid,
                group=event.group,
                pod_uid=member.pod_uid,
            )
        self._by_device |= found
        return [found[number] for number in sorted(found)]

    def _close(self, places: list[PlannedCardRow]) -> list[PlannedCardRow]:
        for place in places:
            del self._by_device[place.device_no]
        return places


def _cards(
    event: GroupPlanned, nodes: Mapping[str, inventory.KnownNode]
) -> Iterator[tuple[PlannedMember, inventory.KnownDevice]]:
    for member in event.members:
        node = nodes.get(member.node_uid)
        for minor in member.whole:
            device = node.listed(GPU, minor) if node else None
            if device is None:
                raise CapacityError(
                    f"no such card: pod={member.namespace}/{member.pod_name},"
                    f" group={event.group}, node_uid={member.node_uid}, card={GPU}/{minor}"
                )
            yield member, device


_place, _node = schema.ledger_planned_cards.c, schema.ledger_nodes.c


def load_places(connection: Connection) -> PlannedCardRows:
    """Return the places that the table has open."""
    columns = (_place.position, _place.device_no, _node.node_uid, _place.group_name, _place.pod_uid)
    query = (
        select(*columns)
        .join_from(schema.ledger_planned_cards, schema.ledger_nodes)
        .where(_place.closed_position.is_(None))
    )
    return PlannedCardRows(
        PlannedCardRow(
            position=position, device_no=number, node_uid=uid, group=group, pod_uid=pod_uid
        )
        for position, number, uid, group, pod_uid in connection.execute(query)
    )
