"""What an agent reads of a node's CPUs, of which sources, and what keeps it from telling."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from agent.checkpoint import checksum
from agent.decide.node_cpus import KubeletManagers
from agent.discover.host_files import HostFiles
from agent.https import NoAnswerError
from agent.manager_state import CPU_FILE, MEMORY_FILE
from agent.witness import said
from agent.witness.asking import PodResources
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy
from ledger.domain.cpuset import parse_cpuset
from tenure.serving.agent_cpus import CpuReader
from tests.support.cpu_trees import CPU, write_cpus
from tests.support.found_cpus import pod_here
from tests.support.sockets import serving
from tests.support.sys_trees import SysTree
from tests.support.topologies import MACHINE_Y

SAMPLES: Final = Path(__file__).parents[3] / "samples" / "kubelet" / "managers"
STATIC: Final = KubeletManagers(
    cpu=KubeletCpuPolicy(policy="static", reserved_cpus=parse_cpuset("0,8"))
)


def record(policy: str, **given: str) -> bytes:
    """Return a record of the CPU manager: UID of a Pod -> the CPUs of its one container."""
    listed = " ".join(f"{uid}:map[main:{cpus}]" for uid, cpus in sorted(given.items()))
    dump = (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string)"
        f" Entries:(map[string]map[string]string)map[{listed}] Checksum:(checksum.Checksum)0}}"
    )
    entries = {uid: {"main": cpus} for uid, cpus in given.items()}
    whole = {"policyName": policy, "defaultCpuSet": "", "entries": entries}
    return json.dumps({**whole, "checksum": checksum(dump)}).encode()


@dataclass(slots=True)
class Kubelet:
    """
    A kubelet with what it is told and does.

    Attributes:
        given: UID of a Pod -> its CPUs; `pods` are those that it tells.
    """

    root: Path
    managers_now: KubeletManagers = STATIC
    given: dict[str, str] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    away: bool = False

    async def managers(self) -> KubeletManagers:
        """Return its configuration."""
        if self.away:
            raise NoAnswerError("no answer")
        return self.managers_now

    async def pods(self) -> Sequence[dict[str, Any]]:
        """Return its Pods."""
        return [pod_here(uid) for uid in self.given if uid not in self.untold]

    def records(self) -> None:
        """Write its record of CPUs, as kubelet does: another file."""
        fresh = self.root / "fresh"
        fresh.write_bytes(record(self.managers_now.cpu.policy, **self.given))
        fresh.replace(self.root / CPU_FILE)

    def lists(self, *_: object) -> bytes:
        """Answer who was given what."""
        pods = [
            {
                "name": f"pod-{uid}",
                "namespace": "web",
                "containers": [{"name": "main", "cpu_ids": list(parse_cpuset(cpus))}],
            }
            for uid, cpus in self.given.items()
        ]
        return bytes(said.ListPodResourcesResponse(pod_resources=pods).SerializeToString())

    def offers(self, *_: object) -> bytes:
        """Answer what it would give: all but the first core."""
        ids = list(parse_cpuset("1-7,9-15"))
        return bytes(said.AllocatableResourcesResponse(cpu_ids=ids).SerializeToString())


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    """Return a kubelet on the contract's machine Y, on its socket and in its folder."""
    made = Kubelet(root=tmp_path / "kubelet")
    made.root.mkdir()
    write_cpus(SysTree(root=tmp_path), MACHINE_Y)
    answers = {"List": made.lists, "GetAllocatableResources": made.offers}
    with serving(tmp_path / "s", "v1.PodResourcesLister", answers):
        yield made


@pytest.fixture(params=[True, False], ids=["by its record", "by its answer"])
def reader(request: pytest.FixtureRequest, kubelet: Kubelet, tmp_path: Path) -> CpuReader:
    """Return what reads this node, of either source."""
    return CpuReader(
        host=HostFiles(root=tmp_path),
        managers=kubelet.managers,
        pods=kubelet,
        resources=PodResources(tmp_path / "s"),
        root=kubelet.root if request.param else None,
    )


def why_not(reader: CpuReader) -> str:
    """Read what can't be read, and return why it can't."""
    found, problems = asyncio.run(reader.read())
    assert found is None
    [problem] = problems
    assert problem.reason == "CPUsUnknown"
    return problem.message


def test_cpus_are_known_by_kubelets_record_or_its_answer(
    kubelet: Kubelet, reader: CpuReader
) -> None:
    """The machine, kubelet's policies, whom it pinned and which Pods there are."""
    kubelet.given = {"a": "2,10", "b": "4-5"}
    kubelet.records()
    found, problems = asyncio.run(reader.read())
    assert not problems
    assert found is not None
    assert found.machine.topology == MACHINE_Y
    assert found.managers == STATIC
    given = {"a": "2,10", "b": "4-5"}
    assert found.pinned == {uid: {"main": parse_cpuset(text)} for uid, text in given.items()}
    assert [pod["metadata"]["uid"] for pod in found.pods] == ["a", "b"]
    assert found.memory == {}


@pytest.mark.parametrize(
    ("policy", "reserved"), [("static", "0,8"), ("none", "")], ids=["static", "none"]
)
def test_the_cpus_that_kubelet_picked_for_the_system_are_those_that_it_does_not_offer(
    kubelet: Kubelet, reader: CpuReader, policy: str, reserved: str
) -> None:
    """Where it was told an amount alone; without the static policy it picks none."""
    kubelet.managers_now = KubeletManagers(cpu=KubeletCpuPolicy(policy=policy))
    kubelet.records()
    found, _ = asyncio.run(reader.read())
    assert found is not None
    assert found.managers.cpu.reserved_cpus == parse_cpuset(reserved)


def test_the_memory_that_kubelet_can_give_is_in_its_record(
    kubelet: Kubelet, reader: CpuReader
) -> None:
    """Of its static policy, and where its folder is there."""
    kubelet.managers_now = replace(STATIC, memory_policy="Static")
    kubelet.records()
    sample = SAMPLES / "memory_manager_state.static.two-pods-2numa.json"
    (kubelet.root / MEMORY_FILE).write_bytes(sample.read_bytes())
    found, _ = asyncio.run(reader.read())
    assert found is not None
    memory = {numa: of["memory"] for numa, of in found.memory.items()}
    assert memory == ({} if reader.root is None else {0: 1222254592, 1: 1514094592})
    (kubelet.root / MEMORY_FILE).write_bytes(b"{}")
    assert reader.root is None or "memory_manager_state" in why_not(reader)


def test_nothing_is_told_while_one_source_is_silent(
    kubelet: Kubelet, reader: CpuReader, tmp_path: Path
) -> None:
    """Half of the truth would hand somebody's CPUs out again."""
    kubelet.records()
    kubelet.away = True
    assert "no answer" in why_not(reader)
    kubelet.away = False
    (tmp_path / CPU / "online").unlink()
    assert "tell no CPUs" in why_not(reader)


def test_a_configuration_that_is_not_this_kubelets_is_noticed(
    kubelet: Kubelet, reader: CpuReader
) -> None:
    """It gave CPUs, and is configured to give none: a flag says otherwise, or the file is old."""
    kubelet.given = {"a": "2"}
    kubelet.records()
    kubelet.managers_now = KubeletManagers()
    assert why_not(reader)


def test_a_pod_with_cpus_that_kubelet_does_not_tell_yet_is_waited_for(
    kubelet: Kubelet, reader: CpuReader
) -> None:
    """By its answer, which has no UIDs; its record has."""
    kubelet.given, kubelet.untold = {"a": "2", "b": "3"}, {"b"}
    kubelet.records()
    if reader.root is None:
        assert "no such Pod: web/pod-b" in why_not(reader)
    else:
        found, _ = asyncio.run(reader.read())
        assert found is not None
        assert found.pinned.keys() == {"a", "b"}


def test_a_torn_record_tells_of_nobody(kubelet: Kubelet, reader: CpuReader) -> None:
    """Neither does one that is not there."""
    reader = replace(reader, root=kubelet.root)
    assert CPU_FILE in why_not(reader)
    kubelet.given = {"a": "2"}
    kubelet.records()
    file = kubelet.root / CPU_FILE
    file.write_bytes(file.read_bytes().replace(b'"2"', b'"3"'))
    assert "checksum" in why_not(reader)


def test_a_record_that_changes_begins_a_round(kubelet: Kubelet, reader: CpuReader) -> None:
    """By its file alone, which is not read for that; an answer is asked for at each round."""
    kubelet.records()
    before = reader.version()
    assert reader.version() == before
    kubelet.given = {"a": "2"}
    kubelet.records()
    os.utime(kubelet.root / CPU_FILE, ns=(1, 1))
    assert (reader.version() != before) is (reader.root is not None)
