"""`tenure serve cpus --nri` beside a real containerd: the ledger's CPUs, before a process runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.cpus.nri_messages import message
from ledger.domain.cpuset import parse_cpuset
from tests.support.cgroup_trees import uid_of
from tests.support.cpu_trees import write_cpus
from tests.support.cpus_world import CpusWorld, cpus_world, pod
from tests.support.node.cri import sandbox
from tests.support.node.node import runtime
from tests.support.node.programs import node_programs
from tests.support.node.room import CGROUPS, Room, room
from tests.support.nri_plugins import other_plugin
from tests.support.planned import node
from tests.support.sys_trees import SysTree

_MADE: Final = 1 << 4
_START: Final = 1 << 5
OWN: Final = "1"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Room]:
    """A room with a runtime and no kubelet, and kubelet's cgroups of all Pods."""
    folder = tmp_path / "node"
    folder.mkdir()
    with room(folder) as inside:
        for controller in ("cpuset", "cpu"):
            kubepods = CGROUPS / controller / inside.cgroup / "kubepods"
            for path in (kubepods, kubepods / "burstable", kubepods / "besteffort"):
                path.mkdir()
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if controller == "cpuset":
                        (path / name).write_text((path.parent / name).read_text())
        with runtime(inside, node_programs()):
            yield inside


@pytest.fixture
def world(made: Room, tmp_path: Path) -> Iterator[CpusWorld]:
    """Service, API server and kubelet of the node, whose process is not started yet."""
    folder = tmp_path / "world"
    folder.mkdir()
    kubepods = Path(made.cgroup) / "kubepods"
    topology = node(count=os.cpu_count() or 2).cpus.topology
    write_cpus(SysTree(root=folder), topology, memory_kib=4096, pages={})
    with cpus_world(folder, CGROUPS / "cpuset" / kubepods, CGROUPS / "cpu" / kubepods) as played:
        played.options["host"] = folder
        yield played


def test_an_lsr_pod_is_born_on_its_cpus_and_others_beside_them(
    made: Room, world: CpusWorld
) -> None:
    """
    By the runtime's own words of it, and by its cgroup just before its process runs.

    On cgroup v1 the runtime copies the Pod's CPUs for who has none of its own.
    """
    own, shared = pod(1, qos="LSR", cpus=OWN), pod(2, milli=500)
    for one in (own, shared):
        one["status"].pop("containerStatuses")  # kubelet has no container of theirs yet
    world.runs(own, shared)
    world.allow(bind=True)
    world.start(nri=made.folder / "nri.sock")
    world.until(lambda: '"standing":"on"' in world.log(), "the runtime does not take it")
    seen: dict[str, list[str]] = {uid_of(1): [], uid_of(2): []}

    def look(method: str, payload: bytes) -> bytes:
        read = message("Call").FromString(payload)
        cpus = read.container.linux.resources.cpu.cpus
        if method == "StartContainer":
            [found] = (CGROUPS / "cpuset" / made.cgroup).rglob(read.container.id)
            cpus = (found / "cpuset.cpus").read_text().strip()
        seen[read.pod.uid].append(cpus)
        return b""

    with other_plugin(made.folder / "nri.sock", "00", _MADE | _START, look):
        for number in (1, 2):
            with sandbox(made, uid_of(number)) as alone:
                alone.start(alone.create("main"))
    every = parse_cpuset((CGROUPS / "cpuset" / made.cgroup / "cpuset.cpus").read_text().strip())
    others = str(every - parse_cpuset(OWN))
    assert seen == {uid_of(1): [OWN, OWN], uid_of(2): ["", others]}
