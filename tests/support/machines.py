"""Random machines for property tests: up to 4 sockets, 8 NUMA nodes and 256 CPUs."""

from __future__ import annotations

from random import Random
from typing import Final

from hypothesis import strategies as st

from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of

SEEDS: Final = st.integers(0, 2**48)
"""Machines are drawn from a seed: drawn part by part they would nearly all be tiny."""

MOSTLY: Final = 0.95
"""How many machines have few cores."""


@st.composite
def machines(draw: st.DrawFn, *, alike: bool = False) -> CpuTopology:
    """
    Draw a machine with 1, 2 or 4 threads a core.

    Ids are split, side by side or wild, core ids may be repeated in every socket, CPUs may be
    offline.

    Args:
        alike: no CPU is offline, so that all cores are alike.
    """
    rng = Random(draw(SEEDS))
    sockets, numas, threads = rng.randint(1, 4), rng.randint(1, 2), rng.choice([1, 2, 4])
    cores = rng.randint(1, 256 // (sockets * numas * threads))
    if rng.random() < MOSTLY:
        cores = rng.randint(1, 6)
    repeated = rng.random() < 0.5
    places = [
        (socket, socket * numas + numa, ((0 if repeated else socket) * numas + numa) * cores + core)
        for _ in range(threads)
        for socket in range(sockets)
        for numa in range(numas)
        for core in range(cores)
    ]
    numbering = rng.choice(["split", "adjacent", "wild"])
    if numbering == "adjacent":
        places.sort()
    elif numbering == "wild":
        rng.shuffle(places)
    most_offline = 0 if alike else min(cores, len(places) - 1)
    offline = set(rng.sample(range(len(places)), rng.randint(0, most_offline)))
    return cpu_topology_of(
        Cpu(id=cpu, core=core, socket=socket, numa=numa)
        for cpu, (socket, numa, core) in enumerate(places)
        if cpu not in offline
    )
