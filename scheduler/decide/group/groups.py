"""Placing the members of a GPU topology group or a gang together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.request.requests import PodRequest, gpu_core_percent
from ledger.domain.resources import LABEL_ARCH, LABEL_TENURE_CPU_MANAGED
from scheduler.decide.cards.joint import bottlenecks, joint_minors, linked_gpus, size_of
from scheduler.decide.cards.view import NodeView
from scheduler.decide.dialects.registry import node_own_of
from scheduler.decide.engine import Engine
from scheduler.decide.group import cover as covers
from scheduler.decide.group.room import Rooms, whole_demands
from scheduler.decide.nodes.arrays import BoolArray, IntArray
from scheduler.decide.outcome import Placement, Unfit
from scheduler.decide.shapes import asked_by

TRIALS_MAX: Final = 1000
"""Placements tried to learn what nodes really take; beyond it members are dealt in turn."""

CELLS_MAX: Final = 8_000_000
"""What every node could take, vector by vector; beyond it members are dealt in turn."""

MEMBERS_MISSING: Final = "GangMembersMissing"
GANG_UNFIT: Final = "GangUnfit"

Minors = frozenset[int] | None


class TrialCluster(Protocol):
    """The cluster as a plan sees it: try a placement, take it back."""

    def candidates(self, request: PodRequest) -> Sequence[int]:
        """Return the nodes that can take this Pod alone now, best first by node policy."""

    def rooms(self, requests: Sequence[PodRequest], most: Sequence[int]) -> Rooms:
        """Return what nodes have free for so many Pods like these; no node has too little."""

    def view(self, node: int) -> NodeView:
        """Return what is left of one node, trials included."""

    def try_place(
        self, request: PodRequest, node: int, only_minors: Minors = None
    ) -> Placement | None:
        """Reserve the Pod on this node, on these GPUs if given; None changes nothing."""

    def undo(self, placement: Placement) -> None:
        """Take back one trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """
    Places for the members of one group.

    Attributes:
        placements: one per member, in their order; None = no place. `visible_minors` is filled
            for GPU topology groups.
        whole: every member got its place out of one plan.
        refusal: why a gang gets nothing at all; every placement is None then.
        search_cut: a bound ended the search for the best nodes.
    """

    placements: tuple[Placement | None, ...]
    whole: bool = False
    refusal: Unfit | None = None
    search_cut: bool = False


def plan(
    members: Sequence[PodRequest],
    cluster: TrialCluster,
    *,
    running: int = 0,
    in_use: frozenset[int] = frozenset(),
) -> GroupPlan:
    """
    Place pending members of one group or gang: whole, else as many as its rules allow.

    Rule: Koordinator GPU-topology proposal, "Node Selection" and "Pick GPUs of Node"; design
    section 5, Groups; Koordinator contract 10 (`min-available`).

    Fewest nodes first, those of members that hold their devices already at no cost; of these
    the largest bottleneck (that of the node with the slowest link between the GPUs that the plan
    gives), then the least left over, then the node policy's order. Exact
    within `group_cover.WORK_MAX` and `TRIALS_MAX`, beyond which `search_cut` is set. What can't
    be placed whole is placed member by member, but of a gang at least `min-available` together
    or none. The cluster is left as it was found: the caller reserves.

    Args:
        members: in input order.
        running: members that hold their devices already; they count for `min-available`.
        in_use: the nodes of these members.
    """
    gang = members[0].gang
    needed = max(0, gang.min_available - running) if gang is not None else 0
    if needed > len(members):
        refusal = Unfit(
            reason=MEMBERS_MISSING,
            requested=needed,
            available=len(members),
            unit="pods",
            preemptible=False,
        )
        return GroupPlan(placements=(None,) * len(members), refusal=refusal)
    planner = _Planner(cluster, in_use)
    try:
        return planner.plan(members, needed)
    finally:
        planner.undo_to(0)


def place_beside(
    member: PodRequest, cluster: TrialCluster, in_use: frozenset[int]
) -> Placement | None:
    """
    Return a place for one member on a node where its group is; the cluster is left as it was.

    Rule: Koordinator GPU-topology proposal, Goal 4 and Story 2: of these nodes the best by links
    and node policy; None when none of them takes the Pod.
    """
    for node in cluster.candidates(member) if in_use else ():
        placement = cluster.try_place(member, node) if node in in_use else None
        if placement is not None:
            cluster.undo(placement)
            return placement
    return None


class _Planner:
    """One plan in the making: the trials that stand, and whether a bound was met."""

    def __init__(self, cluster: TrialCluster, in_use: frozenset[int]) -> None:
        self.cluster = cluster
        self.in_use = in_use
        self.standing: list[Placement] = []
        self.cut = False
        self.trials = 0

    def plan(self, members: Sequence[PodRequest], needed: int) -> GroupPlan:
        placed = self.place_whole(members)
        if placed is not None:
            return GroupPlan(placements=with_visible(placed), whole=True, search_cut=self.cut)
        first = self.place_first(members, needed)
        if first is None:
            fitting = min(self.count_fitting(members), needed - 1)
            refusal = Unfit(reason=GANG_UNFIT, requested=needed, available=fitting, unit="pods")
            nothing = (None,) * len(members)
            return GroupPlan(placements=nothing, refusal=refusal, search_cut=self.cut)
        places = [
            first[member.uid] if member.uid in first else self.place_single(member)
            for member in members
        ]
        return GroupPlan(placements=with_visible(places), search_cut=self.cut)

    def place_first(
        self, members: Sequence[PodRequest], needed: int
    ) -> dict[str, Placement] | None:
        """Place as many members as a gang needs: the first ones, else the smallest ones."""
        if needed in {0, len(members)}:
            return None if needed else {}
        by_size = sorted(members, key=size_of, reverse=True)  # stable: equals in their order
        for some in (members[:needed], by_size[:needed]):
            placed = self.place_whole(some)
            if placed is not None:
                return {placement.request.uid: placement for placement in placed}
        return None

    def place_single(self, member: PodRequest, used: Iterable[int] = ()) -> Placement | None:
        """Place the member on one of these nodes, else where its group is, else anywhere."""
        others = sorted(self.cluster.candidates(member), key=lambda node: node not in self.in_use)
        for node in dict.fromkeys((*used, *others)):
            placement = self.place(member, node)
            if placement is not None:
                return placement
        return None

    def count_fitting(self, members: Sequence[PodRequest]) -> int:
        """Return how many members fit one after the other, the smallest first: for people."""
        before, count = len(self.standing), 0
        nodes: dict[Hashable, list[int]] = {}
        for member in sorted(members, key=size_of, reverse=True):
            left = nodes.setdefault(asked_by(member), [])
            if not left:
                left.extend(reversed(self.cluster.candidates(member)))
            while left and self.place(member, left[-1]) is None:
                left.pop()
            count += bool(left)
        self.undo_to(before)
        return count

    def place_whole(self, members: Sequence[PodRequest]) -> list[Placement] | None:
        """
        Place all members on the best nodes, or none of them; in their order.

        What nodes could take is counted, never too little, and the best nodes for that are tried.
        A node that takes less is looked at closely, and the search begins again.
        """
        group = _Group(members)
        rooms = self.cluster.rooms(group.examples, group.need)
        vectors = group.vectors
        if vectors is None or len(vectors) * len(rooms.nodes) > CELLS_MAX:
            self.cut = True
            return self.place_in_turn(members)
        able = _able(vectors, group.examples, rooms)
        offers = covers.Offers(
            able=able,
            left=rooms.core_percent,
            alike=rooms.alike,
            bottlenecks=bottlenecks(rooms),
            in_use=frozenset(
                place for place, node in enumerate(rooms.nodes) if node in self.in_use
            ),
        )
        while True:
            cover, cut = covers.best_cover(vectors, offers)
            self.cut = self.cut or cut
            if cover is None:
                return self.place_in_turn(members) if cut else None
            placed = self.settle(group, rooms, cover)
            if not isinstance(placed, int):
                return placed
            if self.trials >= TRIALS_MAX:
                self.cut = True
                return self.place_in_turn(members)
            self.learn(group, rooms, able, placed)

    def settle(self, group: _Group, rooms: Rooms, cover: covers.Cover) -> list[Placement] | int:
        """Reserve what the cover says, with the best linked GPUs; else name a place that can't."""
        before = len(self.standing)
        for place, members in group.dealt(cover):
            node = rooms.nodes[place]
            by_input = sorted(members, key=lambda member: group.order[member.uid])
            minors = joint_minors(by_input, self.cluster.view(node))
            if not (self.place_all(members, node, minors) or self.place_all(members, node, {})):
                self.undo_to(before)
                return place
        placed = {placement.request.uid: placement for placement in self.standing[before:]}
        return [placed[member.uid] for member in group.members]

    def learn(self, group: _Group, rooms: Rooms, able: BoolArray, place: int) -> None:
        """Find out by trial what a node takes, and say so of all nodes in the same state."""
        assert group.vectors is not None
        node = rooms.nodes[place]
        # For exclusive NUMA nodes it counts which Pod holds which CPUs: no state says that.
        teaches = not any(example.numa for example in group.examples)
        found = np.zeros(len(group.vectors), dtype=np.bool_)
        self.explore(group, node, able[place], found, ())
        found = covers.closed(group.vectors, found)
        state = _state_of(self.cluster.view(node))
        for other in np.flatnonzero((able == able[place]).all(axis=1)).tolist():
            same = rooms.alike[other] == rooms.alike[place] and rooms.nodes[other] != node
            if other == place or (
                teaches and same and _state_of(self.cluster.view(rooms.nodes[other])) == state
            ):
                able[other] &= found

    def explore(
        self, group: _Group, node: int, able: BoolArray, found: BoolArray, path: covers.Vector
    ) -> None:
        """Mark the vectors that the node takes, the members added in the order of their size."""
        vectors, before = group.vectors, len(self.standing)
        assert vectors is not None
        if len(path) == len(vectors.need):
            found[vectors.number(path)] = True
            return
        kind = group.of_shape[len(path)]
        for count in range(len(kind) + 1):
            full = (*path, count, *(0,) * (len(vectors.need) - len(path) - 1))
            if not able[vectors.number(full)] or (
                count and self.place(kind[count - 1], node) is None
            ):
                break
            self.explore(group, node, able, found, (*path, count))
        self.undo_to(before)

    def place_in_turn(self, members: Sequence[PodRequest]) -> list[Placement] | None:
        """Place the members one by one, the largest first, on nodes in use before others."""
        before = len(self.standing)
        placed: dict[str, Placement] = {}
        for member in sorted(members, key=size_of):
            found = self.place_single(member, [placement.node for placement in placed.values()])
            if found is None:
                self.undo_to(before)
                return None
            placed[member.uid] = found
        return [placed[member.uid] for member in members]

    def place_all(
        self, members: Sequence[PodRequest], node: int, minors: dict[str, Minors]
    ) -> bool:
        """Reserve every member on the node, or none."""
        before = len(self.standing)
        for member in members:
            if self.place(member, node, minors.get(member.uid)) is None:
                self.undo_to(before)
                return False
        return True

    def place(self, member: PodRequest, node: int, minors: Minors = None) -> Placement | None:
        self.trials += 1
        placement = self.cluster.try_place(member, node, minors)
        if placement is not None:
            self.standing.append(placement)
        return placement

    def undo_to(self, count: int) -> None:
        while len(self.standing) > count:
            self.cluster.undo(self.standing.pop())


class _Group:
    """The members by shape, the largest shape first, so that the small ones fill what is left."""

    def __init__(self, members: Sequence[PodRequest]) -> None:
        self.members = list(members)
        self.order = {member.uid: place for place, member in enumerate(members)}
        by_shape: dict[Hashable, list[PodRequest]] = {}
        for member in sorted(members, key=size_of):
            by_shape.setdefault(asked_by(member), []).append(member)
        self.of_shape = list(by_shape.values())
        self.examples = [kind[0] for kind in self.of_shape]
        self.need = tuple(len(kind) for kind in self.of_shape)
        self.vectors = covers.vectors_of(self.need, linked_gpus(self.examples))

    def dealt(self, cover: covers.Cover) -> list[tuple[int, list[PodRequest]]]:
        """Return the members of each place of a cover, the largest first."""
        taken = [0] * len(self.of_shape)
        result = []
        for place, counts in cover:
            there: list[PodRequest] = []
            for shape, count in enumerate(counts):
                there += self.of_shape[shape][taken[shape] : taken[shape] + count]
                taken[shape] += count
            result.append((place, there))
        return result


def with_visible(placements: Sequence[Placement | None]) -> tuple[Placement | None, ...]:
    """
    Fill in what the containers of a GPU topology group see: all its GPUs on their node.

    Rule: GPU-topology proposal, "Record the allocation information to the pod annotation".
    """
    seen: dict[int, set[int]] = {}
    for placement in placements:
        if placement is not None and placement.request.group is not None:
            seen.setdefault(placement.node, set()).update(gpu_minors(placement))
    return tuple(
        placement
        if placement is None or placement.request.group is None
        else structs.replace(placement, visible_minors=tuple(sorted(seen[placement.node])))
        for placement in placements
    )


def gpu_minors(placement: Placement) -> tuple[int, ...]:
    """Return the minors of the GPUs that a placement gives, ascending."""
    return tuple(share.minor for share in placement.shares if share.device_type == GPU)


def same_again(cluster: TrialCluster, placement: Placement) -> Placement | None:
    """Return the place on the same GPUs if it is free now, as it would be taken."""
    minors = frozenset(gpu_minors(placement)) or None
    again = cluster.try_place(placement.request, placement.node, minors)
    if again is not None:
        cluster.undo(again)
    return again


def _able(vectors: covers.Vectors, examples: Sequence[PodRequest], rooms: Rooms) -> BoolArray:
    """Return which vectors each node could take, by everything that is counted."""
    table = vectors.table
    able = np.ones((len(rooms.nodes), len(vectors)), dtype=np.bool_)
    for shape, copies in enumerate(rooms.copies):
        able &= table[:, shape] <= copies[:, None]
    for free, asked in (
        (rooms.cpu_milli, [member.cpu_milli for member in examples]),
        (rooms.memory_bytes, [member.memory_bytes for member in examples]),
        (rooms.pods, [1] * len(examples)),
        (rooms.cards, [_cards(member) for member in examples]),
        (rooms.core_percent, [gpu_core_percent(member) for member in examples]),
    ):
        sums: IntArray = table @ np.array(asked, dtype=np.int64)
        able &= (sums <= free[:, None]) | (sums == 0)
    return able


def _cards(request: PodRequest) -> int:
    return sum(demand.count for demand in whole_demands([request.devices]))


def _state_of(node: NodeView) -> tuple[object, ...]:
    """Return all of a node but cpu and memory that decides what it takes; ids aside."""
    facts = node.facts
    cards = [replace(card, record=replace(card.record, device_id="")) for card in node.cards]
    return (
        cards,
        node.cpu_refs,
        node.cpus_alone,
        Counter(node.numa_parts),
        facts.cpu_topology,
        facts.reserved_cpus,
        facts.unpooled_cpus,
        facts.cpu_bind_policy,
        facts.kubelet,
        facts.cpu_ref_count_max,
        facts.numa_policy,
        facts.numa_zones,
        facts.numa_strategy,
        facts.labels.get(LABEL_ARCH),
        facts.labels.get(LABEL_TENURE_CPU_MANAGED),
        facts.name if facts.cpu_amplification > 1 else "",  # there free cpu counts exactly
        facts.dialects,
        node_own_of(facts),
        facts.partitions,
        facts.honors_partitions,
        facts.links,
        facts.derived_links,
    )


@dataclass(frozen=True, slots=True)
class Among:
    """
    A `TrialCluster` of these nodes of an engine.

    Rule: GPU-topology proposal, "main steps": a group's nodes are selected from those that are
    currently able to run the Pod that is asked about.
    """

    engine: Engine
    nodes: Container[int]

    def candidates(self, request: PodRequest) -> Sequence[int]:
        """Return the nodes that can take this Pod alone now, best first by node policy."""
        return [node for node in self.engine.candidates(request) if node in self.nodes]

    def rooms(self, requests: Sequence[PodRequest], most: Sequence[int]) -> Rooms:
        """Return what nodes have free for so many Pods like these; no node has too little."""
        return self.engine.rooms(requests, most, self.nodes)

    def view(self, node: int) -> NodeView:
        """Return what is left of one node, trials included."""
        return self.engine.view(node)

    def try_place(
        self, request: PodRequest, node: int, only_minors: frozenset[int] | None = None
    ) -> Placement | None:
        """Reserve the Pod on this node, on these GPUs if given; None changes nothing."""
        if node not in self.nodes:
            return None
        return self.engine.try_place(request, node, only_minors)

    def undo(self, placement: Placement) -> None:
        """Take back one trial."""
        self.engine.undo(placement)
