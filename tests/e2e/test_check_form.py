"""`tenure check` beside a real API server: of the same Pods, the same answer and the same form."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledger.domain.quantity import quantity_of
from tenure.check.api_rules import with_api_defaults
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE, pod, pods_in
from tests.support.kube.webhooks import Webhooks, serving
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
        "labels": metadata.get("labels", {}),
        "annotations": metadata.get("annotations", {}),
        "schedulerName": spec.get("schedulerName", "default-scheduler"),
        "nodeSelector": spec.get("nodeSelector", {}),
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


def test_check_says_what_the_api_server_does_with_every_pod(
    plane: ControlPlane, namespace: Callable[..., str], tmp_path: Path
) -> None:
    """Of none the answer differs, nor what is stored: labels, environment, and every amount."""
    where = namespace()
    pods = [named(body, number, where) for number, body in enumerate([*examples(), *written()])]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    done = tenure("check", str(file), "-o", "json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    checked = json.loads(done.stdout)
    assert len(checked) == len(pods) > 70
    answers, forms = 0, 0
    differing: list[tuple[Any, ...]] = []
    for body, said in zip(pods, checked, strict=True):
        reply = plane.api(MALLORY).create(pods_in(where), body, dry_run=True)
        if reply.ok != said["allowed"]:
            differing.append((body, said["message"], reply.message))
            answers += 1
        elif reply.ok:
            stored, ours = form_of(reply.body), form_of(with_api_defaults(said["object"]))
            if stored != ours:
                differing.append((body, ours, stored))
                forms += 1
    assert (answers, forms) == (0, 0), (len(pods), differing[:3])
