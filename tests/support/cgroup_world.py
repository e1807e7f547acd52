"""Pods that come to a node and go, on cgroups as kubelet lays them out, beside kubelet itself."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from agent.decide.cgroups import (
    CgroupNow,
    CgroupTree,
    CgroupVersion,
    ContainerPlanned,
    Plan,
    PodPlanned,
    Write,
)
from agent.decide.container_cpus import KubeQos
from agent.decide.pools import NodeCpus, PodCpus
from agent.decide.wanted_cpus import NodePlanned
from ledger.domain.annotations.cpu import CpuSharedPool, ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import CpuSet, cpuset_of, parse_cpuset
from tests.support.cpuset_kernel import NONE, Kernel, Numbers
from tests.support.topologies import MACHINE_Y

TOP: Final = "kubepods"
ALL: Final[Numbers] = frozenset(range(16))
RESERVED: Final[Numbers] = frozenset({0})
LSE, LSR, LS, BE, NO = (
    QosClass.LSE,
    QosClass.LSR,
    QosClass.LS,
    QosClass.BE,
    QosClass.NONE,
)
KINDS: Final = {
    "LSE": (LSE, KubeQos.GUARANTEED, True),
    "LSR": (LSR, KubeQos.GUARANTEED, True),
    "Burstable LSR": (LSR, KubeQos.BURSTABLE, True),
    "Burstable LSE": (LSE, KubeQos.BURSTABLE, True),
    "LS": (LS, KubeQos.BURSTABLE, False),
    "Guaranteed LS": (LS, KubeQos.GUARANTEED, False),
    "Burstable": (NO, KubeQos.BURSTABLE, False),
    "BE": (BE, KubeQos.BEST_EFFORT, False),
    "BestEffort": (NO, KubeQos.BEST_EFFORT, False),
    "Guaranteed": (NO, KubeQos.GUARANTEED, True),
    "Claim": (LS, KubeQos.BURSTABLE, False),
    "Guaranteed claim": (LS, KubeQos.GUARANTEED, False),
}
CLAIMS: Final = {"Claim", "Guaranteed claim"}
"""Their CPUs are a claim's, whose driver binds the container to them, once it can."""


@dataclass
class PodThere:
    """One Pod as the world has it; `own`: by the ledger, `pinned`: by kubelet."""

    uid: str
    kind: str
    own: Numbers = frozenset()
    pinned: Numbers = frozenset()
    named: int | None = None
    containers: dict[str, str] = field(default_factory=dict)
    sandbox: str = ""
    is_held: bool = True
    is_there: bool = True

    @property
    def path(self) -> str:
        """Return the Pod's cgroup, from the root."""
        kube_qos = KINDS[self.kind][1]
        part = "" if kube_qos is KubeQos.GUARANTEED else f"/{kube_qos.lower()}"
        return f"{TOP}{part}/pod{self.uid}"


class World:
    """One node: the kernel, kubelet, the ledger's holders, and whom they have."""

    def __init__(self, kernel: Kernel, rng: random.Random, *, static: bool) -> None:
        self.kernel = kernel
        self.rng = rng
        self.static = static
        self.pods: dict[str, PodThere] = {}
        self.made = 0
        for path in (TOP, f"{TOP}/burstable", f"{TOP}/besteffort"):
            kernel.mkdir(path)

    # What happens.

    def arrive(self, kind: str) -> PodThere | None:
        """A Pod comes: the ledger knows its CPUs before its cgroups are there."""
        qos, kube_qos, whole = KINDS[kind]
        self.made += 1
        pod = PodThere(uid=f"{self.made:04}", kind=kind)
        size = self.rng.randint(1, 3)
        if qos in {LSE, LSR} or kind in CLAIMS:
            free = self.shared() - RESERVED
            if len(free) <= size:
                return None
            pod.own = frozenset(self.rng.sample(sorted(free), size))
        if qos is LS and kind not in CLAIMS and self.rng.random() < 0.5:
            pod.named = self.rng.choice([0, 1])
        if self.static and whole and kube_qos is KubeQos.GUARANTEED:
            free = self.kubelets_pool() - RESERVED
            if len(free) <= size:
                return None
            pod.pinned = frozenset(self.rng.sample(sorted(free), size))
        self.pods[pod.uid] = pod
        self.kernel.mkdir(pod.path)
        pod.sandbox = f"sandbox{pod.uid}"
        self.kernel.mkdir(f"{pod.path}/{pod.sandbox}", tasks=True)
        self.start(pod)
        self.kubelet_writes()
        return pod

    def start(self, pod: PodThere) -> None:
        """Its container starts, or starts again with another id."""
        for container in pod.containers:
            self.kernel.rmdir(f"{pod.path}/{container}")
        self.made += 1
        pod.containers = {f"c{self.made:05}": "main"}
        path = f"{pod.path}/{next(iter(pod.containers))}"
        self.kernel.mkdir(path, tasks=True)
        if self.static:
            cpus = pod.pinned or self.kubelets_pool()
            self.kernel.write(path, "cpuset.cpus", ",".join(map(str, sorted(cpus))))

    def drivers_write(self) -> None:
        """Claims' drivers bind who has claims: what is above their containers lets them."""
        for pod in self.pods.values():
            for container in pod.containers if pod.is_there and pod.own else ():
                if pod.kind in CLAIMS:
                    cpus = ",".join(map(str, sorted(pod.own)))
                    self.kernel.write(f"{pod.path}/{container}", "cpuset.cpus", cpus)

    def kubelet_writes(self) -> None:
        """Kubelet's static policy writes its own shared pool into whoever it pinned not."""
        for pod in self.pods.values() if self.static else ():
            for container in pod.containers if pod.is_there and not pod.pinned else ():
                cpus = ",".join(map(str, sorted(self.kubelets_pool())))
                self.kernel.write(f"{pod.path}/{container}", "cpuset.cpus", cpus)

    def kubelet_restarts(self) -> None:
        """Kubelet writes the CPUs of every container once."""
        for pod in self.pods.values() if self.static else ():
            for container in pod.containers if pod.is_there else ():
                cpus = pod.pinned or self.kubelets_pool()
                text = ",".join(map(str, sorted(cpus)))
                self.kernel.write(f"{pod.path}/{container}", "cpuset.cpus", text)

    def end(self, pod: PodThere) -> None:
        """Its cgroups go."""
        pod.is_there = False
        self.kernel.rmdir(pod.path)
        pod.pinned, pod.containers = frozenset(), {}
        self.kubelet_writes()
        self._forget(pod)

    def release(self, pod: PodThere) -> None:
        """The ledger gives its CPUs back."""
        pod.is_held = False
        pod.own = frozenset()
        self._forget(pod)

    def _forget(self, pod: PodThere) -> None:
        if not pod.is_there and not pod.is_held:
            del self.pods[pod.uid]

    def step(self) -> None:
        """Something happens."""
        pods = [pod for pod in self.pods.values() if pod.is_there]
        held = [pod for pod in self.pods.values() if pod.is_held]
        match self.rng.randint(0, 9):
            case 0 | 1 if pods:
                pod = self.rng.choice(pods)
                self.end(pod)
                if self.rng.random() < 0.7 and pod.is_held:
                    self.release(pod)
            case 2 if held:
                self.release(self.rng.choice(held))
            case 3 if pods:
                self.start(self.rng.choice(pods))
            case 4:
                self.kubelet_restarts()
            case _:
                self.arrive(self.rng.choice(list(KINDS)))

    # What is true.

    def kubelets_pool(self) -> Numbers:
        """Return the CPUs that kubelet's static policy gave to nobody."""
        return ALL - frozenset[int]().union(*(pod.pinned for pod in self.pods.values()))

    def owned(self, pod: PodThere) -> Numbers:
        """Return the own CPUs of a Pod but those that kubelet gave to one without own CPUs."""
        others = (
            other.pinned for other in self.pods.values() if other is not pod and not other.own
        )
        return pod.own - frozenset[int]().union(*others)

    def shared(self) -> Numbers:
        """Return the CPUs that are nobody's own."""
        return self.kubelets_pool() - frozenset[int]().union(
            *(pod.own for pod in self.pods.values())
        )

    def best_effort(self) -> Numbers:
        """Return the CPUs for BE Pods."""
        alone = {"LSE", "Burstable LSE"} | CLAIMS
        lse = (pod.own for pod in self.pods.values() if pod.kind in alone)
        return self.kubelets_pool() - frozenset[int]().union(*lse)

    def forbidden(self, pod: PodThere) -> Numbers:
        """Return the CPUs that are others' own, so that this Pod may never be given them."""
        qos, kube_qos, _ = KINDS[pod.kind]
        is_best_effort = not pod.own and (qos is BE or (qos is NO and kube_qos == "BestEffort"))
        found: set[int] = set()
        for other in self.pods.values():
            if other is pod:
                continue
            if not (is_best_effort and KINDS[other.kind][0] is LSR):
                found |= self.owned(other)
            if not other.own:
                found |= other.pinned
        return frozenset(found)

    def expected(self, pod: PodThere, leaf: str) -> Numbers:
        """Return the CPUs that tasks of a container are to have; none = as it is."""
        qos, kube_qos, _ = KINDS[pod.kind]
        if pod.own and pod.kind in CLAIMS:
            return NONE if leaf == pod.sandbox else pod.own
        if pod.own:
            return self.owned(pod)
        if pod.pinned:
            return NONE if leaf == pod.sandbox else pod.pinned
        if qos is BE or (qos is NO and kube_qos == "BestEffort"):
            return self.best_effort()
        half = frozenset(range(4)) | frozenset(range(8, 12))
        place = {0: half, 1: ALL - half, None: ALL}[pod.named]
        return self.shared() & place or self.shared()

    # What the planner is given, and what becomes of its answer.

    def tree(self) -> CgroupTree:
        """Return the cgroups as a reader finds them."""
        return tree_of(self.kernel)

    def node(self) -> NodePlanned:
        """Return what the ledger and kubelet say."""
        held = {
            f"{'claim-' * (pod.kind in CLAIMS)}{pod.uid}": PodCpus(
                cpus=cpuset_of(pod.own), qos=LSE if pod.kind in CLAIMS else KINDS[pod.kind][0]
            )
            for pod in self.pods.values()
            if pod.own
        }
        planned = tuple(
            PodPlanned(
                uid=pod.uid,
                qos=KINDS[pod.kind][0],
                kube_qos=KINDS[pod.kind][1],
                status=ResourceStatus(
                    cpu_shared_pools=()
                    if pod.named is None
                    else (CpuSharedPool(socket=pod.named, node=pod.named),)
                ),
                containers=tuple(
                    ContainerPlanned(
                        name=name,
                        id=container,
                        whole_cpus=KINDS[pod.kind][2],
                        given=cpuset_of(pod.pinned),
                        limit_milli=1000,
                    )
                    for container, name in pod.containers.items()
                ),
                stays=pod.kind in CLAIMS and bool(pod.own),
                claimed=cpuset_of(pod.own if pod.kind in CLAIMS else NONE),
            )
            for pod in self.pods.values()
            if pod.is_there
        )
        cpus = NodeCpus(
            topology=MACHINE_Y,
            kubelet_reserved=cpuset_of(RESERVED),
            kubelet_static=self.static,
        )
        return NodePlanned(cpus=cpus, held=held, pods=planned)

    def apply(self, writes: Plan | tuple[Write, ...]) -> None:
        """Write; after each write nobody has more of others' own CPUs than before the first."""
        before = self.trespasses()
        for write in writes.writes if isinstance(writes, Plan) else writes:
            self.write(write)
            for leaf, cpus in self.trespasses().items():
                assert cpus <= before[leaf], (write, leaf, sorted(cpus), sorted(before[leaf]))

    def apply_late(self, writes: tuple[Write, ...]) -> None:
        """Write what was planned for a tree that is another now; some of it is refused."""
        for write in writes:
            with suppress(OSError):
                self.kernel.write(self._path(write), write.file, write.value)

    def write(self, write: Write) -> None:
        """Write and read back."""
        self.kernel.write(self._path(write), write.file, write.value)
        text = self.kernel.text(self._path(write), write.file)
        assert write.is_read_back(text), (write, text)

    def _path(self, write: Write) -> str:
        return f"{TOP}/{write.path}" if write.path else TOP

    def trespasses(self) -> dict[str, Numbers]:
        """
        Return which of others' own CPUs each container may use.

        Not of one that kubelet bound to a CPU of another Pod's partition: as long as that is there,
        the kernel lets it run on all CPUs. Nor of the sandbox of a Pod that kubelet pins.
        """
        found = {}
        for pod in self.pods.values():
            others = NONE.union(*(other.own for other in self.pods.values() if other is not pod))
            forbidden = self.forbidden(pod) if pod.is_there else NONE
            for leaf in [*pod.containers, pod.sandbox] if pod.is_there else ():
                path = f"{pod.path}/{leaf}"
                is_alone = leaf == pod.sandbox or bool(pod.pinned & others)
                is_robbing = is_alone and not pod.own and bool(pod.pinned)
                found[path] = NONE if is_robbing else self.kernel.effective(path) & forbidden
        return found

    def check(self) -> None:
        """Everybody has what is his."""
        self.drivers_write()
        for pod in self.pods.values():
            for leaf in [*pod.containers, pod.sandbox] if pod.is_there else ():
                wanted = self.expected(pod, leaf)
                found = self.kernel.effective(f"{pod.path}/{leaf}")
                assert not wanted or found == wanted, (pod, leaf, sorted(found), sorted(wanted))


def tree_of(kernel: Kernel) -> CgroupTree:
    """Return kubepods and what is below it as a reader finds it."""
    found = []
    for path in sorted(kernel.groups, key=lambda path: (path.count("/"), path)):
        if path.partition("/")[0] != TOP:
            continue
        parts = path.split("/")[1:]
        at = next((at for at, part in enumerate(parts) if part.startswith("pod")), None)
        group = kernel.groups[path]
        has_partition = kernel.version == 2
        found.append(
            CgroupNow(
                path="/".join(parts),
                pod_uid="" if at is None else parts[at].removeprefix("pod"),
                container=parts[at + 1] if at is not None and len(parts) > at + 1 else "",
                cpus=_cpus(group.cpus),
                effective=_cpus(kernel.effective(path)),
                mems=_cpus(group.mems),
                effective_mems=_cpus(kernel.effective_mems(path)),
                quota=group.quota,
                exclusive=_cpus(group.exclusive),
                partition=group.partition if has_partition else "",
            )
        )
    return CgroupTree(
        version=CgroupVersion(kernel.version), kernel=kernel.release, cgroups=tuple(found)
    )


def _cpus(found: Numbers) -> CpuSet:
    return parse_cpuset(",".join(map(str, sorted(found))))
