"""Where the CPUs of one machine sit, as bit masks that the CPU picker computes with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ledger.domain.topology import CpuTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Numa:
    """One NUMA node; `sockets` = the sockets that its CPUs sit on, seldom more than one."""

    id: int
    cpus: int
    sockets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One physical core with its NUMA node and socket, as places in `CpuLayout`'s tuples."""

    cpus: int
    numa: int
    socket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """
    Cores of one shape: the distances of their CPUs from the first are the same.

    On nearly every machine all cores are alike, (0, 1) or (0, n), and one shift tells which are
    free: bit c of `cpus & cpus >> distance` says so of the core whose first CPU is c.

    Attributes:
        distances: of every CPU of the core from its first, ascending, beginning with 0.
        firsts: the first CPU of every such core.
    """

    distances: tuple[int, ...]
    firsts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLayout:
    """
    The CPUs of a machine: bit c of every mask is the logical CPU c.

    Rule: Koordinator contract 6.4. Counts per core, NUMA node and socket are integer means over
    the machine, as the release computes them; a NUMA node on two sockets counts twice.

    Attributes:
        cores: by (socket, core id); `numas` and `sockets` by id.
        siblings: the cores that have as many CPUs as `threads_per_core`, by shape.
        odd_cores: the CPUs of every other core; only machines with offline CPUs or mixed cores
            have any.
        in_id_order: the first CPUs of the cores ascend as the cores do, so that the lowest bits
            of a mask of first CPUs are the first cores; cores are alike, each in one NUMA node.
        core_cpus: at [cpu], the CPUs of its core; 0 for an id that no CPU has.
        numa_cpus: at [cpu], the CPUs of its NUMA node.
    """

    cpus: int
    threads_per_core: int
    cpus_per_numa: int
    cpus_per_socket: int
    numas: tuple[Numa, ...]
    sockets: tuple[int, ...]
    cores: tuple[Core, ...]
    siblings: tuple[Siblings, ...]
    odd_cores: tuple[int, ...]
    in_id_order: bool
    core_cpus: tuple[int, ...]
    numa_cpus: tuple[int, ...]


@lru_cache(maxsize=256)
def layout_of(topology: CpuTopology) -> CpuLayout:
    """Return the layout of these CPUs; machines of one model share it."""
    numa_places = {numa: place for place, numa in enumerate(topology.numa_nodes)}
    socket_places = {socket: place for place, socket in enumerate(topology.sockets)}
    cores = []
    for core_id in topology.cores:
        cpus = topology.cpus_in_core(core_id)
        first = topology.cpu(next(iter(cpus)))
        cores.append(
            Core(
                cpus=cpus.mask,
                numa=numa_places[first.numa],
                socket=socket_places[first.socket],
            )
        )
    numas = tuple(_numa(topology, numa, socket_places) for numa in topology.numa_nodes)
    count, threads = len(topology), topology.threads_per_core
    firsts = [core.cpus & -core.cpus for core in cores]
    odd_cores = tuple(core.cpus for core in cores if core.cpus.bit_count() != threads)
    return CpuLayout(
        cpus=topology.cpuset.mask,
        threads_per_core=threads,
        cpus_per_numa=count // max(1, sum(len(numa.sockets) for numa in numas)),
        cpus_per_socket=topology.cpus_per_socket,
        numas=numas,
        sockets=tuple(topology.cpus_in_socket(socket).mask for socket in topology.sockets),
        cores=tuple(cores),
        siblings=_siblings(core.cpus for core in cores if core.cpus.bit_count() == threads),
        odd_cores=odd_cores,
        in_id_order=firsts == sorted(firsts)
        and not odd_cores
        and not any(core.cpus & ~numas[core.numa].cpus for core in cores),
        core_cpus=_per_cpu(topology, [core.cpus for core in cores]),
        numa_cpus=_per_cpu(topology, [numa.cpus for numa in numas]),
    )


def _numa(topology: CpuTopology, numa: int, socket_places: dict[int, int]) -> Numa:
    cpus = topology.cpus_in_numa(numa)
    sockets = {socket_places[topology.cpu(cpu).socket] for cpu in cpus}
    return Numa(id=numa, cpus=cpus.mask, sockets=tuple(sorted(sockets)))


def _siblings(cores: Iterable[int]) -> tuple[Siblings, ...]:
    shapes: dict[int, int] = {}
    for cpus in cores:
        first = cpus & -cpus
        shape = cpus >> (first.bit_length() - 1)
        shapes[shape] = shapes.get(shape, 0) | first
    return tuple(
        Siblings(distances=tuple(bits(shape)), firsts=firsts) for shape, firsts in shapes.items()
    )


def _per_cpu(topology: CpuTopology, groups: Iterable[int]) -> tuple[int, ...]:
    table = [0] * (topology.cpuset.mask.bit_length())
    for group in groups:
        for cpu in bits(group):
            table[cpu] = group
    return tuple(table)


def bits(mask: int) -> list[int]:
    """Return the CPUs of a mask, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def around(groups: tuple[int, ...], cpus: int) -> int:
    """Return every CPU of the groups, at [cpu], that these CPUs are in."""
    union = 0
    for cpu in bits(cpus):
        union |= groups[cpu]
    return union


def lowest(mask: int, count: int) -> int:
    """Return the lowest `count` CPUs of a mask, all of it if it has no more."""
    if count >= mask.bit_count():
        return mask
    rest = mask
    for _ in range(count):
        rest &= rest - 1
    return mask ^ rest
