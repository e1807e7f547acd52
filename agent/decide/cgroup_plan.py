"""Which files of which cgroups to write, in which order, so that Pods run where they are to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from agent.decide import cgroups as cg
from agent.decide.cgroup_order import Cell, orderly
from agent.decide.container_cpus import KubeQos
from agent.decide.pools import joined
from agent.decide.wanted_cpus import NodePlanned, Wanted, may_be_kubelets, wanted_of
from ledger.domain.cpuset import EMPTY, CpuSet, union

PARTITIONS_SINCE: Final = (6, 7)
FREE_EXCLUSIVE_SINCE: Final = (6, 10)
"""Before it, `cpuset.cpus.exclusive` has to be within `cpuset.cpus`, above the partition, too."""
_ROOT: Final = "root"
_VALID: Final = {_ROOT, "isolated"}
_MEMBER: Final = "member"


@dataclass(slots=True)
class _Goal:
    """What one cgroup is to have; None = as it is."""

    cpus: CpuSet | None = None
    mems: CpuSet | None = None
    quota: int | None = None
    own: CpuSet = EMPTY
    alone: bool = False


def plan(tree: cg.CgroupTree, node: NodePlanned) -> cg.Plan:
    """
    Return the writes that bind the Pods of a node, none if all is as wanted. Pure and total.

    Rule: CPU proposal, "Take over kubelet CPU management policies".

    Nobody is given a CPU that is another's own: who has to leave it is narrowed first. Where a
    write comes too late, as a child was born meanwhile, plan again on what is read then. Kubepods'
    own cgroup is written only as far as a partition needs it, and nothing above it ever.
    """
    planning = _Planning(tree, node)
    planning.set_goals()
    dropped = planning.dropped()
    planning.move()
    planning.drop(dropped)
    planning.part(dropped)
    planning.set_quotas()
    return cg.Plan(writes=tuple(planning.writes), unbound=tuple(planning.unbound))


def plan_removal(tree: cg.CgroupTree, node: NodePlanned) -> cg.Plan:
    """
    Return the writes that give everything back; what kubelet's static policy gave stays.

    So do containers of Pods that stay: somebody else may have bound them.
    On v2 a cgroup that was narrowed once and has tasks can't be emptied: it gets every CPU. A CPU
    that is added to the machine later is not among them.
    """
    planning = _Planning(tree, node)
    planning.set_goals_of_removal()
    dropped = planning.dropped()
    planning.drop(dropped)
    planning.part()
    planning.move({one.path for one in dropped})
    planning.set_quotas(upwards=True)
    return cg.Plan(writes=tuple(planning.writes))


def with_strays(cgroups: Iterable[cg.CgroupNow], node: NodePlanned) -> NodePlanned:
    """Return the node with the Pods that have cgroups, and of which kubelet has not told (yet)."""
    known = {pod.uid for pod in node.pods}
    strays = {
        one.pod_uid: cg.PodPlanned(
            uid=one.pod_uid, kube_qos=kube_qos_of(one.path) or KubeQos.GUARANTEED
        )
        for one in cgroups
        if one.pod_uid and one.pod_uid not in known
    }
    return replace(node, pods=(*node.pods, *strays.values()))


class _Planning:
    def __init__(self, tree: cg.CgroupTree, node: NodePlanned) -> None:
        self.v1: Final = tree.version is cg.CgroupVersion.V1
        self.tree: Final = tree
        self.by_path: Final[dict[str, cg.CgroupNow]] = {}
        for one in tree.cgroups:
            if not one.path or _above(one.path) in self.by_path:
                self.by_path[one.path] = one
        self.node: Final = with_strays(self.by_path.values(), node)
        self.by_uid: Final = {pod.uid: pod for pod in self.node.pods}
        self.wanted: Final[Wanted] = wanted_of(self.node)
        self.names: Final = {one.id: one for pod in node.pods for one in pod.containers if one.id}
        self.cpus = self.mems = EMPTY
        if (top := self.by_path.get("")) is not None:
            self.cpus = top.cpus or node.cpus.topology.cpuset | top.effective
            self.mems = top.mems or top.effective_mems
        self.goals: Final = {path: _Goal() for path in self.by_path}
        self.unbound: Final = list(self.wanted.unbound)
        self.writes: Final[list[cg.Write]] = []

    def write(self, path: str, file: cg.CgroupFile, value: str) -> None:
        self.writes.append(cg.Write(path=path, file=file, value=value))

    def set_goals(self) -> None:
        """
        Say what each cgroup is to have.

        A Pod's cgroup has what its containers have, a QoS class's what its Pods and its newborn
        have, so that who is born there touches nobody's own CPUs. Of a Pod that stays that is what
        it asks for and has, and with a claim the claim's CPUs and a pool: its driver needs them
        above its containers. Above a container that may get any CPU all is wide, as on v1 with
        kubelet's static policy.
        """
        pools = {
            KubeQos.BEST_EFFORT: joined(self.wanted.pools.best_effort),
            KubeQos.BURSTABLE: joined(self.wanted.pools.shared),
        }
        alone = union(pod.own for pod in self.wanted.pods.values() if pod.alone)
        wide = self.cpus if self.v1 else self.cpus - alone
        is_kubelets = self.v1 and self.node.cpus.kubelet_static
        below: dict[str, list[CpuSet]] = {}
        for path, one in reversed(self.by_path.items()):
            if not path:
                continue
            goal, above = self.goals[path], self.by_path[_above(path)]
            if one.pod_uid and self.wanted.pods[one.pod_uid].stays:
                asked = union([one.cpus & one.effective, *below.get(path, ())])
                claimed = self.by_uid[one.pod_uid].claimed & self.cpus
                if claimed and not one.container:
                    pool = pools[kube_qos_of(path) or KubeQos.BURSTABLE] or one.effective
                    asked = union([claimed, *below.get(path, ())]) | pool & self.cpus
                    asked = goal.cpus = wide if is_kubelets else asked
                if asked:
                    below.setdefault(above.path, []).append(asked)
                continue
            if one.container:
                cpus = self._container_cpus(one)
                if above.container:  # made by the container itself
                    goal.cpus = (one.cpus & cpus or cpus or None) if self.v1 else None
                    continue
            else:
                members = below.get(path, [])
                if one.pod_uid:
                    pod = self.wanted.pods[one.pod_uid]
                    members += [pod.unnamed, *pod.containers.values()]
                else:
                    members.append(pools.get(kube_qos_of(path) or KubeQos.GUARANTEED, EMPTY))
                cpus = union(members) if all(members) and not is_kubelets else EMPTY
                if not cpus and one.cpus:
                    goal.cpus = wide or None
            cpus &= self.cpus
            goal.cpus = cpus or goal.cpus
            below.setdefault(above.path, []).append(cpus)
            if one.pod_uid and (pod := self.wanted.pods[one.pod_uid]).own:
                goal.own, goal.quota = pod.own & self.cpus, cg.NO_QUOTA
                goal.alone = pod.alone and self._is_whole(one)
                goal.mems = pod.mems & self.mems or None
        for uid, pod in self.wanted.pods.items():
            if self.by_path and (outside := pod.own - self.cpus):
                self._tell(uid, cg.UnboundReason.OUTSIDE, str(outside))

    def set_goals_of_removal(self) -> None:
        """Say what each cgroup is to have when nothing of ours is to be left."""
        static = self.node.cpus.kubelet_static
        shared = self.cpus - union(one.given for one in self.names.values() if static)
        for path, one in self.by_path.items():
            goal = self.goals[path]
            if one.container and self.wanted.pods[one.pod_uid].stays:
                continue
            goal.cpus = self.cpus if path and one.cpus else None
            goal.mems = self.mems if path and one.mems and self.node.binds_memory else None
            if not one.pod_uid:
                continue
            pod, container = self.by_uid[one.pod_uid], self.names.get(one.container)
            if one.container and static:
                if may_be_kubelets(self.node, pod) and (container is None or container.whole_cpus):
                    goal.cpus = (container and container.given) or None
                elif goal.cpus:
                    goal.cpus = shared
            if self.wanted.pods[one.pod_uid].own and one.quota == cg.NO_QUOTA:
                limits = [limited.limit_milli for limited in pod.containers]
                limit = container.limit_milli if container else sum(limits) * all(limits)
                if limit and (container or self._is_whole(one)):
                    goal.quota = limit * one.period // 1000

    def _is_whole(self, one: cg.CgroupNow) -> bool:
        """Tell whether the cgroup of a Pod is that of all of it."""
        return not self.by_path[_above(one.path)].pod_uid

    def _container_cpus(self, one: cg.CgroupNow) -> CpuSet:
        pod, named = self.wanted.pods[one.pod_uid], self.names.get(one.container)
        if named is None:
            return pod.unnamed
        return pod.containers.get(named.name, EMPTY) or (EMPTY if pod.own else named.given)

    def move(self, dropped: Collection[str] = ()) -> None:
        """Write lists of CPUs and memory nodes; `dropped` are no partitions any more."""
        for file, top in ((cg.CgroupFile.MEMS, self.mems), (cg.CgroupFile.CPUS, self.cpus)):
            is_cpus, cells = file is cg.CgroupFile.CPUS, dict[str, Cell]()
            if not is_cpus and not any(goal.mems for goal in self.goals.values()):
                continue
            for path, one in self.by_path.items():
                goal = self.goals[path]
                cells[path] = Cell(
                    path=path,
                    above=cells[_above(path)] if path else None,
                    asked=one.cpus if is_cpus else one.mems,
                    now=one.effective if is_cpus else one.effective_mems,
                    goal=goal.cpus if is_cpus else goal.mems,
                    owner=bool(goal.own),
                    parted=is_cpus and one.partition in _VALID and path not in dropped,
                )
            for path, found in orderly(list(cells.values()), top, v1=self.v1):
                self.write(path, file, str(found))

    def dropped(self) -> list[cg.CgroupNow]:
        """Return the Pods' cgroups with exclusive CPUs, none of which are an LSE Pod's own."""
        return [
            one
            for path, one in self.by_path.items()
            if one.pod_uid
            and self._is_whole(one)
            and (one.exclusive or one.partition not in {"", _MEMBER})
            and not (self.goals[path].alone and one.exclusive & self.goals[path].own)
        ]

    def drop(self, dropped: Iterable[cg.CgroupNow]) -> None:
        for one in dropped:
            if one.partition not in {"", _MEMBER}:
                self.write(one.path, cg.CgroupFile.PARTITION, _MEMBER)
            if one.exclusive:
                self.write(one.path, cg.CgroupFile.EXCLUSIVE, "")

    def part(self, dropped: Iterable[cg.CgroupNow] = ()) -> None:
        """
        Make a partition of each LSE Pod's cgroup whose CPUs nobody else asks for any more.

        Rule: the kernel's cgroup-v2, "cpuset.cpus.partition": a remote partition needs its CPUs in
        `cpuset.cpus.exclusive` of every cgroup above it, which is kubepods' own: LSE Pods are
        Guaranteed, and one that is not goes without.
        """
        waits = {one.path for one in dropped}
        alone = [self.by_path[path] for path, goal in self.goals.items() if goal.alone]
        pods = [one for one in alone if one.path not in waits]
        parts = {one.path: self.goals[one.path].own for one in pods if self._may_part(one)}
        needed = {"": union(parts.values())} | parts
        for path in reversed(needed) if self.by_path else ():
            if (rest := self.by_path[path].exclusive) - needed[path]:
                self.write(path, cg.CgroupFile.EXCLUSIVE, str(rest & needed[path]))
        for path, cpus in needed.items() if parts else ():
            if not path and self.tree.kernel < FREE_EXCLUSIVE_SINCE and not self.by_path[path].cpus:
                self.write(path, cg.CgroupFile.CPUS, str(self.cpus))
            if cpus - self.by_path[path].exclusive:
                self.write(path, cg.CgroupFile.EXCLUSIVE, str(cpus))
        for path in parts:
            now = self.by_path[path].partition
            if now == _MEMBER or (now not in _VALID and self.writes):
                self.write(path, cg.CgroupFile.PARTITION, _ROOT)
            elif now not in _VALID:
                self._tell(self.by_path[path].pod_uid, cg.UnboundReason.NO_PARTITION, now)

    def _may_part(self, one: cg.CgroupNow) -> bool:
        own = self.goals[one.path].own
        if one.partition in _VALID and one.exclusive == own:
            return True
        others = [
            path
            for path, other in self.by_path.items()
            if path != one.path and _above(path) == _above(one.path) and path
            if (self.goals[path].cpus or other.cpus) & own
        ]
        if self.v1 or self.tree.kernel < PARTITIONS_SINCE or not one.partition:
            kernel = ".".join(map(str, self.tree.kernel))
            about = f"cgroup v{self.tree.version.value}, kernel {kernel}"
        elif _above(one.path):
            about = f"in the cgroup {_above(one.path)}"
        elif others:
            about = f"asked for by {', '.join(others)}"
        else:
            return True
        self._tell(one.pod_uid, cg.UnboundReason.NO_PARTITION, about)
        return False

    def set_quotas(self, *, upwards: bool = False) -> None:
        """On v1 no quota may exceed that of the cgroup above: who gets more begins there."""
        file, none = (cg.CgroupFile.QUOTA, "-1") if self.v1 else (cg.CgroupFile.MAX, "max")
        for path in reversed(self.goals) if upwards else self.goals:
            quota = self.goals[path].quota
            if quota is not None and quota != self.by_path[path].quota:
                self.write(path, file, none if quota == cg.NO_QUOTA else str(quota))

    def _tell(self, pod_uid: str, reason: cg.UnboundReason, about: str) -> None:
        self.unbound.append(cg.Problem(about=pod_uid, reason=reason, words=about))


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def kube_qos_of(path: str) -> KubeQos | None:
    """Return the class that a cgroup's place below kubepods tells, None = no QoS class's."""
    first = path.partition("/")[0].lower()
    for qos in (KubeQos.BEST_EFFORT, KubeQos.BURSTABLE):
        if qos.lower() in first:
            return qos
    return None
