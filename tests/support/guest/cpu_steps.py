"""
Random steps of Pods on real cgroups: what is on the disk after each equals what was granted.

Runs in the guest, as root. This module plays the scheduler (who gets which CPUs) and kubelet; our
own planner and writer do the rest. Whether what they did is right is judged here by plain sets.

    python -m tests.support.guest.cpu_steps FORM RELEASE SEED STEPS CLAIMS [systemd | busy]
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypedDict

from agent.cpus.applying import apply
from agent.cpus.tree import Kubepods
from agent.decide.cgroup_plan import PARTITIONS_SINCE, plan, plan_removal
from agent.decide.cgroups import CgroupTree, ContainerPlanned, PodPlanned
from agent.decide.container_cpus import KubeQos
from agent.decide.pools import NodeCpus, PodCpus
from agent.decide.wanted_cpus import NodePlanned
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, cpuset_of
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from tests.support.guest.kubelet_tree import (
    CGROUPS,
    SANDBOX,
    KubeletTree,
    OnStart,
    cpus_of,
    text_of,
    write,
)
from tests.support.guest.poller import Claim
from tests.support.guest.switches import Ran, Switches
from tests.support.guest.systemd_tree import SystemdTree

EVERY: Final = frozenset(range(8))
SWITCH: Final = "/sys/devices/system/cpu/cpu{}/online"
PODS_MAX: Final = 8
ROUNDS_MAX: Final = 8
FOLLOWS_SECONDS: Final = 30.0
EFFECTIVE: Final = {"v1": "cpuset.effective_cpus", "v2": "cpuset.cpus.effective"}
LIMIT_MICROSECONDS: Final = 100
"""Of a CFS quota for each thousandth of a CPU: its period is 100 ms."""
_LIMIT: Final = {"v1": "cpu.cfs_quota_us", "v2": "cpu.max"}
_OF_PARTITIONS: Final = (("cpuset.cpus.exclusive", ""), ("cpuset.cpus.partition", "member"))
"""The files of a partition, and what the kernel says in them without one."""
KUBE_QOS: Final = {
    "LSE": "Guaranteed",
    "LSR": "Guaranteed",
    "LS": "Burstable",
    "BE": "BestEffort",
    "Burstable": "Burstable",
    "BestEffort": "BestEffort",
    "kubelet": "Guaranteed",
}
"""What a Pod is called here -> Kubernetes' own class; the last has CPUs of kubelet's manager."""
_QOS: Final = {"LSE": QosClass.LSE, "LSR": QosClass.LSR, "LS": QosClass.LS, "BE": QosClass.BE}


class Came(TypedDict):
    """
    Everything of one run.

    `slowest`: seconds that a step took to be in force; `alone`: containers of LSE Pods; `left`:
    what giving back left as it was; `switches`: to containers' processes, `ran` of them on CPUs of
    others; `rewritten`: what systemd changed as it read its units again.
    """

    seed: int
    static: bool
    steps: int
    acts: dict[str, int]
    writes: int
    rounds: int
    slowest: float
    partitions: int
    alone: list[str]
    wrong: list[str]
    left: list[str]
    switches: int
    ran: list[Ran]
    rewritten: list[str]


@dataclass(slots=True, kw_only=True)
class Granted:
    """
    One Pod as the scheduler placed it.

    Attributes:
        cpus: its own; empty = none.
    """

    uid: str
    kind: str
    cpus: frozenset[int] = frozenset()
    containers: list[str] = field(default_factory=list)


class World:
    """
    Pods that come, go and restart on one machine.

    Attributes:
        static: kubelet has its static policy: it pins some Pods, and when it does, it writes what
            is left to it into every other container, whoever has it.
        rides: BE Pods may use the CPUs of LSR Pods.
        online: the CPUs that the machine has at the moment.
        rewritten: what was wrong right after systemd read its units again.
    """

    def __init__(
        self,
        form: str,
        kernel: tuple[int, int],
        seed: int,
        claims: Path,
        make_tree: Callable[[str, OnStart], KubeletTree] = KubeletTree,
    ) -> None:
        self.form = form
        self.kernel = kernel
        self.static = bool(seed % 2)
        self.rides = False
        self.rewritten: list[str] = []
        self.pods: dict[str, Granted] = {}
        self.online = set(EVERY)
        self.switches = Switches()
        self.tree = make_tree(form, self.switches.born)
        self._kinds = [kind for kind in KUBE_QOS if self.static or kind != "kubelet"]
        self._first = [*(["kubelet"] * self.static), "BE", "LSR", "LSE"]
        self._rng = random.Random(seed)
        self._claims = claims
        self._made = 0
        self._claimed: dict[str, Claim] = {}
        self._claims_written = 0
        self._listed = set[str]()
        self.all_listed = form == "v1"  # runc writes its parent's
        self.claim()

    def step(self) -> str:
        """Let one thing happen to the Pods, and return what."""
        if self._first:
            return self._make(self._first.pop(), 1)
        choices = ["make"] * 2 * (len(self.pods) < PODS_MAX)
        if self.pods:
            choices += ["restart", "end"]
        if any(pod.kind == "LSR" for pod in self.pods.values()):
            choices.append("rides")
        if self.online != EVERY or self._spare():
            choices.append("cpu")
        if isinstance(self.tree, SystemdTree):
            choices += ["reload"] * 2
        act = self._rng.choice(choices)
        if act == "make":
            return self._make(self._rng.choice(self._kinds), self._rng.choice([1, 2, 2, 3]))
        if act == "rides":
            self.claim(without={uid for uid in self.pods if self.pods[uid].kind == "LSR"})
            self.rides = not self.rides
            return act
        if act == "reload":
            return self._reload()
        if act == "cpu":
            return self.bring() if self.online != EVERY else self._take()
        pod = self.pods[self._rng.choice(sorted(self.pods))]
        return self._restart(pod) if act == "restart" else self._end(pod)

    def own(self) -> frozenset[int]:
        """Return the CPUs that Pods have to themselves."""
        return frozenset().union(*(pod.cpus for pod in self.pods.values()))

    def node(self) -> NodePlanned:
        """Return what the ledger, the API and kubelet's state say of the node."""
        return NodePlanned(
            cpus=NodeCpus(topology=self.topology(), kubelet_static=self.static),
            held={
                pod.uid: PodCpus(
                    cpus=cpuset_of(pod.cpus),
                    qos=_QOS.get(pod.kind, QosClass.NONE),
                    by_kubelet=pod.kind == "kubelet",
                )
                for pod in self.pods.values()
                if pod.cpus
            },
            pods=tuple(map(self._planned, self.pods.values())),
            best_effort=None if self.rides else cpuset_of(self.online - self.own()),
        )

    def claim(self, *, without: Collection[str] = ()) -> None:
        """Tell the poller whose CPUs are nobody else's from now on."""
        best_effort = [
            str(folder)
            for pod in self.pods.values()
            if KUBE_QOS[pod.kind] == "BestEffort"
            for folder in self.tree.folders(pod.uid, with_sandbox=True).values()
        ]
        left_alone = [
            str(self.tree.folders(pod.uid, with_sandbox=True)[SANDBOX])
            for pod in self.pods.values()
            if pod.kind == "kubelet"
        ]
        claims: dict[str, Claim] = {}
        for pod in self.pods.values():
            if not pod.cpus or pod.uid in without:
                continue
            folders = self.tree.folders(pod.uid, with_sandbox=True)
            guests = [*left_alone, *map(str, folders.values())]
            if pod.kind == "LSR" and self.rides:
                guests += best_effort
            for name, folder in folders.items():
                if name != SANDBOX:
                    claim = Claim(since=self._claims_written, cpus=sorted(pod.cpus), guests=guests)
                    before = self._claimed.get(str(folder))
                    if before is not None and before | {"since": self._claims_written} == claim:
                        claim = before
                    claims[str(folder)] = claim
        self._claimed = claims
        self._claims_written += 1
        self.switches.claim(claims)
        new = self._claims.with_suffix(".new")
        new.write_text(json.dumps(claims))
        new.rename(self._claims)

    def wrong(self) -> Iterator[str]:
        """Yield what the kernel lets containers use and should not, or the other way round."""
        if self.form == "v2" and self.kernel >= PARTITIONS_SINCE:
            alone = {pod.uid for pod in self.pods.values() if pod.kind == "LSE"}
            if alone != (parted := self.in_partitions()):
                yield f"partitions={parted}, LSE={alone}"
        shared = self.online - self.own()
        rode = self.online.intersection(
            frozenset().union(*(p.cpus for p in self.pods.values() if p.kind == "LSR"))
        )
        best_effort = shared | rode if self.rides else shared
        for pod in self.pods.values():
            right = best_effort if KUBE_QOS[pod.kind] == "BestEffort" else shared
            for name, folder in self.tree.folders(pod.uid).items():
                usable = frozenset(cpus_of((folder / EFFECTIVE[self.form]).read_text()))
                wanted = pod.cpus & self.online or right
                if usable != wanted:
                    yield (
                        f"{pod.kind} {pod.uid[:8]} {name}: usable={text_of(usable)},"
                        f" right={text_of(wanted)}"
                    )

    def left(self) -> Iterator[str]:
        """Yield what is not as if we had never been here; kubelet's Pods keep their CPUs."""
        pinned = [pod for pod in self.pods.values() if pod.kind == "kubelet"]
        shared = self.online.difference(*(pod.cpus for pod in pinned))
        for pod in self.pods.values():
            for name, folder in self.tree.folders(pod.uid).items():
                right = shared if self.has_list(pod, name) else frozenset(self.online)
                if pod in pinned:
                    right = pod.cpus & self.online
                usable = frozenset(cpus_of((folder / EFFECTIVE[self.form]).read_text()))
                if usable != right:
                    yield (
                        f"{pod.kind} {pod.uid[:8]} {name}: usable={text_of(usable)},"
                        f" right={text_of(right)}"
                    )
        for file, none in (
            (cgroup / name, none) for cgroup in self._cgroups() for name, none in _OF_PARTITIONS
        ):
            if file.exists() and (got := file.read_text().strip()) != none:
                yield f"{file}: {got}"
        for file, limit in self.limits():
            if (got := file.read_text().split()[0]) != limit:
                yield f"{file}: {got}, kubelet wrote {limit}"

    def has_list(self, pod: Granted, name: str) -> bool:
        """Tell whether kubelet or runc wrote a list of CPUs into a container's cgroup."""
        return self.all_listed or self.tree.pods[pod.uid].containers[name] in self._listed

    def limits(self) -> Iterator[tuple[Path, str]]:
        """Yield each CFS quota of Pods with CPUs of their own: its file, and kubelet's value."""
        top, file = self.tree.tops[-1], _LIMIT[self.form]
        for pod in self.pods.values():
            limit = self.limit_milli(pod) * LIMIT_MICROSECONDS
            if pod.kind not in {"LSE", "LSR"} or not limit:
                continue
            for name in self.tree.folders(pod.uid):
                yield top / self.tree.container_path(pod.uid, name) / file, str(limit)
            yield top / self.tree.pod_path(pod.uid) / file, str(limit * len(pod.containers))

    def limit_milli(self, pod: Granted) -> int:
        """Return the CPU limit of each container of a Pod."""
        return 2000 // len(pod.containers) if pod.cpus and pod.kind != "kubelet" else 0

    def _cgroups(self) -> Iterator[Path]:
        yield self.tree.tree
        for uid in self.pods:
            yield self.tree.tops[0] / self.tree.pod_path(uid)
            yield from self.tree.folders(uid, with_sandbox=True).values()

    def in_partitions(self) -> set[str]:
        """Return the Pods whose CPUs the kernel itself keeps from all others."""
        found = set()
        for pod in self.pods.values():
            file = self.tree.tops[0] / self.tree.pod_path(pod.uid) / "cpuset.cpus.partition"
            if file.exists() and file.read_text().strip() == "root":
                found.add(pod.uid)
        return found

    def _planned(self, pod: Granted) -> PodPlanned:
        made = self.tree.pods[pod.uid].containers
        own = cpuset_of(pod.cpus)
        pinned = pod.kind == "kubelet"
        return PodPlanned(
            uid=pod.uid,
            qos=_QOS.get(pod.kind, QosClass.NONE),
            kube_qos=KubeQos(KUBE_QOS[pod.kind]),
            status=ResourceStatus(cpuset=EMPTY if pinned else own),
            containers=tuple(
                ContainerPlanned(
                    name=name,
                    id=made[name],
                    whole_cpus=pinned,
                    given=own if pinned else EMPTY,
                    limit_milli=self.limit_milli(pod),
                )
                for name in pod.containers
                if name in made
            ),
        )

    def topology(self) -> CpuTopology:
        """Return the CPUs that are online; one without its sibling is a core of its own."""
        cores: dict[int, int] = {}
        return cpu_topology_of(
            Cpu(id=cpu, core=cores.setdefault(cpu // 2, cpu), socket=cpu // 4, numa=cpu // 4)
            for cpu in sorted(self.online)
        )

    def _spare(self) -> list[int]:
        """Return the CPUs without which everybody still has one; kubelet's own it lets alone."""
        free = self.online - self.own()
        spare = {cpu for cpu in free if cpu and len(free) > 3}
        for pod in self.pods.values():
            if pod.kind != "kubelet" and len(pod.cpus) > 1:
                spare |= pod.cpus - {0}
        return sorted(spare)

    def _take(self) -> str:
        """Take a CPU off the machine."""
        cpu = self._rng.choice(self._spare())
        Path(SWITCH.format(cpu)).write_text("0")
        self.online.remove(cpu)
        self._until(lambda: not any(cpu in usable for usable in self._usable()))
        return "take a CPU"

    def bring(self) -> str:
        """Bring it back; on v1 an administrator has to give it to the cgroup of all Pods."""
        (cpu,) = EVERY - self.online
        Path(SWITCH.format(cpu)).write_text("1")
        self.online.add(cpu)
        if self.form == "v1":
            top = self.tree.tops[0] / EFFECTIVE["v1"]
            self._until(lambda: cpu in cpus_of(top.read_text()))
            write(self.tree.tree / "cpuset.cpus", text_of(self.online))
        else:
            self._until(lambda: any(cpu in usable for usable in self._usable()))
        return "bring a CPU"

    def _usable(self) -> Iterator[set[int]]:
        """Yield what the kernel lets each cgroup use, the one of all Pods first."""
        folders = [self.tree.tree, *(self.tree.tops[0] / self.tree.pod_path(u) for u in self.pods)]
        for folder in folders:
            yield cpus_of((folder / EFFECTIVE[self.form]).read_text())

    @staticmethod
    def _until(holds: Callable[[], bool]) -> None:
        """Wait for the kernel, which tells cgroups of CPUs a moment later."""
        end = time.monotonic() + FOLLOWS_SECONDS
        while not holds():
            assert time.monotonic() < end, "the kernel does not follow"
            time.sleep(0.01)

    def _reload(self) -> str:
        """Let systemd read its units again, which writes them into cgroups as it pleases."""
        assert isinstance(self.tree, SystemdTree)
        self.tree.reload()
        self.rewritten += list(self.wrong())
        return "reload"

    def _make(self, kind: str, cpus_wanted: int) -> str:
        free = self.online - self.own()
        wanted = cpus_wanted if kind in {"LSE", "LSR", "kubelet"} else 0
        if len(free) - wanted < 2:  # somebody has to run on what is left
            kind, wanted = "LS", 0
        cpus = frozenset(self._rng.sample(sorted(free), wanted))
        self.add(kind, cpus, containers=1 if kind == "kubelet" else self._rng.choice([1, 1, 2]))
        return f"make {kind}"

    def add(self, kind: str, cpus: frozenset[int], *, containers: int) -> list[int]:
        """Let a Pod come, and return the processes of its containers."""
        self._made += 1
        pod = Granted(
            uid=f"{self._made:08x}-0000-4000-8000-000000000000",
            kind=kind,
            cpus=cpus,
            containers=[f"c{number}" for number in range(containers)],
        )
        # The ledger knows of a Pod before kubelet does.
        self.tree.make_pod(pod.uid, KUBE_QOS[kind])
        self.pods[pod.uid] = pod
        for name in pod.containers:
            self._start(pod, name)
        made = self.tree.pods[pod.uid].containers
        return [self.tree.processes[made[name]] for name in pod.containers]

    def _restart(self, pod: Granted) -> str:
        name = self._rng.choice(pod.containers)
        self.claim(without={pod.uid})
        self.tree.stop(pod.uid, name)
        self._start(pod, name)
        return f"restart {pod.kind}"

    def _end(self, pod: Granted) -> str:
        self.claim(without={pod.uid})
        del self.pods[pod.uid]
        self.tree.end_pod(pod.uid)
        if pod.kind == "kubelet":
            self._kubelet_writes()
        return f"end {pod.kind}"

    def _start(self, pod: Granted, name: str) -> None:
        if pod.kind == "kubelet":
            self._kubelet_writes()
        self.tree.start(pod.uid, name, text_of(pod.cpus) if pod.kind == "kubelet" else "")

    def _kubelet_writes(self) -> None:
        """Write kubelet's own shared pool into every container that it does not pin."""
        self.claim(without=self.pods.keys() - self.in_partitions())
        pinned = [pod for pod in self.pods.values() if pod.kind == "kubelet"]
        left = self.online.difference(*(pod.cpus for pod in pinned))
        for pod in self.pods.values():
            if pod.kind != "kubelet":
                for name in self.tree.folders(pod.uid):
                    self.tree.update(pod.uid, name, text_of(left))
                    self._listed.add(self.tree.pods[pod.uid].containers[name])


def opened(world: World, made: type[Kubepods] = Kubepods) -> Kubepods:
    """Return the tree as our process opens it."""
    cpu = CGROUPS / "cpu,cpuacct" / world.tree.kubepods if world.form == "v1" else None
    return made(world.tree.tree, cpu, world.kernel)


class Binder:
    """Our own half: it reads, plans and writes until nothing is to be written."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._files = opened(world)
        self.writes = self.rounds = 0
        self.refused: list[str] = []

    def settle(self, *, whole: bool) -> CgroupTree:
        """
        Write until nothing is left to write, and return the tree then.

        Args:
            whole: look at every cgroup, also where the kernel told of no change.
        """
        self.refused.clear()
        for tried in range(1, ROUNDS_MAX + 1):
            tree = self._files.look(whole=whole)
            writes = plan(tree, self._world.node()).writes
            if not writes:
                break
            applied = apply(self._files, writes)
            self.writes += len(applied.done)
            self.refused += [f"{each.about}: {each.words}" for each in applied.refused]
            self.rounds = max(self.rounds, tried)
        else:
            raise AssertionError(f"no end: {writes}, {self.refused}")
        return tree

    def give_back(self) -> None:
        """Undo all of it."""
        for _ in range(ROUNDS_MAX):
            writes = plan_removal(self._files.look(), self._world.node()).writes
            if not writes:
                return
            apply(self._files, writes)
        raise AssertionError(f"no end: {writes}")


class Binds(Protocol):
    """What binds on our side; `writes` and `rounds`: how many, and how many at most for a step."""

    writes: int
    rounds: int

    def settle(self, *, whole: bool) -> object:
        """Bring cgroups to the plan; `whole` = also where the kernel tells of no change."""

    def give_back(self) -> None:
        """Undo all of it."""


def run(world: World, binder: Binds, seed: int, steps: int) -> Came:
    """Take so many steps, and return what came of them."""
    came = Came(
        seed=seed,
        static=world.static,
        steps=0,
        acts={},
        writes=0,
        rounds=0,
        slowest=0.0,
        partitions=0,
        alone=[],
        wrong=[],
        left=[],
        switches=0,
        ran=[],
        rewritten=[],
    )
    acts: Counter[str] = Counter()
    try:
        for number in range(steps):
            act = world.step()
            acts[act] += 1
            began = time.monotonic()
            binder.settle(whole=act.endswith("CPU"))
            came["slowest"] = max(came["slowest"], time.monotonic() - began)
            came["wrong"] += [f"step {number}, {act}: {what}" for what in world.wrong()]
            came["partitions"] = max(came["partitions"], len(world.in_partitions()))
            world.claim()
            came["alone"] += [
                str(folder)
                for pod in world.pods.values()
                if pod.kind == "LSE"
                for folder in world.tree.folders(pod.uid).values()
                if str(folder) not in came["alone"]
            ]
            came["steps"] += 1
        world.claim(without=set(world.pods))
        world.switches.end()
        came |= {"switches": world.switches.total, "ran": world.switches.ran}
        came["rewritten"] = world.rewritten
        if world.online != EVERY:
            world.bring()
        binder.give_back()
        came |= {"writes": binder.writes, "rounds": binder.rounds, "acts": dict(acts)}
        came["left"] = list(world.left())
    finally:
        for cpu in EVERY - world.online:
            Path(SWITCH.format(cpu)).write_text("1")
        world.tree.end()
    return came


if __name__ == "__main__":
    of_form, release, of_seed, many, file, *more = sys.argv[1:]
    major, minor = map(int, release.split("."))
    trees: dict[str, Callable[[str, OnStart], KubeletTree]] = {
        "": KubeletTree,
        "systemd": SystemdTree,
        "busy": partial(KubeletTree, idle=0.0),
    }
    made = World(of_form, (major, minor), int(of_seed), Path(file), trees["".join(more)])
    json.dump(run(made, Binder(made), int(of_seed), int(many)), sys.stdout)
