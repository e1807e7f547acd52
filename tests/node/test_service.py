"""From a Pod's object to its cards on a real node: the service decides, and the agent follows."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from agent.discover.machine import Card, Discovery
from agent.manifests import ACCOUNT, AgentManifests, manifests
from ledger.domain.resources import SLOT
from ledger.signing import PrivateKey, published
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.pods import pod as plain_pod
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import Identities, Served, asking, extender, issue
from tests.support.kube.webhooks import apply
from tests.support.machines_found import write_machine
from tests.support.node.agents import CARDS, agent
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.pods import Pods, container
from tests.support.process import tenure

OURS: Final = "tenure-system"
WHOLE: Final = {"koordinator.sh/gpu": 100, SLOT: 1}


class Cluster:
    """The service, the kube-scheduler that asks it, and the agent's own Pod and files."""

    def __init__(self, plane: ControlPlane, machine: Node, folder: Path) -> None:
        self.plane, self.machine, self.folder = plane, machine, folder
        self.identities: Identities = issue(folder / "identities")
        self.port = free_port()
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        made = tenure("ledger", "init", "--ledger", self.url, cwd=folder)
        assert made.returncode == 0, made.stderr

    def told(self) -> tuple[str, ...]:
        """Return the agent's options, once its account and token are there."""
        for name in ("state", "keys"):
            (self.folder / name).mkdir()
        key = PrivateKey.parse((self.identities.keys / "proof.key").read_text())
        for name, text in published([key.public]).items():
            (self.folder / "keys" / name).write_text(text)
        options = AgentManifests(image="none", authority="", namespace=OURS)
        rights = [one for one in manifests(options) if one["kind"] != "DaemonSet"]
        apply(self.plane, rights)
        (self.folder / "token").write_text(self._token())
        cards = tuple(
            Card(uuid=one, minor=minor, memory_bytes=16 << 30) for minor, one in enumerate(CARDS)
        )
        machine = write_machine(self.folder / "machine.json", Discovery(cards=cards))
        kubelet = self.machine.room.folder / "kubelet-certs" / "kubelet.crt"
        return (
            *("--service", f"https://127.0.0.1:{self.port}"),
            *("--ca", str(self.identities.server / "ca.crt")),
            *("--token", str(self.folder / "token"), "--state", str(self.folder / "state")),
            *("--proof-keys", str(self.folder / "keys")),
            *("--kubelet", f"https://127.0.0.1:{self.machine.port}"),
            *("--kubelet-ca", str(kubelet), "--node", NODE_NAME, "--report-seconds", "1"),
            *("--kubeconfig", str(self._kubeconfig()), "--machine", str(machine)),
        )

    def _kubeconfig(self) -> Path:
        """Let the agent reach the API by its own token, with the rights that are printed."""
        cluster = {"server": self.plane.url, "certificate-authority": str(self.plane.ca_file)}
        made = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"tokenFile": str(self.folder / "token")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(made))
        return path

    def _token(self) -> str:
        words = plain_pod("agent", {}, nodeName=NODE_NAME, serviceAccountName=ACCOUNT)
        reply = self.plane.api().create(pods_in(OURS), words)
        assert reply.ok, reply.message
        named = {"name": "agent", "uid": reply.body["metadata"]["uid"]}
        bound = {"apiVersion": "v1", "kind": "Pod", **named}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{OURS}/serviceaccounts/{ACCOUNT}/token"
        made = self.plane.api().create(path, body)
        assert made.ok, made.message
        return str(made.body["status"]["token"])

    def served(self) -> Any:  # noqa: ANN401 - a context of Served
        """Run the service until the block ends."""
        return extender(self.plane, self.url, self.identities, api=self.port)

    def scheduling(self, served: Served) -> Any:  # noqa: ANN401 - a context of Program
        """Run a kube-scheduler that asks it, until the block ends."""
        config = asking(self.plane, served, self.identities, impatient=True)
        return self.plane.scheduler(config, name="asking")


@pytest.fixture
def cluster(plane: ControlPlane, machine: Node, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without its service yet."""
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": OURS}})
    made = Cluster(plane, machine, tmp_path)
    yield made
    plane.api().delete(f"{pods_in(OURS)}/agent?gracePeriodSeconds=0")


def make(pods: Pods, name: str) -> dict[str, Any]:
    """Create a Pod that asks the service for a whole card."""
    return pods.make(name, [container(resources=WHOLE)], scheduler="tenure")


def card_of(pods: Pods, name: str, *, runs: int = 1) -> str:
    """Return the one card that each run of a Pod saw."""
    seen = [one["cards"] for one in pods.node.seen(pods.get(name), runs=runs)]
    [card] = seen[0]
    assert seen == [[card]] * len(seen)
    return str(card)


def test_a_pod_has_the_card_that_the_service_gave_it_also_after_a_reboot(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """
    Decided by the service, known by its API, shown by the agent; then nothing of ours is up.

    The node starts again with no container and no meaning of any name, with kubelet's checkpoint
    and the agent's copy. One Pod was bound while the node was down: of it, its own proof tells.
    """
    machine, plane = cluster.machine, cluster.plane
    with cluster.served() as served, agent(machine, tmp_path, slots=3, told=cluster.told()) as own:
        eventually(lambda: "by service" in own.whose_word())
        with cluster.scheduling(served):
            for name in ("first", "second"):
                make(pods, name)
                pods.running(name)
            before = {name: card_of(pods, name) for name in ("first", "second")}
            assert len(set(before.values())) == 2

            own.kill()
            machine.kubelet.end()
            make(pods, "third")
            eventually(lambda: pods.get("third")["spec"].get("nodeName"))
        served.kill()
        for name in before:
            for pid in machine.processes(pods.get(name)):
                os.kill(pid, signal.SIGKILL)
        for name in own.specifications():
            (machine.cdi / name).unlink()

        registered = own.words().count("registered with kubelet")
        with plane.server.frozen():
            machine.kubelet.start()
            own.begin()
            end = time.monotonic() + 120
            while own.words().count("registered with kubelet") == registered:
                assert time.monotonic() < end, own.words()
                time.sleep(0.05)

        for name in before:
            pods.running(name, restarts=1)
        pods.running("third")
        after = {name: card_of(pods, name, runs=2) for name in before}
        assert after == before
        assert card_of(pods, "third") not in before.values()
        assert "by copy" in own.whose_word()
