"""What the agent reads of a machine with two sockets, two NUMA nodes and SMT."""

from __future__ import annotations

import json
import sys

from tests.support.guest.machine import Guest

READ = """
import json, sys
from pathlib import Path
from agent.discover.cpus import read_cpus
from agent.discover.host_files import HostFiles
found = read_cpus(HostFiles(root=Path("/")))
json.dump({
    "cpus": [[cpu.id, cpu.core, cpu.socket, cpu.numa] for cpu in found.topology.cpus],
    "numa": [[one.id, one.memory_bytes, sorted(one.huge_pages.items()),
              sorted(one.distances.items())] for one in found.numa],
    "caches": [list(shared) for shared in found.caches],
}, sys.stdout)
"""
HUGE = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
OFFLINE = "/sys/devices/system/cpu/cpu5/online"


def test_cpus_nodes_distances_memory_and_huge_pages_are_read(machine: Guest) -> None:
    """A CPU that is offline is none; its sibling has a core of its own."""
    machine.run("sh", "-c", f"echo 8 > {HUGE}; echo 0 > {OFFLINE}")
    try:
        pages = int(machine.run("cat", HUGE))
        found = json.loads(machine.run(sys.executable, "-c", READ))
    finally:
        machine.run("sh", "-c", f"echo 0 > {HUGE}; echo 1 > {OFFLINE}")

    assert pages > 0
    assert found["cpus"] == [
        *([cpu, cpu // 2 * 2, 0, 0] for cpu in range(4)),
        [4, 4, 1, 1],
        *([cpu, 6, 1, 1] for cpu in (6, 7)),
    ]
    for node, (number, memory, huge, distances) in enumerate(found["numa"]):
        assert number == node
        assert memory == _memory(machine, node)
        assert dict(huge)[2 << 20] == (pages << 21 if node else 0)
        assert dict(distances) == {node: 10, 1 - node: 21}


def _memory(machine: Guest, node: int) -> int:
    lines = machine.run("cat", f"/sys/devices/system/node/node{node}/meminfo").splitlines()
    (total,) = (line.split()[-2] for line in lines if "MemTotal:" in line)
    return int(total) << 10
