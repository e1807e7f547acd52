"""Random machines for property tests: up to 4 sockets, 8 NUMA nodes and 256 CPUs."""

from __future__ import annotations

from hypothesis import strategies as st

from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of


@st.composite
def machines(draw: st.DrawFn, *, alike: bool = False) -> CpuTopology:
    """
    Draw a machine with 1, 2 or 4 threads a core.

    Ids are split, side by side or wild, core ids may be repeated in every socket, CPUs may be
    offline.

    Args:
        alike: no CPU is offline, so that all cores are alike.
    """
    sockets, numas = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    threads = draw(st.sampled_from([1, 2, 4]))
    cores = draw(st.integers(1, 256 // (sockets * numas * threads)))
    if draw(st.integers(0, 9)):  # mostly small
        cores = min(cores, 6)
    repeated = draw(st.booleans())
    places = [
        (socket, socket * numas + numa, ((0 if repeated else socket) * numas + numa) * cores + core)
        for _ in range(threads)
        for socket in range(sockets)
        for numa in range(numas)
        for core in range(cores)
    ]
    numbering = draw(st.sampled_from(["split", "adjacent", "wild"]))
    if numbering == "adjacent":
        places.sort()
    elif numbering == "wild":
        draw(st.randoms(use_true_random=False)).shuffle(places)
    offline: set[int] = set()
    if not alike:
        ids = st.integers(0, len(places) - 1)
        offline = draw(st.sets(ids, max_size=min(12, len(places) - 1)))
    return cpu_topology_of(
        Cpu(id=cpu, core=core, socket=socket, numa=numa)
        for cpu, (socket, numa, core) in enumerate(places)
        if cpu not in offline
    )
