"""
What a node's CPU process confirms: the CPUs that the kernel gives, and of whom nothing is left.

Rule: docs/contracts/agents.md, "CPUs". It speaks of Pods with CPUs of their own alone.
One that it called gone gets no CPUs of its own before that is taken back (`Confirming.may_start`).
Pure: a tree of cgroups in, a message out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.decide.cgroups import CgroupNow, CgroupTree, PodPlanned
from agent.decide.confirming import AGAIN_SECONDS, PODS_MAX, Confirming, GivenNow, Look, Said, said
from agent.decide.container_cpus import is_best_effort
from agent.decide.node_holdings import GRANTED, LOST, HeldByPod, NodeHoldings
from agent.decide.pools import PodCpus
from ledger.domain.annotations.proof import EVERY, BoundContainer
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, union

COMING_SECONDS: Final = 30.0
"""Kubelet hears of a Pod that is reserved or bound within this time, if it ever does."""
_INIT: Final = "init-"
_COMING: Final = {"reserved", "bound"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusHere:
    """
    The CPUs of a node as they are now.

    Attributes:
        planned: the Pods that kubelet runs or will.
        places: UID of each of them -> names of its containers by place; None = kubelet did not say.
        online: what the kernel runs tasks on.
        complete: every cgroup of Pods was read.
    """

    tree: CgroupTree
    planned: tuple[PodPlanned, ...]
    places: Mapping[str, Mapping[str, str]] | None
    online: CpuSet
    complete: bool = True


def said_of_cpus(
    state: Confirming,
    known: NodeHoldings,
    here: CpusHere,
    owners: Mapping[str, PodCpus],
    *,
    now: float,
) -> tuple[Confirming, Said]:
    """
    Return what is to be said now, as `confirming.said`.

    Nothing is said once in a while where not every cgroup was read: who says nothing is away. A Pod
    that kubelet may hear of yet is not called gone at once, for it would start without its CPUs.

    Args:
        owners: by UID of a Pod or a claim, who has CPUs of its own.
    """
    containers = [*_containers(here.tree)]
    by_place = _by_place(here, containers)

    def given(one: HeldByPod, _look: Look) -> GivenNow | None:
        return _given(one, by_place.get(one.pod_uid, ()), here.online)

    live, own = frozenset(one.pod_uid for one in containers), of_cpus(known)
    look = Look(places=here.places, live=live, complete=here.complete)
    there = live.union(here.places or ())
    since = {
        key: float("-inf") if key[0] in there else state.since.get(key, now) for key in own.held
    }
    young = {key for key, at in since.items() if now - at < COMING_SECONDS}
    wants = {key[0] for key in young if own.held[key].phase in _COMING} - state.gone
    crossing = dict(sorted(crossings(containers, here.planned, owners).items())[:PODS_MAX])
    ran, is_due = frozenset(crossing.items()), now - state.runs_at >= AGAIN_SECONDS
    tells = here.complete and (is_due or ran != state.ran)
    most = PODS_MAX - len(crossing) * tells
    after, message = said(state, own, look, now=now, wants=wants, given=given, most=most)
    at = now if tells or is_due else state.runs_at
    after = replace(after, since=since, ran=ran if tells else state.ran, runs_at=at)
    return after, replace(message, runs=None, crossing=crossing if tells else None)


def of_cpus(known: NodeHoldings) -> NodeHoldings:
    """Return the holdings with CPUs, and nothing of their devices."""
    held = {}
    for key, one in known.held.items():
        bound = tuple(replace(each, devices=()) for each in one.containers if each.cpus)
        if bound:
            held[key] = replace(one, containers=bound)
    return replace(known, held=held)


def crossings(
    containers: Iterable[CgroupNow], planned: Sequence[PodPlanned], owners: Mapping[str, PodCpus]
) -> dict[str, CpuSet]:
    """
    Return by UID the Pods on CPUs that others have to themselves, and on which.

    Rule: Koordinator contract 9.4: BE Pods may ride on the CPUs of LSR Pods, not on LSE's nor on
    what kubelet gave.
    """
    riders = {pod.uid for pod in planned if is_best_effort(pod.qos, pod.kube_qos)}
    claimed = {pod.uid: pod.claimed for pod in planned}
    alone = {uid: one for uid, one in owners.items() if one.by_kubelet or one.qos is QosClass.LSE}
    found: dict[str, CpuSet] = {}
    for container in containers:
        uid = container.pod_uid
        closed = alone if uid in riders else owners
        others = union(one.cpus for owner, one in closed.items() if owner != uid)
        own = claimed.get(uid, EMPTY) | (owners[uid].cpus if uid in owners else EMPTY)
        crossed = (container.effective - own) & others
        if crossed:
            found[uid] = found.get(uid, EMPTY) | crossed
    return found


def _containers(tree: CgroupTree) -> Iterable[CgroupNow]:
    """Yield the cgroups of containers that have tasks, or have some below; none of those below."""
    populated = {one.container for one in tree.cgroups if one.populated}
    seen: set[str] = set()
    for one in tree.cgroups:  # each before those below it
        if one.container and one.container in populated and one.container not in seen:
            seen.add(one.container)
            yield one


def _by_place(
    here: CpusHere, containers: Iterable[CgroupNow]
) -> dict[str, list[tuple[str, CgroupNow]]]:
    """Return each Pod's containers by place; that of a sandbox, and of one made anew, is empty."""
    names = {one.id: one.name for pod in here.planned for one in pod.containers if one.id}
    found: dict[str, list[tuple[str, CgroupNow]]] = {}
    for one in containers:
        places = (here.places or {}).get(one.pod_uid, {})
        place = places.get(names.get(one.container, ""), EVERY)
        found.setdefault(one.pod_uid, []).append((place, one))
    return found


def _given(
    one: HeldByPod, there: Iterable[tuple[str, CgroupNow]], online: CpuSet
) -> GivenNow | None:
    """
    Return the CPUs of a Pod's containers; None while no app container has started.

    A container that was made anew has a cgroup of its own, which counts as soon as it has tasks.
    """
    own = union(each.cpus for each in one.containers)
    bound = tuple(
        BoundContainer(index=place, cpus=cgroup.effective, written=_written(cgroup, own, online))
        for place, cgroup in sorted(there, key=lambda each: (each[0], each[1].path))
    )
    if one.kind != GRANTED or one.phase == LOST:
        return None
    different = tuple(each for each in bound if each.cpus != own)
    if different:
        return different, True
    is_started = any(each.index and not each.index.startswith(_INIT) for each in bound)
    return (bound, False) if is_started else None


def _written(cgroup: CgroupNow, own: CpuSet, online: CpuSet) -> CpuSet:
    """Return what the cgroup asks for where it gets less; v1 takes an offline CPU out of that."""
    if cgroup.effective == own:
        return EMPTY
    return own if cgroup.cpus == own & online else cgroup.cpus
