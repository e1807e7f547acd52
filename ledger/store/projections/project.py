"""Events to rows: what each event writes into the projection tables, in the event's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from sqlalchemy import Connection

from ledger.domain.cpuset import format_cpuset
from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceShare, level_percent
from ledger.domain.errors import CapacityError, LedgerError
from ledger.domain.log import events
from ledger.domain.log.state import GRANTED, LOST, OBSERVED
from ledger.domain.log.unnamed import unnamed_cards
from ledger.domain.proofs.canonical import labels_json
from ledger.store.projections import inventory
from ledger.store.projections.known import PlannedCardRow, PlannedCardRows, load_nodes, load_places
from ledger.store.writing import statements
from ledger.store.writing.outbox import Outbox
from ledger.store.writing.statements import Row, Statement

WAVE: Final = (
    statements.CLOSE,
    statements.CLOSE_PLACE,
    statements.LOSE,
    statements.UPDATE_MACHINE,
    statements.MACHINE,
    statements.LOSE_NODE,
    statements.UPDATE_NODE,
    statements.NODE,
    statements.UPDATE_STAND,
    statements.STAND,
    statements.UPDATE_DEVICE,
    statements.UPDATE_CPU,
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


_NOUN: Final = {events.POD: "Pod", events.CLAIM: "claim"}


def _who(event: events.Opening) -> str:
    return f"{event.holder}={event.namespace}/{event.pod_name}"


def _dropped() -> LedgerError:
    return LedgerError("the database dropped rows without a word: run `tenure verify`")


class Projection:
    """
    Turns events into rows, in the order of their positions. Holds what it must know of the past.

    Rows are collected in `rows` and taken away by `send` in waves, one statement for many rows.
    Inside a wave all endings come before all openings. So `send` is called before facts change, and
    before an ending on a node where something opened in the wave: that must not get what was not
    free yet.
    """

    def __init__(
        self,
        nodes: dict[str, inventory.KnownNode],
        send: Callable[[], None],
        places: PlannedCardRows | None = None,
        machines: inventory.KnownMachines | None = None,
    ) -> None:
        self._send = send
        self._nodes = nodes
        self._machines = machines or inventory.KnownMachines()
        self._next_node = 1 + max((node.number for node in nodes.values()), default=0)
        self._next_device = 1 + self._machines.last_device
        self._granted = {
            uid: position
            for node in nodes.values()
            for (uid, _), (position, kind) in node.open.items()
            if kind == GRANTED
        }
        self._places = places or PlannedCardRows()
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

    def add(self, position: int, at_us: int, event: events.LedgerEvent) -> None:
        """Collect the rows of one event; may send off the rows of earlier ones first."""
        match event:
            case (
                events.PodReserved()
                | events.PodObserved()
                | events.ClaimReserved()
                | events.ClaimObserved()
            ):
                self._opened(position, at_us, event)
            case events.PodReleased() | events.ClaimReleased():
                self._ended(position, at_us, event, "released")
            case events.PodVoided() | events.ClaimVoided():
                self._ended(position, at_us, event, "voided")
            case events.PodBound() | events.ClaimBound():
                self._phase(position, event, "bound")
            case events.PodAssigned():
                self._phase(position, event, "assigned")
            case events.RequestRefused():
                self.rows[statements.REFUSAL].append(_refusal_row(position, at_us, event))
            case events.NodeInventoried():
                self._inventoried(position, at_us, event)
            case events.DeviceHealthChanged():
                self._health_changed(position, at_us, event)
            case events.NodeLost():
                self._lost(position, at_us, event)
            case events.NodeCleared():
                self._cleared(position, at_us, event)
            case events.GroupPlanned():
                self._planned(position, at_us, event)
            case events.PlanDropped():
                self._close_places(position, at_us, self._places.close_group(event.group))
            case (
                events.EpochStarted()
                | events.SettingsChanged()
                | events.WorkloadDescribed()
                | events.RequestDescribed()
                | events.NodeDescribed()
                | events.PreemptionDecided()
                | events.DriftFound()
                | events.DriftResolved()
                | events.SnapshotTaken()
                | events.SegmentArchived()
                | events.LedgerRecovered()
                | events.KeyRotated()
                | events.PositionVoided()
                | events.CheckpointStored()
                | events.CheckpointWithdrawn()
                | events.TimeCorrected()
                | events.ClaimConsumed()
            ):
                pass
            case _:
                assert_never(event)

    def _opened(self, position: int, at_us: int, event: events.Opening) -> None:
        granted = type(event) in events.GRANTS
        if granted and event.node_uid in self._clouded:
            self._send()  # slots come behind holdings in a wave, and this one closes all cards
        if type(event) is events.PodReserved:
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
                    f"a {_NOUN[event.holder]} names a part twice: {_who(event)},"
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
                    (position, slot, node.machine.number, device.number, kind, at_us)
                )
        if event.cpuset:
            self._cpus(position, at_us, node, event)
        if isinstance(event, events.PodObserved | events.ClaimObserved):
            for name in event.unknown_types:
                slot = f"unknown/{name}"
                rows[statements.SLOT_HOLDING].append(
                    (position, slot, node.machine.number, None, kind, at_us)
                )
                self._clouded.add(event.node_uid)

    def _planned(self, position: int, at_us: int, event: events.GroupPlanned) -> None:
        """Close what the group's plan before this one left open, and open what this one says."""
        self._send()
        self._close_places(position, at_us, self._places.close_group(event.group))
        self._send()
        for place in self._places.open(position, event, self._nodes):
            node_no = self._nodes[place.node_uid].number
            row = (position, place.device_no, node_no, event.group, place.pod_uid, at_us)
            self.rows[statements.PLACE].append(row)
            self._entered.add(place.node_uid)

    def _close_places(self, position: int, at_us: int, places: list[PlannedCardRow]) -> None:
        if not self._entered.isdisjoint([place.node_uid for place in places]):
            self._send()
        for place in places:
            row = (at_us, position, place.position, place.device_no)
            self.rows[statements.CLOSE_PLACE].append(row)

    def _unknown_node(self, position: int, event: events.Opening) -> inventory.KnownNode:
        """Make room for an observed holder of a node that has no inventory yet."""
        if type(event) in events.GRANTS:
            raise CapacityError(
                f"no inventory of the node: {_who(event)},"
                f" node={event.node_name}, node_uid={event.node_uid}"
            )
        node = self._new_node(event.node_uid, self._machine(position, None, ("", "")))
        machine = node.machine.number
        facts = (event.node_name, machine, "", "", "{}", 0, 0, 0, None, None, position)
        self.rows[statements.NODE].append((node.number, event.node_uid, *facts))
        self._stands(position, node, "", by_agent=False)
        return node

    def _new_node(self, uid: str, machine: inventory.KnownMachine) -> inventory.KnownNode:
        node = self._nodes[uid] = inventory.KnownNode(number=self._next_node, machine=machine)
        self._next_node += 1
        return node

    def _stands(
        self, position: int, node: inventory.KnownNode, boot_id: str, *, by_agent: bool
    ) -> None:
        number, machine = node.number, node.machine
        before = machine.stands.get(number)
        by_agent = by_agent or (before is not None and before.by_agent)
        stand = inventory.KnownStand(boot_id=boot_id, by_agent=by_agent, fact_position=position)
        machine.stands[number] = stand
        told, key = (boot_id, int(by_agent), position), (number, machine.number)
        if before is None:
            self.rows[statements.STAND].append((*key, *told))
        else:
            self.rows[statements.UPDATE_STAND].append((*told, *key))

    def _machine(
        self, position: int, node: inventory.KnownNode | None, told: tuple[str, str]
    ) -> inventory.KnownMachine:
        """Return the machine that a node tells, with its row if it is new or new by name."""
        numbers = len(self._machines.by_number)
        before = node.machine.identity if node is not None else told
        machine = self._machines.of(node, told)
        if len(self._machines.by_number) > numbers:
            row = (machine.number, *machine.identity, position)
            self.rows[statements.MACHINE].append(row)
        elif node is not None and machine is node.machine and machine.identity != before:
            named: Row = (*machine.identity, position, machine.number)
            self.rows[statements.UPDATE_MACHINE].append(named)
        return machine

    def _open(
        self, position: int, node: inventory.KnownNode, event: events.Opening, *, granted: bool
    ) -> None:
        """Remember what is open; a Pod is granted one reservation at a time."""
        key = (event.pod_uid, event.attempt)
        if granted and node.lost_position is not None:
            raise CapacityError(f"the node is lost: {_who(event)}, node={event.node_name}")
        if key in node.open or (granted and event.pod_uid in self._granted):
            raise CapacityError(
                f"the {_NOUN[event.holder]} already holds a reservation: {_who(event)},"
                f" uid={event.pod_uid}, attempt={event.attempt}, node={event.node_name}"
            )
        node.open[key] = (position, GRANTED if granted else OBSERVED)
        if granted:
            self._granted[event.pod_uid] = position

    def _device(
        self, position: int, node: inventory.KnownNode, share: DeviceShare, event: events.Opening
    ) -> inventory.KnownDevice:
        device = node.device(share.device_type, share.minor, share.device_id)
        if device is not None:
            if type(event) in events.GRANTS and device.minor != share.minor:
                raise CapacityError(
                    f"minor and id are of two cards: {_who(event)},"
                    f" card={event.node_name}/{share.device_type}/{share.minor},"
                    f" device_id={share.device_id!r}, which is at minor {device.minor}"
                )
            return device
        if type(event) in events.GRANTS:
            raise CapacityError(
                f"no such card: {_who(event)},"
                f" card={event.node_name}/{share.device_type}/{share.minor},"
                f" device_id={share.device_id!r}"
            )
        device = inventory.new_device(self._next_device, node, share)
        self._next_device += 1
        node.machine.devices.append(device)
        self.rows[statements.DEVICE].append(device_row(device, position))
        return device

    def _cpus(
        self, position: int, at_us: int, node: inventory.KnownNode, event: events.Opening
    ) -> None:
        kind = GRANTED if type(event) in events.GRANTS else OBSERVED
        machine = node.machine
        for cpu in event.cpuset:
            if cpu not in machine.cpus:
                if kind == GRANTED:
                    raise CapacityError(
                        f"no such CPU: {_who(event)}, cpu={event.node_name}/cpu/{cpu}"
                    )
                machine.cpus[cpu] = node.number
                row = (machine.number, cpu, node.number, -1, -1, -1, 0, 0, 0, 0, 0, position)
                self.rows[statements.CPU].append(row)
            self.rows[statements.CPU_HOLDING].append((position, cpu, machine.number, kind, at_us))

    def _ended(self, position: int, at_us: int, event: events.Ending, phase: str) -> None:
        node = self._nodes.get(event.node_uid)
        key = (event.pod_uid, event.attempt)
        if node is None or key not in node.open:
            return  # a second release of the same reservation changes nothing
        if key in node.lost_open:
            raise CapacityError(
                f"the Pod's node was lost: what it held opens when the machine is cleared:"
                f" pod_uid={event.pod_uid}, attempt={event.attempt}, node_uid={event.node_uid}"
            )
        opened = node.open.pop(key)
        if event.node_uid in self._entered:
            self._send()
        first, kind = opened
        if kind == GRANTED:
            del self._granted[event.pod_uid]
        self.rows[statements.CLOSE].append((phase, at_us, position, event.reason, first))

    def _phase(
        self,
        position: int,
        event: events.PodBound | events.PodAssigned | events.ClaimBound,
        phase: str,
    ) -> None:
        node = self._nodes.get(event.node_uid)
        key = (event.pod_uid, event.attempt)
        opened = node.open.get(key) if node else None
        if opened is not None and node is not None and key not in node.lost_open:
            self._entered.add(event.node_uid)
            self.rows[statements.PHASE].append((phase, position, opened[0]))

    def _inventoried(self, position: int, at_us: int, event: events.NodeInventoried) -> None:
        _check_cpus(event)
        node = self._nodes.get(event.node_uid)
        if node is not None or self._entered:
            self._send()  # a new card may close another machine's, which was open to earlier grants
        machine = self._machine(position, node, (event.system_uuid, event.machine_id))
        if node is None and (machine.devices or machine.cpus):
            self._send()
        if node is None:
            node = self._new_node(event.node_uid, machine)
            facts = _node_facts(position, node, event)
            self.rows[statements.NODE].append((node.number, event.node_uid, *facts))
        else:
            if machine is not node.machine:
                left = [*node.former, node.machine]
                node.former = [each for each in left if each is not machine]
                node.machine, node.moved_position = machine, position
            facts = _node_facts(position, node, event)
            self.rows[statements.UPDATE_NODE].append((*facts, node.number))
        self._stands(position, node, event.boot_id, by_agent=event.by_agent)
        for change in inventory.inventory(node, event.devices, self._next_device):
            self._changed(position, at_us, change)
        self._inventoried_cpus(position, node, event)

    def _changed(self, position: int, at_us: int, change: inventory.DeviceChange) -> None:
        device = change.device
        if change.new:
            self._next_device += 1
            self.rows[statements.DEVICE].append(device_row(device, position))
        else:
            self._update_device(position, device)
        if change.reason:
            healthy = int(device.healthy and device.present)
            row = (position, device.number, at_us, healthy, change.reason)
            self.rows[statements.HEALTH].append(row)

    def _lost(self, position: int, at_us: int, event: events.NodeLost) -> None:
        """Count what the node's Pods hold no further; take its devices from the offer."""
        node = self._nodes.get(event.node_uid)
        if node is None:
            return
        self._send()
        node.lost_position, boot_id = position, node.machine.boot_id()
        self.rows[statements.LOSE_NODE].append((position, node.number))
        for key, (opened, _) in node.open.items():
            if key not in node.lost_open:
                node.lost_open[key] = (position, boot_id)
                self.rows[statements.LOSE].append((LOST, position, at_us, boot_id, opened))
        for change in inventory.withdrawn(node, set(), LOST):
            self._changed(position, at_us, change)

    def _cleared(self, position: int, at_us: int, event: events.NodeCleared) -> None:
        node = self._nodes.get(event.node_uid)
        if node is None or not node.lost_open:
            return
        self._check_evidence(node, event)
        self._send()
        for key in sorted(node.lost_open, key=lambda key: node.open[key]):
            opened, kind = node.open.pop(key)
            if kind == GRANTED:
                del self._granted[key[0]]
            reason = f"cleared: {event.evidence}"
            self.rows[statements.CLOSE].append(("released", at_us, position, reason, opened))
        node.lost_open.clear()

    def _check_evidence(self, node: inventory.KnownNode, event: events.NodeCleared) -> None:
        """Refuse a clearing that what was inventoried of the machine does not bear out."""
        if event.evidence == events.ACT:
            return
        told = self._told_since(node, event.witness_uid)
        if event.evidence == events.AGENT and told is not None and told.by_agent:
            return
        if event.evidence == events.BOOT and told is not None and not node.machine.by_agent():
            before = {boot_id for _, boot_id in node.lost_open.values()}
            if told.boot_id and before.isdisjoint({"", told.boot_id}):
                return
        raise CapacityError(
            f"nothing shows that the machine is cleared: node={event.node_name},"
            f" node_uid={event.node_uid}, evidence={event.evidence},"
            f" witness_uid={event.witness_uid!r}"
        )

    def _told_since(
        self, node: inventory.KnownNode, witness_uid: str
    ) -> inventory.KnownStand | None:
        witness = self._nodes.get(witness_uid)
        if witness is None or witness.lost_position is not None:
            return None
        if witness.machine is not node.machine:
            return None
        stand, moved = node.machine.stands[witness.number], node.moved_position or 0
        lost = node.lost_open.items()
        since = all(node.open[key][0] > moved and stand.fact_position > at for key, (at, _) in lost)
        return stand if since else None

    def _inventoried_cpus(
        self, position: int, node: inventory.KnownNode, event: events.NodeInventoried
    ) -> None:
        reported, machine = event.cpu_ref_count_max, node.machine
        known = self.rows[statements.UPDATE_CPU]
        for cpu in event.cpus:
            place = (node.number, cpu.core, cpu.socket, cpu.numa)
            if cpu.id in machine.cpus:
                refs = (reported, reported, reported)
                known.append((*place, 1, *refs, position, machine.number, cpu.id))
            else:
                row = (machine.number, cpu.id, *place, 1, reported, reported, 0, 0, position)
                self.rows[statements.CPU].append(row)
            machine.cpus[cpu.id] = node.number
        named = {cpu.id for cpu in event.cpus}
        for each in (machine, *node.former):
            for cpu_id in sorted(cpu for cpu, by in each.cpus.items() if by == node.number):
                if each is not machine or cpu_id not in named:
                    gone = (node.number, -1, -1, -1, 0, 0, 0, 0, position, each.number, cpu_id)
                    known.append(gone)

    def _health_changed(self, position: int, at_us: int, event: events.DeviceHealthChanged) -> None:
        node = self._nodes.get(event.node_uid)
        device = node.device(event.device_type, event.minor, event.device_id) if node else None
        if device is None:
            return
        self._send()
        device.healthy = event.healthy
        self._update_device(position, device)
        row = (position, device.number, at_us, int(event.healthy), event.reason)
        self.rows[statements.HEALTH].append(row)

    def _update_device(self, position: int, device: inventory.KnownDevice) -> None:
        core = device.core_percent if device.present else 0
        memory = device.memory_bytes if device.present else 0
        amounts = (core, memory, core, core, memory, memory)
        row = (device.node, *_listed_as(device), *amounts, position, device.number)
        self.rows[statements.UPDATE_DEVICE].append(row)


def _node_facts(position: int, node: inventory.KnownNode, event: events.NodeInventoried) -> Row:
    """Remember what an inventory says of the node itself, and return it as columns of its row."""
    node.lost_position = None
    return (
        event.node_name,
        node.machine.number,
        event.system_uuid,
        event.machine_id,
        labels_json(event.labels),
        event.cpu_milli,
        event.memory_bytes,
        event.cpu_ref_count_max,
        node.moved_position,
        node.lost_position,
        position,
    )


def reservation_row(position: int, at_us: int, event: events.Opening, node_no: int) -> Row:
    """Return the row of `ledger_reservations` that this event opens."""
    gpu_percent = gpus = 0
    for share in event.shares:
        if share.device_type == GPU:
            gpus += 1
            gpu_percent += level_percent(share.core_percent, share.memory_ratio_percent)
    if isinstance(event, events.PodObserved) and event.unknown_types:
        unnamed = unnamed_cards(event)
        gpus += unnamed
        gpu_percent += WHOLE_PERCENT * unnamed
    snapshot = event.snapshot
    granted = type(event) in events.GRANTS
    return (
        position,
        event.pod_uid,
        event.attempt,
        event.namespace,
        event.pod_name,
        snapshot.owner,
        labels_json(snapshot.labels),
        snapshot.priority,
        snapshot.qos,
        str(event.dialect),
        event.policy if isinstance(event, events.PodReserved | events.ClaimReserved) else "",
        "" if isinstance(event, events.PodReserved | events.ClaimReserved) else event.source,
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
        position,
        snapshot.created_at_us,
        at_us,
        event.decided_on if isinstance(event, events.PodReserved | events.ClaimReserved) else None,
        event.holder,
    )


def _check_cpus(event: events.NodeInventoried) -> None:
    """Refuse an inventory that contradicts itself; a card named twice is the database's to see."""
    seen: set[int] = set()
    for cpu in event.cpus:
        if cpu.id in seen:
            raise CapacityError(
                f"the inventory contradicts itself: cpu {event.node_name}/cpu/{cpu.id}"
                f" is named twice: node_uid={event.node_uid}"
            )
        seen.add(cpu.id)


def device_row(device: inventory.KnownDevice, position: int) -> Row:
    """Return the row of `ledger_devices` for a device that nobody holds yet."""
    key = (device.number, device.machine, device.node, device.device_type)
    amounts, nothing = (device.core_percent, device.memory_bytes), (0, 0, 0, 0, 0, 0, 0)
    return (*key, *_listed_as(device), *amounts, *amounts, *nothing, position)


def _listed_as(device: inventory.KnownDevice) -> Row:
    """Return what an inventory says of a device but its amounts, as columns of its row."""
    flags = (int(device.present), int(device.healthy))
    return (device.minor, device.device_id, int(device.unique_id), device.model, *flags)


def _refusal_row(position: int, at_us: int, event: events.RequestRefused) -> Row:
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

    An error leaves it spent, for it counts on rows that are not there; a new one reads them. Rows
    go out with a given `outbox`.
    """

    def __init__(self, connection: Connection, outbox: Outbox | None = None) -> None:
        self._outbox: Final = outbox or Outbox(connection)
        self._sends: Final = outbox is None
        places = load_places(connection)
        nodes, machines = load_nodes(connection)
        self._projection = Projection(nodes, self.flush, places, machines)
        self.add: Final = self._projection.add

    def flush(self) -> None:
        """Send off what was collected."""
        for statement, rows in self._projection.taken():
            self._outbox.add(statement, rows, _dropped)
        if self._sends:
            self._outbox.send()
