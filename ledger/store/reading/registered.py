"""Machines as they were at a position: which Node had which devices, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from ledger.domain.log.events import LedgerEvent, NodeInventoried, NodeLost, decode_event
from ledger.domain.log.state import LOST
from ledger.store.projections.inventory import (
    GONE,
    KnownDevice,
    KnownMachine,
    KnownNode,
    inventory,
    withdrawn,
)
from ledger.store.reading import report_queries as queries
from ledger.store.reading.kept import rows_of_types
from ledger.store.reading.report_rows import Device, Node
from ledger.store.reading.views import EVENTS
from ledger.store.schema import ledger_events

_INVENTORIED: Final[ColumnElement[str]] = literal_column(
    f"'{NodeInventoried.event_type}'"
)  # a value would hide the index


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Nodes and devices at a position."""

    nodes: list[Node]
    devices: list[Device]


def registered_at(connection: Connection, until: int) -> Registered:
    """
    Return nodes and devices as they were at a position, `until`; machines that registered by then.

    Rule: design section 4, "One account per physical device": of two Nodes of one machine the later
    inventory says where its devices are. So a card of a Node made anew was its predecessor's until
    then, by the same function of the inventories as today's rows. A machine that was inventoried
    once, and not lost, has today's rows.
    """
    nodes, devices = queries.nodes(connection), queries.devices(connection)
    told = _inventoried(connection)
    number_of = Counter(node.machine_no for node in nodes)
    changed = {
        node.machine_no
        for node in nodes
        if number_of[node.machine_no] > 1
        or node.lost_position is not None
        or told.get(_stream(node), (0, 0))[1] > 1
    }
    mine = {node.node_uid: node for node in nodes if node.machine_no in changed}
    then = _Then(mine)
    for position, event in _told(connection, mine.values(), until):
        then.add(position, event)
    for node in mine.values():  # a loss may be in an archive; an inventory never is
        if node.lost_position is not None and node.lost_position <= until:
            then.lose(node.node_uid, node.lost_position)
    return Registered(
        nodes=[
            replace(node, lost_position=then.lost.get(node.node_uid))
            for node in nodes
            if _stream(node) in told and told[_stream(node)][0] <= until
        ],
        devices=[
            *(device for device in devices if device.node_uid not in mine),
            *then.rows_of(device for device in devices if device.node_uid in mine),
        ],
    )


def inventories_between(
    connection: Connection, node: str, since_us: int, until_us: int
) -> list[tuple[int, int]]:
    """Return when and where a node's machine was inventoried after one moment, up to another."""
    listed = {each.machine_no for each in queries.nodes(connection, name=node)}
    streams = [_stream(each) for each in queries.nodes(connection) if each.machine_no in listed]
    e, v = ledger_events.c, EVENTS.c
    query = (
        select(v.at_us, v.position)
        .join_from(EVENTS, ledger_events, v.position == e.position)
        .where(e.event_type == _INVENTORIED, e.stream.in_(streams))
        .where(v.at_us > since_us, v.at_us <= until_us)
        .order_by(v.position)
    )
    return [(at_us, position) for at_us, position in connection.execute(query)]


class _Then:
    """Which devices the machines had, as their inventories told one after the other."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._now = nodes
        self._machines = {
            number: KnownMachine(number=number)
            for number in {node.machine_no for node in self._now.values()}
        }
        self._uids: list[str] = []
        self._last = 0
        self.nodes: dict[str, KnownNode] = {}
        self.lost: dict[str, int] = {}

    def add(self, position: int, event: LedgerEvent) -> None:
        """Take what a Node listed, or that it was lost."""
        if isinstance(event, NodeInventoried):
            node = self.nodes.get(event.node_uid)
            if node is None:
                machine = self._machines[self._now[event.node_uid].machine_no]
                self._uids.append(event.node_uid)
                node = KnownNode(number=len(self._uids), machine=machine)
                self.nodes[event.node_uid] = node
            self.lost.pop(event.node_uid, None)
            for change in inventory(node, event.devices, self._last + 1):
                self._last = max(self._last, change.device.number)
        elif isinstance(event, NodeLost):
            self.lose(event.node_uid, position)

    def lose(self, uid: str, position: int) -> None:
        if uid in self.nodes:
            self.lost[uid] = position
            for _ in withdrawn(self.nodes[uid], set(), LOST):
                pass

    def rows_of(self, rows: Iterable[Device]) -> Iterator[Device]:
        """Yield what each row of today was, of devices that had been told of."""
        for row in rows:
            device = self._device(row)
            if device is None:
                continue
            uid = self._uids[device.node - 1]
            is_lost, gone = uid in self.lost, not device.present
            yield replace(
                row,
                node_uid=uid,
                node_name=self._now[uid].node_name,
                minor=device.minor,
                device_id=device.device_id,
                model=device.model,
                core_capacity_percent=0 if gone else device.core_percent,
                memory_capacity_bytes=0 if gone else device.memory_bytes,
                healthy=device.healthy,
                unique_id=device.unique_id,
                closed_reason=GONE if gone and not is_lost else "",
            )

    def _device(self, row: Device) -> KnownDevice | None:
        there = self._machines[self._now[row.node_uid].machine_no].devices
        own_id = (row.device_type, row.device_id)
        for device in there:
            if row.device_id and (device.device_type, device.device_id) == own_id:
                return device
        own = self.nodes.get(row.node_uid)
        for device in there:
            here = own is not None and (device.node, device.minor) == (own.number, row.minor)
            if here and device.device_type == row.device_type and not device.device_id:
                return device
        return None


def _inventoried(connection: Connection) -> dict[str, tuple[int, int]]:
    e = ledger_events.c
    query = (
        select(e.stream, func.min(e.position), func.count())
        .where(e.event_type == _INVENTORIED)
        .group_by(e.stream)
    )
    return {stream: (first, number) for stream, first, number in connection.execute(query)}


def _stream(node: Node) -> str:
    return f"node/{node.node_uid}"


def _told(
    connection: Connection, nodes: Iterable[Node], until: int
) -> Iterator[tuple[int, LedgerEvent]]:
    """Yield the inventories and losses of nodes up to a position, but what is declared void."""
    streams = set(map(_stream, nodes))
    types = (NodeInventoried.event_type, NodeLost.event_type)
    for position, stream, event_type, body in (
        rows_of_types(connection, *types, until=until, streams=True) if streams else ()
    ):
        if stream in streams:
            yield position, decode_event(event_type, body)
