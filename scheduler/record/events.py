"""Decisions as events of the ledger: a simulation's, unless `by` says whose."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from ledger.domain.amounts import format_bytes, format_cards, format_cores
from ledger.domain.devices import GPU
from ledger.domain.log import events as log
from ledger.domain.log.machines import Contradiction
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.recorded_request import RecordedRequest
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.request import extended
from ledger.domain.request.requests import DeviceDemand, PodRequest, gpu_core_percent, group_name
from ledger.domain.resources import WHOLE_CARD_NAMES
from ledger.domain.systems import SystemPart
from scheduler.cluster.model import HealthChange, RefusedPod
from scheduler.decide.outcome import Placement, Unplaced

ACTOR: Final = "simulation"
SYSTEM: Final = "sys"
STAGE: Final = "scheduling"
CLAIMS_STAGE: Final = "claims"
"""Of a Pod with claims of the files, in a simulation."""
BY_CLAIMS: Final = "claims"
"""The source of what such a Pod has."""
OUT_OF_SERVICE: Final = "out-of-service"
RULE_STAGE: Final = "admission"
_TEXT_MAX: Final = 1024
_VERBS: Final = {
    log.PodObserved: "observe",
    log.PodReserved: "reserve",
    log.PodBound: "bind",
    log.PodAssigned: "assign",
    log.PodReleased: "release",
    log.PodVoided: "void",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedBy:
    """What every event of one run repeats."""

    policy: str
    settings_hash: str
    tenure_version: str


def by(actor: str, event: NewEvent, *, key: str = "") -> NewEvent:
    """
    Return an event as this one's doing: a live scheduler is no simulation.

    With a `key` of its own, for who may come to the same event again.
    """
    return structs.replace(event, actor=actor, idempotency_key=key or event.idempotency_key)


def settings_changed(words: DecidedBy, settings: str, at_us: int) -> NewEvent:
    """Return the first event of a run: what is decided by, and on which inputs (`settings`)."""
    event = log.SettingsChanged(
        settings_hash=words.settings_hash, settings=settings, tenure_version=words.tenure_version
    )
    return of_ledger(event, f"settings:{words.settings_hash}", at_us)


def inventoried(node: NodeFacts, at_us: int, number: int = 1) -> NewEvent:
    """
    Return what a node has; `number` counts the inventories of this node, from 1.

    A node without limits is recorded with 0 cpu and memory.
    """
    event = log.NodeInventoried(
        node_uid=node.uid,
        node_name=node.name,
        machine_id=node.machine_id,
        labels=node.labels,
        cpu_milli=node.cpu_milli or 0,
        memory_bytes=node.memory_bytes or 0,
        devices=node.devices,
        cpus=node.cpu_topology.cpus if node.cpu_topology else (),
        cpu_ref_count_max=node.cpu_ref_count_max,
        system_uuid=node.system_uuid,
        boot_id=node.boot_id,
    )
    return _of_node(event, f"inventory:{node.uid}:{number}", at_us)


def by_agent(inventory: NewEvent) -> NewEvent:
    """Return an inventory that the node's own agent stands behind."""
    assert isinstance(inventory.event, log.NodeInventoried), inventory
    return structs.replace(inventory, event=structs.replace(inventory.event, by_agent=True))


def node_described(
    node: NodeFacts, facts: RecordedNode, at_us: int, number: int, *, place: int, rank: int
) -> NewEvent:
    """Return what deciding reads of a node beside its inventory; no two have a number."""
    return _of_node(
        log.NodeDescribed(
            node_uid=node.uid, node_name=node.name, facts=facts, number=place, rank=rank
        ),
        f"describe:{node.uid}:{number}",
        at_us,
    )


def described(request: RecordedRequest, digest: str, at_us: int) -> NewEvent:
    """Return what Pods of one kind ask for; the same request, by its digest, is one event."""
    return of_ledger(log.RequestDescribed(request=request), f"request:{digest}", at_us)


def node_lost(
    node: NodeFacts, at_us: int, *, reason: str = OUT_OF_SERVICE, number: int = 1
) -> NewEvent:
    """
    Return that a node is lost: what its Pods hold stays held.

    `number` counts the losses of this node, from 1.
    """
    event = log.NodeLost(node_uid=node.uid, node_name=node.name, reason=reason)
    return _of_node(event, f"lost:{node.uid}:{number}", at_us)


def cleared_by_agent(node: NodeState, witness_uid: str, position: int, at_us: int) -> NewEvent:
    """
    Return that nothing of what a lost node's Pods held runs any more, by the machine's agent.

    Args:
        position: of the newest thing that they held: a node may be lost and cleared several times.
    """
    event = log.NodeCleared(
        node_uid=node.uid, node_name=node.name, evidence=log.AGENT, witness_uid=witness_uid
    )
    return _of_node(event, f"clear:{node.uid}:agent:{position}", at_us)


def node_cleared(node: NodeFacts | NodeState, reason: str, at_us: int, number: int) -> NewEvent:
    """
    Return that nothing runs any more of what a lost node's Pods held, by somebody's act.

    `number` is another one for each act about this node.
    """
    event = log.NodeCleared(node_uid=node.uid, node_name=node.name, evidence=log.ACT, reason=reason)
    return _of_node(event, f"clear:{node.uid}:{number}", at_us)


def drift_found(found: Contradiction, at_us: int) -> NewEvent:
    """Return what two Nodes claim and can't both have."""
    device = found.device
    about = f"{device.device_type}/{device.device_id}" if device else "machine"
    event = log.DriftFound(
        drift_id=f"{found.kind}/{found.node_uid}/{about}",
        kind=found.kind,
        node_uid=found.node_uid,
        detail=found.detail,
        device_type=device.device_type if device else "",
        minor=device.minor if device else -1,
    )
    return of_ledger(event, f"drift:{event.drift_id}", at_us)


def reserved(
    words: DecidedBy,
    placement: Placement,
    annotations: Mapping[str, str],
    at_us: int,
    *,
    digest: str,
    arrival: int,
    attempt: int = 1,
    resource_version: str = "",
    decided_on: int | None = None,
    beside: tuple[str, ...] | None = None,
    dropped: tuple[str, ...] = (),
) -> NewEvent:
    """
    Return the reservation that a placement becomes.

    `digest` names what was described of its request, `attempt` counts those of the Pod,
    `resource_version` is the Pod's, as it was read; the last three are the event's.
    """
    request = placement.request
    uid = request.uid
    event = log.PodReserved(
        pod_uid=uid,
        attempt=attempt,
        namespace=request.namespace,
        pod_name=request.name,
        node_uid=placement.node_uid,
        node_name=placement.node_name,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        shares=placement.shares,
        cpuset=placement.cpuset,
        annotations=annotations,
        device_models=tuple([device.model for device in placement.devices]),
        dialect="" if request.dialect is None else request.dialect.value,
        policy=words.policy,
        settings_hash=words.settings_hash,
        tenure_version=words.tenure_version,
        resource_version=resource_version,
        group=group_name(request),
        snapshot=request.snapshot,
        request=digest,
        arrival=arrival,
        score=placement.rated.score,
        runner_up=placement.rated.runner_up,
        runner_up_score=placement.rated.runner_up_score,
        decided_on=decided_on,
        beside=beside,
        dropped=dropped,
    )
    return of_pod(event, at_us)


def counted_keys(events: Sequence[NewEvent]) -> tuple[str, ...]:
    """Return the keys of the reservations that these counted and that are not among them."""
    beside = {
        f"reserve:{holder[0]}:{holder[2]}"
        for new in events
        if isinstance(new.event, log.PodReserved)
        for holder in (each.rpartition("/") for each in new.event.beside or ())
    }
    return tuple(sorted(beside - {new.idempotency_key for new in events}))


def placed_aside(
    placement: Placement,
    at_us: int,
    *,
    digest: str,
    arrival: int,
    attempt: int = 1,
    parts: tuple[SystemPart, ...] | None = None,
) -> NewEvent:
    """
    Return what a Pod has that was placed by count, or with its claims: an observation.

    Nothing of ours was granted to it. `digest`, `arrival` and `attempt` as of a reservation.

    Args:
        parts: what its claims give it; None = it was placed by count.
    """
    request, by_count = placement.request, parts is None
    event = log.PodObserved(
        pod_uid=request.uid,
        attempt=attempt,
        namespace=request.namespace,
        pod_name=request.name,
        node_uid=placement.node_uid,
        node_name=placement.node_name,
        source=log.BY_COUNT if by_count else BY_CLAIMS,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        unknown_types=(GPU,) if by_count else (),
        dialect=request.dialect.value if by_count and request.dialect is not None else "",
        snapshot=request.snapshot,
        request=digest,
        group=group_name(request) if by_count else "",
        counted={GPU: placement.counted} if by_count else {},
        arrival=arrival,
        parts=parts or (),
    )
    return of_pod(event, at_us)


def refused_by_claims(refusal: NewEvent) -> NewEvent:
    """Return a refusal in which it counted what claims find: one that is not decided again."""
    event = refusal.event
    assert isinstance(event, log.RequestRefused), refusal
    return structs.replace(refusal, event=structs.replace(event, stage=CLAIMS_STAGE, request=None))


def of_pod(
    event: log.PodObserved
    | log.PodReserved
    | log.PodBound
    | log.PodAssigned
    | log.PodReleased
    | log.PodVoided,
    at_us: int,
) -> NewEvent:
    """Return an event of a Pod's holding; each attempt has one of each kind."""
    attempt = f"{event.pod_uid}/{event.attempt}"
    key = f"{_VERBS[type(event)]}:{event.pod_uid}:{event.attempt}"
    return _new(f"node/{event.node_uid}", event, key, at_us, about=attempt)


def of_claim(event: log.ClaimEvent, at_us: int, version: int) -> NewEvent:
    """
    Return an event of a claim's holding.

    Those of who uses it differ by the claim's version, and by whom they name: one that was taken
    off the claim's list runs on, and ends without another version.
    """
    verb = event.event_type.split(".")[1]
    key = f"claim-{verb}:{event.claim_uid}:{event.attempt}"
    attempt = f"{event.claim_uid}/{event.attempt}"
    about = f"node/{event.node_uid}"
    if isinstance(event, log.ClaimConsumed):
        users = " ".join(sorted(one.uid for one in event.consumers))
        key = f"{key}:{version}:{hashlib.sha256(users.encode()).hexdigest()[:16]}"
    return _new(about, event, key, at_us, about=attempt)


def unplaced(
    words: DecidedBy, answer: Unplaced, number: int, at_us: int, *, digest: str, arrival: int
) -> NewEvent:
    """Return a refusal; `number` counts those of this Pod, from 1; `digest` as of a reservation."""
    request = answer.request
    event = log.RequestRefused(
        pod_uid=request.uid,
        namespace=request.namespace,
        pod_name=request.name,
        stage=STAGE,
        message=answer.message[:_TEXT_MAX],
        reasons=answer.reasons,
        shape=shape_of(request),
        gpu_core_percent=gpu_core_percent(request),
        policy=words.policy,
        snapshot=request.snapshot,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        request=digest,
        arrival=arrival,
    )
    return _refusal(event, number, at_us)


def broken_rules(words: DecidedBy, pod: RefusedPod, at_us: int, number: int = 1) -> NewEvent:
    """Return the refusal of a Pod that breaks rules of ours; `number` as of a refusal."""
    event = log.RequestRefused(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        pod_name=pod.name,
        stage=RULE_STAGE,
        message=pod.message[:_TEXT_MAX],
        reasons=tuple(
            log.RefusalReason(reason=error.reason, nodes=0, detail=str(error)[:_TEXT_MAX])
            for error in pod.errors
        ),
        policy=words.policy,
        snapshot=pod.snapshot,
    )
    return _refusal(event, number, at_us)


def gone(pod: tuple[str, str, str], number: int, at_us: int) -> NewEvent:
    """Return that a Pod, by UID, namespace and name, was deleted while it waited."""
    uid, namespace, name = pod
    event = log.RequestRefused(
        pod_uid=uid,
        namespace=namespace,
        pod_name=name,
        stage=log.STAGE_GONE,
        message="the Pod was deleted before it had a place",
    )
    return _refusal(event, number, at_us)


def refused_request(event: log.RequestRefused, key: str, at_us: int) -> NewEvent:
    """Return a refusal that somebody tells of, under a name that it has whenever it is told."""
    return of_ledger(event, key, at_us, about=f"{event.pod_uid}/1")


def health_changed(change: HealthChange, node: NodeFacts, number: int) -> NewEvent:
    """Return the death or return of a device; `number` counts them over the run."""
    key = (change.device_type, change.minor)
    event = log.DeviceHealthChanged(
        node_uid=node.uid,
        device_type=change.device_type,
        minor=change.minor,
        device_id=next(device.device_id for device in node.devices if device.key == key),
        healthy=change.healthy,
        reason=change.reason,
    )
    return _of_node(
        event, f"health:{node.uid}:{change.device_type}/{change.minor}:{number}", change.at_us
    )


def group_planned(
    group: str,
    placements: Sequence[Placement],
    number: int,
    at_us: int,
    *,
    waiting: Sequence[log.GroupMember],
    to_come: Sequence[log.GroupMember],
    running: int,
) -> NewEvent:
    """
    Return the plan of a group or gang; `number` tells the plans of this group apart.

    A card that a member gets alone waits for it; one that it shares does not.

    Args:
        placements: of the members that got a place.
        waiting, to_come, running: what it was made of, as the event says it.
    """
    members = tuple(
        log.PlannedMember(
            pod_uid=placement.request.uid,
            namespace=placement.request.namespace,
            pod_name=placement.request.name,
            node_uid=placement.node_uid,
            minors=tuple(share.minor for share in placement.shares if share.device_type == GPU),
            whole=tuple(
                share.minor
                for share in placement.shares
                if share.device_type == GPU and share.exclusive
            ),
        )
        for placement in placements
    )
    return of_ledger(
        log.GroupPlanned(
            group=group,
            members=members,
            waiting=tuple(waiting),
            to_come=tuple(to_come),
            running=running,
        ),
        f"plan:{group}:{number}",
        at_us,
        about=group,
    )


def group_member(request: PodRequest, digest: str) -> log.GroupMember:
    """Return what a plan's event says of a member that it was made for."""
    return log.GroupMember(
        pod_uid=request.uid,
        namespace=request.namespace,
        pod_name=request.name,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        qos=request.snapshot.qos,
        request=digest,
    )


def plan_dropped(event: log.PlanDropped, number: int, at_us: int) -> NewEvent:
    """Return the end of a group's plan; `number` tells those of this group apart."""
    return of_ledger(event, f"drop:{event.group}:{number}", at_us, about=event.group)


def preemption(event: log.PreemptionDecided, at_us: int) -> NewEvent:
    """Return the begin or the end of a preemption of our own."""
    key = f"preempt:{event.pod_uid}:{event.until_us}:{'over' if event.over else 'begun'}"
    return of_ledger(event, key, at_us, about=event.pod_uid)


def shape_of(request: PodRequest) -> str:
    """Return the request in short: `4 nvidia.com/gpu, 8 cpu, 32 GiB`."""
    written = extended.held(request.snapshot)
    parts = [_demand_text(demand, written) for demand in request.devices]
    counted = request.extended if request.devices or not written else written.items()
    parts += [f"{amount} {name}" for name, amount in counted]
    if request.cpu_milli:
        pinned = f" pinned ({request.cpuset.bind_policy})" if request.cpuset else ""
        parts.append(f"{format_cores(request.cpu_milli)} cpu{pinned}")
    if request.memory_bytes:
        parts.append(format_bytes(request.memory_bytes))
    return ", ".join(parts)


def _demand_text(demand: DeviceDemand, written: Mapping[str, int]) -> str:
    if demand.device_type != GPU:
        return f"{demand.count} x {demand.core_percent} {demand.device_type}"
    part = demand.memory_bytes or max(demand.core_percent, demand.memory_ratio_percent) % 100
    if demand.exclusive and not part:
        named = [f"{written[n]} {n}" for n in sorted(WHOLE_CARD_NAMES & written.keys())]
        return ", ".join(named) or f"{demand.count} x whole gpu"
    parts = ["alone"] if demand.exclusive else []
    if demand.core_percent:
        parts.append(f"{format_cards(demand.core_percent)} core")
    if demand.memory_bytes:
        parts.append(f"{format_bytes(demand.memory_bytes)} memory")
    elif demand.memory_ratio_percent != demand.core_percent:
        parts.append(f"{demand.memory_ratio_percent}% memory")
    return f"{demand.count} x {demand.device_type} ({', '.join(parts)})"


def _refusal(event: log.RequestRefused, number: int, at_us: int) -> NewEvent:
    return of_ledger(event, f"refuse:{event.pod_uid}:{number}", at_us, about=f"{event.pod_uid}/1")


def _of_node(
    event: log.NodeInventoried
    | log.NodeDescribed
    | log.NodeLost
    | log.NodeCleared
    | log.DeviceHealthChanged,
    key: str,
    at_us: int,
) -> NewEvent:
    return _new(f"node/{event.node_uid}", event, key, at_us)


def of_ledger(event: log.LedgerEvent, key: str, at_us: int, *, about: str = "") -> NewEvent:
    """Return an event of no node, under a key that no other one has."""
    return _new(SYSTEM, event, key, at_us, about=about)


def _new(stream: str, event: log.LedgerEvent, key: str, at_us: int, *, about: str = "") -> NewEvent:
    return NewEvent(
        stream=stream,
        event=event,
        actor=ACTOR,
        idempotency_key=key,
        wall_us=at_us,
        correlation_id=about,
    )
