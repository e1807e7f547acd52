"""What a NodeResourceTopology says of a node's CPUs, its NUMA nodes and kubelet's own policies."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations import node_cpu, wire
from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import annotations_of
from ledger.domain.nodes import KubeletPolicy, NumaZone
from ledger.domain.quantity import NANO
from ledger.domain.topology import CpuTopology

_COPIED_ANNOTATIONS: Final = (
    resources.ANNOTATION_AMPLIFICATION_RATIO,
    resources.ANNOTATION_NODE_RESERVATION,
    resources.ANNOTATION_SYSTEM_QOS_RESOURCE,
)
_ZONE_NAME: Final = re.compile(r"node-(0|[1-9][0-9]{0,3})")
_REJECTING: Final = frozenset({NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE})
_KUBELET_POLICIES: Final = {
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}
"""Kubelet's spelling of its Topology Manager policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTopology:
    """
    A NodeResourceTopology, decoded.

    Attributes:
        cpus: None when it lists no CPU.
        pinned: CPUs that kubelet gave to Pods that nobody adopts.
        kubelet: its CPU manager policy.
        numa_policy: kubelet's Topology Manager policy; `pod_scope`: it aligns Pods as a whole.
        zones: by NUMA node.
        copies: the Node's own annotations that the object repeats for the scheduler.
    """

    cpus: CpuTopology | None
    pinned: CpuSet
    kubelet: node_cpu.KubeletCpuPolicy
    numa_policy: NumaPolicy
    pod_scope: bool
    zones: tuple[NumaZone, ...]
    copies: Mapping[str, str]

    @property
    def reserved(self) -> CpuSet:
        """Return the CPUs that kubelet keeps, for itself or for Pods that nobody adopts."""
        return self.pinned | self.kubelet.reserved_cpus

    @property
    def kubelet_rejects(self) -> KubeletPolicy | None:
        """Return what kubelet rejects by itself; only its static CPU manager gives CPUs away."""
        strict = self.numa_policy if self.numa_policy in _REJECTING else NumaPolicy.NONE
        if not self.kubelet.is_static or not (strict or self.kubelet.full_pcpus_only):
            return None
        return KubeletPolicy(
            whole_cores=self.kubelet.full_pcpus_only,
            numa_policy=strict,
            pod_scope=self.pod_scope,
            kept=self.reserved,
            reserved=self.kubelet.reserved_cpus,
        )


def read_topology(
    nrt: Mapping[str, object] | None, known_pods: Container[str] = ()
) -> NodeTopology:
    """
    Read a NodeResourceTopology (v1alpha1 or v1alpha2), or none at all.

    Rule: Koordinator contract 2.4 and 3.2.

    Args:
        known_pods: UIDs of Pods that the caller adopts; CPUs that kubelet pinned for others are
            the node's reserve.

    Raises:
        InputError: a wrong type, JSON that does not parse, a bad or negative quantity.
    """
    item = {} if nrt is None else nrt
    annotations = annotations_of(nrt)
    policy = resources.ANNOTATION_KUBELET_CPU_MANAGER_POLICY
    kubelet = (
        wire.decoded(annotations, policy, node_cpu.decode_kubelet_cpu_policy)
        or node_cpu.KubeletCpuPolicy()
    )
    pinned = EMPTY
    for alloc in kubelet_allocs(annotations):
        if alloc.uid not in known_pods:
            pinned |= alloc.cpus
    cpus = (
        wire.decoded(annotations, resources.ANNOTATION_CPU_TOPOLOGY, node_cpu.decode_cpu_topology)
        or None
    )
    read_node_reserve(annotations, cpus)  # what does not parse is this object's fault
    return NodeTopology(
        cpus=cpus,
        pinned=pinned,
        kubelet=kubelet,
        numa_policy=_numa_policy(item),
        pod_scope=_pod_scope(item),
        zones=_by_id(_zones(item)),
        copies={key: annotations[key] for key in _COPIED_ANNOTATIONS if key in annotations},
    )


def kubelet_allocs(annotations: Mapping[str, str]) -> Iterator[node_cpu.PodCpuAlloc]:
    """Yield the entries of `pod-cpu-allocs` that count (contract 2.4)."""
    allocs = (
        wire.decoded(
            annotations, resources.ANNOTATION_POD_CPU_ALLOCS, node_cpu.decode_pod_cpu_allocs
        )
        or ()
    )
    yield from (alloc for alloc in allocs if alloc.counts)


def read_node_reservation(annotations: Mapping[str, str]) -> node_cpu.NodeReservation:
    """Return what the node keeps for itself, nothing without the annotation (contract 2.3)."""
    reservation = wire.decoded(
        annotations, resources.ANNOTATION_NODE_RESERVATION, node_cpu.decode_node_reservation
    )
    return reservation or node_cpu.NodeReservation()


def read_node_reserve(annotations: Mapping[str, str], topology: CpuTopology | None) -> CpuSet:
    """
    Return the CPUs that a node keeps for itself and for its system.

    Rule: Koordinator contract 2.3 and 6.3. The Node's own annotation wins over the copy that the
    NodeResourceTopology carries for the scheduler (2.4). An amount of cpu without CPUs picks them
    as kubelet's picker does on an empty machine: sockets, cores and threads, the lowest first.
    """
    reservation = read_node_reservation(annotations)
    reserved = reservation.reserved_cpus
    if not reserved and topology is not None:
        amount = dict(reservation.resources).get(resources.CPU)
        reserved = EMPTY if amount is None else _lowest_cores(topology, amount.ceil())
    system = wire.decoded(
        annotations, resources.ANNOTATION_SYSTEM_QOS_RESOURCE, node_cpu.decode_system_qos_resource
    )
    return reserved | system.cpus if system is not None and system.exclusive else reserved


def _lowest_cores(topology: CpuTopology, count: int) -> CpuSet:
    in_order = [cpu for core in topology.cores for cpu in topology.cpus_in_core(core)]
    return cpuset_of(in_order[:count])


def _numa_policy(nrt: Mapping[str, object]) -> NumaPolicy:
    """Return kubelet's policy: v1alpha2's attribute before the list (Koordinator contract 3.2)."""
    text = _attribute(nrt, "topologyManagerPolicy")
    if text is not None:
        return _KUBELET_POLICIES.get(text, node_cpu.numa_policy_of(text))
    return node_cpu.numa_policy_of(_listed_policy(nrt))


def encode_topology_policy(policy: str, scope: str) -> str:
    """Return `topologyPolicies[0]`: with the scope, for v1alpha1 has no attributes."""
    numa = _KUBELET_POLICIES.get(policy)
    return "None" if numa is None else f"{numa}{'Pod' if scope == 'pod' else 'Container'}Level"


def _pod_scope(nrt: Mapping[str, object]) -> bool:
    """Tell whether kubelet aligns Pods as a whole; without a word it aligns containers."""
    text = _attribute(nrt, "topologyManagerScope")
    if text is not None:
        return text == "pod"
    return _listed_policy(nrt).endswith("PodLevel")


def _listed_policy(nrt: Mapping[str, object]) -> str:
    policies = wire.a_list(nrt.get("topologyPolicies"), "topologyPolicies")
    return wire.a_text(policies[0], "topologyPolicies[0]") if policies else ""


def _attribute(nrt: Mapping[str, object], name: str) -> str | None:
    for place, item in enumerate(wire.a_list(nrt.get("attributes"), "attributes")):
        path = f"attributes[{place}]"
        attribute = wire.an_object(item, path)
        if wire.a_text(attribute.get("name"), f"{path}.name") == name:
            return wire.a_text(attribute.get("value"), f"{path}.value")
    return None


def _by_id(zones: Iterable[NumaZone]) -> tuple[NumaZone, ...]:
    """Return the zones by NUMA node. Raises InputError for two of one."""
    ordered = tuple(sorted(zones, key=lambda zone: zone.id))
    for before, after in pairwise(ordered):
        if before.id == after.id:
            raise InputError(f"two zones have one name: name=node-{after.id}", field="zones")
    return ordered


def _zones(nrt: Mapping[str, object]) -> Iterator[NumaZone]:
    for place, item in enumerate(wire.a_list(nrt.get("zones"), "zones")):
        path = f"zones[{place}]"
        zone = wire.an_object(item, path)
        name = _ZONE_NAME.fullmatch(wire.a_text(zone.get("name"), f"{path}.name"))
        if name is None or wire.a_text(zone.get("type"), f"{path}.type") != "Node":
            continue
        nanos = dict(wire.each(zone.get("resources"), f"{path}.resources", _zone_resource))
        cpu, memory = nanos.get(resources.CPU), nanos.get(resources.MEMORY)
        yield NumaZone(
            id=int(name[1]),
            cpu_milli=None if cpu is None else cpu * 1000 // NANO,
            memory_bytes=None if memory is None else memory // NANO,
        )


def _zone_resource(value: object, path: str) -> tuple[str, int]:
    """Return a resource's name and its allocatable in thousand-millionths."""
    resource = wire.an_object(value, path)
    allocatable = wire.a_quantity(resource.get("allocatable"), f"{path}.allocatable")
    return wire.a_text(resource.get("name"), f"{path}.name"), allocatable.nanos
