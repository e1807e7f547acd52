"""
What `tenure serve agent` costs a node that is quiet: its share of a core, and its memory.

The process runs as on a node: a kubelet's socket, its record of 110 Pods with a slot each, who hold
shares of 8 GPUs, and it reports to a real API server. Its processor time is the kernel's.

    .venv/bin/python -m benchmarks.agent [--seconds 300]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from agent.checkpoint import FILE_NAME
from agent.discover.machine import Discovery
from ledger.domain.resources import SLOT
from tests.support.kube.binaries import programs
from tests.support.kube.control_plane import ADMIN, ControlPlane, control_plane, free_port
from tests.support.kubelets import FakeKubelet, checkpoint_of, entry
from tests.support.machines_found import card, write_machine
from tests.support.process import COMMAND, environment, tenure

GPUS: Final = 8
PODS: Final = 110
NODE: Final = "quiet"
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
            kubelet = _node(folder)
            with kubelet.running():
                _measure(plane, folder, seconds)


def _define(plane: ControlPlane, folder: Path) -> None:
    """Make the kinds and the Node."""
    for definition in yaml.safe_load_all(tenure("manifests", "crds", cwd=folder).stdout):
        path = f"{DEFINITIONS}/{definition['metadata']['name']}?fieldManager=kubectl&force=true"
        made = plane.api().call("PATCH", path, definition, "application/apply-patch+yaml")
        assert made.ok, made.message
    labels = {"tenure.sh/owned": "true"}
    made = plane.api().create("/api/v1/nodes", {"metadata": {"name": NODE, "labels": labels}})
    assert made.ok, made.message


def _node(folder: Path) -> FakeKubelet:
    """Make what the agent reads on its node, and return the kubelet."""
    for name in ("plugins", "cdi", "state"):
        (folder / name).mkdir()
    devices = [
        {"name": one.uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{one.minor}"}]}}
        for one in _CARDS
    ]
    vendor = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "cards.json").write_text(json.dumps(vendor))
    (folder / "holdings.json").write_text(
        json.dumps({"format": 1, "holdings": [_holding(number) for number in range(PODS)]})
    )
    start = "0123456789abcdef"
    slots = [f"slot-{number:04}" for number in range(PODS)]
    record = checkpoint_of(
        entry(f"pod-{number}", "main", slot, f"{SLOT}={slot}.{start}.{number}")
        for number, slot in enumerate(slots)
    )
    (folder / "plugins" / FILE_NAME).write_bytes(record)
    write_machine(folder / "machine.json", Discovery(driver_version="550.90", cards=_CARDS))
    return FakeKubelet(folder / "plugins")


def _holding(number: int) -> dict[str, Any]:
    held = _CARDS[number % GPUS]
    device = {
        "device_id": held.uuid,
        "minor": held.minor,
        "core_percent": _PERCENT,
        "memory_bytes": held.memory_bytes * _PERCENT // 100,
    }
    pod = {"pod_uid": f"pod-{number}", "namespace": "ml", "pod_name": f"pod-{number}"}
    return {**pod, "containers": [{"name": "main", "devices": [device]}]}


def _measure(plane: ControlPlane, folder: Path, seconds: float) -> None:
    probes = free_port()
    options = {
        "holdings": "holdings.json",
        "cards": "cards.json",
        "plugins": "plugins",
        "cdi": "cdi",
        "state": "state",
        "node": NODE,
        "machine": "machine.json",
        "kubeconfig": plane.kubeconfig(ADMIN),
        "probes": f"127.0.0.1:{probes}",
        "runtime": "",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [*COMMAND, "serve", "agent", *words]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=log)
    try:
        _until(lambda: _is_ready(probes), folder)
        _until(lambda: _told(plane) == PODS, folder)
        time.sleep(5)
        before, began = _processor_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        used, passed = _processor_seconds(process.pid) - before, time.monotonic() - began
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
            return bool(answer.read() == b"ok\n")
    except OSError:
        return False


def _until(holds: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, (folder / "agent.log").read_text()
        time.sleep(0.2)


def _processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the process is gone")


if __name__ == "__main__":
    main()
