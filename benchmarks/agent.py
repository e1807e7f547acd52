"""
What `tenure serve agent` costs a node that is quiet: its share of a core, and its memory.

The process runs as on a node. A kubelet's sockets and listener, its record of 110 Pods with a slot
each, and their containers by CRI with a process each on 8 GPUs, of a file; a service that says who
holds what, with proofs; a real API server that it reports to. It looks at all of it every 10 s.
Its processor time is the kernel's.

    .venv/bin/python -m benchmarks.agent [--seconds 300]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from agent.checkpoint import FILE_NAME
from agent.decide.node_holdings import HeldByPod
from agent.decide.slots_cdi import CardEdits, specification_of
from agent.discover.machine import Card, CardProcess, Discovery
from agent.plugin.files import SpecFolder
from agent.witness import said
from benchmarks.measure import processor_seconds
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.resources import SLOT
from ledger.signing import published
from tests.support.kube.binaries import programs
from tests.support.kube.control_plane import ADMIN, ControlPlane, control_plane, free_port
from tests.support.kubelets import FakeKubelet, checkpoint_of, entry
from tests.support.machines_found import card, write_machine
from tests.support.process import COMMAND, environment, tenure
from tests.support.proofs import KEY, held, word
from tests.support.sockets import serving
from tests.support.told_agents import Listener, listening, token_of
from tests.support.witnessing import LABELS

GPUS: Final = 8
PODS: Final = 110
NODE: Final = "a"
WAIT_SECONDS: Final = 20.0
"""As long as an agent asks to be kept waiting for changes."""
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEVICE: Final = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NODE}"
_CARDS: Final = tuple(card(minor) for minor in range(GPUS))
_PERCENT: Final = 100 * GPUS // PODS
_MIB: Final = 1 << 20


def main() -> None:
    """Measure, and print a line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=300.0)
    seconds = arguments.parse_args().seconds
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "plane").mkdir()
        with control_plane(folder / "plane", programs()) as plane:
            _define(plane, folder)
            with _node(folder) as port:
                _measure(plane, folder, port, seconds)


def _define(plane: ControlPlane, folder: Path) -> None:
    """Make the kinds and the Node."""
    for definition in yaml.safe_load_all(tenure("manifests", "crds", cwd=folder).stdout):
        path = f"{DEFINITIONS}/{definition['metadata']['name']}?fieldManager=kubectl&force=true"
        made = plane.api().call("PATCH", path, definition, "application/apply-patch+yaml")
        assert made.ok, made.message
    labels = {"tenure.sh/owned": "true"}
    made = plane.api().create("/api/v1/nodes", {"metadata": {"name": NODE, "labels": labels}})
    assert made.ok, made.message


@contextmanager
def _node(folder: Path) -> Iterator[int]:
    """Make what the agent reads on its node, and play who answers it; yields the port."""
    for name in ("plugins", "cdi", "state", "keys"):
        (folder / name).mkdir()
    devices = [
        {"name": one.uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{one.minor}"}]}}
        for one in _CARDS
    ]
    vendor = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "cards.json").write_text(json.dumps(vendor))
    for name, text in published([KEY.public]).items():
        (folder / "keys" / name).write_text(text)
    token_of(folder, NODE)
    pods = [_Pod(number=number) for number in range(PODS)]
    record = checkpoint_of(entry(one.uid, "main", one.slot, f"{SLOT}={one.name}") for one in pods)
    (folder / "plugins" / FILE_NAME).write_bytes(record)
    written = SpecFolder(folder / "cdi")
    for one in pods:
        edits = [CardEdits(edits={"deviceNodes": [{"path": f"/dev/nvidia{one.card.minor}"}]})]
        specification = specification_of(one.name, edits, devices=[one.card.uuid])
        written.write(one.name, specification)
        cgroup = folder / "host" / "proc" / str(one.pid) / "cgroup"
        cgroup.parent.mkdir(parents=True)
        cgroup.write_text(f"0::/kubepods/pod{one.uid}/{one.container}\n")
    cards = tuple(
        replace(card, processes=tuple(CardProcess(pid=one.pid) for one in pods if one.card is card))
        for card in _CARDS
    )
    write_machine(folder / "machine.json", Discovery(driver_version="550.90", cards=cards))
    resources = said.ListPodResourcesResponse(pod_resources=[one.resources for one in pods])
    listed = said.ListContainersResponse(containers=[one.listed for one in pods])
    statuses: dict[str, bytes] = {one.container: one.status.SerializeToString() for one in pods}

    def status(request: bytes, _: object) -> bytes:
        key: str = said.ContainerStatusRequest.FromString(request).container_id
        return statuses[key]

    kubelets = {"List": lambda *_: resources.SerializeToString()}
    runtimes = {
        "ListContainers": lambda *_: listed.SerializeToString(),
        "ContainerStatus": status,
        "Version": lambda *_: said.VersionResponse(
            runtime_name="containerd", runtime_version="v2.1.0"
        ).SerializeToString(),
        "Status": lambda *_: said.StatusResponse(
            info={said.CONFIG: json.dumps({"enableCDI": True})}
        ).SerializeToString(),
    }
    with (
        listening(folder) as port,
        FakeKubelet(folder / "plugins").running(),
        serving(folder / "resources.sock", "v1.PodResourcesLister", kubelets),
        serving(folder / "runtime.sock", "runtime.v1.RuntimeService", runtimes),
    ):
        Listener.known = word(PODS, *(one.held for one in pods))
        Listener.pods = {one.uid: one.held.proof for one in pods}
        Listener.waits = WAIT_SECONDS
        yield port


@dataclass(frozen=True, kw_only=True)
class _Pod:
    """A Pod with one container and its process."""

    number: int

    @property
    def uid(self) -> str:
        return f"{self.number:08x}-0000-4000-8000-{self.number:012x}"

    @property
    def slot(self) -> str:
        return f"slot-{self.number:04}"

    @property
    def name(self) -> str:
        return f"{self.slot}.0123456789abcdef0123.{self.number}"

    @property
    def container(self) -> str:
        return f"{self.number:064x}"

    @property
    def pid(self) -> int:
        return 1_000_000 + self.number

    @property
    def card(self) -> Card:
        return _CARDS[self.number % GPUS]

    @cached_property
    def held(self) -> HeldByPod:
        device = ProvenDevice(
            device_type="gpu",
            device_id=self.card.uuid,
            minor=self.card.minor,
            core_percent=_PERCENT,
            memory_bytes=self.card.memory_bytes * _PERCENT // 100,
        )
        container = ProvenContainer(index="0", devices=(device,))
        return held(self.uid, self.number + 1, container, phase="assigned")

    @property
    def resources(self) -> dict[str, Any]:
        devices = [{"resource_name": SLOT, "device_ids": [self.slot]}]
        container = {"name": "main", "devices": devices}
        return {"name": self.uid, "namespace": "ml", "containers": [container]}

    @property
    def listed(self) -> dict[str, Any]:
        labels = {
            f"{LABELS}.pod.uid": self.uid,
            f"{LABELS}.pod.name": self.uid,
            f"{LABELS}.pod.namespace": "ml",
            f"{LABELS}.container.name": "main",
        }
        return {"id": self.container, "state": said.RUNNING, "labels": labels}

    @property
    def status(self) -> Any:  # noqa: ANN401 - a message
        info = {"config": {"CDI_devices": [{"name": f"{SLOT}={self.name}"}]}}
        return said.ContainerStatusResponse(
            status={"id": self.container}, info={said.INFO: json.dumps(info)}
        )


def _measure(plane: ControlPlane, folder: Path, port: int, seconds: float) -> None:
    probes = free_port()
    options = {
        "mode": "plugin",
        "service": f"https://127.0.0.1:{port}",
        "kubelet": f"https://127.0.0.1:{port}",
        "ca": "ca.crt",
        "kubelet-ca": "ca.crt",
        "token": "token",
        "proof-keys": "keys",
        "host": "host",
        "pod-resources": "resources.sock",
        "cards": "cards.json",
        "plugins": "plugins",
        "cdi": "cdi",
        "state": "state",
        "node": NODE,
        "machine": "machine.json",
        "kubeconfig": plane.kubeconfig(ADMIN),
        "probes": f"127.0.0.1:{probes}",
        "runtime": "runtime.sock",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [*COMMAND, "serve", "agent", *words]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=log)
    try:
        _until(lambda: _is_ready(probes), folder)
        _until(lambda: _told(plane) == PODS and Listener.confirmed > 0, folder)
        time.sleep(5)
        before, began = processor_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        used, passed = processor_seconds(process.pid) - before, time.monotonic() - began
        assert process.poll() is None, (folder / "agent.log").read_text()
        resident = _resident_bytes(process.pid)
    finally:
        process.kill()
        process.wait(20)
    print(
        f"GPUs={GPUS} Pods={PODS} seconds={passed:.0f} processor_seconds={used:.2f}"
        f" of_a_core={100 * used / passed:.2f}% resident_mib={resident / _MIB:.0f}"
        f" start_processor_seconds={before:.2f}"
    )


def _told(plane: ControlPlane) -> int:
    """Return how many Pods the Device object says hold something."""
    got = plane.api().get(DEVICE)
    entries = got.body.get("status", {}).get("allocations", []) if got.ok else []
    return sum(len(one["entries"]) for one in entries)


def _is_ready(probes: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{probes}/readyz", timeout=5) as answer:
            return bool(answer.read().startswith(b"ok\n"))
    except OSError:
        return False


def _until(holds: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, (folder / "agent.log").read_text()
        time.sleep(0.2)


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the process is gone")


if __name__ == "__main__":
    main()
