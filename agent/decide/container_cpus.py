"""The CPUs that a container is bound to."""

from __future__ import annotations

from collections.abc import Iterable
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


def is_best_effort(qos: QosClass, kube_qos: KubeQos) -> bool:
    """Tell whether a Pod runs in the pools of best effort: by its label, else by its requests."""
    return qos is QosClass.BE or (qos is QosClass.NONE and kube_qos is KubeQos.BEST_EFFORT)


def bound_to(
    status: ResourceStatus,
    qos: QosClass,
    kube_qos: KubeQos,
    pools: Pools,
    *,
    system: CpuSet = EMPTY,
) -> CpuSet:
    """
    Return what containers of a Pod are bound to, if kubelet pins them not; empty = none is left.

    Rule: Koordinator contract 9.3; CPU proposal, "Koordinator QoS CPU orchestration principles" and
    "Take over kubelet CPU management policies"; the first that fits counts. Kubelet's own shared
    pool is replaced by ours: it does not know which CPUs we gave away.

    Args:
        system: the CPUs of SYSTEM Pods.
    """
    if status.cpuset:
        return status.cpuset
    of_class = pools.best_effort if is_best_effort(qos, kube_qos) else pools.shared
    named = joined(_named(status, of_class))
    return named or (system if qos is QosClass.SYSTEM else joined(of_class))


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
