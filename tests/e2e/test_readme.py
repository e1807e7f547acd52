"""What README tells to type for a cluster, typed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.support.kube.binaries import programs
from tests.support.kube.control_plane import control_plane, free_port
from tests.support.kube.pods import pods_in

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 300.0


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


def test_what_readme_says_for_a_cluster_works_as_typed(tmp_path: Path) -> None:
    """From an empty cluster to a Pod that admission has completed; only the port is another."""
    hooks, probes = free_port(), free_port()
    folder = tmp_path / "plane"
    folder.mkdir()
    with control_plane(folder, programs()) as plane:
        kubeconfig = plane.kubeconfig("admin")
        where = typed(tmp_path, kubeconfig, hooks, probes)
        service = None
        try:
            for line in commands():
                command = line.replace("8443", str(hooks))
                if command.endswith("&"):
                    words = shlex.split(command.removesuffix("&"))
                    service = subprocess.Popen(words, cwd=ROOT, env=where)
                else:
                    assert not failure(command, where), line
            made = plane.api().get(pods_in("ml")).body["items"]
            assert {one["spec"]["schedulerName"] for one in made} == {"tenure"}
        finally:
            if service is not None:
                service.terminate()
                service.wait(60)


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
