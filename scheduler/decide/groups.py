"""Placing the members of a GPU topology group or a gang together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ledger.domain.devices import GPU
from ledger.domain.requests import PodRequest
from scheduler.decide.cards.joint import GroupRoom, joint_minors, quality, room_for
from scheduler.decide.cards.view import NodeView
from scheduler.decide.outcome import Placement, Unfit

TRIALS_MAX: Final = 1000
"""Placements tried for one number of nodes; beyond it one more node is allowed."""

MEMBERS_MISSING: Final = "GangMembersMissing"
GANG_UNFIT: Final = "GangUnfit"

Minors = frozenset[int] | None


class TrialCluster(Protocol):
    """The cluster as a plan sees it: try a placement, take it back."""

    def candidates(self, request: PodRequest) -> Sequence[int]:
        """Return the nodes that can take this Pod alone now, best first by node policy."""
        ...

    def view(self, node: int) -> NodeView:
        """Return what is left of one node, trials included."""
        ...

    def try_place(
        self, request: PodRequest, node: int, only_minors: Minors = None
    ) -> Placement | None:
        """Reserve the Pod on this node, on these GPUs if given; None changes nothing."""
        ...

    def undo(self, placement: Placement) -> None:
        """Take back one trial."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """
    Places for the members of one group.

    Attributes:
        placements: one per member, in their order; None = no place. `visible_minors` is filled
            for GPU topology groups.
        whole: every member got its place out of one plan.
        refusal: why a gang gets nothing at all; every placement is None then.
        search_cut: a bound ended the search for fewer nodes.
    """

    placements: tuple[Placement | None, ...]
    whole: bool = False
    refusal: Unfit | None = None
    search_cut: bool = False


def plan(members: Sequence[PodRequest], cluster: TrialCluster, *, running: int = 0) -> GroupPlan:
    """
    Place pending members of one group or gang: whole, else as many as its rules allow.

    Rule: Koordinator GPU-topology proposal, "Node Selection" and "Pick GPUs of Node"; design
    section 5, Groups; Koordinator contract 10 (`min-available`).

    Fewest nodes first. On one node the largest bottleneck between the group's GPUs decides, then
    the least left over, then the node policy's order. What can't be placed whole is placed
    member by member, but of a gang at least `min-available` together or none. The cluster is
    left as it was found: the caller reserves.

    Args:
        members: in input order.
        running: members that hold their devices already; they count for `min-available`.
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
    planner = _Planner(cluster)
    try:
        return planner.plan(members, needed)
    finally:
        planner.undo_all()


class _Planner:
    """One plan in the making: the trials that stand, and whether a bound was met."""

    def __init__(self, cluster: TrialCluster) -> None:
        self.cluster = cluster
        self.standing: list[Placement] = []
        self.cut = False

    def plan(self, members: Sequence[PodRequest], needed: int) -> GroupPlan:
        placed = self.place_whole(members)
        if placed is not None:
            return GroupPlan(placements=_with_visible(placed), whole=True, search_cut=self.cut)
        first: list[Placement] | None = []
        if needed:
            first = self.place_whole(members[:needed]) if needed < len(members) else None
        if first is None:
            refusal = Unfit(reason=GANG_UNFIT, requested=needed, unit="pods")
            nothing = (None,) * len(members)
            return GroupPlan(placements=nothing, refusal=refusal, search_cut=self.cut)
        singly = [self.place_single(member) for member in members[needed:]]
        return GroupPlan(placements=_with_visible([*first, *singly]), search_cut=self.cut)

    def place_single(self, member: PodRequest) -> Placement | None:
        for node in self.cluster.candidates(member):
            placement = self.place(member, node)
            if placement is not None:
                return placement
        return None

    def place_whole(self, members: Sequence[PodRequest]) -> list[Placement] | None:
        """Place all members on as few nodes as the search finds, or none of them."""
        room = room_for(members, self.cluster)
        if room is None:
            return None
        for nodes_max in range(room.nodes_min, min(len(members), len(room.nodes)) + 1):
            nodes = self.one_node(room) if nodes_max == 1 else self.few_nodes(room, nodes_max)
            if nodes is not None:
                return self.settle(room, nodes)
        return None

    def one_node(self, room: GroupRoom) -> list[int] | None:
        """Return the best node for all members, once per member."""
        best: tuple[tuple[float, int], int] | None = None
        trials = 0
        for node in room.nodes:
            if room.rooms[node] < len(room.members) or not all(
                node in choices for choices in room.choices
            ):
                continue
            worth = quality(room.members, self.cluster.view(node))
            if best is not None and worth <= best[0]:
                continue
            if trials >= TRIALS_MAX:
                self.cut = True
                break
            trials += len(room.members)
            if self.replay(room, [node] * len(room.members)) is not None:
                self.undo_all()
                best = (worth, node)
        return None if best is None else [best[1]] * len(room.members)

    def few_nodes(self, room: GroupRoom, nodes_max: int) -> list[int] | None:
        """Return a node per member, at most so many different ones: depth-first, bounded."""
        path: list[int] = []
        levels = [_options(room, path, nodes_max)]
        trials = 0
        while levels:
            if len(path) == len(levels):
                path.pop()
                self.cluster.undo(self.standing.pop())
            node = next(levels[-1], None)
            if node is None:
                levels.pop()
                continue
            if trials >= TRIALS_MAX:
                self.cut = True
                break
            trials += 1
            if self.place(room.members[len(path)], node) is None:
                continue
            path.append(node)
            if len(path) == len(room.members):
                self.undo_all()
                return path
            levels.append(_options(room, path, nodes_max))
        self.undo_all()
        return None

    def settle(self, room: GroupRoom, nodes: list[int]) -> list[Placement]:
        """Reserve the members on the nodes found, with the best linked GPUs; in their order."""
        minors: dict[str, Minors] = {}
        for node in dict.fromkeys(nodes):
            there = [room.members[place] for place in room.by_input if nodes[place] == node]
            minors |= joint_minors(there, self.cluster.view(node))
        placed = self.replay(room, nodes, minors) or self.replay(room, nodes)
        assert placed is not None, "the search has just placed the same members in this order"
        return [placed[place] for place in room.by_input]

    def replay(
        self, room: GroupRoom, nodes: Sequence[int], minors: dict[str, Minors] | None = None
    ) -> list[Placement] | None:
        """Reserve every member on its node, or none."""
        before = len(self.standing)
        for member, node in zip(room.members, nodes, strict=True):
            if self.place(member, node, (minors or {}).get(member.uid)) is None:
                while len(self.standing) > before:
                    self.cluster.undo(self.standing.pop())
                return None
        return self.standing[before:]

    def place(self, member: PodRequest, node: int, minors: Minors = None) -> Placement | None:
        placement = self.cluster.try_place(member, node, minors)
        if placement is not None:
            self.standing.append(placement)
        return placement

    def undo_all(self) -> None:
        while self.standing:
            self.cluster.undo(self.standing.pop())


def _options(room: GroupRoom, path: Sequence[int], nodes_max: int) -> Iterator[int]:
    """
    Yield the nodes to try for the next member: those in use, then fresh ones.

    Rule: GPU-topology proposal, "Node Selection": of fresh nodes that can hold all the rest the
    one with the least room comes first, of the others the one with the most. An equal member
    does not go back before its predecessor's node: that would be the same plan with two names
    swapped.
    """
    place = len(path)
    choices = room.choices[place]
    used = list(dict.fromkeys(path))
    again = used
    if place and room.shapes[place] == room.shapes[place - 1]:
        again = used[used.index(path[-1]) :]
    yield from (node for node in again if node in choices)
    if len(used) < nodes_max:
        rest = len(room.members) - place
        fresh = [node for node in room.nodes if node in choices and node not in used]
        rooms = room.rooms
        yield from sorted(
            fresh,
            key=lambda node: (0, rooms[node]) if rooms[node] >= rest else (1, -rooms[node]),
        )


def _with_visible(placements: Sequence[Placement | None]) -> tuple[Placement | None, ...]:
    """
    Fill in what the containers of a GPU topology group see: all its GPUs on their node.

    Rule: GPU-topology proposal, "Record the allocation information to the pod annotation".
    """
    seen: dict[int, set[int]] = {}
    for placement in placements:
        if placement is not None and placement.request.group is not None:
            minors = {share.minor for share in placement.shares if share.device_type == GPU}
            seen.setdefault(placement.node, set()).update(minors)
    return tuple(
        placement
        if placement is None or placement.request.group is None
        else replace(placement, visible_minors=tuple(sorted(seen[placement.node])))
        for placement in placements
    )
