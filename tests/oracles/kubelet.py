"""Random machines, what is taken of them, and Pods that kubelet would pin: questions to kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.nodes import KubeletPolicy, NodeFacts
from ledger.domain.request.requests import ContainerCpus, PodRequest
from ledger.domain.topology import Cpu, cpu_topology_of
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.filter.kubelet import kubelet_rejects
from tests.oracles.cpu_campaign import machine_of

FULL: Final = "full-pcpus-only"
DISTRIBUTE: Final = "distribute-cpus-across-numa"
_POLICIES: Final = {
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}
_KINDS: Final = (["app"], ["app"], ["init", "app"], ["app", "app"], ["sidecar", "app"])
_LONGER: Final = (["init", "init", "app", "app"], ["init", "sidecar", "app"], ["app"] * 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What kubelet would do with one Pod, and what deciding says of it."""

    question: Mapping[str, Any]
    kubelet: bool
    ours: bool

    @property
    def is_plain(self) -> bool:
        """Tell whether kubelet has no choice that matters: one container, or the Pod at once."""
        whole_cores = FULL in self.question["options"]
        several = len(self.question["containers"]) > 1
        return not several or (self.question["scope"] == "pod" and not whole_cores)

    @property
    def agree(self) -> bool:
        """Tell whether ours implies kubelet's, and is kubelet's where there is no choice."""
        return self.kubelet == self.ours if self.is_plain else self.kubelet or not self.ours


def question_of(seed: int) -> dict[str, Any]:
    """Return one question as the program reads it, a function of the seed alone."""
    rng = Random(f"kubelet {seed}")
    topology, host = machine_of(seed // 10)
    cores: dict[object, list[int]] = {}
    for cpu, core in sorted(host.core.items()):
        cores.setdefault(core, []).append(cpu)
    options = rng.choice([(), (), (), (FULL,), (DISTRIBUTE,), (FULL, DISTRIBUTE)])
    units = list(cores.values()) if FULL in options or rng.random() < 0.5 else None
    reserved = rng.choice(list(cores.values()))[: rng.choice([1, 8])]
    busy = {numa: rng.choice([0.0, 0.3, 0.6, 0.9]) for numa in topology.numa_nodes}
    taken = [
        cpu
        for unit in units or [[cpu] for cpu in host.core]
        if not set(unit) & set(reserved) and rng.random() < busy[topology.cpu(unit[0]).numa]
        for cpu in unit
    ]
    return {
        "cpus": [[cpu.id, cpu.core, cpu.socket, cpu.numa] for cpu in topology.cpus],
        "reserved": reserved,
        "taken": sorted(taken),
        "policy": rng.choice(list(_POLICIES)),
        "scope": rng.choice(["pod", "container"]),
        "options": dict.fromkeys(options, "true"),
        "containers": _containers(rng, host.per_numa, host.threads),
    }


def _containers(rng: Random, per_numa: int, threads: int) -> list[list[Any]]:
    kinds = rng.choice(_KINDS if rng.random() < 0.8 else _LONGER)
    most = max(1, per_numa * rng.choice([1, 1, 2, 3]) // rng.choice([1, len(kinds), 4]))
    unit = rng.choice([1, threads])
    return [[kind, max(unit, rng.randint(1, most) // unit * unit)] for kind in kinds]


def ours(question: Mapping[str, Any]) -> bool:
    """Tell whether deciding says that kubelet admits the Pod."""
    topology = cpu_topology_of(
        Cpu(id=cpu, core=core, socket=socket, numa=numa)
        for cpu, core, socket, numa in question["cpus"]
    )
    reserved = cpuset_of(question["reserved"])
    facts = NodeFacts(
        uid="n",
        name="n",
        cpu_topology=topology,
        kubelet=KubeletPolicy(
            whole_cores=FULL in question["options"],
            numa_policy=_POLICIES[question["policy"]],
            pod_scope=question["scope"] == "pod",
            kept=reserved,
            reserved=reserved,
        ),
    )
    taken: CpuSet = cpuset_of(question["taken"])
    pinned = pinned_of(facts, [CpuHolding(cpus=taken.mask)] if taken else [])
    request = PodRequest(
        uid="p",
        namespace="ml",
        name="p",
        cpu_milli=0,
        memory_bytes=0,
        kubelet_cpus=tuple(
            ContainerCpus(kind=kind, cpus=cpus) for kind, cpus in question["containers"]
        ),
    )
    return kubelet_rejects(request, facts, pinned) is None
