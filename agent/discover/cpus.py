"""The machine's CPUs, caches, NUMA nodes and huge pages: what the kernel says in its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from agent.decide.node_cpus import MachineCpus, NumaNode
from agent.discover.host_files import HostFiles
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.topology import Cpu, cpu_topology_of

_CPU: Final = "sys/devices/system/cpu"
_NODE: Final = "sys/devices/system/node"
_NAME: Final = re.compile(r"node([0-9]{1,4})")
_CACHE: Final = re.compile(r"index[0-9]{1,2}")
_PAGES: Final = re.compile(r"hugepages-([0-9]{1,12})kB")
_MEMORY: Final = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB")


def read_cpus(host: HostFiles) -> MachineCpus:
    """
    Return the machine's CPUs and NUMA nodes.

    A core's id is its lowest CPU, as kubelet counts them: the kernel's own repeat within a socket
    on some machines. A kernel without NUMA has one node.

    Raises:
        InputError: the files do not say, as while a CPU goes offline.
    """
    try:
        online = parse_cpuset(host.text(f"{_CPU}/online"))
        ids = sorted(int(m[1]) for name in host.names(_NODE) if (m := _NAME.fullmatch(name)))
        lists = {numa: host.text(f"{_NODE}/node{numa}/cpulist") for numa in ids}
        cpus = {numa: parse_cpuset(text) & online for numa, text in lists.items()} or {0: online}
        return MachineCpus(
            topology=cpu_topology_of(_cpus(host, online, cpus)),
            caches=tuple(_caches(host, online)),
            numa=tuple(_numa_node(host, numa, ids) for numa in cpus),
        )
    except (OSError, ValueError, InputError) as error:
        raise InputError(f"the kernel's files tell no CPUs: {error}", place=_CPU) from error


def _cpus(host: HostFiles, online: CpuSet, cpus: Mapping[int, CpuSet]) -> Iterator[Cpu]:
    numa_of = {cpu: numa for numa, of in cpus.items() for cpu in of}
    left = online
    while left:
        core = next(iter(left))
        folder = f"{_CPU}/cpu{core}/topology"
        siblings = parse_cpuset(host.text(f"{folder}/thread_siblings_list")) & left
        siblings |= cpuset_of([core])
        # A virtual machine may name no package, -1: it is one.
        socket = max(0, int(host.text(f"{folder}/physical_package_id")))
        for cpu in siblings:
            if cpu not in numa_of:
                raise InputError(f"no NUMA node has it: cpu={cpu}")
            yield Cpu(id=cpu, core=core, socket=socket, numa=numa_of[cpu])
        left -= siblings


def _caches(host: HostFiles, online: CpuSet) -> Iterator[CpuSet]:
    """Yield the CPUs of each last-level cache; a virtual machine may name none."""
    left = online
    while left:
        cpu = next(iter(left))
        folder = f"{_CPU}/cpu{cpu}/cache"
        named = [name for name in host.names(folder) if _CACHE.fullmatch(name)]
        found = [(int(host.text(f"{folder}/{name}/level")), name) for name in named]
        shared = EMPTY
        if found:
            shared = parse_cpuset(host.text(f"{folder}/{max(found)[1]}/shared_cpu_list")) & online
            yield shared
        left -= shared | cpuset_of([cpu])


def _numa_node(host: HostFiles, numa: int, ids: list[int]) -> NumaNode:
    folder, pages = f"{_NODE}/node{numa}", f"{_NODE}/node{numa}/hugepages"
    distances, meminfo = [10], f"{folder}/meminfo"
    if ids:
        distances = [int(word) for word in host.text(f"{folder}/distance").split()]
    else:
        pages, meminfo = "sys/kernel/mm/hugepages", "proc/meminfo"
    memory = _MEMORY.search(host.text(meminfo))
    if memory is None:
        raise InputError(f"no MemTotal: file={meminfo}")
    huge_pages = {
        int(size[1]) << 10: (int(size[1]) << 10) * int(host.text(f"{pages}/{name}/nr_hugepages"))
        for name in host.names(pages)
        if (size := _PAGES.fullmatch(name))
    }
    return NumaNode(
        id=numa,
        memory_bytes=int(memory[1]) << 10,
        huge_pages=huge_pages,
        distances=dict(zip(ids or [numa], distances, strict=True)),
    )
