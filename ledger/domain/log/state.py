"""
The state of the ledger as a fold over its events: who holds what, now or at any position.

Replay is a loop over `Folding.add`. Nothing in here refuses or forgets a holder: whether a state
breaks a capacity is for the proofs to ask, which can name the position at which it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from msgspec import UNSET, Struct, structs

from ledger.domain.annotations.tenure import Shown, read_shown
from ledger.domain.bounds import Count, Exact, Milli, Number, Units
from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log import events
from ledger.domain.log.planned_cards import PlannedCard, apply_planned_cards
from ledger.domain.systems import Claimant
from ledger.domain.topology import Cpu

GRANTED: Final = "granted"
OBSERVED: Final = "observed"
LOST: Final = "lost"
"""The phase of what a lost node's Pods hold: not counted any more, and not free."""

Unit = tuple[str, int, str]
"""A device inside its node: type, minor, id."""


class Amount(Struct, frozen=True, kw_only=True, gc=False):
    """Core percent and memory bytes of one device."""

    core_percent: Units = 0
    memory_bytes: Count = 0


class Holding(Struct, frozen=True, kw_only=True, gc=False):
    """
    One Pod's, or one claim's, reservation or observed holding on one node.

    Attributes:
        pod_uid, pod_name: of the claim where that is the holder.
        kind: `granted` (by us, inside the constraints) or `observed` (by others, outside them).
        opened_position: position of the event that opened it.
        phase: `reserved`, `bound`, `assigned`, `observed` or `lost`.
        unknown_types: device types held on a card that nobody can name.
        machine: where it stayed when its node became another machine, as system UUID and machine
            id; empty = where the node is.
        holder: `pod` or `claim`.
        consumers: the Pods that use the claim; none of a Pod's own holding.
        shown: the cards that its containers are shown.
    """

    pod_uid: str
    attempt: Number
    namespace: str
    pod_name: str
    kind: str
    phase: str
    opened_position: Exact
    shares: tuple[DeviceShare, ...]
    cpuset: CpuSet
    cpu_milli: Milli = 0
    memory_bytes: Count = 0
    unknown_types: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    holder: str = events.POD
    consumers: tuple[Claimant, ...] = ()
    shown: Shown = UNSET

    @property
    def key(self) -> str:
        """Return the name of the holding in its node: the holder's UID and attempt."""
        return f"{self.pod_uid}/{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """
    One node: its inventory, and what is held of it by `<holder's uid>/<attempt>`.

    Attributes:
        holdings: of Pods.
        claims: of claims, which no Pod's life begins or ends.
        caps: what was promised of a device when it shrank or left, where that is more than it has
            now. Falls as holders leave (design section 4, "Facts may contradict capacity").
        lost: since it was lost, until it is inventoried again.
        by_agent: its machine's agent has reported once.
    """

    uid: str
    name: str
    devices: tuple[DeviceRecord, ...] = ()
    cpus: tuple[Cpu, ...] = ()
    cpu_ref_count_max: int = 1
    holdings: Mapping[str, Holding] = field(default_factory=dict)
    caps: Mapping[Unit, Amount] = field(default_factory=dict)
    system_uuid: str = ""
    machine_id: str = ""
    boot_id: str = ""
    by_agent: bool = False
    lost: bool = False
    claims: Mapping[str, Holding] = field(default_factory=dict)

    def everyone(self) -> Iterator[Holding]:
        """Yield what is held of it, by Pods and then by claims."""
        yield from self.holdings.values()
        yield from self.claims.values()

    def lost_holdings(self) -> list[Holding]:
        """Return what is held through it since it was lost."""
        return [one for one in self.everyone() if one.phase == LOST]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """Everything that is folded from the events up to one position: nodes by UID, open places."""

    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    planned_cards: tuple[PlannedCard, ...] = ()


_NOTHING: Final = LedgerState()


class Folding:
    """
    A state that is folded in place, one event at a time: the one fold, which every reader calls.

    Events about no node (settings, refusals, drift) change nothing. A holder of a node that was
    never inventoried is kept too. A second release of the same reservation changes nothing.

    A node is a `_Node` from when an event is about it until somebody asks for it.
    """

    def __init__(self, state: LedgerState = _NOTHING) -> None:
        self._nodes: dict[str, _Node | NodeState] = dict(state.nodes)
        self._planned_cards = state.planned_cards

    def add(self, position: int, event: events.LedgerEvent) -> None:
        """Fold one event into the open places and into the node that it is about, if any."""
        kind = type(event)
        if self._planned_cards or kind is events.GroupPlanned:
            self._planned_cards = apply_planned_cards(self._planned_cards, position, event)
        step = _STEPS.get(kind)
        if step is None:
            return
        about: Any = event  # it has a step, so it names its node
        uid = about.node_uid
        node = self._nodes.get(uid)
        if node is None:
            if kind not in _FOUNDING:
                return
            node = NodeState(uid=uid, name=about.node_name)
        if isinstance(node, NodeState):
            node = self._nodes[uid] = _opened(node)
        step(node, position, event)

    def node(self, uid: str) -> NodeState | None:
        """Return one node as it is now; None where no event founded it."""
        node = self._nodes.get(uid)
        if isinstance(node, _Node):
            node = self._nodes[uid] = _closed(node)
        return node

    def held(self) -> list[str]:
        """Return the UIDs of the nodes that have holders."""
        return [uid for uid, node in self._nodes.items() if node.holdings or node.claims]

    def holding_of(self, event: events.LedgerEvent) -> Holding | None:
        """Return the holding that an event goes on with or ends; None without one."""
        if not isinstance(
            event, events.PodBound | events.PodAssigned | events.ClaimBound | events.Ending
        ):
            return None
        node = self._nodes.get(event.node_uid)
        if node is None:
            return None
        there = node.claims if event.holder == events.CLAIM else node.holdings
        return there.get(f"{event.pod_uid}/{event.attempt}")

    @property
    def state(self) -> LedgerState:
        """The state as it is now."""
        nodes = {
            uid: _closed(node) if isinstance(node, _Node) else node
            for uid, node in self._nodes.items()
        }
        return LedgerState(nodes=nodes, planned_cards=self._planned_cards)


@dataclass(slots=True, kw_only=True)
class _Node:
    """A `NodeState` that changes; `holdings` and `claims` are its own."""

    uid: str
    name: str
    devices: tuple[DeviceRecord, ...]
    cpus: tuple[Cpu, ...]
    cpu_ref_count_max: int
    holdings: dict[str, Holding]
    claims: dict[str, Holding]
    caps: Mapping[Unit, Amount]
    system_uuid: str
    machine_id: str
    boot_id: str
    by_agent: bool
    lost: bool

    def everyone(self) -> Iterator[Holding]:
        """Yield as `NodeState.everyone`."""
        yield from self.holdings.values()
        yield from self.claims.values()


_HELD: Final = frozenset({"holdings", "claims"})
_SAME: Final = tuple(item.name for item in fields(NodeState) if item.name not in _HELD)


def _opened(node: NodeState) -> _Node:
    same: dict[str, Any] = {name: getattr(node, name) for name in _SAME}
    return _Node(holdings=dict(node.holdings), claims=dict(node.claims), **same)


def _closed(node: _Node) -> NodeState:
    same: dict[str, Any] = {name: getattr(node, name) for name in _SAME}
    return NodeState(holdings=dict(node.holdings), claims=dict(node.claims), **same)


def node_uid_of(event: events.LedgerEvent) -> str | None:
    """Return the UID of the node whose state `event` changes, or None."""
    about: Any = event
    return about.node_uid if type(event) in _STEPS else None


def _inventoried(node: _Node, _position: int, event: events.NodeInventoried) -> None:
    node.name = event.node_name
    node.devices = event.devices
    node.cpus = event.cpus
    node.cpu_ref_count_max = event.cpu_ref_count_max
    node.caps = _caps(node)
    _registered(node, event)
    node.boot_id = event.boot_id
    node.by_agent = node.by_agent or event.by_agent
    node.lost = False


def _registered(node: _Node, event: events.NodeInventoried) -> None:
    """Note which machine the node is; what is held on another one that it was stays there."""
    before, now = (node.system_uuid, node.machine_id), (event.system_uuid, event.machine_id)
    if all(before):
        if not all(now) or now == before:
            return  # what it stops telling, it still is
        for there in (node.holdings, node.claims):
            for key, held in there.items():
                there[key] = held if held.machine else structs.replace(held, machine=before)
    node.system_uuid, node.machine_id = now


def _lost(node: _Node, _position: int, _event: events.NodeLost) -> None:
    node.lost = True
    for there in (node.holdings, node.claims):
        for key, holding in there.items():
            there[key] = structs.replace(holding, phase=LOST)


def _cleared(node: _Node, _position: int, _event: events.NodeCleared) -> None:
    node.holdings = {key: held for key, held in node.holdings.items() if held.phase != LOST}
    node.claims = {key: held for key, held in node.claims.items() if held.phase != LOST}
    if node.caps:
        node.caps = _fallen(node)


def _caps(node: _Node) -> Mapping[Unit, Amount]:
    """Return what is promised of devices that have less than that."""
    return {
        use.unit: use.promised for use in uses_of(node) if not _within(use.promised, use.reported)
    }


def _within(part: Amount, whole: Amount) -> bool:
    return part.core_percent <= whole.core_percent and part.memory_bytes <= whole.memory_bytes


def _health_changed(node: _Node, _position: int, event: events.DeviceHealthChanged) -> None:
    """Mark the device; another card that took its minor meanwhile is not the one that was meant."""
    key = (event.device_type, event.minor)
    node.devices = tuple(
        replace(device, healthy=event.healthy)
        if device.key == key and event.device_id in {"", device.device_id}
        else device
        for device in node.devices
    )


def _of(
    node: _Node,
    event: events.Opening
    | events.PodBound
    | events.PodAssigned
    | events.ClaimBound
    | events.Ending,
) -> dict[str, Holding]:
    return node.claims if event.holder == events.CLAIM else node.holdings


def open_holding(event: events.Opening, position: int = 0) -> Holding:
    """Return what an event opens at a position."""
    granted = type(event) in events.GRANTS
    return Holding(
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
        unknown_types=()
        if isinstance(event, events.PodReserved | events.ClaimReserved)
        else event.unknown_types,
        holder=event.holder,
        consumers=event.consumers
        if isinstance(event, events.ClaimReserved | events.ClaimObserved)
        else (),
        shown=read_shown(event.annotations)
        if isinstance(event, events.PodReserved | events.PodObserved)
        else UNSET,
    )


def _held(node: _Node, position: int, event: events.Opening) -> None:
    holding, there = open_holding(event, position), _of(node, event)
    key = holding.key
    held = there.get(key)
    twice = held is not None and held.kind == GRANTED
    there[f"{key}@{position}" if twice else key] = holding  # no grant is overwritten


def _consumed(node: _Node, _position: int, event: events.ClaimConsumed) -> None:
    key = f"{event.pod_uid}/{event.attempt}"
    holding = node.claims.get(key)
    if holding is not None:
        node.claims[key] = structs.replace(holding, consumers=event.consumers)


def _bound(node: _Node, _position: int, event: events.PodBound | events.ClaimBound) -> None:
    _phase(_of(node, event), f"{event.pod_uid}/{event.attempt}", "bound")


def _assigned(node: _Node, _position: int, event: events.PodAssigned) -> None:
    _phase(node.holdings, f"{event.pod_uid}/{event.attempt}", "assigned")


def _phase(there: dict[str, Holding], key: str, phase: str) -> None:
    holding = there.get(key)
    if holding is not None and holding.phase != LOST:
        there[key] = structs.replace(holding, phase=phase)


def _freed(node: _Node, _position: int, event: events.Ending) -> None:
    key = f"{event.pod_uid}/{event.attempt}"
    there = _of(node, event)
    held = there.get(key)
    if held is None or held.phase == LOST:
        return  # what a lost node's Pods held opens with its machine alone
    del there[key]
    if node.caps:
        node.caps = _fallen(node)


def _fallen(node: _Node) -> Mapping[Unit, Amount]:
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


_STEPS: Final[Mapping[type[events.LedgerEvent], Callable[[_Node, int, Any], None]]] = {
    events.NodeInventoried: _inventoried,
    events.NodeLost: _lost,
    events.NodeCleared: _cleared,
    events.DeviceHealthChanged: _health_changed,
    events.PodReserved: _held,
    events.PodObserved: _held,
    events.PodBound: _bound,
    events.PodAssigned: _assigned,
    events.PodReleased: _freed,
    events.PodVoided: _freed,
    events.ClaimReserved: _held,
    events.ClaimObserved: _held,
    events.ClaimBound: _bound,
    events.ClaimConsumed: _consumed,
    events.ClaimReleased: _freed,
    events.ClaimVoided: _freed,
}
"""What an event does to its node; the other events are about none."""
_FOUNDING: Final = frozenset(
    {
        events.NodeInventoried,
        events.PodReserved,
        events.PodObserved,
        events.ClaimReserved,
        events.ClaimObserved,
    }
)
"""The events that a node which nobody knew begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What is promised of one device, by how many holders, and what it has."""

    unit: Unit
    promised: Amount
    reported: Amount
    holders: int
    exclusive: bool


def uses_of(node: NodeState | _Node) -> Iterator[Use]:
    """
    Yield every device with granted holders, those that the node no longer has included.

    A share is of the device with its id; where either side has no id, of the one at its minor.
    """
    by_id = {(device.device_type, device.device_id): device for device in node.devices}
    by_minor = {device.key: device for device in node.devices}
    shares: dict[Unit, list[DeviceShare]] = {}
    records: dict[Unit, DeviceRecord] = {}
    for holding in node.everyone():
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
        yield Use(
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
