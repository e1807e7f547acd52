"""`tenure serve cpus` on the real node, with its own account and the rights that are printed."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import yaml

from agent.cpus.binder import MARK
from agent.cpus.nri_messages import message
from ledger.domain.resources import (
    CONDITION_TENURE_CPUS,
    LABEL_TENURE_BIND_CPUS,
    LABEL_TENURE_CPU_MANAGED,
)
from tests.support.forked import Forked
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.inventory import TOPOLOGIES
from tests.support.node.clusters import Cluster
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.pods import Pods
from tests.support.node.room import CGROUPS
from tests.support.nri_plugins import other_plugin
from tests.support.process import tenure

_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE: Final = f"/api/v1/nodes/{NODE_NAME}"
CREATE: Final = "CreateContainer"
START: Final = "StartContainer"
UPDATE: Final = "UpdateContainer"
UPDATED: Final = "PostUpdateContainer"
_EVENTS: Final = {CREATE: 4, START: 6, UPDATE: 8, UPDATED: 9}
POLL_SECONDS: Final = 0.002


@dataclass(slots=True, kw_only=True)
class CpuProcess:
    """
    A process that binds CPUs.

    Attributes:
        nri: the runtime binds containers as it makes them.
        told: its other options.
    """

    cluster: Cluster
    nri: bool
    told: tuple[str, ...]
    probes: int = field(default_factory=free_port)
    process: Forked | None = None

    def start(self) -> None:
        """Start it."""
        by_runtime = ("--nri", str(self.cluster.machine.nri)) if self.nri else ()
        probes = ("--probes", f"127.0.0.1:{self.probes}")
        command = ["serve", "cpus", *self.told, *by_runtime, *probes]
        self.process = Forked(command, self.log, cwd=self.cluster.folder, execs=False)

    def upgrade(self) -> None:
        """Let another one take over, as a DaemonSet's rolling update does."""
        before, self.probes = self.process, free_port()
        self.start()
        self.until("we stand by")
        assert before is not None
        before.terminate()
        code = before.wait(60)
        assert code == 0, (code, self.words())
        self.until("cpus: bound")

    def end(self) -> None:
        """Tell it to end, as kubelet does, and wait until it has."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(60) == 0, self.words()

    def until(self, said: str) -> None:
        """Wait until it says that of itself."""
        self.cluster.machine.until(lambda: said in self.says(), f"not {said!r}: {self.words()}")

    @property
    def log(self) -> Path:
        """What it said."""
        return self.cluster.folder / "cpus" / f"log-{self.probes}"

    def says(self, path: str = "readyz") -> str:
        """Return what it says of itself; nothing while it does not listen."""
        try:
            url = f"http://127.0.0.1:{self.probes}/{path}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return str(refusal.read().decode())
        except OSError:
            return ""

    def words(self) -> str:
        """Return what it says, and the end of its log."""
        log = self.log.read_text(errors="replace")[-4_000:] if self.log.exists() else ""
        return f"{self.says()}\n{log}"

    def joins(self) -> int:
        """Return how many times the runtime took it so far."""
        return self.log.read_text().count('"standing":"on"')


def allow(plane: ControlPlane, *, bind: bool) -> None:
    """Set the administrator's label of the Node, or take it off."""
    labels = {LABEL_TENURE_BIND_CPUS: "true" if bind else None}
    reply = plane.api().patch(NODE, {"metadata": {"labels": labels}})
    assert reply.ok, reply.message


def managed(plane: ControlPlane) -> bool:
    """Tell whether the Node says that its containers are bound."""
    labels = plane.api().get(NODE).body["metadata"]["labels"]
    return bool(labels.get(LABEL_TENURE_CPU_MANAGED) == "true")


def condition(plane: ControlPlane) -> dict[str, Any]:
    """Return what the Node says of binding, empty if nothing."""
    conditions = plane.api().get(NODE).body["status"]["conditions"]
    return next((dict(one) for one in conditions if one["type"] == CONDITION_TENURE_CPUS), {})


@contextmanager
def binding(cluster: Cluster, *more: str, nri: bool = True) -> Iterator[CpuProcess]:
    """Bind the node's containers until the block ends; then all is given back."""
    plane, machine = cluster.plane, cluster.machine
    own = CpuProcess(cluster=cluster, nri=nri, told=(*cluster.binds_cpus(), *more))
    allow(plane, bind=True)
    own.start()
    try:
        machine.until(lambda: managed(plane), f"the Node does not say so: {own.words()}")
        yield own
    finally:
        allow(plane, bind=False)
        if own.process is None or own.process.poll() is not None:
            own.start()
        mark = cluster.folder / "cpus" / "state" / MARK
        machine.until(lambda: not (managed(plane) or mark.exists()), "it is not given back")
        own.end()


@contextmanager
def polled(pid: int) -> Iterator[set[frozenset[int]]]:
    """Collect where the kernel lets a process run, asked again and again until the block ends."""
    found: set[frozenset[int]] = set()
    ended = Event()

    def ask() -> None:
        while not ended.wait(POLL_SECONDS):
            with suppress(ProcessLookupError):
                found.add(frozenset(os.sched_getaffinity(pid)))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@contextmanager
def overheard(machine: Node) -> Iterator[list[tuple[str, str, str]]]:
    """
    Collect the runtime's calls as a plugin hears them that is called before ours.

    Each is the Pod's UID, the call, and CPUs: those that kubelet asks for, and of a container that
    is about to start those of its cgroup.
    """
    heard: list[tuple[str, str, str]] = []

    def answer(method: str, payload: bytes) -> bytes:
        read = message("Call").FromString(payload)
        cpus = read.container.linux.resources.cpu.cpus
        if method == UPDATE:
            cpus = read.linux_resources.cpu.cpus
        elif method == START:
            cpus = (folder_of(machine, read.container.id) / "cpuset.cpus").read_text().strip()
        heard.append((read.pod.uid, method, cpus))
        return b""

    with other_plugin(machine.nri, "00", sum(1 << (one - 1) for one in _EVENTS.values()), answer):
        yield heard


def cgroups_of(machine: Node, pod: dict[str, Any]) -> dict[str, str]:
    """Return the CPUs of each cgroup right below that of a Pod: containers, and the sandbox."""
    files = folder_of(machine, f"pod{pod['metadata']['uid']}").glob("*/cpuset.cpus")
    return {one.parent.name: one.read_text().strip() for one in files}


def folder_of(machine: Node, name: str, controller: str = "cpuset") -> Path:
    """Return the cgroup of that name; others come and go meanwhile."""
    walked = os.walk(CGROUPS / controller / machine.room.cgroup)
    return next(Path(folder) for folder, _, _ in walked if folder.endswith(f"/{name}"))


def identity_of(pods: Pods, name: str) -> str:
    """Return the id of a Pod's container."""
    return str(pods.statuses(name)["main"]["containerID"]).rpartition("/")[2]


def main_process(pods: Pods, name: str) -> int:
    """Return the process of a Pod's container."""
    return min(pods.node.processes(pods.get(name), identity_of(pods, name)))


def define(plane: ControlPlane, folder: Path) -> None:
    """Have the API server serve the kind as it is printed, in both versions."""
    printed = tenure("manifests", "crds", cwd=folder)
    assert printed.returncode == 0, printed.stderr
    [kind] = (
        one
        for one in yaml.safe_load_all(printed.stdout)
        if one["spec"]["names"]["kind"] == "NodeResourceTopology"
    )
    path = f"{_DEFINITIONS}/{kind['metadata']['name']}?fieldManager=kubectl&force=true"
    made = plane.api().call("PATCH", path, kind, "application/apply-patch+yaml")
    assert made.ok, made.message
    for version in (TOPOLOGIES, TOPOLOGIES.replace("v1alpha1", "v1alpha2")):
        eventually(partial(_is_served, plane, version))


def _is_served(plane: ControlPlane, path: str) -> bool:
    return plane.api().get(path).ok


def report_two_cpus(plane: ControlPlane, *, manager: str = "kubectl", **more: str) -> None:
    """
    Have the Node's CPUs on a NodeResourceTopology, without a word on what kubelet keeps of them.

    Args:
        more: annotations besides.
    """
    detail = ",".join(f'{{"id":{one},"core":{one},"socket":0,"node":0}}' for one in range(2))
    topology = {"node.koordinator.sh/cpu-topology": f'{{"detail":[{detail}]}}'}
    body = {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": NODE_NAME,
            "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
            "annotations": {**topology, **more},
        },
        "topologyPolicies": ["None"],
        "zones": [],
    }
    made = plane.api().create(f"{TOPOLOGIES}?fieldManager={manager}", body)
    assert made.ok, made.message
