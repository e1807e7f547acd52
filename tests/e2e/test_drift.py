"""What somebody does past Tenure is named, and over once it is mended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log import drift
from tests.support.kube.bursts import DIALECTS, eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import binding, pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure
from tests.support.recount import ALLOCATED, differences

NODES = ("drift-a", "drift-b")
HOLDING = "tenure.sh/holding"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tenure-scheduler"
SETTLE_SECONDS = 240.0
FORGED = '{"gpu":[{"minor":7,"resources":{"koordinator.sh/gpu-core":"100"}}]}'
PLANTED = (
    drift.ANNOTATION_DIFFERS,
    drift.BOUND_PAST_TENURE,
    drift.DEVICE_GONE,
    drift.NAMESPACE_LABEL_WRONG,
)
Json = dict[str, Any]


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[tuple[str, ...]]:
    """Nodes with eight cards each."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name in NODES:
        add_gpu_node(plane, name)
    yield NODES
    for name in NODES:
        remove_node(plane, name)


def listed(url: str, folder: Path) -> list[Json]:
    """Return what `tenure drift` lists; its exit code says whether that is anything."""
    done = tenure("drift", "--ledger", url, "-o", "json", cwd=folder)
    found: list[Json] = json.loads(done.stdout)
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def until(url: str, folder: Path, wanted: set[str], served: Served) -> list[Json]:
    """Return what is listed once it is of these kinds."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        found = listed(url, folder)
        if {one["kind"] for one in found} == wanted:
            return found
        assert time.monotonic() < end, (found, served.words())
        time.sleep(1.0)


def gauge(served: Served, kind: str) -> float:
    """Return what the metric says of a kind."""
    [line] = [
        line
        for line in served.probe("metrics").splitlines()
        if line.startswith(f'tenure_drift{{kind="{kind}"}}')
    ]
    return float(line.split()[-1])


def without_label_right(rules: list[Json]) -> list[Json]:
    """Return the rules of the scheduler's account without the right to patch namespaces."""
    kept = []
    for rule in rules:
        kinds = rule["resources"]
        if "namespaces" in kinds and "patch" in rule["verbs"]:
            kept.append({**rule, "resources": [kind for kind in kinds if kind != "namespaces"]})
            kept.append({**rule, "resources": ["namespaces"], "verbs": ["list", "watch"]})
        else:
            kept.append(rule)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Two Pods bound by Tenure, one on each node, and what somebody does to them."""

    plane: ControlPlane
    team: str

    @property
    def where(self) -> str:
        """The path of the Pods."""
        return pods_in(self.team)

    @property
    def label(self) -> str:
        """The path of their namespace."""
        return f"/api/v1/namespaces/{self.team}"

    def ask(self, name: str, node: str) -> None:
        """Create a Pod of our profile that only this node can take."""
        selector = {"kubernetes.io/hostname": node}
        asked = pod(name, schedulerName="tenure", nodeSelector=selector, **DIALECTS["nvidia"])
        made = self.plane.api().create(self.where, asked)
        assert made.ok, made.message

    def there(self, *names: str) -> list[Json]:
        """Return Pods as they are."""
        return [self.plane.api().get(f"{self.where}/{name}").body for name in names]

    def annotate(self, name: str, value: str) -> None:
        """Say otherwise what a Pod has."""
        words = {"metadata": {"annotations": {ALLOCATED: value}}}
        assert self.plane.api().patch(f"{self.where}/{name}", words).ok

    def is_labelled(self) -> bool:
        """Tell whether the namespace says that somebody holds something."""
        return HOLDING in self.plane.api().get(self.label).body["metadata"]["labels"]

    def plant(self) -> Callable[[], None]:
        """Do all that is to be named; return what mends it."""
        api = self.plane.api()
        [forged] = self.there("forged")
        device = api.get(f"{DEVICES}/{NODES[1]}").body
        rules = api.get(ROLE).body["rules"]
        self.annotate("forged", FORGED)
        self.ask("by-hand", NODES[0])
        bound = api.create(f"{self.where}/by-hand/binding", binding("by-hand", NODES[0]))
        assert bound.ok, bound.message
        assert api.delete(f"{DEVICES}/{NODES[1]}").ok
        assert api.patch(ROLE, {"rules": without_label_right(rules)}).ok
        assert api.patch(self.label, {"metadata": {"labels": {HOLDING: None}}}).ok

        def mend() -> None:
            self.annotate("forged", forged["metadata"]["annotations"][ALLOCATED])
            remove_pods(self.plane, self.where, ["by-hand"])
            labels = device["metadata"]["labels"]
            again = {**device, "metadata": {"name": NODES[1], "labels": labels}}
            assert api.create(DEVICES, again).ok
            assert api.patch(ROLE, {"rules": rules}).ok

        return mend

    def told(self) -> set[tuple[str, str]]:
        """Return of what people read an Event, and why."""
        return {
            (one["involvedObject"]["name"], one["reason"])
            for space in (self.team, "default")
            for one in self.plane.api().get(f"/api/v1/namespaces/{space}/events").body["items"]
        }


@pytest.mark.usefixtures("nodes")
def test_what_is_done_past_tenure_is_named_and_over_once_mended(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    tmp_path: Path,
) -> None:
    """A forged annotation, a Pod bound by hand, a Device deleted, a label stripped."""
    scene = Scene(plane=plane, team=namespace(managed=False))
    url = f"sqlite:///{tmp_path / 'drift.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    with extender(plane, url, identities) as served:
        with plane.scheduler(asking(plane, served, identities)):
            scene.ask("forged", NODES[0])
            scene.ask("robbed", NODES[1])
            eventually(
                lambda: all(one["spec"].get("nodeName") for one in scene.there("forged", "robbed"))
            )
            eventually(scene.is_labelled)
        assert differences(scene.there("forged", "robbed"), url) == []
        assert listed(url, tmp_path) == []

        mend = scene.plant()
        found = until(url, tmp_path, set(PLANTED), served)
        about = {one["kind"]: (one["node"], one["pod"]) for one in found}
        assert len(found) == len(about), found
        assert about[drift.ANNOTATION_DIFFERS] == (NODES[0], f"{scene.team}/forged")
        assert about[drift.BOUND_PAST_TENURE] == (NODES[0], f"{scene.team}/by-hand")
        assert about[drift.DEVICE_GONE] == (NODES[1], "")
        assert {kind: gauge(served, kind) for kind in PLANTED} == dict.fromkeys(PLANTED, 1.0)
        assert differences(scene.there("forged", "robbed"), url) != []
        eventually(lambda: ("forged", drift.ANNOTATION_DIFFERS) in scene.told())
        eventually(lambda: (NODES[1], drift.DEVICE_GONE) in scene.told())

        mend()
        until(url, tmp_path, set(), served)
        assert {kind: gauge(served, kind) for kind in PLANTED} == dict.fromkeys(PLANTED, 0.0)
        assert scene.is_labelled()
    remove_pods(plane, scene.where, ["forged", "robbed"])
