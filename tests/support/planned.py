"""Pods and a node, as planning their CPUs takes them."""

from __future__ import annotations

from agent.decide.cgroups import ContainerPlanned, PodPlanned
from agent.decide.container_cpus import KubeQos
from agent.decide.pools import NodeCpus, PodCpus
from agent.decide.wanted_cpus import NodePlanned
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.topology import Cpu, cpu_topology_of
from tests.support.cgroup_trees import id_of, uid_of


def planned(number: int, qos: QosClass, kube_qos: KubeQos, cpus: str = "") -> PodPlanned:
    """Return a Pod with one container."""
    return PodPlanned(
        uid=uid_of(number),
        qos=qos,
        kube_qos=kube_qos,
        status=ResourceStatus(cpuset=parse_cpuset(cpus)),
        containers=(ContainerPlanned(name="main", id=id_of(number), limit_milli=2000),),
    )


def node(*pods: PodPlanned, count: int = 4) -> NodePlanned:
    """Return a node with so many CPUs, whose Pods have what their status says."""
    held = {
        pod.uid: PodCpus(cpus=pod.status.cpuset, qos=pod.qos) for pod in pods if pod.status.cpuset
    }
    cpus = cpu_topology_of(Cpu(id=one, core=one, socket=0, numa=0) for one in range(count))
    return NodePlanned(cpus=NodeCpus(topology=cpus), held=held, pods=pods)
