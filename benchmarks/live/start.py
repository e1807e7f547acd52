"""
From exec to the first correct answer: a killed `tenure serve scheduler` starts over its ledger.

    .venv/bin/python -m benchmarks.live.start                     # 1,000,000 events, takes long
    .venv/bin/python -m benchmarks.live.start --events 100000

A ledger is filled through the product's own writer: nodes as the service records them, Pods that
came and went, and those that run, whose objects carry what the scheduler signs. Then the real
process is started over it before an API server that is played, and asked to filter until it
answers with a node. Its own time is that less what a client needs that only reads the bytes of the
same lists. `cpu_seconds` is what the process used until then, which a loaded machine does not
stretch. Every further start begins with the ledger as the first one left it, and with the bytecode
that it wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.live import cluster
from benchmarks.live.extender import (
    START_SECONDS,
    Client,
    command_of,
    kubeconfig_of,
    running,
    wait,
)
from benchmarks.live.lived import live_through, write_lines
from benchmarks.measure import say, say_machine
from ledger.signing import PrivateKey
from tenure.serving.scheduling.cluster import PATHS
from tests.support.kube.control_plane import free_port
from tests.support.kube.schedulers import Identities, issue

ASKED_NODES: Final = 100
PAGE: Final = 500


def main() -> None:
    """Measure, and print one JSON object per line."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    say_machine(nodes=options.nodes, running=options.running, events=options.events)
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scene = _filled(folder, options)
        api = stack.enter_context(_api(options.nodes, scene.pods))
        for _ in range(options.starts):
            say(**_start(scene, api, _list(api), options.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a start begins with."""

    folder: Path
    identities: Identities

    @property
    def ledger(self) -> Path:
        """The ledger."""
        return self.folder / "ledger.db"

    @property
    def pods(self) -> Path:
        """The Pods, a line each."""
        return self.folder / "pods.jsonl"


def _filled(folder: Path, options: argparse.Namespace) -> Scene:
    """Fill a ledger, unless the folder has it from another time."""
    names = ("server", "client", "keys")
    if (folder / "pods.jsonl").exists():
        there = {name: folder / "identities" / name for name in names}
        return Scene(folder=folder, identities=Identities(**there))
    folder.mkdir(exist_ok=True)
    scene = Scene(folder=folder, identities=issue(folder / "identities"))
    made = [sys.executable, "-m", "tenure", "ledger", "init", "--ledger", str(scene.ledger)]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    keys = tuple(
        PrivateKey.parse((scene.identities.keys / f"{each}.key").read_text())
        for each in ("proof", "ledger")
    )
    carried = live_through(
        scene.ledger,
        nodes=options.nodes,
        running=options.running,
        total=options.events,
        tail=options.tail,
        keys=keys,
    )
    write_lines(scene.pods, carried)
    took = round(time.monotonic() - began, 1)
    say(filled_seconds=took, ledger_bytes=scene.ledger.stat().st_size)
    return scene


def _start(scene: Scene, api: str, listing: float, nodes: int) -> dict[str, object]:
    """Start the service, ask until it answers with a node, and kill it."""
    port, probes = free_port(), free_port()
    identities, log = scene.identities, scene.folder / "log"
    kubeconfig = kubeconfig_of(scene.folder, api)
    command = command_of(identities, kubeconfig, str(scene.ledger), port, probes)
    command += ["--replica", "restarted"]  # as a container that is started again in its Pod
    names = [cluster.node_name(number) for number in range(min(nodes, ASKED_NODES))]
    [pod] = cluster.coming(1)
    pod["metadata"]["resourceVersion"] = "1"
    body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
    kept = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # as where it is installed
    began = time.monotonic()
    with log.open("wb") as words:
        process = subprocess.Popen(command, stderr=words, env=kept)
    try:
        until = began + START_SECONDS
        while not _answers(port, identities, body):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.02)
        took = time.monotonic() - began
        memory = _memory(process.pid)
        seconds = _cpu(process.pid)
    finally:
        process.kill()
        process.wait(20)
    return {
        "start_seconds": round(took, 2),
        "list_seconds": round(listing, 2),
        "own_seconds": round(took - listing, 2),
        "cpu_seconds": round(seconds, 2),
        "resident_mb": memory,
        "load": round(os.getloadavg()[0], 1),
    }


def _answers(port: int, identities: Identities, body: bytes) -> bool:
    """Tell whether a filter is answered with a node."""
    try:
        answer, _ = Client(port, identities).call("filter", body)
    except (OSError, AssertionError):  # nobody listens, or who does is silent
        return False
    return bool(answer.get("NodeNames")) and not answer.get("Error")


def _list(api: str) -> float:
    """Return how long it takes to read the bytes of every list that is followed."""
    began = time.monotonic()
    for path in PATHS.values():
        following = ""
        while True:
            url = f"{api}{path}?limit={PAGE}&continue={following}"
            with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own
                raw = answer.read()
            following = raw[:200].partition(b'"continue": "')[2].partition(b'"')[0].decode()
            if not following:
                break
    return time.monotonic() - began


def _memory(pid: int) -> dict[str, int]:
    """Return resident memory now and at most, in MB of 10^6 bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    words = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return {
        "now": int(words["VmRSS"]) * 1024 // 1_000_000,
        "peak": int(words["VmHWM"]) * 1024 // 1_000_000,
    }


def _cpu(pid: int) -> float:
    """Return the processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _api(nodes: int, pods: Path) -> Iterator[str]:
    port = free_port()
    size = ("--nodes", str(nodes), "--pods-file", str(pods))
    with running([sys.executable, "-m", "benchmarks.live.api", "--port", str(port), *size]):
        url = f"http://127.0.0.1:{port}"
        wait(f"{url}/api/v1/namespaces/kube-system")
        _list(url)  # pages are written once
        yield url


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.start")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--running", type=int, default=20_000, help="Pods that run")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--tail", type=int, default=10_000, help="events behind the last snapshot")
    parser.add_argument("--folder", type=Path, help="keep the ledger here, and begin with it")
    parser.add_argument("--starts", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
