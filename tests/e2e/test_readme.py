"""What README tells to type for a cluster, typed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import yaml

from ledger.domain.log.events import PodObserved
from ledger.store.open import open_ledger
from tests.support.kube.binaries import SCHEDULER, programs
from tests.support.kube.control_plane import ControlPlane, control_plane, free_port
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import add_plugin_node
from tests.support.manifests import kube_scheduler

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 300.0
CONFIG = "examples/settings/kube-scheduler.yaml"
NODES = ("gpu-1", "gpu-2")


def commands() -> list[str]:
    """Return the commands of README's block for a cluster, without their comments."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- cluster -->\n```console\n(.*?)```", text, re.DOTALL)
    assert block is not None
    lines = [line.removeprefix("$ ").partition("   #")[0] for line in block[1].splitlines()]
    return [line.strip() for line in lines]


def typed(folder: Path, kubeconfig: Path, hooks: int, probes: int) -> dict[str, str]:
    """Return an environment with `tenure`, and `kubectl` for this cluster."""
    for name, module in (("tenure", "tenure"), ("kubectl", "tests.support.kube.kubectl")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(kubeconfig),
        "TENURE_WEBHOOK_LISTEN": f"127.0.0.1:{hooks}",
        "TENURE_WEBHOOK_PROBES": f"127.0.0.1:{probes}",
        "TENURE_WEBHOOK_SETTLE_SECONDS": "1",
    }


def play_kubelet(plane: ControlPlane, names: Sequence[str], ended: threading.Event) -> None:
    """Say of every Pod that is bound to these Nodes that it runs, as their kubelets would."""
    while not ended.wait(0.2):
        for one in plane.api().get(pods_in("ml")).body.get("items", ()):
            if one["spec"].get("nodeName") in names:
                ready = {"type": "Ready", "status": "True"}
                status = {"phase": "Running", "conditions": [ready]}
                path = f"{pods_in('ml')}/{one['metadata']['name']}/status"
                plane.api().patch(path, {"status": status})


def test_what_readme_says_for_a_cluster_works_as_typed(tmp_path: Path) -> None:
    """
    From two Nodes of NVIDIA's plugin to a Pod that runs there; only ports and folders are others.

    No kubelet is there: the Nodes, and that a bound Pod runs, are played. All else is real.
    """
    hooks, probes, asked, own = (free_port() for _ in range(4))
    folder = tmp_path / "plane"
    folder.mkdir()
    with control_plane(folder, programs()) as plane, ExitStack() as running:
        kubeconfig = plane.kubeconfig("admin")
        where = typed(tmp_path, kubeconfig, hooks, probes)
        program = tmp_path / "kube-scheduler"
        served = f"--secure-port {free_port()} --cert-dir {folder / 'scheduler'}"
        program.write_text(
            f'#!/bin/sh\nexec {plane.programs / SCHEDULER} "$@" {served} --bind-address 127.0.0.1'
            " --authentication-skip-lookup\n"
        )
        program.chmod(0o755)
        for name in NODES:
            add_plugin_node(plane, name, **{"nvidia.com/gpu": "8"})
        here, config = tmp_path / "here", tmp_path / "kube-scheduler.yaml"
        told = (ROOT / CONFIG).read_text()
        config.write_text(told.replace("9443", str(asked)).replace(" here", f" {here}"))
        ended = threading.Event()
        kubelets = threading.Thread(target=play_kubelet, args=(plane, NODES, ended), daemon=True)
        kubelets.start()
        running.callback(kubelets.join, 60)
        running.callback(ended.set)
        for line in commands():
            command = line.replace("8443", str(hooks)).replace("9443", str(asked))
            command = command.replace("9080", str(own)).replace(CONFIG, str(config))
            command = re.sub(r"\bhere\b", str(here), command)
            if command.endswith("&"):
                words = shlex.split(command.removesuffix("&"))
                service = subprocess.Popen(words, cwd=ROOT, env=where)
                running.callback(service.wait, 60)
                running.callback(service.terminate)
            else:
                assert not failure(command, where), line
        [made] = plane.api().get(pods_in("ml")).body["items"]
        assert made["spec"]["nodeName"] in NODES
        [container] = made["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        with open_ledger(f"sqlite:///{here / 'tenure.db'}", mode="read") as ledger:
            events = [one.event for one in ledger.read_events()]
        assert [one.counted for one in events if isinstance(one, PodObserved)] == [{"gpu": 1}]


def test_the_kube_scheduler_of_the_example_is_the_one_that_we_print() -> None:
    """But for where it runs: one machine, with its files in a folder."""
    expected = kube_scheduler("https://127.0.0.1:9443", "here", "here/kubeconfig")
    assert yaml.safe_load((ROOT / CONFIG).read_text()) == expected


def failure(command: str, where: dict[str, str]) -> str:
    """Run a command, again while the service comes up, and return what it says if it fails."""
    end = time.monotonic() + SECONDS_MAX
    while True:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=ROOT,
            env=where,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if done.returncode == 0:
            return ""
        waits = command.startswith(("tenure certs", "kubectl apply -f examples"))
        if not waits or "already exists" in done.stderr or time.monotonic() > end:
            return f"{done.stdout}{done.stderr}"
        time.sleep(0.5)
