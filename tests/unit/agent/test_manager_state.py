"""Kubelet's records of CPUs and memory: what kubelet wrote is read, nothing else believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from agent.checkpoint import CheckpointError, CheckpointFault, checksum
from agent.manager_state import read_cpu_state, read_memory_state
from ledger.domain.cpuset import parse_cpuset, union

SAMPLES: Final = Path(__file__).parents[2] / "samples" / "kubelet" / "managers"
"""Of kubelet 1.36.3; `8cpu` and `2numa` of a virtual machine with SMT and two NUMA nodes."""
ONE: Final = "4781ff22-f568-4918-8f3f-48506c5561b4"
VM1: Final = "9af5104a-81f4-4921-b9a8-6e5d89239397"
VM2: Final = "9919d3e6-ce8a-401a-a7de-a88a3d9ead85"
Read = Callable[[bytes], object]


def content_of(name: str) -> bytes:
    """Return a sample."""
    return (SAMPLES / f"{name}.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "policy", "given"),
    [
        ("none", "none", {}),
        ("static.no-exclusive", "static", {}),
        ("static.one-pod", "static", {ONE: "1"}),
        ("static.two-pods-8cpu-ht", "static", {VM1: "2-3", VM2: "6-7"}),
    ],
)
def test_what_kubelet_wrote_of_cpus_is_read(name: str, policy: str, given: dict[str, str]) -> None:
    """By Pod; the checksum is kubelet's."""
    found, pods = read_cpu_state(content_of(f"cpu_manager_state.{name}"))
    by_pod = {uid: str(union(of.values())) for uid, of in pods.items()}
    assert (found, by_pod) == (policy, given)


def test_each_container_has_its_own_cpus() -> None:
    """Also those that a finished init container left to the next."""
    dump = (
        "(*state.CPUManagerCheckpoint){PolicyName:(string)static DefaultCPUSet:(string)0"
        " Entries:(map[string]map[string]string)map[u:map[a:2-3 init:3-4]]"
        " Checksum:(checksum.Checksum)0}"
    )
    entries = {"u": {"init": "3-4", "a": "2-3"}}
    record = {"policyName": "static", "defaultCpuSet": "0", "entries": entries}
    content = json.dumps({**record, "checksum": checksum(dump)}).encode()
    assert read_cpu_state(content) == (
        "static",
        {"u": {"init": parse_cpuset("3-4"), "a": parse_cpuset("2-3")}},
    )


def test_what_kubelet_wrote_of_memory_is_read() -> None:
    """What each NUMA node can give."""
    assert read_memory_state(content_of("memory_manager_state.none")) == {}
    none = {"hugepages-1Gi": 0, "hugepages-2Mi": 0}
    assert read_memory_state(content_of("memory_manager_state.static.one-pod")) == {
        0: {**none, "memory": 12128047104}
    }
    assert read_memory_state(content_of("memory_manager_state.static.two-pods-2numa")) == {
        0: {**none, "memory": 1222254592},
        1: {**none, "memory": 1514094592},
    }


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("cpu_manager_state.static.two-pods-8cpu-ht", read_cpu_state),
        ("memory_manager_state.static.two-pods-2numa", read_memory_state),
    ],
    ids=["CPUs", "memory"],
)
def test_a_record_that_is_torn_or_changed_is_refused(name: str, read: Read) -> None:
    """Cut off anywhere, or with another digit anywhere but in a key that is not read."""
    content = content_of(name)
    for end in range(len(content) - 1):
        with pytest.raises(CheckpointError):
            read(content[:end])
    for place, byte in enumerate(content):
        if chr(byte).isdigit():
            other = b"%d" % ((byte - ord("0") + 1) % 10)
            with pytest.raises(CheckpointError):
                read(content[:place] + other + content[place + 1 :])


@pytest.mark.parametrize("end", ["", " PodEntries:(state.PodCPUAssignments)<nil>"])
def test_a_kubelet_that_may_give_to_pods_as_a_whole_is_read_while_it_does_not(end: str) -> None:
    """The gate PodLevelResourceManagers changes the checksum; what it gave nobody here can read."""
    dump = (
        "(*state.CPUManagerCheckpoint){PolicyName:(string)static DefaultCPUSet:(string)0-3"
        f" Entries:(map[string]map[string]string)map[]{end} Checksum:(checksum.Checksum)0}}"
    )
    said: dict[str, Any] = {"policyName": "static", "defaultCpuSet": "0-3"}
    said["checksum"] = checksum(dump)
    assert read_cpu_state(json.dumps(said).encode()) == ("static", {})
    said["podEntries"] = {"u": {"cpuSet": "1"}}
    with pytest.raises(CheckpointError) as refused:
        read_cpu_state(json.dumps(said).encode())
    assert refused.value.fault is CheckpointFault.OTHER_VERSION


def test_a_cpu_list_that_is_none_is_refused_with_a_right_checksum() -> None:
    """Whoever wrote it."""
    dump = (
        "(*state.CPUManagerCheckpoint){PolicyName:(string)static DefaultCPUSet:(string)"
        " Entries:(map[string]map[string]string)map[u:map[c:3-0]] Checksum:(checksum.Checksum)0}"
    )
    said = {"policyName": "static", "entries": {"u": {"c": "3-0"}}, "checksum": checksum(dump)}
    with pytest.raises(CheckpointError, match="backwards"):
        read_cpu_state(json.dumps(said).encode())
