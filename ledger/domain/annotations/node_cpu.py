"""
CPU labels and annotations of Nodes (Koordinator contract 2.3) and NodeResourceTopologies (2.4).

Every `decode_` raises InputError, with its path, for JSON, a type or an amount that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Struct

from ledger.domain import resources
from ledger.domain.annotations import wire
from ledger.domain.annotations.cpu import CpuSharedPool, NumaPolicy, encode_pool
from ledger.domain.cpuset import EMPTY, CpuSet, format_cpuset
from ledger.domain.errors import InputError
from ledger.domain.quantity import Quantity
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from ledger.domain.typed import read_json, released, sorted_texts

_NUMA_POLICIES: Final = {str(policy): policy for policy in NumaPolicy}


class NodeCpuBindPolicy(StrEnum):
    """What a node demands of every CPU set on it."""

    NONE = "None"
    FULL_PCPUS_ONLY = "FullPCPUsOnly"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"


class NumaAllocateStrategy(StrEnum):
    """Which NUMA nodes are filled first. UNSET leaves it to the settings."""

    UNSET = ""
    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"


class ReservationApplyPolicy(StrEnum):
    """Whether a node reservation lowers quantities too, or only sets CPUs aside."""

    DEFAULT = "Default"
    RESERVED_CPUS_ONLY = "ReservedCPUsOnly"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCpuPolicies:
    """The three CPU policies that a node's labels set."""

    bind_policy: NodeCpuBindPolicy = NodeCpuBindPolicy.NONE
    numa_allocate_strategy: NumaAllocateStrategy = NumaAllocateStrategy.UNSET
    numa_policy: NumaPolicy = NumaPolicy.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCpuAlloc:
    """CPUs that somebody other than our scheduler gave to a Pod."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpus: Annotated[CpuSet, "cpuset", "cpu"] = EMPTY
    managed_by_kubelet: Annotated[bool, _flag_or_text] = False

    @property
    def counts(self) -> bool:
        """Tell whether the entry reserves CPUs: kubelet's, with a UID and a set."""
        return self.managed_by_kubelet and bool(self.uid) and bool(self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletCpuPolicy:
    """Kubelet's CPU manager policy; options sorted by name, values are texts."""

    policy: str = ""
    options: Annotated[tuple[tuple[str, str], ...], sorted_texts] = ()
    reserved_cpus: CpuSet = EMPTY

    @property
    def is_static(self) -> bool:
        """Tell whether kubelet gives Pods CPUs of their own."""
        return self.policy == "static"

    @property
    def full_pcpus_only(self) -> bool:
        """Tell whether kubelet itself hands out whole cores only (contract 6.1)."""
        return self.is_static and ("full-pcpus-only", "true") in self.options

    @property
    def distribute_across_numa(self) -> bool:
        """Tell whether kubelet spreads CPU sets evenly over NUMA nodes (contract Q8)."""
        return self.is_static and ("distribute-cpus-across-numa", "true") in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReservation:
    """What a node keeps for itself. With `reserved_cpus` the cpu quantity picks no CPUs."""

    resources: Annotated[wire.Amounts, released] = ()
    reserved_cpus: CpuSet = EMPTY
    apply_policy: ReservationApplyPolicy = ReservationApplyPolicy.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemQosResource:
    """The CPUs of SYSTEM Pods; exclusive ones are given to nobody else."""

    cpus: Annotated[CpuSet, "cpuset"] = EMPTY
    exclusive: Annotated[bool, "cpusetExclusive"] = True


def read_node_cpu_policies(labels: Mapping[str, str]) -> NodeCpuPolicies:
    """
    Read a node's CPU policies; the release's key wins over the proposal's.

    `PCPUOnly` reads as `FullPCPUsOnly`; any other text is no policy (contract 2.3).
    """
    bind = labels.get(resources.LABEL_CPU_BIND_POLICY, "")
    bind = NodeCpuBindPolicy.FULL_PCPUS_ONLY if bind == "PCPUOnly" else bind
    strategy = labels.get(resources.LABEL_NUMA_ALLOCATE_STRATEGY, "")
    numa = labels.get(resources.LABEL_NUMA_TOPOLOGY_POLICY) or labels.get(
        resources.LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL, ""
    )
    return NodeCpuPolicies(
        bind_policy=(
            NodeCpuBindPolicy(bind) if bind in set(NodeCpuBindPolicy) else NodeCpuBindPolicy.NONE
        ),
        numa_allocate_strategy=(
            NumaAllocateStrategy(strategy)
            if strategy in set(NumaAllocateStrategy)
            else NumaAllocateStrategy.UNSET
        ),
        numa_policy=numa_policy_of(numa),
    )


def numa_policy_of(text: str) -> NumaPolicy:
    """
    Return the policy a node label or a NodeResourceTopology's `topologyPolicies` entry means.

    Rule: Koordinator contract 3.2, "OURS": the PodLevel and ContainerLevel variants map to the
    same three; any other text (`None` too) is no policy.
    """
    base = text.removesuffix("PodLevel").removesuffix("ContainerLevel")
    return _NUMA_POLICIES.get(base, NumaPolicy.NONE)


# {"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0},
#             {"id": 12, "core": 0, "socket": 0, "node": 0}]}


class _Topology(Struct):
    detail: tuple[Cpu, ...] = ()


@lru_cache(maxsize=256)  # machines of one model say the same, in thousands of bytes each
def decode_cpu_topology(text: str) -> CpuTopology:
    """Read a node's CPU topology: ids are unique and at most 4096; a core is (socket, core)."""
    found = read_json(_Topology, text, resources.ANNOTATION_CPU_TOPOLOGY)
    try:
        return cpu_topology_of(found.detail)
    except InputError as error:
        path = wire.annotation_path(resources.ANNOTATION_CPU_TOPOLOGY)
        raise error.within(f"{path}.detail") from error


def encode_cpu_topology(topology: CpuTopology) -> str:
    """Write a node's CPU topology, CPUs ascending by id."""
    detail = [
        {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.numa}
        for cpu in topology.cpus
    ]
    return wire.dump({"detail": detail})


# [{"namespace": "ml", "name": "g-0", "uid": "0a4c...", "cpuset": "6-7,18-19",
#   "managedByKubelet": true}]
#
# In the proposal: `"cpu": "6-7,18-19"` and `"managedByKubelet": "true"`. Empty is the text `null`.


def decode_pod_cpu_allocs(text: str) -> tuple[PodCpuAlloc, ...]:
    """Read the CPUs that others gave to Pods. Entries that don't count come too: ask `counts`."""
    return read_json(tuple[PodCpuAlloc, ...], text, resources.ANNOTATION_POD_CPU_ALLOCS)


def encode_pod_cpu_allocs(allocs: tuple[PodCpuAlloc, ...]) -> str:
    """Write the release's shape; no entries are the text `null`."""
    entries = [
        wire.present(
            {
                "namespace": alloc.namespace,
                "name": alloc.name,
                "uid": alloc.uid,
                "cpuset": format_cpuset(alloc.cpus),
                "managedByKubelet": alloc.managed_by_kubelet or None,
            }
        )
        for alloc in allocs
    ]
    return wire.dump(entries or None)


# [{"socket": 0, "node": 0, "cpuset": "2-5,14-17"}]


def decode_cpu_shared_pools(text: str, *, best_effort: bool = False) -> tuple[CpuSharedPool, ...]:
    """Read the shared pools of LS Pods, or those of BE Pods (contract 2.4)."""
    key = (
        resources.ANNOTATION_BE_CPU_SHARED_POOLS
        if best_effort
        else resources.ANNOTATION_CPU_SHARED_POOLS
    )
    return read_json(tuple[CpuSharedPool, ...], text, key)


def encode_cpu_shared_pools(pools: tuple[CpuSharedPool, ...]) -> str:
    """Write the shared pools, in the order given."""
    return wire.dump([encode_pool(pool) for pool in pools])


# {"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0-1"}


def decode_kubelet_cpu_policy(text: str) -> KubeletCpuPolicy:
    """Read kubelet's CPU manager policy (contract 2.4)."""
    return read_json(KubeletCpuPolicy, text, resources.ANNOTATION_KUBELET_CPU_MANAGER_POLICY)


def encode_kubelet_cpu_policy(policy: KubeletCpuPolicy) -> str:
    """Write kubelet's CPU manager policy; empty fields are left out."""
    fields = {
        "policy": policy.policy,
        "options": dict(policy.options),
        "reservedCPUs": format_cpuset(policy.reserved_cpus),
    }
    return wire.dump(wire.present(fields))


# {"resources": {"cpu": "2"}, "reservedCPUs": "0-3", "applyPolicy": "Default"}


def decode_node_reservation(text: str) -> NodeReservation:
    """Read what a node keeps for itself (contract 2.3)."""
    return read_json(NodeReservation, text, resources.ANNOTATION_NODE_RESERVATION)


# {"cpuset": "0-1", "cpusetExclusive": true}


def decode_system_qos_resource(text: str) -> SystemQosResource:
    """Read the CPUs of SYSTEM Pods; exclusive unless it says otherwise (contract 2.3)."""
    return read_json(SystemQosResource, text, resources.ANNOTATION_SYSTEM_QOS_RESOURCE)


# {"cpu": 1.40}


def decode_amplification_ratios(text: str) -> dict[str, Fraction]:
    """Read by how much resources are amplified: exact, and only ratios above 1 (contract 2.3)."""
    value = read_json(Mapping[str, Quantity], text, resources.ANNOTATION_AMPLIFICATION_RATIO)
    ratios = {name: ratio.as_fraction() for name, ratio in sorted(value.items())}
    return {name: ratio for name, ratio in ratios.items() if ratio > 1}


# {"cpu": "24"}


def decode_raw_allocatable(text: str) -> wire.Amounts:
    """Read a node's allocatable before amplification (contract 2.3)."""
    path = wire.annotation_path(resources.ANNOTATION_RAW_ALLOCATABLE)
    return released(wire.load(text, path), path)


def _flag_or_text(value: object, path: str) -> bool:
    return (
        value == wire.TRUE
        if value in (wire.TRUE, wire.FALSE)
        else wire.a_flag(value, path, default=False)
    )
