"""What would make a waiting Pod fit: everything is decided, on the cluster as it is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Final

from ledger.domain.request.requests import PlacementRules, PodRequest, group_name
from scheduler.cluster.model import ClusterSnapshot
from scheduler.cluster.settings import simulated
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.refusal.possible import opened_up
from scheduler.whatif.nearest import GroupNearest, Nearest, nearest, nearest_of_group
from scheduler.whatif.obstacles import Obstacle, find_reasons
from scheduler.whatif.preemption import Fragmentation, fragmentation
from scheduler.whatif.what_if import WhatIf, what_if_of

_AHEAD_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """
    How a Pod that waits stands now, on the cluster as it is known.

    Attributes:
        message: what a decision answers now; empty where the Pod would get a place.
        never: what no node of the cluster has, whoever holds what; empty where one has all of it.
        findings: why it has none, node by node; a node is an index into `names`.
        hopeless: nodes that would not take it if nobody were on them, nothing closed them and it
            could go anywhere.
        nearest: None where nothing was decided: its request is not known, or nobody wrote down what
            deciding reads of the nodes, so that the answer would be of another cluster.
        fragmentation: None where no node has enough in all, in pieces that are too small.
        untold: facts that nobody wrote down where we looked.
        is_known: its request is.
        member_of: its group, from which it is looked at alone; empty without one.
        ahead: Pods that wait before it and get a place, as (path, node).
        group: of a member of a group whose members are known: how far they get together.
    """

    names: tuple[str, ...]
    untold: tuple[str, ...]
    is_known: bool
    message: str = ""
    never: str = ""
    findings: tuple[Obstacle, ...] = ()
    hopeless: frozenset[int] = frozenset()
    nearest: Nearest | None = None
    fragmentation: Fragmentation | None = None
    member_of: str = ""
    ahead: tuple[tuple[str, str], ...] = ()
    group: GroupNearest | None = None


def prospects_of(pod_uid: str, cluster: ClusterSnapshot) -> Prospects:
    """Return what would make the Pod fit; for a member of a group, as if it came alone."""
    names = tuple(node.name for node in cluster.nodes)
    request = cluster.requests.get(pod_uid)
    if request is None or not cluster.knows_nodes:
        return Prospects(names=names, untold=cluster.untold, is_known=request is not None)
    what_if = what_if_of(cluster, pod_uid)
    ahead = tuple(_ahead(pod_uid, cluster, what_if))
    answer = what_if.decide(request)
    name = group_name(request)
    members = _members(name, cluster) if name else []
    refusal = answer if isinstance(answer, Unplaced) else None
    return Prospects(
        names=names,
        untold=cluster.untold,
        is_known=True,
        message="" if refusal is None else refusal.message,
        never="" if refusal is None else refusal.never,
        findings=() if refusal is None else tuple(find_reasons(request, refusal, what_if)),
        hopeless=frozenset() if refusal is None else _hopeless(request, what_if),
        nearest=nearest(request, what_if),
        fragmentation=None if refusal is None else fragmentation(refusal, what_if),
        member_of=name,
        ahead=ahead,
        group=nearest_of_group(members, what_if) if len(members) > 1 else None,
    )


def _ahead(pod_uid: str, cluster: ClusterSnapshot, what_if: WhatIf) -> Iterator[tuple[str, str]]:
    """Give those that wait before a Pod their places, as far as they are looked at."""
    before = takewhile(lambda uid: uid != pod_uid, cluster.waiting)
    for uid in islice(before, _AHEAD_MAX):
        answer = what_if.decide(cluster.requests[uid])
        if isinstance(answer, Placement):
            what_if.reserve(answer)
            yield answer.request.path, answer.node_name


def _hopeless(request: PodRequest, what_if: WhatIf) -> frozenset[int]:
    """Return the nodes that are not such as the request needs, by all tests over arrays."""
    nodes = tuple(
        replace(opened_up(node), unschedulable=False, taints=(), lost=False, other_scheduler="")
        for node in what_if.nodes
    )
    anybody = simulated(replace(what_if.settings, owned_nodes_only=False))
    empty = WhatIf(nodes, (), anybody, by_count=what_if.by_count)
    able = empty.candidates(replace(request, placement=PlacementRules()))
    return frozenset(range(len(nodes))).difference(able)


def _members(name: str, cluster: ClusterSnapshot) -> list[PodRequest]:
    holding = {holder.uid for holder in cluster.holders}
    return [
        request
        for uid, request in cluster.requests.items()
        if uid not in holding and group_name(request) == name
    ]
