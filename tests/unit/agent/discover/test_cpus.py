"""What the kernel's files say of CPUs, NUMA nodes and memory, and where they say too little."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.decide.node_cpus import MachineCpus, NumaNode
from agent.discover.cpus import read_cpus
from agent.discover.host_files import HostFiles
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.topology import Cpu, cpu_topology_of
from tests.support.cpu_trees import CPU, NODE, write_cpus, write_numa
from tests.support.sys_trees import SysTree
from tests.support.topologies import MACHINE_X, MACHINE_Y


def read(tree: SysTree) -> MachineCpus:
    """Read a host's CPUs."""
    return read_cpus(HostFiles(root=tree.root))


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    """Return the contract's machine Y: two sockets of four cores, two threads each."""
    tree = SysTree(root=tmp_path)
    write_cpus(tree, MACHINE_Y, memory_kib=4096, pages={2048: 1, 1048576: 0})
    return tree


def test_a_machine_is_read_as_the_kernel_lays_it_out(tree: SysTree) -> None:
    """CPUs with core, socket and NUMA node; caches; distances; memory with its huge pages."""
    assert read(tree) == MachineCpus(
        topology=MACHINE_Y,
        caches=(parse_cpuset("0-3,8-11"), parse_cpuset("4-7,12-15")),
        numa=tuple(
            NumaNode(
                id=numa,
                memory_bytes=4 << 20,
                huge_pages={2 << 20: 2 << 20, 1 << 30: 0},
                distances={0: 10 + 11 * numa, 1: 21 - 11 * numa},
            )
            for numa in (0, 1)
        ),
    )


def test_numa_nodes_of_one_socket_are_told_apart(tmp_path: Path) -> None:
    """The contract's machine X: one socket of two NUMA nodes."""
    tree = SysTree(root=tmp_path)
    write_cpus(tree, MACHINE_X)
    assert read(tree).topology == MACHINE_X


def test_a_cores_id_is_its_lowest_cpu_whatever_the_kernel_counts(tmp_path: Path) -> None:
    """So kubelet counts them; the kernel's own ids repeat, here also within a socket."""
    cpus = [Cpu(id=cpu, core=cpu // 2, socket=0, numa=0) for cpu in range(8)]
    tree = SysTree(root=tmp_path)
    write_cpus(tree, cpu_topology_of(cpus))
    for cpu in range(8):
        tree.write(f"{CPU}/cpu{cpu}/topology/core_id", "0")
    assert [cpu.core for cpu in read(tree).topology.cpus] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_cpus_that_are_offline_are_not_there(tree: SysTree) -> None:
    """Their folders stay, without a topology; what lists them still is cut."""
    tree.write(f"{CPU}/online", "0-2,4-15")
    (tree.root / CPU / "cpu3" / "topology" / "thread_siblings_list").unlink()
    found = read(tree)
    assert found.topology.cpuset == parse_cpuset("0-2,4-15")
    assert found.topology.cpu(11).core == 11, "the core that lost its first CPU has the next one"
    assert found.caches[0] == parse_cpuset("0-2,8-11")


def test_a_numa_node_may_have_memory_alone(tree: SysTree) -> None:
    """It is told of, so that its distances are whole."""
    write_numa(tree, 2, "", [21, 21, 10], memory_kib=8192)
    for numa, distances in ((0, "10 21 28"), (1, "21 10 28")):
        tree.write(f"{NODE}/node{numa}/distance", distances)
    found = read(tree)
    assert [numa.id for numa in found.numa] == [0, 1, 2]
    assert found.numa[0].distances == {0: 10, 1: 21, 2: 28}
    assert found.numa[2].memory_bytes == 8 << 20
    assert found.topology == MACHINE_Y


def test_a_kernel_without_numa_has_one_node(tmp_path: Path) -> None:
    """A virtual machine may name no package and no cache, either."""
    tree = SysTree(root=tmp_path)
    tree.write(f"{CPU}/online", "0-1")
    for cpu in (0, 1):
        tree.write(f"{CPU}/cpu{cpu}/topology/physical_package_id", "-1")
        tree.write(f"{CPU}/cpu{cpu}/topology/thread_siblings_list", str(cpu))
    tree.write("proc/meminfo", "MemTotal:        2048 kB\nMemFree:  1 kB")
    tree.write("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "4")
    found = read(tree)
    assert found.topology == cpu_topology_of(
        Cpu(id=cpu, core=cpu, socket=0, numa=0) for cpu in (0, 1)
    )
    assert found.caches == ()
    assert found.numa == (
        NumaNode(id=0, memory_bytes=2 << 20, huge_pages={64 << 10: 256 << 10}, distances={0: 10}),
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{CPU}/online", "three"),
        (f"{CPU}/cpu2/topology/thread_siblings_list", None),
        (f"{CPU}/cpu0/topology/physical_package_id", ""),
        (f"{NODE}/node1/cpulist", "4-6,12-15"),
        (f"{NODE}/node0/distance", "10"),
        (f"{NODE}/node0/meminfo", "nothing"),
        (f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages", "many"),
    ],
)
def test_what_can_not_be_read_is_said_and_nothing_guessed(
    tree: SysTree, path: str, text: str | None
) -> None:
    """Such as a CPU that goes offline meanwhile, or one that no NUMA node has."""
    if text is None:
        (tree.root / path).unlink()
    else:
        tree.write(path, text)
    with pytest.raises(InputError, match="tell no CPUs"):
        read(tree)
