"""The CPUs that a container is bound to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agent.decide.pools import Pools, joined
from ledger.domain.annotations.cpu import CpuSharedPool, NumaNodeResources, ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.resources import BATCH_CPU, CPU


class KubeQos(StrEnum):
    """Kubernetes' own classes, by requests and limits."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class Source(StrEnum):
    """Where a container's CPUs come from."""

    OWN = "own"
    POOLS_NAMED = "pools named"
    SYSTEM = "system"
    SHARED = "shared"
    BEST_EFFORT = "best effort"
    INHERITED = "inherited"
    KUBELET = "kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """
    What to bind a container to.

    Attributes:
        cpus: empty = write nothing: the parent's CPUs count, or kubelet's.
        quota: whether the CFS quota stays; a Pod with CPUs of its own has none.
    """

    source: Source
    cpus: CpuSet = EMPTY

    @property
    def quota(self) -> bool:
        """Tell whether the CFS quota stays."""
        return self.source is not Source.OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOnNode:
    """What deciding about a Pod's containers needs: its status, its label, Kubernetes' class."""

    status: ResourceStatus
    qos: QosClass
    kube_qos: KubeQos


def binding_of(
    pod: PodOnNode,
    pools: Pools,
    *,
    system: CpuSet = EMPTY,
    kubelet_static: bool = False,
    manages_best_effort: bool = False,
) -> Binding:
    """
    Return what the containers of a Pod are bound to; the first rule that fits counts.

    Rule: Koordinator contract 9.3; CPU proposal, "Koordinator QoS CPU orchestration principles".

    Args:
        system: the CPUs of SYSTEM Pods.
        kubelet_static: kubelet's CPU manager binds Pods without a QoS label.
        manages_best_effort: BE Pods get the BE pools and not their parent's suppressed set.
    """
    if pod.status.cpuset:
        return Binding(source=Source.OWN, cpus=pod.status.cpuset)
    of_class = pools.shared
    if pod.qos is QosClass.BE and manages_best_effort:
        of_class = pools.best_effort
    named = joined(_named(pod.status, of_class))
    if named:
        return Binding(source=Source.POOLS_NAMED, cpus=named)
    match pod.qos:
        case QosClass.SYSTEM:
            return Binding(source=Source.SYSTEM, cpus=system)
        case QosClass.BE:
            if manages_best_effort:
                return Binding(source=Source.BEST_EFFORT, cpus=joined(pools.best_effort))
            return Binding(source=Source.INHERITED)
        case QosClass.NONE if kubelet_static:
            return Binding(source=Source.KUBELET)
        case QosClass.NONE if pod.kube_qos is KubeQos.BEST_EFFORT:
            return Binding(source=Source.INHERITED)
    return Binding(source=Source.SHARED, cpus=joined(pools.shared))


def _named(status: ResourceStatus, pools: Iterable[CpuSharedPool]) -> Iterable[CpuSharedPool]:
    """
    Return the pools that the status names: by socket and node, or by NUMA nodes with CPUs.

    Rule: Koordinator contract 2.2 and 9.3; entries without cpu (only hugepages) restrict nothing.
    """
    places = {(pool.socket, pool.node) for pool in status.cpu_shared_pools}
    if places:
        return [pool for pool in pools if (pool.socket, pool.node) in places]
    nodes = {entry.node for entry in status.numa_node_resources if _has_cpu(entry)}
    return [pool for pool in pools if pool.node in nodes]


def _has_cpu(entry: NumaNodeResources) -> bool:
    return any(name in {CPU, BATCH_CPU} and bool(amount) for name, amount in entry.resources)
