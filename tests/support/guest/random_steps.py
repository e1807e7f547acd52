"""Random steps on a small tree of cgroups, as text for `cgroup_steps`."""

from __future__ import annotations

import random
from typing import Final

_TREE: Final = ("pods", "pods/a", "pods/a/x", "pods/b", "pods/b/y", "pods/c")
_LEAVES: Final = ("pods/a/x", "pods/b/y", "pods/c")
_READS: Final = {
    "v1": ("cpus", "effective", "mems"),
    "v2 6.1": ("cpus", "effective", "mems"),
    "v2 6.12": ("cpus", "effective", "mems", "exclusive", "partition"),
}
_LISTS: Final = ("-", "0-7", "0-3", "4-7", "2-3", "4-5", "2-5", "0,2", "6", "1,3,5,7")


def random_steps(kind: str, seed: int, count: int) -> list[str]:
    """
    Return steps that make the tree and then write into it; after each write all of it is read.

    No partition is made: what becomes of one is in the table, where no two kernels are alike.

    Args:
        kind: as the columns of the scenarios are called.
    """
    rng = random.Random(f"{kind} {seed}")
    steps = [f"make {path}" for path in _TREE]
    steps += [f"join {path}" for path in _LEAVES if rng.random() < 0.7]
    for _ in range(count):
        path = rng.choice(_TREE)
        file = rng.choice(["cpus", "cpus", "cpus", "mems"])
        value = rng.choice(("-", "0", "1", "0-1")) if file == "mems" else rng.choice(_LISTS)
        steps.append(f"write {path} {file} {value}")
        steps += [f"read {each} {read}" for each in _TREE for read in _READS[kind]]
    return steps
