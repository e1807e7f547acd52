"""The live service beside the agents of 6,000 nodes: people, discovery, probes and Pods."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.live import cluster
from benchmarks.live.extender import Client, command_of, kubeconfig_of, running, wait
from scheduler.service.agents import SILENT_SECONDS
from scheduler.service.api.words import ROOT
from tests.support.kube.control_plane import free_port
from tests.support.kube.schedulers import Identities, issue
from tests.support.process import tenure

pytestmark = [pytest.mark.integration, pytest.mark.slow]

AGENTS: Final = 6_000
EQUIPPED: Final = 100
"""Nodes with devices, where Pods are bound."""
CALLS: Final = 300
PODS: Final = CALLS // 3
CUTS: Final = 10
CUT: Final = AGENTS // 20 // CUTS
"""Agents that lose their connections at once; in so many turns these are 5 % of them."""
SECONDS_MAX: Final = 1.0
"""At the 99th percentile: for whoever asks, and until an agent is told of a Pod."""
BEGIN_SECONDS: Final = 180.0
_ASKED: Final = {
    "people": ("api", f"{ROOT}/answers/drift", {"Authorization": "Bearer anna"}),
    "discovery": ("api", ROOT, {}),
    "probes": ("probes", "/livez", {}),
}


CORES: Final = sorted(os.sched_getaffinity(0))
"""The first one is the service's, where there are several: all that is played has the rest."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """
    A live service before a played API server, and the process that plays the agents.

    Attributes:
        had: seconds that the service's loop had of a core, and that it waited for one.
    """

    folder: Path
    identities: Identities
    api: str
    ports: dict[str, int] = field(
        default_factory=lambda: {name: free_port() for name in ("extender", "api", "probes")}
    )
    agents: subprocess.Popen[str] | None = None
    serving: subprocess.Popen[bytes] | None = None
    had: tuple[float, float] = (0.0, 0.0)
    took: dict[str, list[float]] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def service(self) -> Iterator[None]:
        """Run the service until the block ends, and kill it then, as what gives no warning."""
        command = command_of(
            self.identities,
            kubeconfig_of(self.folder, self.api),
            f"sqlite:///{self.folder / 'ledger.db'}",
            self.ports["extender"],
            self.ports["probes"],
        )
        where = f"127.0.0.1:{self.ports['api']}"
        log = self.folder / "log"
        with log.open("ab") as words:
            command += ["--api", where, "--api-name", "127.0.0.1"]
            self.serving = process = subprocess.Popen(command, stderr=words)
        os.sched_setaffinity(process.pid, CORES[:1])
        self.had = (0.0, 0.0)
        try:
            wait(f"http://127.0.0.1:{self.ports['probes']}/readyz", log=log)
            yield
        finally:
            process.kill()
            process.wait(20)

    @contextmanager
    def played(self) -> Iterator[None]:
        """Play the agents until the block ends."""
        command = (
            "nice",  # so that who asks and notes how long it takes has a core at once
            *(sys.executable, "-m", "tests.support.played_agents", "--agents", str(AGENTS)),
            *("--port", str(self.ports["api"])),
            *("--authority", str(self.identities.server / "ca.crt")),
        )
        pipe = subprocess.PIPE
        with (
            (self.folder / "agents").open("wb") as words,
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=words, text=True) as played,
        ):
            self.agents = played
            try:
                yield
            finally:
                played.kill()

    def look(self, words: str = "look") -> dict[str, Any]:
        """Return the figures of the agents."""
        assert self.agents is not None
        assert self.agents.stdin is not None
        assert self.agents.stdout is not None
        self.agents.stdin.write(f"{words}\n")
        self.agents.stdin.flush()
        found: dict[str, Any] = json.loads(self.agents.stdout.readline())
        return found

    def ask(self) -> None:
        """Ask what each of them asks, by a connection of its own, and note how long it took."""
        tls = ssl.create_default_context(cafile=self.identities.server / "ca.crt")
        for what, (server, path, headers) in _ASKED.items():
            port = self.ports[server]
            one = (
                http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                if server == "probes"
                else http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=tls)
            )
            began = time.monotonic()
            one.request("GET", path, headers=headers)
            answer = one.getresponse()
            body = answer.read()
            self.took.setdefault(what, []).append(time.monotonic() - began)
            one.close()
            assert answer.status == 200, (what, answer.status, body)

    def place(self, pod: cluster.Json, extender: Client) -> None:
        """Let a Pod be bound to one of the nodes with devices."""
        url = f"{self.api}/api/v1/namespaces/{cluster.NAMESPACE}/pods"
        request = urllib.request.Request(url, json.dumps(pod).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            pod = json.loads(answer.read())
        metadata, nodes = pod["metadata"], [cluster.node_name(one) for one in range(EQUIPPED)]
        body = {"Pod": pod, "Nodes": None, "NodeNames": nodes}
        found, took = extender.call("filter", json.dumps(body).encode())
        self.took.setdefault("filter", []).append(took / 1000)
        call = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": found["NodeNames"][len(self.bound) % len(found["NodeNames"])],
        }
        self.bound[metadata["uid"]] = time.monotonic()
        said, _ = extender.call("bind", json.dumps(call).encode())
        assert not said["Error"], said["Error"]

    def judge(self, name: str) -> list[str]:
        """Say how long everything took; return what took too long."""
        late = []
        for what, seconds in self.took.items():
            p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
            figures = f"p50 {p50:.3f} p99 {p99:.3f} max {max(seconds):.3f} s of {len(seconds)}"
            report(f"{name}, {what}: {figures}")
            if p99 >= SECONDS_MAX:
                late.append(f"{name}, {what}: {figures}")
        self.took.clear()
        shared = self.shared()
        report(f"{name}: {shared}")
        return [*late, shared] if late else []

    def shared(self) -> str:
        """Say how much of a core the service's loop had since this was asked last."""
        assert self.serving is not None
        words = Path(f"/proc/{self.serving.pid}/schedstat").read_text().split()
        (ran, waited), self.had = self.had, (int(words[0]) / 1e9, int(words[1]) / 1e9)
        ran, waited = self.had[0] - ran, self.had[1] - waited
        return f"its loop ran {ran:.1f} s and waited {waited:.1f} s for a core"


def report(words: str) -> None:
    """Say it to whoever runs the campaign."""
    sys.stdout.write(f"\n{words}, load {os.getloadavg()[0]:.1f}")
    sys.stdout.flush()


def until(is_so: Callable[[], bool], seconds: float) -> float:
    """Wait for it, so long at most; return how long it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds
        time.sleep(0.2)
    return time.monotonic() - began


def test_people_are_answered_within_a_second_beside_six_thousand_agents(tmp_path: Path) -> None:
    """
    While all wait for changes, and while 5 % of them come again.

    An agent is told of a Pod of its node within a second of the bind. After the service was killed
    all are answered before any of them is taken for away, and people are answered meanwhile.
    """
    with ExitStack() as stack:
        if len(CORES) > 1:
            os.sched_setaffinity(0, CORES[1:])
            stack.callback(os.sched_setaffinity, 0, CORES)
        port = free_port()
        size = ("--nodes", str(AGENTS), "--equipped", str(EQUIPPED), "--port", str(port))
        stack.enter_context(running((sys.executable, "-m", "benchmarks.live.api", *size)))
        api = f"http://127.0.0.1:{port}"
        wait(f"{api}/api/v1/namespaces/kube-system")
        scene = Scene(folder=tmp_path, identities=issue(tmp_path / "keys"), api=api)
        ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
        assert tenure("ledger", "init", "--ledger", ledger, cwd=tmp_path).returncode == 0
        pods, late = cluster.coming(2 * PODS), []
        with scene.service():
            until(lambda: position(scene) >= 2 * AGENTS, BEGIN_SECONDS)  # each is described, too
            stack.enter_context(scene.played())
            seconds = until(lambda: scene.look()["heard"] == AGENTS, BEGIN_SECONDS)
            report(f"{AGENTS} agents heard in {seconds:.0f} s, {scene.shared()}")
            extender = Client(scene.ports["extender"], scene.identities)
            stack.callback(extender.close)
            for name, cut in (("quiet", 0), ("5 % again", CUT)):
                for number in range(CALLS):
                    if cut and number % (CALLS // CUTS) == 0:
                        scene.look(f"cut {cut}")
                    if number % 3 == 0:
                        scene.place(next(pods), extender)
                    scene.ask()
                late += scene.judge(name)
            until(lambda: scene.bound.keys() <= scene.look()["told"].keys(), SILENT_SECONDS)
            told = scene.look()["told"]
            scene.took["agents"] = [told[uid] - at for uid, at in scene.bound.items()]
            late += scene.judge("from the bind")
            report(f"not answered: {scene.look()['failures']}")
        ended = time.monotonic()
        with scene.service():
            report(f"ready {time.monotonic() - ended:.0f} s after its end")
            while (found := scene.look())["heard"] < AGENTS:
                scene.ask()
                assert time.monotonic() - ended < SILENT_SECONDS, found["failures"]
            report(f"all heard {time.monotonic() - ended:.0f} s after its end")
            late += scene.judge("storm")
        assert not late, late


def position(scene: Scene) -> float:
    """Return how many events the service has recorded."""
    url = f"http://127.0.0.1:{scene.ports['probes']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if 'what="position"' in line).split()[-1])
