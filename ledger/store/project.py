"""Events to rows: what each event writes into the projection tables, in the event's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, assert_never

from sqlalchemy import Connection, select

from ledger.domain.cpuset import format_cpuset
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.errors import CapacityError, LedgerError
from ledger.domain.events import (
    DeviceHealthChanged,
    DriftFound,
    DriftResolved,
    EpochStarted,
    GroupPlanned,
    KeyRotated,
    LedgerEvent,
    LedgerRecovered,
    NodeInventoried,
    PlanDropped,
    PodAssigned,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
    PositionVoided,
    RequestRefused,
    SegmentArchived,
    SettingsChanged,
    SnapshotTaken,
)
from ledger.domain.state import GRANTED, OBSERVED
from ledger.store import schema, statements
from ledger.store.bodies import text_map
from ledger.store.inventory import KnownDevice, KnownNode, inventory
from ledger.store.outbox import Outbox
from ledger.store.places import OpenPlace, OpenPlaces, load_places
from ledger.store.statements import Row, Statement

WAVE: Final = (
    statements.CLOSE,
    statements.CLOSE_PLACE,
    statements.UPDATE_NODE,
    statements.UPDATE_DEVICE,
    statements.UPDATE_CPU,
    statements.NODE,
    statements.DEVICE,
    statements.CPU,
    statements.HEALTH,
    statements.PLACE,
    statements.RESERVATION,
    statements.HOLDING,
    statements.CPU_HOLDING,
    statements.SLOT_HOLDING,
    statements.REFUSAL,
    statements.PHASE,
)
"""The order inside one wave of rows: what ends, then facts, then what opens."""


def _dropped() -> LedgerError:
    return LedgerError("the database dropped rows without a word: run `tenure verify`")


class Projection:
    """
    Turns events into rows, in the order of their positions. Holds what it must know of the past.

    Rows are collected in `rows`, to be handed over in waves, one statement for many rows. Inside a
    wave all endings come before all openings, so `send` is called before an ending on a node where
    something opened in the wave, which must not have what was not free yet, and before facts
    change. It must take the rows away.
    """

    def __init__(
        self,
        nodes: dict[str, KnownNode],
        send: Callable[[], None],
        places: OpenPlaces | None = None,
    ) -> None:
        self._send = send
        self._nodes = nodes
        self._next_node = 1 + max((node.number for node in nodes.values()), default=0)
        devices = (device.number for node in nodes.values() for device in node.devices)
        self._next_device = 1 + max(devices, default=0)
        self._granted = {
            uid: position
            for node in nodes.values()
            for (uid, _), (position, kind) in node.open.items()
            if kind == GRANTED
        }
        self._places = places or OpenPlaces()
        self._entered: set[str] = set()  # nodes where something opened in this wave
        self._clouded: set[str] = set()  # nodes where somebody on an unknown card did
        self.rows: dict[Statement, list[Row]] = {statement: [] for statement in WAVE}

    def taken(self) -> list[tuple[Statement, list[Row]]]:
        """Return the rows of the wave in its order, and hold none of them any more."""
        wave = [(statement, rows) for statement, rows in self.rows.items() if rows]
        for statement, _ in wave:
            self.rows[statement] = []
        self._entered.clear()
        self._clouded.clear()
        return wave

    def add(self, position: int, at_us: int, event: LedgerEvent) -> None:
        """Collect the rows of one event; may send off the rows of earlier ones first."""
        match event:
            case PodReserved() | PodObserved():
                self._opened(position, at_us, event)
            case PodReleased():
                self._ended(position, at_us, event, "released")
            case PodVoided():
                self._ended(position, at_us, event, "voided")
            case PodBound():
                self._phase(event, "bound")
            case PodAssigned():
                self._phase(event, "assigned")
            case RequestRefused():
                self.rows[statements.REFUSAL].append(_refusal_row(position, at_us, event))
            case NodeInventoried():
                self._inventoried(position, at_us, event)
            case DeviceHealthChanged():
                self._health_changed(position, at_us, event)
            case GroupPlanned():
                self._planned(position, at_us, event)
            case PlanDropped():
                self._close_places(position, at_us, self._places.close_group(event.group))
            case (
                EpochStarted()
                | SettingsChanged()
                | DriftFound()
                | DriftResolved()
                | SnapshotTaken()
                | SegmentArchived()
                | LedgerRecovered()
                | KeyRotated()
                | PositionVoided()
            ):
                pass
            case _:
                assert_never(event)

    def _opened(self, position: int, at_us: int, event: PodReserved | PodObserved) -> None:
        granted = type(event) is PodReserved
        if granted and event.node_uid in self._clouded:
            self._send()  # slots come behind holdings in a wave, and this one closes all cards
        if granted:
            own = self._places.close_pod(event.pod_uid, event.node_uid)
            self._close_places(position, at_us, own)
        self._entered.add(event.node_uid)
        node = self._nodes.get(event.node_uid) or self._unknown_node(position, event)
        self._open(position, node, event, granted=granted)
        kind = GRANTED if granted else OBSERVED
        rows = self.rows
        rows[statements.RESERVATION].append(reservation_row(position, at_us, event, node.number))
        named: set[int | str] = set()
        for share in event.shares:
            device = self._device(position, node, share, event)
            if device.number in named or not named.isdisjoint(share.vf_bus_ids):
                raise CapacityError(
                    f"a Pod names a part twice: pod={event.namespace}/{event.pod_name},"
                    f" card={event.node_name}/{share.device_type}/{share.minor}"
                )
            named.add(device.number)
            named.update(share.vf_bus_ids)
            rows[statements.HOLDING].append(
                (
                    position,
                    device.number,
                    share.minor,
                    share.core_percent,
                    share.memory_bytes,
                    share.memory_ratio_percent,
                    int(share.exclusive),
                    share.instances,
                    kind,
                    at_us,
                )
            )
            for slot in share.vf_bus_ids:
                rows[statements.SLOT_HOLDING].append(
                    (position, slot, node.number, device.number, kind, at_us)
                )
        if event.cpuset:
            self._cpus(position, at_us, node, event)
        if isinstance(event, PodObserved):
            for name in event.unknown_types:
                slot = f"unknown/{name}"
                rows[statements.SLOT_HOLDING].append(
                    (position, slot, node.number, None, kind, at_us)
                )
                self._clouded.add(event.node_uid)

    def _planned(self, position: int, at_us: int, event: GroupPlanned) -> None:
        """Close what the group's plan before this one left open, and open what this one says."""
        self._send()
        self._close_places(position, at_us, self._places.close_group(event.group))
        self._send()
        for place in self._places.open(position, event, self._nodes):
            row = (position, place.device_no, event.group, place.pod_uid, at_us)
            self.rows[statements.PLACE].append(row)
            self._entered.add(place.node_uid)

    def _close_places(self, position: int, at_us: int, places: list[OpenPlace]) -> None:
        if not self._entered.isdisjoint([place.node_uid for place in places]):
            self._send()
        for place in places:
            row = (at_us, position, place.position, place.device_no)
            self.rows[statements.CLOSE_PLACE].append(row)

    def _unknown_node(self, position: int, event: PodReserved | PodObserved) -> KnownNode:
        """Make room for an observed holder of a node that has no inventory yet."""
        if isinstance(event, PodReserved):
            raise CapacityError(
                f"no inventory of the node: pod={event.namespace}/{event.pod_name},"
                f" node={event.node_name}, node_uid={event.node_uid}"
            )
        facts = (event.node_name, "", "{}", 0, 0, 0, position)
        return self._new_node(event.node_uid, facts)

    def _new_node(self, uid: str, facts: Row) -> KnownNode:
        node = self._nodes[uid] = KnownNode(number=self._next_node)
        self._next_node += 1
        self.rows[statements.NODE].append((node.number, uid, *facts))
        return node

    def _open(
        self, position: int, node: KnownNode, event: PodReserved | PodObserved, *, granted: bool
    ) -> None:
        """Remember what is open; a Pod is granted one reservation at a time."""
        key = (event.pod_uid, event.attempt)
        if key in node.open or (granted and event.pod_uid in self._granted):
            raise CapacityError(
                f"the Pod already holds a reservation: pod={event.namespace}/{event.pod_name},"
                f" pod_uid={event.pod_uid}, attempt={event.attempt}, node={event.node_name}"
            )
        node.open[key] = (position, GRANTED if granted else OBSERVED)
        if granted:
            self._granted[event.pod_uid] = position

    def _device(
        self, position: int, node: KnownNode, share: DeviceShare, event: PodReserved | PodObserved
    ) -> KnownDevice:
        device = node.device(share.device_type, share.minor, share.device_id)
        if device is not None:
            return device
        if isinstance(event, PodReserved):
            raise CapacityError(
                f"no such card: pod={event.namespace}/{event.pod_name},"
                f" card={event.node_name}/{share.device_type}/{share.minor},"
                f" device_id={share.device_id!r}"
            )
        device = KnownDevice(
            number=self._next_device,
            device_type=share.device_type,
            minor=share.minor,
            device_id=share.device_id,
            model="",
            present=False,
            healthy=True,
            core_percent=0,
            memory_bytes=0,
        )
        self._next_device += 1
        node.devices.append(device)
        self.rows[statements.DEVICE].append(device_row(node.number, device, position))
        return device

    def _cpus(
        self, position: int, at_us: int, node: KnownNode, event: PodReserved | PodObserved
    ) -> None:
        kind = GRANTED if type(event) is PodReserved else OBSERVED
        for cpu in event.cpuset:
            if cpu not in node.cpus:
                if kind == GRANTED:
                    raise CapacityError(
                        f"no such CPU: pod={event.namespace}/{event.pod_name},"
                        f" cpu={event.node_name}/cpu/{cpu}"
                    )
                node.cpus.add(cpu)
                row = (node.number, cpu, -1, -1, -1, 0, 0, 0, 0, 0, position)
                self.rows[statements.CPU].append(row)
            self.rows[statements.CPU_HOLDING].append((position, cpu, node.number, kind, at_us))

    def _ended(self, position: int, at_us: int, event: PodReleased | PodVoided, phase: str) -> None:
        node = self._nodes.get(event.node_uid)
        opened = node.open.pop((event.pod_uid, event.attempt), None) if node else None
        if opened is None:
            return  # a second release of the same reservation changes nothing
        if event.node_uid in self._entered:
            self._send()
        first, kind = opened
        if kind == GRANTED:
            del self._granted[event.pod_uid]
        self.rows[statements.CLOSE].append((phase, at_us, position, event.reason, first))

    def _phase(self, event: PodBound | PodAssigned, phase: str) -> None:
        node = self._nodes.get(event.node_uid)
        opened = node.open.get((event.pod_uid, event.attempt)) if node else None
        if opened is not None:
            self._entered.add(event.node_uid)
            self.rows[statements.PHASE].append((phase, opened[0]))

    def _inventoried(self, position: int, at_us: int, event: NodeInventoried) -> None:
        _check_cpus(event)
        node = self._nodes.get(event.node_uid)
        facts = (
            event.node_name,
            event.machine_id,
            text_map(event.labels),
            event.cpu_milli,
            event.memory_bytes,
            event.cpu_ref_count_max,
            position,
        )
        if node is None:
            node = self._new_node(event.node_uid, facts)
        else:
            self._send()
            self.rows[statements.UPDATE_NODE].append((*facts, node.number))
        for change in inventory(node, event.devices, self._next_device):
            if change.new:
                self._next_device += 1
                row = device_row(node.number, change.device, position)
                self.rows[statements.DEVICE].append(row)
            else:
                self._update_device(position, change.device)
            if change.reason:
                healthy = int(change.device.healthy and change.device.present)
                row = (position, change.device.number, at_us, healthy, change.reason)
                self.rows[statements.HEALTH].append(row)
        self._inventoried_cpus(position, node, event)

    def _inventoried_cpus(self, position: int, node: KnownNode, event: NodeInventoried) -> None:
        reported = event.cpu_ref_count_max
        known = self.rows[statements.UPDATE_CPU]
        for cpu in event.cpus:
            place = (cpu.core, cpu.socket, cpu.numa)
            if cpu.id in node.cpus:
                refs = (reported, reported, reported)
                known.append((*place, 1, *refs, position, node.number, cpu.id))
                continue
            node.cpus.add(cpu.id)
            row = (node.number, cpu.id, *place, 1, reported, reported, 0, 0, position)
            self.rows[statements.CPU].append(row)
        for cpu_id in sorted(node.cpus - {cpu.id for cpu in event.cpus}):
            known.append((-1, -1, -1, 0, 0, 0, 0, position, node.number, cpu_id))

    def _health_changed(self, position: int, at_us: int, event: DeviceHealthChanged) -> None:
        node = self._nodes.get(event.node_uid)
        device = node.device(event.device_type, event.minor, event.device_id) if node else None
        if device is None:
            return
        self._send()
        device.healthy = event.healthy
        self._update_device(position, device)
        row = (position, device.number, at_us, int(event.healthy), event.reason)
        self.rows[statements.HEALTH].append(row)

    def _update_device(self, position: int, device: KnownDevice) -> None:
        core = device.core_percent if device.present else 0
        memory = device.memory_bytes if device.present else 0
        self.rows[statements.UPDATE_DEVICE].append(
            (
                device.minor,
                device.device_id,
                device.model,
                int(device.present),
                int(device.healthy),
                core,
                memory,
                core,
                core,
                memory,
                memory,
                position,
                device.number,
            )
        )


def reservation_row(
    position: int, at_us: int, event: PodReserved | PodObserved, node_no: int
) -> Row:
    """Return the row of `ledger_reservations` that this event opens."""
    gpu_percent = gpus = 0
    for share in event.shares:
        if share.device_type == GPU:
            gpus += 1
            gpu_percent += share.core_percent or share.memory_ratio_percent
    snapshot = event.snapshot
    granted = isinstance(event, PodReserved)
    return (
        position,
        event.pod_uid,
        event.attempt,
        event.namespace,
        event.pod_name,
        snapshot.owner,
        text_map(snapshot.labels),
        snapshot.priority,
        snapshot.qos,
        str(event.dialect),
        event.policy if isinstance(event, PodReserved) else "",
        "" if isinstance(event, PodReserved) else event.source,
        node_no,
        event.cpu_milli,
        event.memory_bytes,
        gpu_percent,
        gpus,
        len(event.shares),
        format_cpuset(event.cpuset) if event.cpuset else "",
        len(event.cpuset),
        GRANTED if granted else OBSERVED,
        "reserved" if granted else "observed",
        snapshot.created_at_us,
        at_us,
    )


def _check_cpus(event: NodeInventoried) -> None:
    """Refuse an inventory that contradicts itself; a card named twice is the database's to see."""
    seen: set[int] = set()
    for cpu in event.cpus:
        if cpu.id in seen:
            raise CapacityError(
                f"the inventory contradicts itself: cpu {event.node_name}/cpu/{cpu.id}"
                f" is named twice: node_uid={event.node_uid}"
            )
        seen.add(cpu.id)


def device_row(node_no: int, device: KnownDevice, position: int) -> Row:
    """Return the row of `ledger_devices` for a device that nobody holds yet."""
    core, memory = device.core_percent, device.memory_bytes
    return (
        device.number,
        node_no,
        device.device_type,
        device.minor,
        device.device_id,
        device.model,
        int(device.present),
        int(device.healthy),
        core,
        memory,
        core,
        memory,
        *(0, 0, 0, 0, 0, 0, 0),
        position,
    )


def _refusal_row(position: int, at_us: int, event: RequestRefused) -> Row:
    return (
        position,
        at_us,
        event.pod_uid,
        event.namespace,
        event.pod_name,
        event.stage,
        event.message,
        event.shape,
        event.gpu_core_percent,
        event.policy,
        event.snapshot.owner,
    )


class Projector:
    """
    Writes the rows of events through one connection, in the transaction that is open on it.

    An error leaves it spent: it counts on rows that are not there. Make another one, which reads
    the inventory and what is open from the database. With somebody's `outbox` they send its rows.
    """

    def __init__(self, connection: Connection, outbox: Outbox | None = None) -> None:
        self._outbox: Final = outbox or Outbox(connection)
        self._sends: Final = outbox is None
        places = load_places(connection)
        self._projection = Projection(load_nodes(connection), self.flush, places)
        self.add: Final = self._projection.add

    def flush(self) -> None:
        """Send off what was collected."""
        for statement, rows in self._projection.taken():
            self._outbox.add(statement, rows, _dropped)
        if self._sends:
            self._outbox.send()


_node, _dev, _cpu = schema.ledger_nodes.c, schema.ledger_devices.c, schema.ledger_cpus.c


def load_nodes(connection: Connection) -> dict[str, KnownNode]:
    """Return what the tables say of nodes, devices, CPUs and open reservations, by node UID."""
    nodes: dict[str, KnownNode] = {}
    by_number: dict[int, KnownNode] = {}
    for number, uid in connection.execute(select(_node.node_no, _node.node_uid)).all():
        nodes[uid] = by_number[number] = KnownNode(number=number)
    rows = connection.execute(
        select(
            _dev.node_no,
            _dev.device_no,
            _dev.device_type,
            _dev.minor,
            _dev.device_id,
            _dev.model,
            _dev.present,
            _dev.healthy,
            _dev.core_reported,
            _dev.memory_reported,
        ).order_by(_dev.device_no)
    ).all()
    for node_no, number, device_type, minor, device_id, model, present, healthy, core, mem in rows:
        device = KnownDevice(
            number=number,
            device_type=device_type,
            minor=minor,
            device_id=device_id,
            model=model,
            present=bool(present),
            healthy=bool(healthy),
            core_percent=core,
            memory_bytes=mem,
        )
        by_number[node_no].devices.append(device)
    for node in nodes.values():
        node.index()
    for node_no, cpu in connection.execute(select(_cpu.node_no, _cpu.cpu)).all():
        by_number[node_no].cpus.add(cpu)
    _load_open(connection, by_number)
    return nodes


def _load_open(connection: Connection, nodes: Mapping[int, KnownNode]) -> None:
    table = schema.ledger_reservations.c
    query = select(table.position, table.node_no, table.pod_uid, table.attempt, table.kind)
    rows = connection.execute(query.where(table.closed_position.is_(None))).all()
    for position, node_no, pod_uid, attempt, kind in rows:
        nodes[node_no].open[(pod_uid, attempt)] = (position, kind)
