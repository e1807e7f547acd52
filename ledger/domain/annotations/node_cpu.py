"""CPU labels and annotations of Nodes and NodeResourceTopologies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final

from ledger.domain.annotations.cpu import CpuSharedPool, NumaPolicy, decode_pool
from ledger.domain.annotations.wire import (
    Amounts,
    a_choice,
    a_cpuset,
    a_flag,
    a_quantity,
    a_text,
    amounts,
    an_integer,
    an_object,
    annotation_path,
    each,
    load,
)
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.errors import InputError
from ledger.domain.resources import (
    ANNOTATION_AMPLIFICATION_RATIO,
    ANNOTATION_BE_CPU_SHARED_POOLS,
    ANNOTATION_CPU_SHARED_POOLS,
    ANNOTATION_CPU_TOPOLOGY,
    ANNOTATION_KUBELET_CPU_MANAGER_POLICY,
    ANNOTATION_NODE_RESERVATION,
    ANNOTATION_POD_CPU_ALLOCS,
    ANNOTATION_RAW_ALLOCATABLE,
    ANNOTATION_SYSTEM_QOS_RESOURCE,
    LABEL_CPU_BIND_POLICY,
    LABEL_NUMA_ALLOCATE_STRATEGY,
    LABEL_NUMA_TOPOLOGY_POLICY,
    LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL,
)
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

_TOPOLOGY_PATH: Final = annotation_path(ANNOTATION_CPU_TOPOLOGY)
_ALLOCS_PATH: Final = annotation_path(ANNOTATION_POD_CPU_ALLOCS)
_KUBELET_PATH: Final = annotation_path(ANNOTATION_KUBELET_CPU_MANAGER_POLICY)
_RESERVATION_PATH: Final = annotation_path(ANNOTATION_NODE_RESERVATION)
_SYSTEM_QOS_PATH: Final = annotation_path(ANNOTATION_SYSTEM_QOS_RESOURCE)
_RATIO_PATH: Final = annotation_path(ANNOTATION_AMPLIFICATION_RATIO)
_RAW_PATH: Final = annotation_path(ANNOTATION_RAW_ALLOCATABLE)
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
    cpus: CpuSet = EMPTY
    managed_by_kubelet: bool = False

    @property
    def counts(self) -> bool:
        """Tell whether the entry reserves CPUs: kubelet's, with a UID and a set."""
        return self.managed_by_kubelet and bool(self.uid) and bool(self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletCpuPolicy:
    """Kubelet's CPU manager policy; options sorted by name, values are texts."""

    policy: str = ""
    options: tuple[tuple[str, str], ...] = ()
    reserved_cpus: CpuSet = EMPTY

    @property
    def full_pcpus_only(self) -> bool:
        """Tell whether kubelet itself hands out whole cores only (contract 6.1)."""
        return self.policy == "static" and ("full-pcpus-only", "true") in self.options

    @property
    def distribute_across_numa(self) -> bool:
        """Tell whether kubelet spreads CPU sets evenly over NUMA nodes (contract Q8)."""
        return self.policy == "static" and ("distribute-cpus-across-numa", "true") in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReservation:
    """What a node keeps for itself. With `reserved_cpus` the cpu quantity picks no CPUs."""

    resources: Amounts = ()
    reserved_cpus: CpuSet = EMPTY
    apply_policy: ReservationApplyPolicy = ReservationApplyPolicy.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemQosResource:
    """The CPUs of SYSTEM Pods; exclusive ones are given to nobody else."""

    cpus: CpuSet = EMPTY
    exclusive: bool = True


def read_node_cpu_policies(labels: Mapping[str, str]) -> NodeCpuPolicies:
    """
    Read a node's CPU policies; the release's key wins over the proposal's.

    Rule: Koordinator contract 2.3.

    `PCPUOnly` reads as `FullPCPUsOnly`; any other text is no policy.
    """
    bind = labels.get(LABEL_CPU_BIND_POLICY, "")
    bind = NodeCpuBindPolicy.FULL_PCPUS_ONLY if bind == "PCPUOnly" else bind
    strategy = labels.get(LABEL_NUMA_ALLOCATE_STRATEGY, "")
    numa = labels.get(LABEL_NUMA_TOPOLOGY_POLICY) or labels.get(
        LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL, ""
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


@lru_cache(maxsize=256)  # machines of one model say the same, in thousands of bytes each
def decode_cpu_topology(text: str) -> CpuTopology:
    """
    Read a node's CPU topology; a core is told apart by (socket, core).

    Rule: Koordinator contract 2.4.

    Raises:
        InputError: broken JSON, a missing number, two CPUs with one id, an id above 4096.
    """
    value = an_object(load(text, _TOPOLOGY_PATH), _TOPOLOGY_PATH)
    path = f"{_TOPOLOGY_PATH}.detail"
    cpus = each(value.get("detail"), path, _decode_cpu)
    try:
        return cpu_topology_of(cpus)
    except InputError as error:
        raise error.within(path) from error


# [{"namespace": "ml", "name": "g-0", "uid": "0a4c...", "cpuset": "6-7,18-19",
#   "managedByKubelet": true}]
#
# In the proposal: `"cpu": "6-7,18-19"` and `"managedByKubelet": "true"`. Empty is the text `null`.


def decode_pod_cpu_allocs(text: str) -> tuple[PodCpuAlloc, ...]:
    """
    Read the CPUs that others gave to Pods, in the release's spelling and the proposal's.

    Rule: Koordinator contract 2.4. Entries that do not count are returned too: ask `counts`.
    """
    return each(load(text, _ALLOCS_PATH), _ALLOCS_PATH, _decode_alloc)


# [{"socket": 0, "node": 0, "cpuset": "2-5,14-17"}]


def decode_cpu_shared_pools(text: str, *, best_effort: bool = False) -> tuple[CpuSharedPool, ...]:
    """
    Read the shared pools of LS Pods, or those of BE Pods.

    Rule: Koordinator contract 2.4.
    """
    key = ANNOTATION_BE_CPU_SHARED_POOLS if best_effort else ANNOTATION_CPU_SHARED_POOLS
    path = annotation_path(key)
    return each(load(text, path), path, decode_pool)


# {"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0-1"}


def decode_kubelet_cpu_policy(text: str) -> KubeletCpuPolicy:
    """
    Read kubelet's CPU manager policy.

    Rule: Koordinator contract 2.4.
    """
    value = an_object(load(text, _KUBELET_PATH), _KUBELET_PATH)
    path = f"{_KUBELET_PATH}.options"
    options = an_object(value.get("options"), path)
    return KubeletCpuPolicy(
        policy=a_text(value.get("policy"), f"{_KUBELET_PATH}.policy"),
        options=tuple(
            (name, a_text(option, f"{path}[{name}]")) for name, option in sorted(options.items())
        ),
        reserved_cpus=a_cpuset(value.get("reservedCPUs"), f"{_KUBELET_PATH}.reservedCPUs"),
    )


# {"resources": {"cpu": "2"}, "reservedCPUs": "0-3", "applyPolicy": "Default"}


def decode_node_reservation(text: str) -> NodeReservation:
    """
    Read what a node keeps for itself.

    Rule: Koordinator contract 2.3.

    Raises:
        InputError: broken JSON, a bad CPU list or quantity, an unknown apply policy.
    """
    value = an_object(load(text, _RESERVATION_PATH), _RESERVATION_PATH)
    return NodeReservation(
        resources=amounts(
            value.get("resources"), f"{_RESERVATION_PATH}.resources", DEFAULT_VOCABULARY
        ),
        reserved_cpus=a_cpuset(value.get("reservedCPUs"), f"{_RESERVATION_PATH}.reservedCPUs"),
        apply_policy=a_choice(
            value.get("applyPolicy"),
            ReservationApplyPolicy,
            f"{_RESERVATION_PATH}.applyPolicy",
            default=ReservationApplyPolicy.DEFAULT,
        ),
    )


# {"cpuset": "0-1", "cpusetExclusive": true}


def decode_system_qos_resource(text: str) -> SystemQosResource:
    """
    Read the CPUs of SYSTEM Pods; exclusive unless it says otherwise.

    Rule: Koordinator contract 2.3.
    """
    value = an_object(load(text, _SYSTEM_QOS_PATH), _SYSTEM_QOS_PATH)
    path = f"{_SYSTEM_QOS_PATH}.cpusetExclusive"
    return SystemQosResource(
        cpus=a_cpuset(value.get("cpuset"), f"{_SYSTEM_QOS_PATH}.cpuset"),
        exclusive=a_flag(value.get("cpusetExclusive"), path, default=True),
    )


# {"cpu": 1.40}


def decode_amplification_ratios(text: str) -> dict[str, Fraction]:
    """
    Read by how much each resource is amplified; exact, and only ratios above 1 are returned.

    Rule: Koordinator contract 2.3: at most 1 or missing is no amplification.
    """
    value = an_object(load(text, _RATIO_PATH), _RATIO_PATH)
    ratios = {
        name: a_quantity(ratio, f"{_RATIO_PATH}[{name}]").as_fraction()
        for name, ratio in sorted(value.items())
    }
    return {name: ratio for name, ratio in ratios.items() if ratio > 1}


# {"cpu": "24"}


def decode_raw_allocatable(text: str) -> Amounts:
    """
    Read a node's allocatable before amplification.

    Rule: Koordinator contract 2.3.
    """
    return amounts(load(text, _RAW_PATH), _RAW_PATH, DEFAULT_VOCABULARY)


def _decode_cpu(value: object, path: str) -> Cpu:
    cpu = an_object(value, path)
    return Cpu(
        id=an_integer(cpu.get("id"), f"{path}.id", least=0),
        core=an_integer(cpu.get("core"), f"{path}.core"),
        socket=an_integer(cpu.get("socket"), f"{path}.socket"),
        numa=an_integer(cpu.get("node"), f"{path}.node"),
    )


def _decode_alloc(value: object, path: str) -> PodCpuAlloc:
    entry = an_object(value, path)
    key = "cpu" if entry.get("cpuset") is None else "cpuset"
    managed = entry.get("managedByKubelet")
    if isinstance(managed, str) and managed in {"true", "false"}:
        managed = managed == "true"
    return PodCpuAlloc(
        namespace=a_text(entry.get("namespace"), f"{path}.namespace"),
        name=a_text(entry.get("name"), f"{path}.name"),
        uid=a_text(entry.get("uid"), f"{path}.uid"),
        cpus=a_cpuset(entry.get(key), f"{path}.{key}"),
        managed_by_kubelet=a_flag(managed, f"{path}.managedByKubelet", default=False),
    )
