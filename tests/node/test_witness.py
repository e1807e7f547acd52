"""What a real kubelet, containerd and kernel tell of who is on a node's cards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.checkpoint import FILE_NAME
from agent.discover.host_files import HostFiles
from agent.discover.machine import Card, CardProcess
from agent.plugin.files import CheckpointFile, SpecFolder
from agent.witness.asking import PodResources, Runtime, places
from agent.witness.said import RUNNING
from agent.witness.seen import Read, Source, seen
from ledger.domain.resources import SLOT
from tests.support.node.agents import agent, holder
from tests.support.node.node import Node
from tests.support.node.pods import Pods


def test_every_source_of_a_real_node_tells_whose_a_container_is(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """Kubelet's file and answer, containerd's words and the kernel's cgroups name one container."""
    with agent(machine, tmp_path) as running:
        pod = pods.make("seen", [holder()])
        running.hold(pod, main=["GPU-a"])
        pods.running("seen")
        uid = pod["metadata"]["uid"]

        given = asyncio.run(PodResources(machine.pod_resources).answer()).given
        runtime = Runtime(machine.room.folder / "containerd.sock")
        listed, inside = asyncio.run(runtime.containers())
        record = CheckpointFile(machine.plugins / FILE_NAME).read()

        [answer] = [one for one in given if one.pod[1] == pod["metadata"]["name"]]
        [entry] = [one for one in record.entries if one.pod_uid == uid]
        assert (answer.container, answer.resource, answer.ids) == ("main", SLOT, entry.ids())
        [one] = [each for each in listed if each.pod_uid == uid]
        assert (one.pod_name, one.name, one.state) == (answer.pod[1], "main", RUNNING)
        [name] = [each for each in inside[one.container_id].cdi if each.startswith(f"{SLOT}=")]
        assert SpecFolder(machine.cdi).devices(name.removeprefix(f"{SLOT}=")) == frozenset(
            {"GPU-a"}
        )

        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        mine = [
            pid
            for pid, place in places(HostFiles(root=Path("/")), pids).items()
            if place is not None and place.pod_uid == uid and place.container_id == one.container_id
        ]
        assert mine

        card = Card(uuid="GPU-a", minor=0, memory_bytes=1, processes=(CardProcess(pid=mine[0]),))
        read = Read(
            checkpoint=record,
            given=given,
            containers=listed,
            inside=inside,
            places=places(HostFiles(root=Path("/")), mine[:1]),
        )
        found = seen((card,), read, is_card=lambda _: False)
        [(whose, sources)] = found.cards[0].holders
        assert (whose.pod_uid, whose.container, whose.pod_name) == (uid, "main", one.pod_name)
        assert sources == {Source.PROCESS}
