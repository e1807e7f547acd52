"""What every Pod of a node is to be bound to: one answer for the runtime's hook and for cgroups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from agent.decide.cgroups import PodPlanned, Problem, UnboundReason
from agent.decide.container_cpus import KubeQos, bound_to
from agent.decide.pools import NodeCpus, PodCpus, Pools, pools_of
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of, union
from ledger.domain.resources import MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlanned:
    """
    A node to plan for.

    Attributes:
        held: UID of a Pod or a claim -> its own CPUs.
        gone: Pods that were called gone: they get none of these, nor does anybody else.
        pods: those that kubelet runs or will run.
        system: the CPUs of SYSTEM Pods.
        best_effort: the CPUs that suppression leaves BE Pods; None = all of their pool.
        binds_memory: kubelet's memory manager binds nobody.
    """

    cpus: NodeCpus
    held: Mapping[str, PodCpus]
    pods: tuple[PodPlanned, ...]
    gone: frozenset[str] = frozenset()
    system: CpuSet = EMPTY
    best_effort: CpuSet | None = None
    binds_memory: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWanted:
    """
    What one Pod is to be bound to; an empty set = as it is.

    Attributes:
        containers: name -> CPUs.
        unnamed: those of a container whose name nobody knows (yet), as a sandbox.
        own: the Pod's own CPUs; it has no CFS quota then.
        alone: nobody else may run on them.
        mems: memory nodes of all its containers.
        stays: nothing is written of its containers.
    """

    containers: Mapping[str, CpuSet] = field(default_factory=dict)
    unnamed: CpuSet = EMPTY
    own: CpuSet = EMPTY
    alone: bool = False
    mems: CpuSet = EMPTY
    stays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What all Pods are to be bound to, by UID; `pools`: what suppression leaves of BE's pool."""

    pods: Mapping[str, PodWanted]
    pools: Pools
    unbound: tuple[Problem, ...] = ()


def wanted_of(node: NodePlanned) -> Wanted:
    """
    Return what every Pod of the node is to be bound to. Pure and total.

    Rule: Koordinator contract 9.3 and 9.4; CPU proposal, "Take over kubelet CPU management
    policies". The ledger says who has CPUs of its own. What kubelet's static policy gave to a
    container is in no pool, and nobody else's, whatever the ledger says. Neither are the CPUs of a
    Pod's status that the ledger does not have yet, unless they are another's: it stays on them.
    """
    owners = {
        uid: holder
        for uid, holder in node.held.items()
        if not holder.by_kubelet and uid not in node.gone
    }
    given = [
        (pod.uid, one.given)
        for pod in (node.pods if node.cpus.kubelet_static else ())
        for one in pod.containers
        if one.given
    ]
    kubelets = union(cpus for uid, cpus in given if uid not in owners)
    pinned = (PodCpus(cpus=cpus, by_kubelet=True) for _, cpus in given)
    alone = [*node.held.values(), *pinned]
    exclusive = union(one.cpus for one in alone)
    strange = {
        pod.uid: PodCpus(cpus=pod.status.cpuset, qos=pod.qos)
        for pod in node.pods
        if pod.status.cpuset and pod.uid not in owners and pod.uid not in node.gone
    }
    stay = {uid: one for uid, one in strange.items() if exclusive.isdisjoint(one.cpus)}
    pools = pools_of(node.cpus, [*alone, *stay.values()])
    if node.best_effort is not None:
        left = tuple(replace(pool, cpus=pool.cpus & node.best_effort) for pool in pools.best_effort)
        pools = replace(pools, best_effort=left)
    bind = cache(partial(bound_to, pools=pools, system=node.system))
    unbound: list[Problem] = []

    def tell(pod: PodPlanned, reason: UnboundReason, cpus: CpuSet = EMPTY) -> None:
        unbound.append(Problem(about=pod.uid, reason=reason, words=str(cpus)))

    pods = {}
    for pod in node.pods:
        owner = owners.get(pod.uid)
        if pod.uid in strange and not pod.stays:
            tell(pod, UnboundReason.NOT_RECORDED, pod.status.cpuset)
        if pod.stays or pod.uid in stay:
            pods[pod.uid] = PodWanted(stays=True)
            continue
        if owner is not None and (others := owner.cpus & kubelets):
            tell(pod, UnboundReason.KUBELET_GAVE, others)
            owner = replace(owner, cpus=owner.cpus - others)
        status = replace(pod.status, cpuset=EMPTY if owner is None else owner.cpus)
        cpus = bind(status, pod.qos, pod.kube_qos)
        if not cpus and pod.qos is not QosClass.SYSTEM:
            tell(pod, UnboundReason.NO_CPUS_LEFT)
        pods[pod.uid] = _pod_wanted(node, pod, owner, cpus)
    return Wanted(pods=pods, pools=pools, unbound=tuple(unbound))


def _pod_wanted(
    node: NodePlanned, pod: PodPlanned, owner: PodCpus | None, cpus: CpuSet
) -> PodWanted:
    own = EMPTY if owner is None else owner.cpus
    kubelets_own = owner is None and may_be_kubelets(node, pod)
    mems = cpuset_of(
        entry.node
        for entry in pod.status.numa_node_resources
        if own and node.binds_memory and dict(entry.resources).get(MEMORY)
    )
    return PodWanted(
        containers={
            one.name: EMPTY if kubelets_own and one.whole_cpus else cpus for one in pod.containers
        },
        unnamed=EMPTY if kubelets_own else cpus,
        own=own,
        alone=bool(own) and owner is not None and owner.qos is QosClass.LSE,
        mems=mems,
    )


def may_be_kubelets(node: NodePlanned, pod: PodPlanned) -> bool:
    """Tell whether kubelet's static CPU manager pins a container of the Pod, or may."""
    return (
        node.cpus.kubelet_static
        and pod.kube_qos is KubeQos.GUARANTEED
        and (not pod.containers or any(one.whole_cpus for one in pod.containers))
    )
