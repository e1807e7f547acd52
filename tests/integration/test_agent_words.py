"""`tenure serve agent --service` as a process: whose word it takes while parts of it are away."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from ledger.domain.resources import SLOT
from ledger.signing import published
from tests.support.forked import Forked
from tests.support.kube.control_plane import free_port
from tests.support.kubelets import FakeKubelet
from tests.support.machines_found import TWO_CARDS, write_machine
from tests.support.proofs import KEY, held, holds, word
from tests.support.told_agents import Listener, listening, token_of

pytestmark = pytest.mark.integration

SECONDS: Final = 60.0
POD: Final = held("p", 30, holds("0", "GPU-a"))
LATER: Final = held("q", 50, holds("0", "GPU-b"))
NOWHERE: Final = {
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "c",
}
"""No API server: what is reported of the machine is nobody's here."""
HEARD, AWAY = "holdings: by service", "holdings: by copy"


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class World:
    """A node's folders, with a listener for service and kubelet, and a kubelet's sockets."""

    def __init__(self, folder: Path, port: int, sockets: Path) -> None:
        self.folder, self.port = folder, port
        self.probes = free_port()
        for name in ("cdi", "state", "keys", "host"):
            (folder / name).mkdir()
        self.kubelet = FakeKubelet(sockets)
        devices = [
            {"name": f"GPU-{one}", "containerEdits": {"env": [f"CARD={one}"]}} for one in "ab"
        ]
        vendor = {"cdiVersion": "0.6.0", "kind": "vendor.test/card", "devices": devices}
        (folder / "vendor.json").write_text(json.dumps(vendor))
        for name, text in published([KEY.public]).items():
            (folder / "keys" / name).write_text(text)
        token_of(folder, "a")
        (folder / "kubeconfig").write_text(json.dumps(NOWHERE))
        self.process: Forked | None = None

    def start(self) -> None:
        """Start the agent, and wait until kubelet may call it."""
        self.begin()
        until(lambda: self.ready().startswith("ok\n"), "it does not get ready")

    def begin(self, **other: object) -> None:
        """Start it, with some options otherwise."""
        url = f"https://127.0.0.1:{self.port}"
        said = {
            "service": url,
            "kubelet": url,
            "ca": self.folder / "ca.crt",
            "kubelet-ca": self.folder / "ca.crt",
            "token": self.folder / "token",
            "proof-keys": self.folder / "keys",
            "state": self.folder / "state",
            "host": self.folder / "host",
            "cards": self.folder / "vendor.json",
            "plugins": self.kubelet.folder,
            "cdi": self.folder / "cdi",
            "slots": 3,
            "runtime": "",
            "mode": "plugin",
            "node": "a",
            "kubeconfig": self.folder / "kubeconfig",
            "machine": write_machine(self.folder / "machine.json", TWO_CARDS),
            "probes": f"127.0.0.1:{self.probes}",
            **other,
        }
        words = [word for name, value in said.items() for word in (f"--{name}", str(value))]
        command, log = ["serve", "agent", *words], self.folder / "agent.log"
        self.process = Forked(command, log, cwd=self.folder, execs=False)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)

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

    def admit(self, pod_uid: str, slot: str) -> str:
        """Let kubelet admit a Pod beside those that it has, and return its name."""
        before = list(self.kubelet.entries)
        name = self.kubelet.admit(pod_uid, "main", slot)
        self.kubelet.entries = [*before, *self.kubelet.entries]
        self.kubelet.keep()
        return name

    def shown(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """Return the edits that a name means."""
        path = self.folder / "cdi" / f"tenure-{name.removeprefix(f'{SLOT}=')}.json"
        return json.loads(path.read_text())["devices"][0]["containerEdits"]


@pytest.fixture
def world(tmp_path: Path, sockets: Path) -> Iterator[World]:
    """A node whose agent can be started."""
    with listening(tmp_path) as port:
        made = World(tmp_path, port, sockets)
        yield made
        made.kill()


def test_it_takes_the_services_word_then_its_copy_then_the_pods_own(world: World) -> None:
    """It says whose, and how old; a restart at any point changes no name's meaning."""
    Listener.known, Listener.pods = word(40, POD), {"p": POD.proof}
    kubelet = world.kubelet
    with kubelet.running():
        world.start()
        until(lambda: HEARD in world.ready(), "it does not hear the service")
        first = world.admit("p", "slot-0000")
        kubelet.start("slot-0000")
        assert world.shown(first) == {"env": ["CARD=a"]}

        world.kill()
        Listener.known = None
        Listener.pods = {"p": POD.proof, "q": LATER.proof, "old": POD.proof}
        world.start()
        until(lambda: "service: 503" in world.ready(), "it does not say who is away")
        assert AWAY in world.ready()
        kubelet.start("slot-0000")
        assert world.shown(first) == {"env": ["CARD=a"]}
        second = world.admit("q", "slot-0001")
        kubelet.start("slot-0001")
        assert world.shown(second) == {"env": ["CARD=b"]}
        metrics = world.ready("metrics")
        assert 'tenure_agent_words_total{source="annotation"} 1.0' in metrics
        assert 'tenure_agent_holdings_source{source="copy"} 1.0' in metrics
        assert "tenure_agent_start_seconds_count 2.0" in metrics
        world.admit("old", "slot-0002")
        with pytest.raises(grpc.RpcError, match="another one"):
            kubelet.start("slot-0002")

        Listener.pods = None
        kubelet.start("slot-0000")  # kubelet tells no Pods, and the name has its meaning

        Listener.known = word(60)
        until(lambda: HEARD in world.ready(), "it does not hear the service again")
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            kubelet.start("slot-0000", seconds=1)


def test_nobody_is_there_to_ask_and_then_one_after_the_other(world: World) -> None:
    """No service, no copy, no Pods of kubelet: a container waits, and starts by whoever is back."""
    kubelet = world.kubelet
    with kubelet.running():
        world.start()
        until(lambda: "kubelet: " in world.ready(), "it does not say that kubelet is away")
        first = world.admit("p", "slot-0000")
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            kubelet.start("slot-0000", seconds=1)
        Listener.pods = {"p": POD.proof}  # kubelet is back, the service is not
        kubelet.start("slot-0000")
        assert world.shown(first) == {"env": ["CARD=a"]}

        Listener.pods = None
        Listener.known = word(60, POD, LATER)  # the service is back, kubelet is not
        until(lambda: HEARD in world.ready(), "it does not hear the service")
        kubelet.start("slot-0000")
        second = world.admit("q", "slot-0001")
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            kubelet.start("slot-0001", seconds=1)
        Listener.pods = {"p": POD.proof, "q": LATER.proof}
        kubelet.start("slot-0001")
        assert world.shown(second) == {"env": ["CARD=b"]}


@pytest.mark.parametrize(
    ("node", "words"),
    [
        pytest.param("", "what Pods held would never end", id="none"),
        pytest.param("b", "our token is of another Node: value=b, token=a", id="another"),
    ],
)
def test_an_agent_of_no_node_or_of_another_than_its_token_is_refused(
    world: World, node: str, words: str
) -> None:
    """It would tell nobody what is gone, and every release of the node would wait for ever."""
    world.begin(node=node)
    assert world.process is not None
    assert world.process.wait(SECONDS) == 2
    log = (world.folder / "agent.log").read_text()
    assert words in log
    assert "--node" in log
