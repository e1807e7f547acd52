"""Nodes and requests as far as a ledger's events tell, and what they do not tell, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from ledger.domain.derived_links import derive_links
from ledger.domain.devices import GPU, DeviceRecord, DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.events import NodeInventoried, PodObserved, PodReserved, RequestRefused
from ledger.domain.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.normalise import NormaliseSettings, examine_pod
from ledger.domain.pod_spec import APP, SIDECAR
from ledger.domain.requests import DeviceDemand, PodRequest
from ledger.domain.resources import (
    ANNOTATION_MGPU_COMPUTE_POLICY,
    ANNOTATION_MGPU_CONTAINER_MULTIPLE,
    LABEL_QOS_CLASS,
    Dialect,
)
from ledger.domain.topology import cpu_topology_of

UNTOLD_OF_NODES: Final = (
    "of nodes: taints, cordons, places for Pods, CPUs kept in reserve, cpu amplification, NUMA"
    " policies and zones, measured links, partition tables, AI cores and dialects; 0 cpu or memory"
    " is taken as no limit"
)
UNTOLD_OF_PODS: Final = (
    "of Pods: GPU models, node selectors, affinity, tolerations, device hints, joint allocation,"
    " partition wishes, mGPU policies and overhead; older events tell no init containers"
)
UNTOLD_BY_ARCHIVE: Final = (
    "what moved to the archive: labels, cpu and memory of nodes, requests and dialects of Pods"
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


def request_of(event: Event, settings: NormaliseSettings) -> PodRequest | None:
    """
    Return a Pod's request out of what its event keeps of it; None where that is not one.

    The cpu and memory of a reservation are exact; those of a refusal are without overhead. A trace
    has no Pod objects: there a reservation of equal shares of GPUs stands for its request.
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
    if known.cpuset is None:
        known = replace(known, bound_cpus=len(event.cpuset))  # its node's bind policy gave them
    return known if explains(known, event.shares, len(event.cpuset)) else None


def _of_shares(event: PodReserved) -> PodRequest | None:
    """Return the request for just these shares, where all of them are alike and by ratio."""
    kinds = {
        (share.device_type, share.core_percent, share.memory_ratio_percent, share.exclusive)
        for share in event.shares
    }
    special = event.cpuset or any(share.vf_bus_ids or share.containers for share in event.shares)
    if special or len(kinds) > 1 or (kinds and event.dialect not in _BY_SHARE):
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
    """
    Tell whether the request is for what was given: devices and their core, CPUs of its own.

    Containers with demands of their own may share a card, so that each has its number of cards and
    core counts in sum; joint allocation may give more NICs than were asked for.
    """
    asked: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for demand in request.devices:
        asked[demand.device_type] += demand.count * demand.core_percent
    for share in shares:
        given[share.device_type] += share.core_percent
    types = {demand.device_type for demand in request.devices}
    return (
        types == {share.device_type for share in shares}
        and (asked[GPU] == given[GPU] or any(demand.amounts for demand in request.devices))
        and all(given[kind] >= asked[kind] for kind in types)
        and _has_its_cards(request, shares)
        and _has_its_cpus(request, cpus)
    )


def _has_its_cpus(request: PodRequest, cpus: int) -> bool:
    """Tell whether so many CPUs are its own; a node's bind policy may give them to every Pod."""
    if request.cpuset is None:
        return cpus in {0, request.cpu_milli // 1000}
    return request.cpuset.cpus == cpus


def _has_its_cards(request: PodRequest, shares: tuple[DeviceShare, ...]) -> bool:
    gpus = [demand for demand in request.devices if demand.device_type == GPU]
    cards = [share for share in shares if share.device_type == GPU]
    if request.dialect is not Dialect.MGPU:
        return sum(demand.count for demand in gpus) == len(cards)
    return all(
        demand.count == sum(any(c.place in demand.containers for c in s.containers) for s in cards)
        for demand in gpus
    )


def _pod(event: Event) -> Mapping[str, Any]:
    """Return a Pod object with what the snapshot has: amounts per container, QoS, labels."""
    amounts: dict[str, dict[str, str]] = {}
    for key, amount in event.snapshot.original.items():
        container, _, resource = key.partition(".")
        amounts.setdefault(container, {})[resource] = amount
    labels = dict(event.snapshot.labels)
    if event.snapshot.qos in _QOS:
        labels[LABEL_QOS_CLASS] = event.snapshot.qos
    inits, apps = _in_spec_order(event, amounts)
    kinds = event.snapshot.kinds
    spec: dict[str, Any] = {
        key: [_container(name, amounts[name], kinds.get(name, APP)) for name in names]
        for key, names in (("initContainers", inits), ("containers", apps))
    }
    if event.snapshot.priority:
        spec["priority"] = event.snapshot.priority
    metadata = {
        "namespace": event.namespace,
        "name": event.pod_name,
        "uid": event.pod_uid,
        "labels": labels,
        "annotations": {**event.snapshot.annotations, **_spread_over_cards(event, apps)},
    }
    return {"metadata": metadata, "spec": spec}


def _container(name: str, amounts: Mapping[str, str], kind: str) -> Mapping[str, Any]:
    restart = {"restartPolicy": "Always"} if kind == SIDECAR else {}
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}, **restart}


def _spread_over_cards(event: Event, apps: Sequence[str]) -> Mapping[str, str]:
    """Return what makes mGPU containers have parts of several cards, where they have them."""
    if isinstance(event, RequestRefused) or event.dialect != Dialect.MGPU.value:
        return {}
    shared = [share for share in event.shares if not share.exclusive]
    cards = Counter(item.container for share in shared for item in share.containers)
    if max(cards.values(), default=0) < 2:
        return {}
    return {
        ANNOTATION_MGPU_COMPUTE_POLICY: "native-burst-share",
        ANNOTATION_MGPU_CONTAINER_MULTIPLE: ",".join(str(max(1, cards[name])) for name in apps),
    }


def _in_spec_order(event: Event, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """
    Return init and app containers in the order of the spec, as far as it was recorded.

    What the snapshot asks for is sorted by name: app containers stand where what they hold says,
    those without devices fill the places that are left. So do the init containers of older events.
    """
    shares = () if isinstance(event, RequestRefused) else event.shares
    places = {item.container: item.place for share in shares for item in share.containers}
    inits = {int(place[5:]): name for name, place in places.items() if place.startswith("init-")}
    apps = {int(place): name for name, place in places.items() if place.isdigit()}
    kinds = event.snapshot.kinds
    rest = [name for name in names if name not in places and name not in kinds]
    for name in rest:
        apps[next(place for place in count() if place not in apps)] = name
    started = [name for name in kinds if name in names] or [inits[i] for i in sorted(inits)]
    return started, [apps[place] for place in sorted(apps)]
