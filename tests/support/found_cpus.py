"""What an agent finds of a node's CPUs, and what kubelet and the ledger say of their holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent.decide.node_cpus import FoundCpus, KubeletManagers, MachineCpus, NumaNode
from agent.decide.node_holdings import GRANTED, HeldByPod
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy
from ledger.domain.annotations.proof import EVERY, ProvenContainer
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.topology import CpuTopology
from tests.support.proofs import held_by_pod

GIB: Final = 1 << 30
NOBODY: Final[Mapping[str, str]] = {}
NO_MEMORY: Final[Mapping[int, Mapping[str, int]]] = {}
STATIC: Final = KubeletManagers(cpu=KubeletCpuPolicy(policy="static"))


def machine(topology: CpuTopology, *, gib: int = 64) -> MachineCpus:
    """Return a machine with so much memory in each NUMA node, a GiB of it in huge pages."""
    numas = topology.numa_nodes
    return MachineCpus(
        topology=topology,
        caches=tuple(topology.cpus_in_socket(socket) for socket in topology.sockets),
        numa=tuple(
            NumaNode(
                id=numa,
                memory_bytes=gib * GIB,
                huge_pages={2 << 20: GIB, GIB: 0},
                distances={other: 10 if other == numa else 21 for other in numas},
            )
            for numa in numas
        ),
    )


def found_cpus(
    topology: CpuTopology,
    *,
    managers: KubeletManagers = STATIC,
    pinned: Mapping[str, str] = NOBODY,
    memory: Mapping[int, Mapping[str, int]] = NO_MEMORY,
    pods: Sequence[Mapping[str, Any]] = (),
) -> FoundCpus:
    """Return what was found on a machine; `pinned` are CPU lists by UID."""
    return FoundCpus(
        machine=machine(topology),
        managers=managers,
        pinned={uid: {"main": parse_cpuset(text)} for uid, text in pinned.items()},
        memory=memory,
        pods=pods,
    )


def pod_here(uid: str, qos: str = "", status: str = "") -> dict[str, Any]:
    """Return a Pod as kubelet tells it."""
    metadata: dict[str, Any] = {"uid": uid, "namespace": "web", "name": f"pod-{uid}"}
    if qos:
        metadata["labels"] = {"koordinator.sh/qosClass": qos}
    if status:
        text = f'{{"cpuset":"{status}"}}'
        metadata["annotations"] = {"scheduling.koordinator.sh/resource-status": text}
    return {"metadata": metadata, "spec": {}}


def holding(uid: str, cpus: str, *, kind: str = GRANTED, attempt: int = 1) -> HeldByPod:
    """Return what the ledger says of a Pod that has these CPUs."""
    container = ProvenContainer(index=EVERY, cpus=parse_cpuset(cpus))
    return held_by_pod(
        pod_uid=uid,
        namespace="web",
        pod_name=f"pod-{uid}",
        containers=(container,),
        kind=kind,
        attempt=attempt,
    )
