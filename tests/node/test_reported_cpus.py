"""What an agent reports of a real kubelet's CPUs: by its records, its answers and its listener."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from agent.decide.node_cpus import FoundCpus
from agent.discover.cpus import read_cpus
from agent.discover.host_files import HostFiles
from agent.https import Authority, Caller
from agent.kubelet.managers import ask_managers, read_configuration
from agent.kubelet.watch import KubeletPods
from agent.manager_state import MEMORY_FILE, read_memory_state
from agent.report.reporter import path_of_topology
from agent.witness.asking import PodResources
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.kube.nrt_objects import read_topology
from tenure.serving.agent_cpus import CpuReader
from tests.support.kube.bursts import DIALECTS, eventually
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import TOPOLOGIES
from tests.support.node.agents import Agent, agent
from tests.support.node.clusters import Cluster
from tests.support.node.cpu_processes import define
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.pods import Pods, container

ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
SETTINGS: Final[dict[str, Any]] = {
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
}
RESERVED: Final = {"reservedSystemCPUs": "0"}
BY_AMOUNT: Final = {"systemReserved": {"cpu": "100m"}}
WHOLE_CPU: Final = {"cpu": 1, "memory": 64 << 20}


def binds_cpus(plane: ControlPlane, value: str | None) -> None:
    """Have the Node say that its containers are bound to CPUs of their own, or not."""
    labels = {"metadata": {"labels": {"tenure.sh/cpu-managed": value}}}
    assert plane.api().patch(f"/api/v1/nodes/{NODE_NAME}", labels).ok


def allowed(machine: Node, pod: dict[str, Any]) -> set[str]:
    """Return on which CPUs the kernel lets the processes of a Pod's container run."""
    [status] = pod["status"]["containerStatuses"]
    found = set()
    for pid in machine.processes(pod, status["containerID"].rpartition("/")[2]):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Cpus_allowed_list:"):
                found.add(line.split()[1])
    return found


def read(cluster: Cluster, root: Path | None) -> FoundCpus:
    """Read the node as the agent does, with its token."""
    machine = cluster.machine

    async def ask() -> FoundCpus:
        async with aiohttp.ClientSession() as session:
            caller = Caller(
                session=session,
                url=f"https://127.0.0.1:{machine.port}",
                authority=Authority(machine.room.folder / "kubelet-certs" / "kubelet.crt"),
                token=cluster.folder / "token",
                server_name=NODE_NAME,
            )
            found, problems = await CpuReader(
                host=HostFiles(root=Path("/")),
                managers=partial(ask_managers, caller),
                pods=KubeletPods(caller=caller),
                resources=PodResources(machine.pod_resources),
                root=root,
            ).read()
            assert found is not None, problems
            return found

    return asyncio.run(ask())


@pytest.mark.parametrize("reserving", [RESERVED, BY_AMOUNT], ids=["by name", "by amount"])
def test_what_a_real_kubelet_gave_is_reported(
    cluster: Cluster, pods: Pods, tmp_path: Path, reserving: dict[str, Any]
) -> None:
    """
    Its configuration, reserved CPUs and the CPUs of a Guaranteed Pod, until that has ended.

    By its record and its answers alike, as the kernel binds the container; an agent with the
    printed rights writes it, and the scheduler's reader has it back. An LSR Pod is placed by that;
    what it was granted replaces what kubelet's record has of it.
    """
    machine, plane = cluster.machine, cluster.plane
    root, path = machine.room.folder / "kubelet", path_of_topology(NODE_NAME)
    define(plane, tmp_path)

    def allocs(own: Agent) -> list[dict[str, Any]] | None:
        got = plane.api().get(path)
        if not got.ok:
            assert own.runs(), own.words()
            return None
        found: list[dict[str, Any]] = json.loads(got.body["metadata"]["annotations"][ALLOCS]) or []
        return found

    told = (*cluster.told(topology=True), "--kubelet-root", str(root))
    with (
        machine.configured(**SETTINGS, **reserving),
        cluster.served() as served,
        agent(machine, tmp_path, told=told) as own,
    ):
        eventually(lambda: allocs(own) == [])
        pod = pods.make("pinned", [container(resources=WHOLE_CPU)])
        pods.running("pinned")
        eventually(lambda: allocs(own))
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        assert allocs(own) == [
            {
                "namespace": pods.namespace,
                "name": name,
                "uid": uid,
                "cpuset": "1",
                "managedByKubelet": True,
            }
        ]
        assert allowed(machine, pods.get("pinned")) == {"1"}
        by_record, by_answer = read(cluster, root), read(cluster, None)
        assert by_record.pinned == by_answer.pinned == {uid: {"main": parse_cpuset("1")}}
        assert by_record.managers == by_answer.managers
        assert by_record.managers.cpu.reserved_cpus == parse_cpuset("0")
        managers = read_configuration(machine.room.folder / "kubelet.yaml")
        kept = replace(managers.cpu, reserved_cpus=parse_cpuset("0"))
        assert replace(managers, cpu=kept) == by_record.managers
        assert read_memory_state((root / MEMORY_FILE).read_bytes()) == {}

        for version in (path, f"{TOPOLOGIES}/{NODE_NAME}"):
            reported = read_topology(plane.api().get(version).body)
            assert reported.cpus == read_cpus(HostFiles(root=Path("/"))).topology
            assert reported.pinned == parse_cpuset("1")
            assert reported.kubelet.full_pcpus_only
            assert reported.kubelet.reserved_cpus == parse_cpuset("0")
            assert (str(reported.numa_policy), reported.pod_scope) == ("Restricted", True)
        pods.remove_all()
        eventually(lambda: allocs(own) == [])

        binds_cpus(plane, "true")
        with cluster.scheduling(served):
            labels = DIALECTS["cpuset"]["labels"]
            one = [container(resources=WHOLE_CPU)]
            pod = pods.make("lsr", one, labels=labels, scheduler="tenure")
            pods.running("lsr")
            eventually(lambda: allocs(own))
        uid = pod["metadata"]["uid"]
        assert read(cluster, root).pinned.keys() == {uid}, "kubelet's record has it"
        assert allocs(own) == [
            {
                "namespace": pods.namespace,
                "name": pod["metadata"]["name"],
                "uid": uid,
                "cpuset": "1",
            }
        ]
    binds_cpus(plane, None)
    plane.api().delete(path)
