"""A card that a running member of a group sees waits for that member, on a real control plane."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.log.events import PodReleased, RequestRefused
from ledger.domain.resources import ANNOTATION_TENURE_PROOF
from ledger.store.open import open_ledger
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    ask,
    asking,
    extender,
    remove_node,
)
from tests.support.kube.service_api import OURS, Service, agents_token
from tests.support.process import tenure

NODE: Final = "in-sight"
GROUP: Final = "gputopology.scheduling.koordinator.sh"
CARDS: Final = [f"GPU-{NODE}-0", f"GPU-{NODE}-1"]
FULL: Final = "Insufficient gpu devices"
SETTINGS: Final = """\
apiVersion: tenure.sh/v1alpha1
kind: SchedulerConfiguration
groups: {shareVisible: true}
"""


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    """A node of two cards, with the Pod of its agent."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, NODE, gpus=2)
    yield NODE
    remove_node(plane, NODE)
    remove_pods(plane, pods_in(OURS), ["agent"])


class Cluster:
    """Pods of a namespace, the node's agent and the ledger."""

    def __init__(self, plane: ControlPlane, where: str, url: str) -> None:
        self.plane, self.where, self.url = plane, where, url
        self.pods: dict[str, Any] = {}

    def create(self, name: str, *, member: bool = True) -> str:
        """Create a Pod that asks for a whole card; return its UID."""
        labels = {f"{GROUP}/name": "job", f"{GROUP}/replica": "2"} if member else {}
        limits = {"koordinator.sh/gpu": "100"}
        made = self.plane.api().create(
            self.where, pod(name, limits, schedulerName="tenure", labels=labels)
        )
        assert made.ok, made.message
        self.pods[name] = made.body
        return str(made.body["metadata"]["uid"])

    def is_bound(self, name: str) -> bool:
        """Tell whether a Pod has its node."""
        return bool(self.plane.api().get(f"{self.where}/{name}").body["spec"].get("nodeName"))

    def why_not(self, served: Served, identities: Identities, name: str) -> str:
        """Return why the node does not take a Pod now, as kube-scheduler would be told."""
        args = {"Pod": self.pods[name], "NodeNames": [NODE]}
        return str(ask(served, identities, "filter", args)["FailedNodes"].get(NODE, ""))

    def events(self, kind: type[Any]) -> dict[str, Any]:
        """Return the last event of a kind for each Pod."""
        with open_ledger(self.url, mode="read") as ledger:
            found = [one.event for one in ledger.read_events()]
        return {each.pod_uid: each for each in found if isinstance(each, kind)}


def test_a_stranger_waits_until_nobody_sees_the_card(
    plane: ControlPlane,
    namespace: Callable[..., str],
    node: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """
    B ends and its node confirms it; C waits until that is so of A, which sees B's card.

    A new member gets the card at once, a service that starts anew knows the same, and the ledger
    is decided again the same.
    """
    port, url = free_port(), f"sqlite:///{tmp_path / 'live.db'}"
    assert tenure("ledger", "init", "--ledger", url, cwd=tmp_path).returncode == 0
    (config := tmp_path / "settings.yaml").write_text(SETTINGS)
    cluster = Cluster(plane, pods_in(namespace(managed=False)), url)
    service = Service(port=port, authority=identities.server / "ca.crt")
    words: dict[str, Any] = {"api": port, "config": config, "forked": True}

    with extender(plane, url, identities, **words) as served:
        token = agents_token(plane, node)

        def end(name: str, uid: str) -> None:
            """Delete a Pod, and let its node confirm that nothing of it is left."""
            remove_pods(plane, cluster.where, [name])
            unconfirmed = 'tenure_scheduler_view{what="unconfirmed"} 1.0'
            eventually(lambda: unconfirmed in served.probe("metrics"))
            assert uid not in cluster.events(PodReleased)
            status, _ = service.call("/agents/v1/confirmations", token, {"gone": [uid]})
            assert status == 200
            eventually(lambda: uid in cluster.events(PodReleased))

        with plane.scheduler(asking(plane, served, identities)):
            first, second = cluster.create("a"), cluster.create("b")
            eventually(lambda: cluster.is_bound("a") and cluster.is_bound("b"))
            status, told = service.call("/agents/v1/holdings", token)
            assert status == 200, told
            assert [one["shown"] for one in told["holdings"]] == [CARDS, CARDS]
            proofs = [
                json.loads(one["metadata"]["annotations"][ANNOTATION_TENURE_PROOF])["proof"]
                for name in ("a", "b")
                for one in [plane.api().get(f"{cluster.where}/{name}").body]
            ]
            assert [one["shown"] for one in proofs] == [CARDS, CARDS]

            end("b", second)
            stranger = cluster.create("c", member=False)
            refused = eventually(lambda: cluster.events(RequestRefused).get(stranger))
            named = [one for one in refused.reasons if one.reason == "GPUVisibleToGroup"]
            assert [one.nodes for one in named] == [1], refused.reasons  # other tests leave Nodes
            anew = cluster.create("b-anew")
            eventually(lambda: cluster.is_bound("b-anew"))
            end("b-anew", anew)
            assert cluster.why_not(served, identities, "c") == FULL
    with extender(plane, url, identities, remembered=True, **words) as served:
        assert cluster.why_not(served, identities, "c") == FULL
        with plane.scheduler(asking(plane, served, identities)):
            remove_pods(plane, cluster.where, ["a"])
            unconfirmed = 'tenure_scheduler_view{what="unconfirmed"} 1.0'
            eventually(lambda: unconfirmed in served.probe("metrics"))
            assert cluster.why_not(served, identities, "c") == FULL
            assert not cluster.is_bound("c")
            status, _ = service.call("/agents/v1/confirmations", token, {"gone": [first]})
            assert status == 200
            eventually(lambda: cluster.is_bound("c"))
    for question in ("verify", "ledger replay"):
        answer = tenure(*question.split(), "--ledger", url, cwd=tmp_path)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    remove_pods(plane, cluster.where, ["c"])
