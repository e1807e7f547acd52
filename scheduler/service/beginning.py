"""What a ledger tells a process that starts: who holds what, and what it said of every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern

from msgspec import structs

from ledger.domain.log import events as log
from ledger.domain.log.sharing import Sharing
from ledger.domain.log.state import Holding, LedgerState, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.store.open import Ledger
from ledger.store.reading import pod_queries
from ledger.store.reading.kept import each_at, each_of, events_at, events_of, seldom_of, times_of
from ledger.store.reading.report_queries import open_drifts
from ledger.store.reading.timetravel import load_state
from scheduler.cluster.rebuilt import node_of, opening_of
from scheduler.decide.group.life import DEADLINE
from scheduler.record.events import RULE_STAGE, STAGE
from scheduler.record.refusing import Told
from scheduler.service.api.words import WEBHOOK_ACTOR
from scheduler.service.kept import PackedTexts


@dataclass(slots=True, kw_only=True)
class Said:
    """What the ledger was told of one node last."""

    inventory: log.NodeInventoried | None = None
    described: log.NodeDescribed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """
    A ledger at its head.

    Attributes:
        opened: position -> `opening_of` the event that opened a holding that is there still, unless
            it is archived.
        claims: what opened each holding of a claim, with the holding.
        said: by UID of the node.
        attempts: Pod UID -> number of its newest reservation, of Pods that may ask again.
        groups: the events of groups that hold something or have a plan, with their times.
        snapshot_position: of the snapshot that it was folded from, 0 without one.
        settings: the newest settings that decisions were made by, empty without any.
        drifts: what is found and not resolved, in order.
        preemptions: all of our own.
    """

    position: int
    state: LedgerState
    opened: Mapping[int, log.PodReserved | log.PodObserved] = field(default_factory=dict)
    claims: Sequence[tuple[log.ClaimReserved | log.ClaimObserved, Holding]] = ()
    said: Mapping[str, Said] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    groups: Sequence[tuple[log.LedgerEvent, int]] = ()
    snapshot_position: int = 0
    settings: str = ""
    drifts: Sequence[log.DriftFound] = ()
    preemptions: Sequence[log.LedgerEvent] = ()

    def taken(self) -> Beginning:
        """Return what is left of it once others keep what they need: where it began."""
        return Beginning(
            position=self.position,
            state=LedgerState(),
            snapshot_position=self.snapshot_position,
            settings=self.settings,
        )


def as_told(node: NodeState, said: Said) -> NodeFacts:
    """Return a node as the ledger was told of it."""
    inventory = said.inventory or log.NodeInventoried(
        node_uid=node.uid, node_name=node.name, devices=node.devices
    )
    described = None if said.described is None else said.described.facts
    return node_of(inventory, node.devices, described)


def _sharing(inventory: log.NodeInventoried, node: NodeState) -> log.NodeInventoried:
    """Return an inventory that has its CPUs and devices from the state: each once in memory."""
    if inventory.cpus != node.cpus:
        return inventory
    devices = node.devices if inventory.devices == node.devices else inventory.devices
    name = node.name if inventory.node_name == node.name else inventory.node_name
    return structs.replace(
        inventory, node_uid=node.uid, node_name=name, cpus=node.cpus, devices=devices
    )


def _intern(state: LedgerState) -> None:
    """Let names be the interned ones of the API's objects; the state is not shared yet."""
    for node in state.nodes.values():
        object.__setattr__(node, "name", intern(node.name))
        for held in node.everyone():
            structs.force_setattr(held, "pod_uid", intern(held.pod_uid))
            structs.force_setattr(held, "pod_name", intern(held.pod_name))


def _as_held(
    event: log.PodReserved | log.PodObserved,
    node: NodeState,
    holding: Holding,
    sharing: Sharing,
) -> log.PodReserved | log.PodObserved:
    """Return what is kept of the opening of a holding, with the holding's own parts."""
    return structs.replace(
        opening_of(event),
        pod_uid=holding.pod_uid,
        namespace=holding.namespace,
        pod_name=holding.pod_name,
        node_uid=node.uid,
        node_name=node.name if node.name == event.node_name else event.node_name,
        cpu_milli=sharing.same(event.cpu_milli),
        memory_bytes=sharing.same(event.memory_bytes),
        shares=holding.shares if holding.shares == event.shares else event.shares,
        cpuset=holding.cpuset if holding.cpuset == event.cpuset else event.cpuset,
        annotations=PackedTexts(event.annotations),
        dialect=sharing.same(event.dialect),
        group=sharing.same(event.group),
    )


def begin(ledger: Ledger) -> Beginning:
    """Read a ledger at its head. Raises LedgerError: it can't be read."""
    loaded = load_state(ledger)
    _intern(loaded.state)
    held = {
        holding.opened_position: (node, holding)
        for node in loaded.state.nodes.values()
        for holding in node.holdings.values()
    }
    said: dict[str, Said] = {}
    opened: dict[int, log.PodReserved | log.PodObserved] = {}
    claims: list[tuple[log.ClaimReserved | log.ClaimObserved, Holding]] = []
    sharing = Sharing()
    by_claims = {
        holding.opened_position: holding
        for node in loaded.state.nodes.values()
        for holding in node.claims.values()
    }
    with ledger.connection.begin():
        for position, event in each_at(ledger.connection, held):
            assert isinstance(event, log.PodReserved | log.PodObserved), event
            opened[position] = _as_held(event, *held[position], sharing)
        for position, event in each_at(ledger.connection, by_claims):
            assert isinstance(event, log.ClaimReserved | log.ClaimObserved), event
            claims.append((event, by_claims[position]))
        for inventory in each_of(ledger.connection, log.NodeInventoried, loaded.position):
            node = loaded.state.nodes.get(inventory.node_uid)
            shared = inventory if node is None else _sharing(inventory, node)
            said.setdefault(inventory.node_uid, Said()).inventory = shared
        for described in each_of(ledger.connection, log.NodeDescribed, loaded.position):
            said.setdefault(described.node_uid, Said()).described = described
        attempts = _attempts(loaded.state, pod_queries.voided_attempts(ledger.connection))
        groups = _groups(ledger, opened)
        settings = events_of(ledger.connection, log.SettingsChanged)
        drifts = open_drifts(ledger.connection)
        preempted = [event for _, event in seldom_of(ledger.connection, log.PreemptionDecided)]
    return Beginning(
        position=loaded.position,
        state=loaded.state,
        opened=opened,
        claims=claims,
        said=said,
        attempts=attempts,
        groups=groups,
        snapshot_position=loaded.snapshot_position,
        settings=settings[-1].settings if settings else "",
        drifts=[
            log.DriftFound(
                drift_id=one.drift_id,
                kind=one.kind,
                node_uid=one.node_uid,
                detail=one.detail,
                device_type=one.device_type,
                minor=-1 if one.minor is None else one.minor,
                pod_uid=one.pod_uid,
            )
            for one in drifts
        ],
        preemptions=preempted,
    )


def _attempts(state: LedgerState, voided: Mapping[str, int]) -> dict[str, int]:
    """
    Return the newest attempt of every Pod that may be reserved for again.

    A Pod whose reservation was released was bound, and asks no more.
    """
    attempts = dict(voided)
    for node in state.nodes.values():
        for held in node.holdings.values():
            attempts[held.pod_uid] = max(held.attempt, attempts.get(held.pod_uid, 0))
    return attempts


def told_refusals(ledger: Ledger, pod_uids: Sequence[str] | None) -> dict[str, Told]:
    """
    Return what a ledger says of why these Pods waited; of those that it refused at all.

    Args:
        pod_uids: None = of all whose last word is that they wait.

    Raises:
        LedgerError: it can't be read.
    """
    connection = ledger.connection
    with connection.begin():
        waiting = pod_queries.waiting_pods(
            connection, pod_uids, stages=(STAGE, RULE_STAGE), admission=WEBHOOK_ACTOR
        )
        found = pod_queries.last_refusals(
            connection, sorted(waiting) if pod_uids is None else pod_uids
        )
        last = [position for _, position, is_last in found.values() if is_last]
        said = events_at(connection, last)
    return {
        uid: Told(number=number, reasons=_reasons(said.get(position)), waiting=waiting.get(uid))
        for uid, (number, position, _) in found.items()
    }


def _reasons(event: log.LedgerEvent | None) -> frozenset[str] | None:
    """Return the reasons of a refusal; None where it is in an archive, or not the last word."""
    if not isinstance(event, log.RequestRefused):
        return None
    return frozenset(reason.reason for reason in event.reasons)


def _groups(
    ledger: Ledger, opened: Mapping[int, log.PodReserved | log.PodObserved]
) -> list[tuple[log.LedgerEvent, int]]:
    """
    Return the events of groups that hold something, have a plan or missed a deadline, in order.

    Of a Pod that holds what it was reserved only the reservation and its end are told, and that it
    was bound; of a Pod that others gave its devices that it holds them.
    """
    connection = ledger.connection
    plans: dict[str, list[int]] = {}
    found: dict[int, log.LedgerEvent] = {}
    newest: dict[str, log.GroupPlanned | log.PlanDropped] = {}
    members: dict[str, set[tuple[str, str]]] = {}  # namespace and name of Pods
    for position, event in seldom_of(connection, log.GroupPlanned, log.PlanDropped):
        assert isinstance(event, log.GroupPlanned | log.PlanDropped)
        plans.setdefault(event.group, []).append(position)
        newest[event.group], found[position] = event, event
        if isinstance(event, log.GroupPlanned):
            members.setdefault(event.group, set()).update(
                (each.namespace, each.pod_name) for each in event.members
            )
    living = {
        name
        for name, event in newest.items()
        if isinstance(event, log.GroupPlanned) or event.reason == DEADLINE
    }
    for holder in opened.values():
        if holder.group:
            living.add(holder.group)
            members.setdefault(holder.group, set()).add((holder.namespace, holder.pod_name))
    pods = {pod for name in living for pod in members.get(name, ())}
    positions = {position for name in living for position in plans.get(name, ())}
    for at, holder in opened.items():
        if isinstance(holder, log.PodObserved) and holder.group:
            positions.add(at)
    bound: dict[int, log.LedgerEvent] = {}
    for row in pod_queries.lives_of_pods(connection, pods):
        positions.update(each for each in row.positions if each is not None)
        if row.bound_position is not None:
            bound[row.bound_position] = log.PodBound(
                pod_uid=row.pod_uid, attempt=row.attempt, node_uid=row.node_uid
            )
    events = {**events_at(connection, positions - found.keys()), **bound}
    events |= {position: found[position] for position in positions & found.keys()}
    times = times_of(connection, events)
    return [(events[position], times[position]) for position in sorted(events)]
