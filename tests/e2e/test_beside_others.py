"""Nodes whose cards another system hands out too: what our scheduler grants there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest

from ledger.domain.log.events import PodObserved, PodReserved
from ledger.store.open import open_ledger
from tests.e2e.test_scheduler import node_of
from tests.support.hami import REGISTER, card, registered
from tests.support.kube.bursts import DIALECTS, eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)

GPU: Final = "nvidia.com/gpu"
HANDSHAKE: Final = "hami.io/node-handshake"
OWNED: Final = "tenure.sh/owned"
TOLERATES: Final = [{"key": OWNED, "operator": "Exists"}]


@pytest.fixture
def hamis(plane: ControlPlane) -> Iterator[str]:
    """A node with two cards that HAMi's device plugin registers too."""
    name = "hamis"
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, name, gpus=2)
    cards = [card(f"GPU-{name}-{minor}", index=minor, mib=16384) for minor in range(2)]
    marked(plane, name, {REGISTER: registered(*cards), HANDSHAKE: "Requesting_2026-11-23 07:58:02"})
    yield name
    remove_node(plane, name)


@pytest.fixture
def parts(plane: ControlPlane) -> Iterator[str]:
    """A node whose two cards NVIDIA's plugin hands out in twenty replicas."""
    name, api = "parts", plane.api()
    labels = {"nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.count": "2"}
    labels["nvidia.com/gpu.product"] = "Tesla-T4-SHARED"
    made = api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    assert made.ok, made.message
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "20"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    assert api.patch(f"/api/v1/nodes/{name}/status", {"status": status}).ok
    yield name
    remove_node(plane, name)


def marked(plane: ControlPlane, name: str, annotations: dict[str, str], **more: object) -> None:
    """Change a Node's metadata."""
    metadata = {"annotations": annotations, **more}
    assert plane.api().patch(f"/api/v1/nodes/{name}", {"metadata": metadata}).ok


def own(plane: ControlPlane, name: str) -> None:
    """Mark a Node as ours."""
    marked(plane, name, {}, labels={OWNED: "true"})
    taints = [{"key": OWNED, "effect": "NoSchedule"}]
    assert plane.api().patch(f"/api/v1/nodes/{name}", {"spec": {"taints": taints}}).ok


def refusal(plane: ControlPlane, path: str) -> str:
    """Return why kube-scheduler says that a Pod waits, empty while it has not said so."""
    assert not node_of(plane, path), path
    conditions = plane.api().get(path).body["status"].get("conditions") or ()
    said = [one for one in conditions if one["type"] == "PodScheduled"]
    return said[0].get("message", "") if said and said[0]["status"] == "False" else ""


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_node_where_hamis_plugin_lives_gives_cards_once_it_is_owned(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    hamis: str,
    identities: Identities,
) -> None:
    """hami-scheduler does not count our Pods, and HAMi's register limits none of them."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities, impatient=True)),
    ):
        for name in ("whole", "share"):
            asked = DIALECTS["nvidia" if name == "whole" else "hami"]
            body = pod(name, schedulerName="tenure", tolerations=TOLERATES, **asked)
            assert api.create(where, body).ok
        for name in ("whole", "share"):
            said = eventually(partial(refusal, plane, f"{where}/{name}"))
            assert "NodeOfOtherScheduler" in said, said
        marked(plane, hamis, {}, labels={"koordinator.sh/gpu-isolation-provider": None})
        own(plane, hamis)
        eventually(lambda: node_of(plane, f"{where}/whole") == hamis)
        said = eventually(
            lambda: (text := refusal(plane, f"{where}/share")) and "isolation" in text and text
        )
        assert "NodeOfOtherScheduler" not in said, said
    remove_pods(plane, where, ["whole", "share"])


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_replicas_are_given_by_number_where_nobody_runs_yet(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    parts: str,
    identities: Identities,
) -> None:
    """No card is named, no annotation says one, nothing is reserved: kubelet's plugin picks."""
    where, api = pods_in(namespace(managed=False)), plane.api()
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities, impatient=True)),
    ):
        for name, units in (("most", "12"), ("rest", "8"), ("late", "1")):
            body = pod(name, {GPU: units}, schedulerName="tenure")
            assert api.create(where, body).ok
            if name != "late":
                eventually(partial(node_of, plane, f"{where}/{name}"))
        assert eventually(partial(refusal, plane, f"{where}/late"))
        remove_pods(plane, where, ["rest"])
        eventually(partial(node_of, plane, f"{where}/late"))
        given = [api.get(f"{where}/{name}").body["metadata"] for name in ("most", "late")]
    for metadata in given:
        assert not [key for key in metadata.get("annotations", {}) if "device" in key]
    with open_ledger(ledger, mode="read") as source:
        events = [one.event for one in source.read_events()]
    assert not [one for one in events if isinstance(one, PodReserved)]
    counted = [
        (one.pod_name, one.node_name, one.shares, dict(one.counted))
        for one in events
        if isinstance(one, PodObserved)
    ]
    assert counted == [
        ("most", parts, (), {"gpu": 12}),
        ("rest", parts, (), {"gpu": 8}),
        ("late", parts, (), {"gpu": 1}),
    ]
    remove_pods(plane, where, ["most", "late"])
