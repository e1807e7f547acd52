"""A machine's CPUs in the host's `/sys`, as the kernel lays them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.cpuset import cpuset_of
from ledger.domain.topology import CpuTopology
from tests.support.sys_trees import SysTree

CPU: Final = "sys/devices/system/cpu"
NODE: Final = "sys/devices/system/node"
KIB: Final = 1 << 10
NO_PAGES: Final[Mapping[int, int]] = {}


def write_cpus(
    tree: SysTree,
    topology: CpuTopology,
    *,
    memory_kib: int = 1 << 20,
    pages: Mapping[int, int] = NO_PAGES,
) -> None:
    """
    Write CPUs, one last-level cache for each socket, and NUMA nodes with so much memory each.

    Args:
        pages: KiB of a huge page -> how many each NUMA node has.
    """
    tree.write(f"{CPU}/online", str(topology.cpuset))
    for cpu in topology.cpus:
        folder = f"{CPU}/cpu{cpu.id}"
        tree.write(f"{folder}/topology/core_id", str(cpu.core))
        tree.write(f"{folder}/topology/physical_package_id", str(cpu.socket))
        siblings = topology.cpus_in_core(cpu.core_id)
        tree.write(f"{folder}/topology/thread_siblings_list", str(siblings))
        for index, level, shared in (
            (0, 1, siblings),
            (3, 3, topology.cpus_in_socket(cpu.socket)),
        ):
            tree.write(f"{folder}/cache/index{index}/level", str(level))
            tree.write(f"{folder}/cache/index{index}/shared_cpu_list", str(shared))
        tree.write(f"{folder}/cache/uevent", "")
    numas = topology.numa_nodes
    tree.write(f"{NODE}/online", str(cpuset_of(numas)))
    for place, numa in enumerate(numas):
        distances = [10 if other == place else 21 for other in range(len(numas))]
        cpus = str(topology.cpus_in_numa(numa))
        write_numa(tree, numa, cpus, distances, memory_kib=memory_kib, pages=pages)


def write_numa(
    tree: SysTree,
    numa: int,
    cpus: str,
    distances: list[int],
    *,
    memory_kib: int,
    pages: Mapping[int, int] = NO_PAGES,
) -> None:
    """Write one NUMA node."""
    folder = f"{NODE}/node{numa}"
    tree.write(f"{folder}/cpulist", cpus)
    tree.write(f"{folder}/distance", " ".join(map(str, distances)))
    used = f"Node {numa} MemUsed:   {memory_kib // 2} kB"
    tree.write(f"{folder}/meminfo", f"Node {numa} MemTotal:       {memory_kib} kB\n{used}")
    for size, count in pages.items():
        tree.write(f"{folder}/hugepages/hugepages-{size}kB/nr_hugepages", str(count))
