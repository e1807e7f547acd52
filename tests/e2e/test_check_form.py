"""`tenure check` beside a real API server: of the same Pods, the same answer and the same form."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledger.domain.kube.object_fields import text_map
from ledger.domain.kube.runtime_classes import with_runtime_class
from ledger.domain.quantity import quantity_of
from tenure.check.api_rules import with_api_defaults
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE, pod, pods_in
from tests.support.kube.webhooks import Webhooks, apply, remove, serving
from tests.support.process import tenure

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
PINNED = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
ASKED: tuple[Mapping[str, str], ...] = (
    *(WHOLE, HALF, MGPU, GPUSHARE),
    {"cpu": "2", "memory": "1Gi"},
    {"cpu": "0.5", "memory": "1.5Gi", **HALF},
    {"cpu": "1500m", "memory": "1e9", "hugepages-2Mi": "4Mi", **WHOLE},
    {"nvidia.com/gpu": "0", "cpu": "1"},
    {"koordinator.sh/gpu-core": "150", "koordinator.sh/gpu-memory-ratio": "150"},
)
LEVELS: tuple[Mapping[str, Mapping[str, str]], ...] = (
    {"limits": {"cpu": "8"}},
    {"limits": {"cpu": "8", "memory": "8Gi", "hugepages-1Gi": "1Gi"}},
    {"requests": {"cpu": "8", "memory": "8Gi"}},
    {"requests": {"cpu": "8"}, "limits": {"cpu": "8", "memory": "8Gi"}},
    {"limits": {"hugepages-2Mi": "64Mi", "cpu": "8"}},
)


@pytest.fixture(scope="module", autouse=True)
def hooks(plane: ControlPlane) -> Iterator[Webhooks]:
    """One replica of the webhook, registered."""
    with serving(plane) as running:
        yield running


def examples() -> Iterator[dict[str, Any]]:
    """Yield every Pod of the examples."""
    for path in EXAMPLES:
        for body in yaml.safe_load_all(path.read_text()):
            if body["kind"] == "Pod":
                yield body


def written() -> Iterator[dict[str, Any]]:
    """Yield Pods as users write them: each request alone, beside others, and below a Pod's own."""
    light = {"name": "light", "image": "x", "resources": {"requests": {"cpu": "250m"}}}
    setup = {"name": "setup", "image": "x", "resources": {"limits": {"cpu": "3", "memory": "1Gi"}}}
    proxy = {**setup, "name": "proxy", "restartPolicy": "Always"}
    for amounts in ASKED:
        yield pod("", amounts)
        beside = pod("", amounts, initContainers=[proxy, setup])
        beside["spec"]["containers"].append(light)
        yield beside
        for level in LEVELS:
            yield copy.deepcopy({**beside, "spec": {**beside["spec"], "resources": level}})
    for level in LEVELS:
        yield pod("", {"cpu": "4", "memory": "4Gi"}, labels=PINNED, resources=level)
    yield pod("", {"cpu": "4", "memory": "4Gi"}, labels=PINNED)


def named(body: dict[str, Any], number: int, namespace: str) -> dict[str, Any]:
    """Return a Pod under a name of its own."""
    metadata = {**body["metadata"], "name": f"pod-{number}", "namespace": namespace}
    return {**body, "metadata": metadata}


def form_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a scheduler and kubelet see of a Pod, amounts in one writing."""
    metadata, spec = body["metadata"], body["spec"]
    containers = itertools.chain(spec.get("initContainers", ()), spec["containers"])
    return {
        "labels": text_map(metadata.get("labels"), "labels"),
        "annotations": text_map(metadata.get("annotations"), "annotations"),
        "schedulerName": spec.get("schedulerName", "default-scheduler"),
        "nodeSelector": spec.get("nodeSelector", {}),
        "tolerations": [one for one in spec.get("tolerations", ()) if "effect" not in one],
        "overhead": amounts_of({"requests": spec.get("overhead")}),
        "resources": amounts_of(spec.get("resources", {})),
        "containers": [
            (one["name"], one.get("env", []), amounts_of(one.get("resources", {})))
            for one in containers
        ],
    }


def amounts_of(resources: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return requests and limits, each amount in its one canonical writing."""
    return {
        section: {name: str(quantity_of(amount)) for name, amount in resources[section].items()}
        for section in ("requests", "limits")
        if resources.get(section)
    }


GIVEN: dict[str, dict[str, Any]] = {
    "parts": {"overhead": {"podFixed": {"cpu": "500m", "memory": "64Mi"}}},
    "whole": {"overhead": {"podFixed": {"cpu": "1"}}},
    "pool": {
        "scheduling": {
            "nodeSelector": {"pool": "a"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
        }
    },
    "bare": {"overhead": {}},
}
CLASSES: tuple[dict[str, Any], ...] = tuple(
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": "kata",
        **more,
    }
    for name, more in GIVEN.items()
)
PODS = 100
AMOUNTS: dict[str, list[Any]] = {
    "cpu": ["1", "500m", "1500m", 2, 1.5, "2000m", "100m"],
    "memory": ["1Gi", "2Gi", 1073741824, "1e9"],
    "hugepages-2Mi": ["2Mi", "4Mi"],
    "ephemeral-storage": ["1Gi", "2Gi"],
    "kubernetes.io/other": ["1", "2"],
    "example.com/card": ["1", "2", "1500m"],
    "gpu": ["1"],
}
OFTEN = (0.7, 0.6, 0.06, 0.1, 0.1, 0.06, 0.01)


def random_pod(rng: random.Random) -> dict[str, Any]:
    """Return a Pod whose amounts, levels, overhead and class often fit together."""

    def amounts(scale: float) -> dict[str, Any]:
        chosen = zip(AMOUNTS.items(), OFTEN, strict=True)
        return {
            key: rng.choice(few) for (key, few), often in chosen if rng.random() < often * scale
        }

    def resources(scale: float) -> dict[str, Any]:
        limits = amounts(scale)
        same = {key: value for key, value in limits.items() if rng.random() < 0.9}
        return {"limits": limits, "requests": {**same, **(amounts(0.15) if scale == 1 else {})}}

    def container(name: str, **more: str) -> dict[str, Any]:
        return {"name": name, "image": "x", "resources": resources(1), **more}

    spec: dict[str, Any] = {"containers": [container(f"c{number}") for number in range(2)]}
    started = [container("s", restartPolicy="Always"), container("i")]
    spec["initContainers"] = started[: rng.choice((0, 0, 1, 2))]
    if rng.random() < 0.4:
        spec["resources"] = resources(0.3)
    if rng.random() < 0.5:
        spec["runtimeClassName"] = rng.choice(CLASSES)["metadata"]["name"]
    if rng.random() < 0.15:
        spec["overhead"] = rng.choice(({"cpu": "0.5", "memory": "64Mi"}, {"cpu": 1}))
    if rng.random() < 0.3:
        spec["nodeSelector"] = {"pool": rng.choice("aab"), "zone": "x"}
    if rng.random() < 0.3:
        tolerations = [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]
        spec["tolerations"] = rng.sample(tolerations, 1)
    metadata: dict[str, Any] = {"name": "", "annotations": {"a.b/c": rng.choice((None, "x"))}}
    if rng.random() < 0.4:
        metadata["labels"] = {**PINNED, "x": rng.choice((None, "y"))}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture
def classes(plane: ControlPlane) -> Iterator[tuple[dict[str, Any], ...]]:
    """RuntimeClasses that are in the cluster and in the input."""
    apply(plane, list(CLASSES))
    yield CLASSES
    remove(plane, list(CLASSES))


def test_check_says_what_the_api_server_does_with_random_pods(
    plane: ControlPlane,
    namespace: Callable[..., str],
    tmp_path: Path,
    classes: tuple[dict[str, Any], ...],
) -> None:
    """Amounts, levels, overhead, runtime classes and null: no other answer, no other form."""
    rng, where = random.Random(34), namespace()
    pods = [named(random_pod(rng), number, where) for number in range(PODS)]
    assert compare(plane, where, tmp_path, pods, classes) > PODS // 5


def test_check_says_what_the_api_server_does_with_every_pod(
    plane: ControlPlane, namespace: Callable[..., str], tmp_path: Path
) -> None:
    """Of none the answer differs, nor what is stored: labels, environment, and every amount."""
    where = namespace()
    pods = [named(body, number, where) for number, body in enumerate([*examples(), *written()])]
    assert len(pods) > 70
    compare(plane, where, tmp_path, pods)


def compare(
    plane: ControlPlane,
    where: str,
    folder: Path,
    pods: Sequence[dict[str, Any]],
    beside: Sequence[dict[str, Any]] = (),
) -> int:
    """Compare what `check` and the API server make of Pods; return how many are stored."""
    file = folder / "pods.json"
    items = [*beside, *pods]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    done = tenure("check", str(file), "-o", "json", cwd=folder)
    assert done.returncode == 1, done.stderr
    checked = json.loads(done.stdout)[len(beside) :]
    assert len(checked) == len(pods)
    answers, forms, stored_ones = 0, 0, 0
    known = {one["metadata"]["name"]: one for one in beside}
    differing: list[tuple[Any, ...]] = []
    for body, said in zip(pods, checked, strict=True):
        reply = plane.api(MALLORY).create(pods_in(where), body, dry_run=True)
        stored_ones += reply.ok
        if reply.ok != said["allowed"]:
            differing.append((body, said["message"], reply.message))
            answers += 1
        elif reply.ok:
            after, _ = with_runtime_class(said["object"], known)
            stored, ours = form_of(reply.body), form_of(with_api_defaults(after))
            if stored != ours:
                differing.append((body, ours, stored))
                forms += 1
    assert (answers, forms) == (0, 0), (len(pods), differing[:3])
    return stored_ones
