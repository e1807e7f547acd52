"""Nodes and requests as far as a ledger's events tell, and what they do not tell, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from msgspec import structs

from ledger.domain.annotations.tenure import encode_shown
from ledger.domain.devices import GPU, DeviceRecord
from ledger.domain.errors import InputError
from ledger.domain.kube.derived_links import derive_links
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log import events as log
from ledger.domain.log.codec import common_fields
from ledger.domain.log.recorded import RecordedEvent
from ledger.domain.log.recorded_node import RecordedNode, node_from
from ledger.domain.log.recorded_request import RecordedRequest, request_digest, request_from
from ledger.domain.log.state import GRANTED, Holding
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, PodSnapshot, group_name
from ledger.domain.topology import cpu_topology_of
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.decide.outcome import Placement

UNTOLD_OF_NODES: Final = (
    "of nodes: taints, cordons, places for Pods, CPUs kept in reserve, cpu amplification, NUMA"
    " policies and zones, measured links, partition tables, AI cores and dialects; 0 cpu or memory"
    " is taken as no limit"
)
UNTOLD_BY_ARCHIVE: Final = (
    "what moved to the archive: requests and dialects of Pods that held something before it"
)

Event = log.PodReserved | log.PodObserved | log.RequestRefused | log.GroupMember


def node_of(
    event: log.NodeInventoried, devices: tuple[DeviceRecord, ...], described: RecordedNode | None
) -> NodeFacts:
    """
    Return a node as its events tell; without a description its labels say what they can.

    What claims alone are given is none of the devices that are decided on.
    """
    devices = tuple(device for device in devices if not device.by_claims)
    labels = dict(event.labels)
    metadata = {"name": event.node_name, "uid": event.node_uid, "labels": labels}
    try:
        facts, _ = decode_node({"metadata": metadata}, vocabulary=DEFAULT_VOCABULARY)  # no devices
    except InputError:
        facts = NodeFacts(uid=event.node_uid, name=event.node_name, labels=labels)
    facts = replace(
        facts,
        system_uuid=event.system_uuid,
        machine_id=event.machine_id,
        boot_id=event.boot_id,
        cpu_milli=event.cpu_milli or None,
        memory_bytes=event.memory_bytes or None,
        devices=devices,
        dialects=None,
        cpu_topology=cpu_topology_of(event.cpus) if event.cpus else None,
        cpu_ref_count_max=event.cpu_ref_count_max,
        derived_links=derive_links(devices, facts.partitions),
    )
    return facts if described is None else node_from(described, facts, devices)


def request_of(event: Event, requests: Mapping[str, RecordedRequest]) -> PodRequest | None:
    """Return a Pod's request out of those described, by digest; None where it is not told."""
    recorded = requests.get(event.request or "")
    if recorded is None:
        return None
    return request_from(
        recorded,
        uid=event.pod_uid,
        namespace=event.namespace,
        name=event.pod_name,
        cpu_milli=event.cpu_milli,
        memory_bytes=event.memory_bytes,
        snapshot=PodSnapshot(qos=event.qos)
        if isinstance(event, log.GroupMember)
        else event.snapshot,
    )


def as_observed(event: log.PodReserved) -> log.PodObserved:
    """Return a reservation as what a running Pod holds, whether or not its node has it."""
    return log.PodObserved(source=GRANTED, **_held(event))


_DECIDED: Final = frozenset({"arrival", "device_models", "request"})
"""The fields that reservations and observations have alike and that do not say what is held."""


def _held(event: log.PodReserved) -> dict[str, Any]:
    same = common_fields(event, log.PodObserved)
    return {name: value for name, value in same.items() if name not in _DECIDED}


@lru_cache(maxsize=64)
def _of_qos(qos: str) -> PodSnapshot:
    return PodSnapshot(qos=qos)


def opening_of(event: log.PodReserved | log.PodObserved) -> log.PodReserved | log.PodObserved:
    """Return of an event that opened a holding as much as is read again while it is held."""
    said = event.snapshot
    snapshot = (
        PodSnapshot(qos=said.qos, annotations=said.annotations)
        if said.annotations
        else _of_qos(said.qos)
    )
    if isinstance(event, log.PodObserved):
        return structs.replace(event, snapshot=snapshot, device_models=(), request=None)
    return log.PodReserved(
        **(_held(event) | {"snapshot": snapshot}),
        resource_version=event.resource_version,
    )


def held_by(holding: Holding, node_uid: str, node_name: str) -> log.PodObserved:
    """
    Return a holding as what a running Pod holds, where the event that opened it is not told.

    What a claim holds is told so too: to who decides it is a holder that others brought.
    """
    return log.PodObserved(
        node_uid=node_uid,
        node_name=node_name,
        source=log.BY_CLAIM if holding.holder == log.CLAIM else holding.kind,
        annotations=encode_shown(holding.shown),
        **common_fields(holding, log.PodObserved),
    )


def held_as_placed(placement: Placement, annotations: Mapping[str, str]) -> log.PodObserved:
    """Return a place that is given as what a running Pod holds, with its Binding's annotations."""
    request = placement.request
    return log.PodObserved(
        pod_uid=request.uid,
        attempt=1,
        namespace=request.namespace,
        pod_name=request.name,
        node_uid=placement.node_uid,
        node_name=placement.node_name,
        source="decided",
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        shares=placement.shares,
        cpuset=placement.cpuset,
        unknown_types=(GPU,) if placement.counted else (),
        counted={GPU: placement.counted} if placement.counted else {},
        dialect="" if request.dialect is None else request.dialect.value,
        annotations=annotations,
        group=group_name(request),
        snapshot=request.snapshot,
    )


LEARNED_MAX: Final = 100_000
"""The newest Pods of a ledger are learned from; older ones are another mix."""


def requests_seen(events: Iterable[RecordedEvent]) -> tuple[tuple[PodRequest, ...], int]:
    """
    Return the requests that events recorded, each Pod once, whether it was placed or not.

    And the number of Pods that they have requests of, and do not tell which.

    Rule: FGD paper, "typical Pods": what usually arrives.
    """
    found: dict[str, PodRequest] = {}
    requests: dict[str, RecordedRequest] = {}
    untold: set[str] = set()
    for recorded in events:
        event = recorded.event
        if isinstance(event, log.RequestDescribed):
            requests[request_digest(event.request)] = event.request
        if not isinstance(event, log.PodReserved | log.PodObserved | log.RequestRefused):
            continue
        if event.pod_uid not in found:
            request = request_of(event, requests)
            if request is not None:
                found[event.pod_uid] = request
            elif event.request is not None or isinstance(event, log.PodReserved):
                untold.add(event.pod_uid)
    return tuple(found.values())[-LEARNED_MAX:], len(untold - found.keys())
