"""A node whose `tenure serve cpus` can be started: service, kubelet and API server are played."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

from agent.decide.node_holdings import HeldByPod
from ledger.domain.annotations.proof import EVERY, ProvenContainer
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.resources import (
    ANNOTATION_RESOURCE_STATUS,
    ANNOTATION_TENURE_PROOF,
    LABEL_QOS_CLASS,
    LABEL_TENURE_BIND_CPUS,
)
from ledger.signing import published
from tests.support.cgroup_trees import id_of, uid_of
from tests.support.forked import Forked
from tests.support.kube.control_plane import free_port
from tests.support.proofs import KEY, held, word
from tests.support.sockets import serving
from tests.support.told_agents import Listener, listening, token_of

Json = dict[str, Any]
SECONDS: Final = 60.0
NODE: Final = "/api/v1/nodes/a"
CONFIGURATION: Final = {"kubeletconfig": {"cpuManagerPolicy": "none"}}


class Cluster(Listener):
    """
    Answers as the service, as kubelet with its Pods and configuration, and as the API server.

    Attributes:
        node: the one Node; `listed`: kubelet's Pods; `told`: what was confirmed.
    """

    protocol_version = "HTTP/1.1"  # connections stay open, as those of all three do

    node: ClassVar[Json] = {}
    listed: ClassVar[list[Json]] = []
    told: ClassVar[list[Json]] = []

    def do_GET(self) -> None:  # noqa: N802 - the standard library's
        """Answer one question."""
        if self.path == "/configz":
            self._send(200, json.dumps(CONFIGURATION).encode())
        elif self.path == "/pods":
            self._send(200, json.dumps({"items": self.listed}).encode())
        elif self.path == NODE:
            self._send(200, json.dumps(self.node).encode())
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802 - likewise
        """Take what is confirmed, and keep it."""
        self.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        type(self).confirmed += 1
        self._answer(200, type(self).known)

    def do_PATCH(self) -> None:  # noqa: N802 - likewise
        """Apply fields of the Node, as the API server does for one manager of each."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = urlsplit(self.path)
        [manager] = parse_qs(asked.query)["fieldManager"]
        owned = self.node.setdefault("owned", {})
        if asked.path == NODE:
            labels = self.node["metadata"]["labels"]
            for key in owned.pop(manager, ()):
                labels.pop(key, None)
            new = body["metadata"].get("labels") or {}
            labels.update(new)
            owned[manager] = list(new)
        else:
            self.node["status"]["conditions"] = body["status"]["conditions"]
        self._send(200, json.dumps(self.node).encode())


def pod(
    number: int, *, qos: str = "", cpus: str = "", milli: int = 1000, limit: bool = True
) -> Json:
    """Return a Pod as kubelet tells it, with one container that runs; its name is its number."""
    amounts = {"cpu": f"{milli}m", "memory": "64Mi"}
    resources = {"requests": amounts, **({"limits": amounts} if limit else {})}
    annotations = {}
    if cpus:
        annotations = {
            ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": cpus}),
            ANNOTATION_TENURE_PROOF: holding(number, cpus).proof,
        }
    running = {"name": "main", "containerID": f"containerd://{id_of(number)}"}
    return {
        "metadata": {
            "uid": uid_of(number),
            "name": f"p-{number}",
            "namespace": "ml",
            "labels": {LABEL_QOS_CLASS: qos} if qos else {},
            "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main", "resources": resources if milli else {}}]},
        "status": {
            "phase": "Running",
            "qosClass": "Guaranteed" if limit and milli else "Burstable" if milli else "BestEffort",
            "containerStatuses": [running],
        },
    }


def holding(number: int, cpus: str) -> HeldByPod:
    """Return what a Pod holds: CPUs of its own, proved."""
    own = ProvenContainer(index=EVERY, cpus=parse_cpuset(cpus))
    return held(uid_of(number), 10 + number, own)


class CpusWorld:
    """A node's folders, and the process that binds CPUs there."""

    def __init__(self, folder: Path, port: int, kubepods: Path, cpu: Path | None) -> None:
        self.folder, self.port, self.probes = folder, port, free_port()
        for name in ("state", "keys"):
            (folder / name).mkdir()
        for name, text in published([KEY.public]).items():
            (folder / "keys" / name).write_text(text)
        token_of(folder, "a")
        url = f"https://127.0.0.1:{port}"
        cluster = {"server": url, "certificate-authority": str(folder / "ca.crt")}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        self.options = {
            "service": url,
            "kubelet": url,
            "ca": folder / "ca.crt",
            "kubelet-ca": folder / "ca.crt",
            "token": folder / "token",
            "proof-keys": folder / "keys",
            "state": folder / "state",
            "kubeconfig": folder / "kubeconfig",
            "kubepods": kubepods,
            "pod-resources": folder / "kubelet.sock",
            **({"kubepods-cpu": cpu} if cpu else {}),
        }
        self.first = ""  # a program that runs before the process
        self.process: Forked | None = None
        Cluster.node = {
            "metadata": {"name": "a", "uid": "uid-a", "labels": {}},
            "status": {"conditions": []},
        }
        Cluster.told.clear()
        self.runs()

    def runs(self, *pods: Json) -> None:
        """Let these Pods run, and those of them that have CPUs hold them."""
        Cluster.listed = list(pods)
        given = {}
        for number, one in enumerate(pods):
            text = one["metadata"]["annotations"].get(ANNOTATION_RESOURCE_STATUS)
            if text:
                given[number] = holding(
                    int(one["metadata"]["name"][2:]), json.loads(text)["cpuset"]
                )
        position = 100 if Cluster.known is None else Cluster.known.position + 1
        Cluster.known = word(position, *given.values())

    def allow(self, *, bind: bool) -> None:
        """Set the administrator's label, or take it off."""
        labels = Cluster.node["metadata"]["labels"]
        labels.pop(LABEL_TENURE_BIND_CPUS, None)
        if bind:
            labels[LABEL_TENURE_BIND_CPUS] = "true"

    def words(self, **other: object) -> list[str]:
        """Return the options of a command line."""
        told = {**self.options, **other}
        return [text for name, value in told.items() for text in (f"--{name}", str(value))]

    def start(self, **other: object) -> None:
        """Start the process."""
        more = {"probes": f"127.0.0.1:{self.probes}", "look-seconds": 0.2, **other}
        command = ["serve", "cpus", *self.words(**more)]
        self.process = Forked(
            command, self.folder / "log", cwd=self.folder, first=self.first, execs=False
        )

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def log(self) -> str:
        """Return the end of its log."""
        path = self.folder / "log"
        return path.read_text()[-6000:] if path.exists() else ""

    def ready(self, path: str = "readyz") -> str:
        """Return what it says of itself."""
        try:
            url = f"http://127.0.0.1:{self.probes}/{path}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.read().decode()
        except OSError:
            return ""

    def label(self) -> str | None:
        """Return what the Node says of binding."""
        said: str | None = Cluster.node["metadata"]["labels"].get("tenure.sh/cpu-managed")
        return said

    def condition(self) -> Json:
        """Return the Node's condition, empty if it has none."""
        found = [one for one in Cluster.node["status"]["conditions"] if one["type"] == "TenureCPUs"]
        return found[0] if found else {}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, f"{what}\n{self.ready()}\n{self.log()}"
            time.sleep(0.02)


@contextmanager
def cpus_world(folder: Path, kubepods: Path, cpu: Path | None) -> Iterator[CpusWorld]:
    """Listen, and make a node until the block ends; kubelet gave nobody CPUs."""
    gave = serving(folder / "kubelet.sock", "v1.PodResourcesLister", {"List": lambda _, __: b""})
    with listening(folder, Cluster) as port, gave:
        world = CpusWorld(folder, port, kubepods, cpu)
        try:
            yield world
        finally:
            world.kill()
