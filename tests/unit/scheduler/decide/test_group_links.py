"""Bottlenecks worked out for many nodes at once are those of every set looked at by itself."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np

from ledger.domain.nodes import NodeFacts
from ledger.domain.topology import LinkMatrix
from scheduler.decide.group.room import LinkStack

WIDTH = 6
SIZE = 9  # of the matrices: minors have gaps


def machine(rng: random.Random, number: int) -> tuple[NodeFacts, tuple[int, ...]]:
    """Return a node of measured, suggested, no, too few or unread links, and its GPUs' minors."""
    size = SIZE - 4 * (number % 5 == 4)
    links = LinkMatrix(
        rows=tuple(tuple(rng.choice((5.0, 10.0, 20.0)) for _ in range(size)) for _ in range(size))
    )
    facts = NodeFacts(
        uid=f"uid-{number}",
        name=f"n{number}",
        links=links if number % 5 in {0, 3, 4} else None,
        derived_links=links if number % 5 == 1 else None,
        honors_partitions=number % 5 == 3,
    )
    count = rng.randint(2, WIDTH)
    return facts, (*sorted(rng.sample(range(SIZE - 1), count - 1)), SIZE - 1)


def expected(facts: NodeFacts, minors: list[int], count: int) -> float:
    """Return the best bottleneck over all sets of so many; a GPU without links has 0 GB/s."""
    links = facts.links or facts.derived_links
    if links is None or facts.honors_partitions:
        return 0.0
    return max(
        links.bottleneck_gbps(group) if group[-1] < len(links) else 0.0
        for group in combinations(minors, count)
    )


def test_bottlenecks_equal_those_of_every_set() -> None:
    """Whatever minors a node has, whatever is free, and where no link is known."""
    rng = random.Random(5)
    machines = [machine(rng, number) for number in range(60)]
    stack = LinkStack(WIDTH)
    stack.add([facts for facts, _ in machines], [minors for _, minors in machines])
    checked = 0
    for count in range(2, WIDTH + 1):
        free = np.zeros((len(machines), WIDTH), dtype=np.bool_)
        for number, (_, minors) in enumerate(machines):
            free[number, rng.sample(range(len(minors)), rng.randint(1, len(minors)))] = True
        kinds = np.flatnonzero(free.sum(axis=1) >= count)

        found = stack.bottlenecks(kinds, free[kinds], count)

        for kind, speed in zip(kinds.tolist(), found, strict=True):
            facts, minors = machines[kind]
            usable = [minors[column] for column in np.flatnonzero(free[kind]).tolist()]
            assert speed == expected(facts, usable, count), (kind, count)
            checked += speed > 0
    assert checked > 40
