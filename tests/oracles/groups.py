"""
The best plan for a group by trying every assignment, from the GPU-topology proposal's words.

Knows nothing of the planner: nodes and members are numbers. "Node Selection": as few nodes as
possible, and of the combinations that leave least. "Pick GPUs of Node": the largest bottleneck,
which is "the minimum bandwidth of any two GPU connections in a group of GPU cards"; a link
counts at its slower direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations, product


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """
    A node.

    Attributes:
        free_percent: of each GPU by minor; 100 = nobody is on it.
        links: GB/s by (from, to); None = not known.
        cpu_milli: free.
    """

    free_percent: tuple[int, ...]
    cpu_milli: int
    links: tuple[tuple[float, ...], ...] | None = None
    known: dict[int, float] = field(default_factory=dict, compare=False)

    @property
    def whole(self) -> tuple[int, ...]:
        """Return the minors of the untouched GPUs."""
        return tuple(minor for minor, free in enumerate(self.free_percent) if free == 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A member: so many whole GPUs, or a percentage of one GPU; and cpu."""

    gpus: int = 0
    percent: int = 0
    cpu_milli: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """
    What the best plan is worth.

    Attributes:
        nodes: beside those where the group is already.
        bottleneck_gbps: between the group's GPUs on one node, the slowest node's; infinity when
            no node gives more than one.
        left_percent: of the GPUs of the nodes used, after the plan; where the group is already
            and new nodes are needed, of all its nodes.
    """

    nodes: int
    bottleneck_gbps: float
    left_percent: int


def best_plan(
    machines: Sequence[Machine], wishes: Sequence[Wish], in_use: AbstractSet[int] = frozenset()
) -> Best | None:
    """Return the best over all assignments of members to nodes, None when none fits."""
    best: tuple[float, float, float] | None = None
    for assignment in product(range(len(machines)), repeat=len(wishes)):
        used = set(assignment)
        new = used - in_use
        if best is not None and len(new) > best[0]:
            continue
        bottleneck, left = math.inf, 0
        for number in used | in_use if new else used:
            there = [wish for wish, node in zip(wishes, assignment, strict=True) if node == number]
            if not fits(machines[number], there):
                break
            count = sum(wish.gpus for wish in there)
            bottleneck = min(bottleneck, bottleneck_of(machines[number], count))
            asked = sum(100 * wish.gpus + wish.percent for wish in there)
            left += sum(machines[number].free_percent) - asked
        else:
            worth = (len(new), -bottleneck, left)
            best = worth if best is None else min(best, worth)
    if best is None:
        return None
    return Best(nodes=int(best[0]), bottleneck_gbps=-best[1], left_percent=int(best[2]))


def fits(machine: Machine, wishes: Sequence[Wish]) -> bool:
    """Tell whether the node can take all of them at once, in some way."""
    if sum(wish.cpu_milli for wish in wishes) > machine.cpu_milli and any(
        wish.cpu_milli for wish in wishes
    ):
        return False
    if sum(wish.gpus for wish in wishes) > len(machine.whole):
        return False
    whole = sum(wish.gpus for wish in wishes)
    parts = [wish.percent for wish in wishes if wish.percent]
    if not parts:
        return True
    return any(
        packs(
            [0 if minor in taken else free for minor, free in enumerate(machine.free_percent)],
            parts,
        )
        for taken in combinations(machine.whole, whole)
    )


def packs(free: Sequence[int], parts: Sequence[int]) -> bool:
    """Tell whether every part has a GPU of its choice with room for it."""
    if not parts:
        return True
    return any(
        packs([left - parts[0] * (other == minor) for other, left in enumerate(free)], parts[1:])
        for minor in range(len(free))
        if free[minor] >= parts[0]
    )


def bottleneck_of(machine: Machine, count: int) -> float:
    """Return the best bottleneck of so many untouched GPUs; 0 where no link is known."""
    if count < 2:
        return math.inf
    if machine.links is None:
        return 0.0
    if count not in machine.known:
        machine.known[count] = max(
            min(pairs(machine.links, group)) for group in combinations(machine.whole, count)
        )
    return machine.known[count]


def pairs(links: Sequence[Sequence[float]], group: Sequence[int]) -> Iterator[float]:
    """Yield the speed of every link in a group."""
    for a, b in combinations(group, 2):
        yield min(links[a][b], links[b][a])
