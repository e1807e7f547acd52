"""Nodes and requests as far as a ledger's events tell, and what they do not tell, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ledger.domain.derived_links import derive_links
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.events import NodeInventoried, PodObserved, PodReserved, RequestRefused
from ledger.domain.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.normalise import NormaliseSettings, examine_pod
from ledger.domain.requests import DeviceDemand, PodRequest
from ledger.domain.resources import LABEL_QOS_CLASS, Dialect
from ledger.domain.topology import cpu_topology_of

UNTOLD_OF_NODES: Final = (
    "of nodes: taints, cordons, places for Pods, CPUs kept in reserve, NUMA policies and zones,"
    " measured links, partition tables and dialects; 0 cpu or memory is taken as no limit"
)
UNTOLD_OF_PODS: Final = (
    "of Pods: GPU models, node selectors, affinity, tolerations, device hints, joint allocation,"
    " partition wishes, CPU bind and NUMA policies, mGPU policies, init containers and overhead"
)
_BY_SHARE: Final = (Dialect.KOORDINATOR.value, Dialect.NVIDIA.value)
_QOS: Final = frozenset({"LSE", "LSR", "LS", "BE", "SYSTEM"})

Event = PodReserved | PodObserved | RequestRefused


def node_of(event: NodeInventoried, devices: tuple[DeviceRecord, ...]) -> NodeFacts:
    """Return a node as its inventory tells; what labels say counts, what only objects say lacks."""
    labels = dict(event.labels)
    metadata = {"name": event.node_name, "uid": event.node_uid, "labels": labels}
    try:
        facts, _ = decode_node({"metadata": metadata})
    except InputError:
        facts = NodeFacts(uid=event.node_uid, name=event.node_name, labels=labels)
    return replace(
        facts,
        machine_id=event.machine_id,
        cpu_milli=event.cpu_milli or None,
        memory_bytes=event.memory_bytes or None,
        devices=devices,
        dialects=None,
        cpu_topology=cpu_topology_of(event.cpus) if event.cpus else None,
        cpu_ref_count_max=event.cpu_ref_count_max,
        derived_links=derive_links(devices, facts.partitions),
    )


def request_of(event: Event, settings: NormaliseSettings) -> PodRequest | None:
    """
    Return a Pod's request out of what its event keeps of it; None where that is not one.

    The sizes of a reservation are exact; those of a refusal are the sum over all containers. A
    trace has no Pod objects: there a reservation of equal shares of GPUs stands for its request.
    """
    if not event.snapshot.original:
        return _of_shares(event) if isinstance(event, PodReserved) else None
    try:
        request, errors = examine_pod(_pod(event), settings)
    except InputError:
        return None
    if errors:
        return None
    if isinstance(event, RequestRefused):
        return request
    known = replace(request, cpu_milli=event.cpu_milli, memory_bytes=event.memory_bytes)
    return known if explains(known, event.shares, len(event.cpuset)) else None


def _of_shares(event: PodReserved) -> PodRequest | None:
    """Return the request for just these shares, where all of them are alike and by ratio."""
    kinds = {
        (share.device_type, share.core_percent, share.memory_ratio_percent, share.exclusive)
        for share in event.shares
    }
    special = event.cpuset or any(share.vf_bus_ids or share.containers for share in event.shares)
    if special or len(kinds) > 1 or event.dialect not in {"", *_BY_SHARE}:
        return None
    demands = tuple(
        DeviceDemand(
            device_type=kind,
            count=len(event.shares),
            core_percent=core,
            memory_ratio_percent=ratio,
            exclusive=exclusive,
        )
        for kind, core, ratio, exclusive in kinds
    )
    return PodRequest(
        uid=event.pod_uid,
        namespace=event.namespace,
        name=event.pod_name,
        cpu_milli=event.cpu_milli,
        memory_bytes=event.memory_bytes,
        dialect=Dialect(event.dialect) if demands else None,
        devices=demands,
        snapshot=event.snapshot,
    )


def explains(request: PodRequest, shares: tuple[DeviceShare, ...], cpus: int) -> bool:
    """Tell whether the request is for what was given: devices per type, core of each, CPUs."""
    asked: Counter[tuple[str, int]] = Counter()
    for demand in request.devices:
        asked[demand.device_type, demand.core_percent] += demand.count
    given = Counter((share.device_type, share.core_percent) for share in shares)
    return asked == given and (request.cpuset.cpus if request.cpuset else 0) == cpus


def _pod(event: Event) -> Mapping[str, Any]:
    """Return a Pod object with what the snapshot has: amounts per container, QoS, labels."""
    containers: dict[str, dict[str, str]] = {}
    for key, amount in event.snapshot.original.items():
        container, _, resource = key.partition(".")
        containers.setdefault(container, {})[resource] = amount
    labels = dict(event.snapshot.labels)
    if event.snapshot.qos in _QOS:
        labels[LABEL_QOS_CLASS] = event.snapshot.qos
    spec: dict[str, Any] = {
        "containers": [
            {"name": name, "resources": {"requests": amounts, "limits": amounts}}
            for name, amounts in containers.items()
        ]
    }
    if event.snapshot.priority:
        spec["priority"] = event.snapshot.priority
    metadata = {
        "namespace": event.namespace,
        "name": event.pod_name,
        "uid": event.pod_uid,
        "labels": labels,
    }
    return {"metadata": metadata, "spec": spec}
