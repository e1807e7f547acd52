"""
The state of the ledger as a fold over its events: who holds what, now or at any position.

Replay is a loop over `apply`. Nothing in here refuses or forgets a holder: whether a state breaks a
capacity is asked of `violations`, so that a proof can name the position at which it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.events import (
    DeviceHealthChanged,
    LedgerEvent,
    NodeInventoried,
    PodAssigned,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
)
from ledger.domain.topology import Cpu

GRANTED: Final = "granted"
OBSERVED: Final = "observed"

Unit = tuple[str, int, str]
"""A device inside its node: type, minor, id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Core percent and memory bytes of one device."""

    core_percent: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """
    One Pod's reservation or observed holding on one node.

    Attributes:
        kind: `granted` (by us, inside the constraints) or `observed` (by others, outside them).
        opened_position: position of the event that opened it.
        phase: `reserved`, `bound`, `assigned` or `observed`.
        unknown_types: device types held on a card that nobody can name.
    """

    pod_uid: str
    attempt: int
    namespace: str
    pod_name: str
    kind: str
    phase: str
    opened_position: int
    shares: tuple[DeviceShare, ...]
    cpuset: CpuSet
    cpu_milli: int = 0
    memory_bytes: int = 0
    unknown_types: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return the name of the holding in its node: Pod UID and attempt."""
        return f"{self.pod_uid}/{self.attempt}"


_NO_HOLDINGS: Final[Mapping[str, Holding]] = MappingProxyType({})
_NO_CAPS: Final[Mapping[Unit, Amount]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """
    One node: its inventory, and its holdings by `<pod uid>/<attempt>`.

    Attributes:
        caps: what was promised of a device when it shrank or left, where that is more than it has
            now. Falls as holders leave (design section 4, "Facts may contradict capacity").
    """

    uid: str
    name: str
    devices: tuple[DeviceRecord, ...] = ()
    cpus: tuple[Cpu, ...] = ()
    cpu_ref_count_max: int = 1
    holdings: Mapping[str, Holding] = field(default_factory=dict)
    caps: Mapping[Unit, Amount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise beyond what a device or CPU has. There must never be one."""

    node_name: str
    unit: str  # `gpu/3` or `cpu/17`
    fact: str

    def __str__(self) -> str:
        return f"{self.node_name}/{self.unit}: {self.fact}"


def apply(node: NodeState | None, position: int, event: LedgerEvent) -> NodeState | None:
    """
    Fold one event into the state of the node it is about. Pure and total.

    Events about no node (settings, refusals, plans, drift) return the node as it is. A holder of a
    node that was never inventoried is kept too. A second release of the same reservation changes
    nothing.
    """
    match event:
        case NodeInventoried():
            return _inventoried(node, event)
        case DeviceHealthChanged():
            return node and _health_changed(node, event)
        case PodReserved() | PodObserved():
            known = node or NodeState(uid=event.node_uid, name=event.node_name)
            return _held(known, position, event)
        case PodBound():
            return node and _phase(node, event, "bound")
        case PodAssigned():
            return node and _phase(node, event, "assigned")
        case PodReleased() | PodVoided():
            return node and _freed(node, event)
        case _:
            return node


def node_uid_of(event: LedgerEvent) -> str | None:
    """Return the UID of the node whose state `event` changes, or None."""
    match event:
        case (
            NodeInventoried()
            | DeviceHealthChanged()
            | PodReserved()
            | PodObserved()
            | PodBound()
            | PodAssigned()
            | PodReleased()
            | PodVoided()
        ):
            return event.node_uid
        case _:
            return None


def fold(events: Iterable[tuple[int, LedgerEvent]]) -> dict[str, NodeState]:
    """Replay (position, event) pairs in order; return the nodes by UID."""
    nodes: dict[str, NodeState] = {}
    for position, event in events:
        uid = node_uid_of(event)
        if uid is not None:
            after = apply(nodes.get(uid), position, event)
            if after is not None:
                nodes[uid] = after
    return nodes


def _inventoried(node: NodeState | None, event: NodeInventoried) -> NodeState:
    after = NodeState(
        uid=event.node_uid,
        name=event.node_name,
        devices=event.devices,
        cpus=event.cpus,
        cpu_ref_count_max=event.cpu_ref_count_max,
        holdings=node.holdings if node else _NO_HOLDINGS,
    )
    return replace(after, caps=_caps(after))


def _caps(node: NodeState) -> Mapping[Unit, Amount]:
    """Return what is promised of devices that have less than that."""
    return {
        use.unit: use.promised for use in _uses(node) if not _within(use.promised, use.reported)
    }


def _within(part: Amount, whole: Amount) -> bool:
    return part.core_percent <= whole.core_percent and part.memory_bytes <= whole.memory_bytes


def _health_changed(node: NodeState, event: DeviceHealthChanged) -> NodeState:
    """Mark the device; another card that took its minor meanwhile is not the one that was meant."""
    key = (event.device_type, event.minor)
    devices = tuple(
        replace(device, healthy=event.healthy)
        if device.key == key and event.device_id in {"", device.device_id}
        else device
        for device in node.devices
    )
    return replace(node, devices=devices)


def _held(node: NodeState, position: int, event: PodReserved | PodObserved) -> NodeState:
    granted = isinstance(event, PodReserved)
    holding = Holding(
        pod_uid=event.pod_uid,
        attempt=event.attempt,
        namespace=event.namespace,
        pod_name=event.pod_name,
        kind=GRANTED if granted else OBSERVED,
        phase="reserved" if granted else "observed",
        opened_position=position,
        shares=event.shares,
        cpuset=event.cpuset,
        cpu_milli=event.cpu_milli,
        memory_bytes=event.memory_bytes,
        unknown_types=event.unknown_types if isinstance(event, PodObserved) else (),
    )
    held = node.holdings.get(holding.key)
    twice = held is not None and held.kind == GRANTED
    key = f"{holding.key}@{position}" if twice else holding.key  # a grant is never overwritten
    return replace(node, holdings={**node.holdings, key: holding})


def _phase(node: NodeState, event: PodBound | PodAssigned, phase: str) -> NodeState:
    key = f"{event.pod_uid}/{event.attempt}"
    holding = node.holdings.get(key)
    if holding is None:
        return node
    return replace(node, holdings={**node.holdings, key: replace(holding, phase=phase)})


def _freed(node: NodeState, event: PodReleased | PodVoided) -> NodeState:
    key = f"{event.pod_uid}/{event.attempt}"
    if key not in node.holdings:
        return node
    after = replace(node, holdings={k: v for k, v in node.holdings.items() if k != key})
    return replace(after, caps=_fallen(after)) if after.caps else after


def _fallen(node: NodeState) -> Mapping[Unit, Amount]:
    """Lower the caps to what is still promised; a device that has enough again needs none."""
    promised = _caps(node)
    return {
        unit: Amount(
            core_percent=min(cap.core_percent, promised[unit].core_percent),
            memory_bytes=min(cap.memory_bytes, promised[unit].memory_bytes),
        )
        for unit, cap in node.caps.items()
        if unit in promised
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """What is promised of one device, by how many holders, and what it has."""

    unit: Unit
    promised: Amount
    reported: Amount
    holders: int
    exclusive: bool


def _uses(node: NodeState) -> Iterator[_Use]:
    """
    Yield every device with granted holders, those that the node no longer has included.

    A share is of the device with its id; where either side has no id, of the one at its minor.
    """
    by_id = {(device.device_type, device.device_id): device for device in node.devices}
    by_minor = {device.key: device for device in node.devices}
    shares: dict[Unit, list[DeviceShare]] = {}
    records: dict[Unit, DeviceRecord] = {}
    for holding in node.holdings.values():
        for share in holding.shares if holding.kind == GRANTED else ():
            device = by_id.get((share.device_type, share.device_id)) if share.device_id else None
            other = by_minor.get(share.key)
            if device is None and other and not (share.device_id and other.device_id):
                device = other
            unit = (share.device_type, share.minor, share.device_id)
            if device is not None:
                unit = (device.device_type, device.minor, device.device_id)
                records[unit] = device
            shares.setdefault(unit, []).append(share)
    for unit, held in shares.items():
        record = records.get(unit)
        yield _Use(
            unit=unit,
            promised=Amount(
                core_percent=sum(share.core_percent for share in held),
                memory_bytes=sum(share.memory_bytes for share in held),
            ),
            reported=Amount(core_percent=record.core_percent, memory_bytes=record.memory_bytes)
            if record
            else Amount(),
            holders=len(held),
            exclusive=any(share.exclusive for share in held),
        )


def violations(node: NodeState) -> Iterator[Violation]:
    """
    Yield every device and CPU of the node that is promised beyond what it has.

    Rule: design section 4. Only granted holdings count (observed ones are facts, not promises). A
    device that shrank or left under its holders is no broken promise, but promises nothing more
    until they leave; a device that the node never had promises nothing at all.
    """
    for use in _uses(node):
        yield from _device_violations(node, use)
    yield from _cpu_violations(node)


def _device_violations(node: NodeState, use: _Use) -> Iterator[Violation]:
    cap = node.caps.get(use.unit, Amount())
    core_max = max(cap.core_percent, use.reported.core_percent)
    memory_max = max(cap.memory_bytes, use.reported.memory_bytes)
    unit = f"{use.unit[0]}/{use.unit[1]}"
    core, memory = use.promised.core_percent, use.promised.memory_bytes
    if core > core_max:
        fact = f"core promised beyond capacity: {core} of {core_max} percent"
        yield Violation(node_name=node.name, unit=unit, fact=fact)
    if memory > memory_max:
        fact = f"memory promised beyond capacity: {memory} of {memory_max} bytes"
        yield Violation(node_name=node.name, unit=unit, fact=fact)
    if use.holders > 1 and use.exclusive:
        fact = f"exclusive holder is not alone: holders={use.holders}"
        yield Violation(node_name=node.name, unit=unit, fact=fact)


def _cpu_violations(node: NodeState) -> Iterator[Violation]:
    counts: dict[int, int] = {}
    for holding in node.holdings.values():
        for cpu in holding.cpuset if holding.kind == GRANTED else ():
            counts[cpu] = counts.get(cpu, 0) + 1
    for cpu in sorted(counts):
        if counts[cpu] > node.cpu_ref_count_max:
            fact = f"more holders than allowed: {counts[cpu]} of {node.cpu_ref_count_max}"
            yield Violation(node_name=node.name, unit=f"cpu/{cpu}", fact=fact)
