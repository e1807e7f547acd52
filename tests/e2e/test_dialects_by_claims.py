"""Pods of every dialect that are given claims: the default kube-scheduler binds them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from ledger.domain.request.normalise import decode_pod
from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from tests.support.kube.api import Api
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    GROUP,
    SCHEDULERS,
    add_class,
    asked,
    claims_in,
    forged,
    request,
    slice_of,
    stock_schedulers,
)
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    extender,
    remove_node,
)
from tests.support.kube.schedulers import asking as asking_extender
from tests.support.kube.webhooks import serving
from tests.support.mixed import node_with_device
from tests.support.process import tenure

Namespace = Callable[..., str]
Share = tuple[str, int, int, bool]

NODE = "by-claims"
USE_ID = {"nvidia.com/use-gpuuuid": f"GPU-{NODE}-2"}
EXTENDED = "example.com/card"
VOLCANO = "vke.volcengine.com/mgpu"

DIALECTS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "whole": ({"nvidia.com/gpu": "2"}, {}),
    "bytes": ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "4Gi"}, {}),
    "ratio": ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}, {}),
    "two-shared": (
        {
            "koordinator.sh/gpu.shared": "2",
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        {},
    ),
    "percent": ({"koordinator.sh/gpu": "200"}, {}),
    "mgpu": ({f"{VOLCANO}-core": "30", f"{VOLCANO}-memory": "1024"}, {}),
    "gpushare": ({"aliyun.com/gpu-mem": "2048"}, {}),
    "hami": ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "25"}, {}),
    "hami-id": ({"nvidia.com/gpumem": "2048"}, USE_ID),
}


def asking(name: str) -> dict[str, Any]:
    """Return a Pod as its user writes it."""
    amounts, annotations = DIALECTS[name]
    return pod(name, amounts, annotations=annotations)


def by_the_extender(name: str) -> list[Share]:
    """Return what the extender gives a Pod of the same cards."""
    engine = Engine([node_with_device(NODE)], SchedulingSettings())
    answer = engine.decide(decode_pod(asking(name)), ordinal=0)
    assert isinstance(answer, Placement), answer
    return sorted(
        (one.device_id, one.core_percent, one.memory_bytes, one.exclusive) for one in answer.shares
    )


def held(ledger: str) -> list[Share]:
    """Return what claims hold of cards, by the ledger."""
    with open_ledger(ledger, mode="read") as opened:
        state = load_state(opened).state
    return sorted(
        (share.device_id, share.core_percent, share.memory_bytes, share.exclusive)
        for node in state.nodes.values()
        for holding in node.claims.values()
        for share in holding.shares
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster of one node, whose cards a driver gives, with gate and webhook."""

    plane: ControlPlane
    ledger: str
    served: Served
    identities: Identities

    @property
    def api(self) -> Api:
        """Return an administrator's client."""
        return self.plane.api()

    def is_bound(self, where: str, name: str) -> bool:
        """Tell whether a Pod has a node."""
        return bool(self.api.get(f"{pods_in(where)}/{name}").body["spec"].get("nodeName"))

    def bound(self, where: str, made: Mapping[str, Any]) -> list[Share]:
        """Make a Pod, and return what is held once it is bound."""
        name = made["metadata"]["name"]
        reply = self.api.create(pods_in(where), made)
        assert reply.ok, reply.message
        try:
            eventually(lambda: self.is_bound(where, name))
        except AssertionError as error:
            raise AssertionError(self.words(where, name) + self.served.words()) from error
        return held(self.ledger)

    def remove(self, where: str, name: str) -> None:
        """Delete a Pod, and wait until nothing is held."""
        self.api.delete(f"{pods_in(where)}/{name}?gracePeriodSeconds=0")
        eventually(lambda: not held(self.ledger))

    def words(self, where: str, name: str) -> str:
        """Return why a Pod waits."""
        events = self.api.get(f"/api/v1/namespaces/{where}/events").body["items"]
        found = [one["message"] for one in events if one["involvedObject"]["name"] == name]
        return " ".join(found)


@pytest.fixture(scope="module")
def scene(
    plane: ControlPlane, identities: Identities, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Eight cards that a driver gives in parts, of which a part may have no cores."""
    folder = tmp_path_factory.mktemp("by-claims")
    ledger = f"sqlite:///{folder / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", ledger, cwd=folder)
    assert made.returncode == 0, made.stderr
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_class(plane)
    named = {"spec": {"extendedResourceName": EXTENDED}}
    assert plane.api().patch(f"{GROUP}/deviceclasses/{DRIVER}", named).ok
    add_gpu_node(plane, NODE)
    body = slice_of(NODE)
    for one in body["spec"]["devices"]:
        one["capacity"]["cores"]["requestPolicy"]["validRange"]["min"] = "0"
    slices, port = f"{GROUP}/resourceslices", free_port()
    reply = plane.api().create(slices, body)
    assert reply.ok, reply.message
    with (
        serving(plane),
        extender(plane, ledger, identities, gate=port, drivers=[DRIVER]) as served,
        asked(plane, identities, port),
        stock_schedulers(plane, SCHEDULERS[:1]),
    ):
        yield Scene(plane=plane, ledger=ledger, served=served, identities=identities)
    plane.api().delete(f"{slices}/{body['metadata']['name']}")
    plane.api().delete(f"{GROUP}/deviceclasses/{DRIVER}")
    remove_node(plane, NODE)


@pytest.fixture
def where(namespace: Namespace) -> str:
    """A namespace whose Pods are given claims."""
    return namespace(**{"tenure.sh/mode": "dra"})


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialects_pod_is_bound_by_the_default_scheduler_alone(
    scene: Scene, where: str, name: str
) -> None:
    """With the shares in the accounts that the extender would give it; and gives them back."""
    assert scene.bound(where, asking(name)) == by_the_extender(name)
    assert scene.api.get(f"{pods_in(where)}/{name}").body["spec"]["schedulerName"] == SCHEDULERS[0]
    scene.remove(where, name)


def test_a_template_that_somebody_else_made_gives_nothing(scene: Scene, where: str) -> None:
    """It asks for more than the Pod that will name it."""
    api, templates = scene.api, f"{GROUP}/namespaces/{where}/resourceclaimtemplates"
    wanted = pod("p", {"nvidia.com/gpu": "3"})
    probe = api.create(f"{pods_in(where)}?dryRun=All", wanted).body
    name = probe["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    spec = request(count=5)
    spec["devices"]["requests"][0]["name"] = "g0"
    made = api.create(templates, {"metadata": {"name": name}, "spec": {"spec": spec}})
    assert made.ok, made.message
    assert api.create(pods_in(where), wanted).ok

    eventually(lambda: "TemplateNotOurs" in scene.words(where, "p"))
    assert not held(scene.ledger)
    scene.remove(where, "p")


def test_a_pod_by_a_class_of_a_resources_name_passes_like_any(
    scene: Scene, namespace: Namespace
) -> None:
    """Nobody opted in: it is unchanged, and kube-scheduler makes its claim."""
    where = namespace(managed=False)
    assert [share[1] for share in scene.bound(where, pod("plain", {EXTENDED: "1"}))] == [100]
    scene.remove(where, "plain")


@pytest.fixture
def another(scene: Scene) -> Iterator[str]:
    """A second node with as many cards."""
    name = f"another-{NODE}"
    add_gpu_node(scene.plane, name, binds_cpus=False)
    reply = scene.api.create(f"{GROUP}/resourceslices", slice_of(name))
    assert reply.ok, reply.message
    yield name
    scene.api.delete(f"{GROUP}/resourceslices/{name}-{DRIVER}")
    remove_node(scene.plane, name)


@pytest.mark.usefixtures("another")
def test_parts_go_to_the_node_whose_card_they_fill(scene: Scene, where: str) -> None:
    """By a wish that our gate on the Pod waits for: kube-scheduler alone would spread them."""
    halves = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}
    names = [f"half-{number}" for number in range(4)]
    for name in names:
        scene.bound(where, pod(name, halves))
    nodes = {scene.api.get(f"{pods_in(where)}/{name}").body["spec"]["nodeName"] for name in names}
    assert len(nodes) == 1
    assert len({card for card, *_ in held(scene.ledger)}) == 2
    for name in names:
        scene.api.delete(f"{pods_in(where)}/{name}?gracePeriodSeconds=0")
    eventually(lambda: not held(scene.ledger))


def test_a_node_gives_by_claims_or_by_the_extender_and_by_neither_where_it_is_of_both(
    scene: Scene, namespace: Namespace
) -> None:
    """The extender gives nothing of it; with our taint claims give nothing either, in words."""
    api, node = scene.api, f"/api/v1/nodes/{NODE}"
    ours = namespace()
    with scene.plane.scheduler(asking_extender(scene.plane, scene.served, scene.identities)):
        reply = api.create(pods_in(ours), pod("ours", {"nvidia.com/gpu": "1"}))
        assert reply.ok, reply.message
        eventually(lambda: "NodeGivesByClaims" in scene.words(ours, "ours"))
    scene.remove(ours, "ours")

    spare = namespace(managed=False)
    made = api.create(claims_in(spare), {"metadata": {"name": "c"}, "spec": request()})
    assert made.ok, made.message
    asks = {**made.body, "status": forged(NODE, 0)}
    path = f"{claims_in(spare)}/c/status?dryRun=All"
    assert api.replace(path, asks).ok
    taint = {"key": "tenure.sh/owned", "effect": "NoSchedule"}
    assert api.patch(node, {"spec": {"taints": [taint]}}).ok
    eventually(lambda: "TwoModes" in api.replace(path, asks).message)
    assert api.patch(node, {"spec": {"taints": None}}).ok
    eventually(lambda: api.replace(path, asks).ok)
    api.delete(f"{claims_in(spare)}/c")
