"""
Kubelet's records of which CPUs and which memory it gave to whom, read and verified.

Pure: bytes in, values out. What is not exactly what kubelet writes is refused by name, and tells of
nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from agent.checkpoint import CheckpointError, CheckpointFault, checksum, decoded
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.errors import InputError

CPU_FILE: Final = "cpu_manager_state"
MEMORY_FILE: Final = "memory_manager_state"
_TABLE: Final = ("total", "systemReserved", "allocatable", "reserved", "free")
_K = TypeVar("_K", str, int)
_V = TypeVar("_V")


class _File(msgspec.Struct, rename="camel"):
    policy_name: str
    checksum: int
    pod_entries: dict[str, msgspec.Raw] | None = None


class _Cpus(_File):
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str]] | None = None


class _Numa(msgspec.Struct, rename="camel"):
    number_of_assignments: int
    memory_map: dict[str, dict[str, int]]
    cells: list[int]


class _Block(msgspec.Struct, rename="camel"):
    type: str
    size: int
    numa_affinity: list[int]


class _Memory(_File):
    machine_state: dict[int, _Numa] | None = None
    entries: dict[str, dict[str, list[_Block]]] | None = None


_CPUS: Final = msgspec.json.Decoder(_Cpus)
_MEMORY: Final = msgspec.json.Decoder(_Memory)


def read_cpu_state(content: bytes) -> tuple[str, dict[str, dict[str, CpuSet]]]:
    """
    Return the CPU manager's policy, and UID of a Pod -> container -> the CPUs that it gave.

    Raises:
        CheckpointError: kubelet did not write it.
    """
    file = decoded(_CPUS, content, CPU_FILE)
    entries = file.entries or {}
    dump = (
        f" DefaultCPUSet:(string){file.default_cpu_set}"
        f" Entries:(map[string]map[string]string){_map(entries, lambda of: _map(of, str))}"
    )
    _verify(file, CPU_FILE, "CPU", dump)
    try:
        given = {
            uid: {name: parse_cpuset(text) for name, text in of.items()}
            for uid, of in entries.items()
        }
    except InputError as error:
        raise CheckpointError(CheckpointFault.OTHER_SHAPE, str(error), name=CPU_FILE) from error
    return file.policy_name, given


def read_memory_state(content: bytes) -> dict[int, dict[str, int]]:
    """
    Return NUMA node -> `memory`, `hugepages-2Mi` -> bytes that the memory manager can give.

    Raises:
        CheckpointError: kubelet did not write it.
    """
    file = decoded(_MEMORY, content, MEMORY_FILE)
    machine = file.machine_state or {}
    given = _map(file.entries or {}, lambda of: _map(of, lambda blocks: _list(map(_block, blocks))))
    dump = (
        f" MachineState:(state.NUMANodeMap){_map(machine, _numa)}"
        f" Entries:(state.ContainerMemoryAssignments){given}"
    )
    _verify(file, MEMORY_FILE, "Memory", dump)
    return {
        numa: {name: table["allocatable"] for name, table in node.memory_map.items()}
        for numa, node in machine.items()
    }


def _verify(file: _File, name: str, kind: str, dump: str) -> None:
    """Compare the checksum with those of Go's dump, with a field for whole Pods and without."""
    if file.pod_entries:
        fact = "it gave to Pods as a whole"
        raise CheckpointError(CheckpointFault.OTHER_VERSION, fact, name=name)
    begins = f"(*state.{kind}ManagerCheckpoint){{PolicyName:(string){file.policy_name}{dump}"
    ends = ("", f" PodEntries:(state.Pod{kind}Assignments)<nil>")
    found = {checksum(f"{begins}{end} Checksum:(checksum.Checksum)0}}") for end in ends}
    if file.checksum not in found:
        fact = f"stored={file.checksum}, computed={','.join(map(str, sorted(found)))}"
        raise CheckpointError(CheckpointFault.WRONG_CHECKSUM, fact, name=name)


def _map(of: Mapping[_K, _V], dumped: Callable[[_V], str]) -> str:
    return f"map{_list(f'{key}:{dumped(of[key])}' for key in sorted(of))}"


def _list(of: Iterable[object]) -> str:
    return f"[{' '.join(map(str, of))}]"


def _numa(node: _Numa) -> str:
    tables = _map(node.memory_map, _table)
    return (
        f"<*>{{NumberOfAssignments:(int){node.number_of_assignments}"
        f" MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:{_ints(node.cells)}}}"
    )


def _table(of: Mapping[str, int]) -> str:
    names = ("TotalMemSize", *(key[0].upper() + key[1:] for key in _TABLE[1:]))
    fields = [f"{name}:(uint64){of.get(key)}" for name, key in zip(names, _TABLE, strict=True)]
    return f"<*>{{{' '.join(fields)}}}"


def _block(one: _Block) -> str:
    kind = f"Type:(v1.ResourceName){one.type} Size:(uint64){one.size}"
    return f"{{NUMAAffinity:{_ints(one.numa_affinity)} {kind}}}"


def _ints(of: list[int]) -> str:
    return f"([]int){_list(of)}"
