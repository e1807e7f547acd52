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


class CpuSource(StrEnum):
    """Where a container's CPUs come from."""

    OWN = "own"
    POOLS_NAMED = "pools named"
    SYSTEM = "system"
    SHARED = "shared"
    BEST_EFFORT = "best effort"
    KUBELET = "kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What to bind a container to; empty CPUs = write nothing: kubelet's count, or none is left."""

    source: CpuSource
    cpus: CpuSet = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOnNode:
    """What deciding about one container needs; `whole_cpus`: it asks for whole CPUs."""

    status: ResourceStatus
    qos: QosClass
    kube_qos: KubeQos
    whole_cpus: bool = False

    @property
    def is_pinned_by_kubelet(self) -> bool:
        """Tell whether kubelet's static CPU manager gives the container CPUs of its own."""
        return self.kube_qos is KubeQos.GUARANTEED and self.whole_cpus


def binding_of(
    pod: PodOnNode, pools: Pools, *, system: CpuSet = EMPTY, kubelet_static: bool = False
) -> Binding:
    """
    Return what a container of a Pod is bound to; the first rule that fits counts.

    Rule: Koordinator contract 9.3; CPU proposal, "Koordinator QoS CPU orchestration principles" and
    "Take over kubelet CPU management policies": what kubelet does not pin gets our pools.

    Args:
        system: the CPUs of SYSTEM Pods.
        kubelet_static: kubelet's CPU manager writes the CPUs of every container, those of its own
            shared pool too; it does not know which CPUs we gave away.
    """
    if pod.status.cpuset:
        return Binding(source=CpuSource.OWN, cpus=pod.status.cpuset)
    if kubelet_static and pod.is_pinned_by_kubelet:
        return Binding(source=CpuSource.KUBELET)
    is_best_effort = pod.qos is QosClass.BE or (
        pod.qos is QosClass.NONE and pod.kube_qos is KubeQos.BEST_EFFORT
    )
    of_class = pools.best_effort if is_best_effort else pools.shared
    named = joined(_named(pod.status, of_class))
    if named:
        return Binding(source=CpuSource.POOLS_NAMED, cpus=named)
    if pod.qos is QosClass.SYSTEM:
        return Binding(source=CpuSource.SYSTEM, cpus=system)
    source = CpuSource.BEST_EFFORT if is_best_effort else CpuSource.SHARED
    return Binding(source=source, cpus=joined(of_class))


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
