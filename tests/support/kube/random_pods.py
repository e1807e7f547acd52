"""Random Pods and changes of them, full of the words that policies are about."""

from __future__ import annotations

import random
from typing import Any, Final

from ledger.domain.annotations.guarded import ALLOCATION_ANNOTATIONS
from tests.support.claiming import ANYTHING, BY_NAME, on_key, pinned_to, selecting
from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE
from webhook.decide.validating.words import PLACED_ANNOTATIONS, PLACED_LABELS

Json = dict[str, Any]

AMOUNTS: Final[tuple[dict[str, str], ...]] = (
    {}, {}, {"cpu": "1"}, {"cpu": "1500m"}, {"cpu": "2", "memory": "1Gi"}, HALF, MGPU, GPUSHARE,
    WHOLE, {"koordinator.sh/gpu-core": "150"}, {"koordinator.sh/gpu-core": "0"},
    {"vke.volcengine.com/mgpu-core": "101"}, {"vke.volcengine.com/mgpu-core": "0"},
    {"vke.volcengine.com/mgpu-core": "100", "vke.volcengine.com/mgpu-memory": "512"},
    {"tenure.sh/slot": "1"}, {**HALF, "tenure.sh/slot": "1"}, {"tenure.sh/other": "1"},
    {"amd.com/gpu": "1"}, {"koordinator.sh/rdma": "1"}, {"example.com/card": "1"},
)  # fmt: skip
VARIABLES: Final[tuple[list[Json], ...]] = (
    [], [{"name": "A", "value": "b"}],
    *([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}] for value in ("void", "all", "")),
    *(
        [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
        for path in ("metadata.annotations['tenure.sh/visible.0']", "metadata.name")
    ),
)  # fmt: skip
ANNOTATIONS: Final = (
    *sorted(ALLOCATION_ANNOTATIONS),
    *PLACED_ANNOTATIONS,
    "tenure.sh/admitted",
    "tenure.sh/visible.0",
    "tenure.sh/x",
    "vke.volcengine.com/gpu-index-container-main",
    "vke.volcengine.com/container-multiple-gpu",
    "vke.volcengine.com/mgpu-compute-policy",
    "cdi.k8s.io/x",
    "nvidia.cdi.k8s.io/y",
    "nvidia.com/x",
    "kubernetes.io/config.mirror",
    "example.com/note",
)
VALUES: Final = ("1", "true", "2", "x", '{"cpuset":"0-1"}', "")
LABELS: Final = {
    "koordinator.sh/qosClass": ("LSR", "LSE", "LS", "BE"),
    "koordinator.sh/priority": ("1", "9"),
    "koordinator.sh/priority-class": ("koord-prod", "koord-batch"),
    "team": ("a", "b"),
    **dict.fromkeys(PLACED_LABELS, ("a", "b")),
}
_SCHEDULERS: Final = ("", "", "tenure", "volcano", "hami-scheduler")
_TOLERATIONS: Final[tuple[list[Json], ...]] = (
    [],
    [],
    [BY_NAME],
    [ANYTHING],
    [{"key": "a", "operator": "Exists"}],
)
_AFFINITIES: Final = (
    None, None, selecting(on_key("DoesNotExist")), selecting(on_key("In", "true")), pinned_to("a"),
)  # fmt: skip


def random_pod(rng: random.Random, name: str) -> Json:
    """Return a Pod that the API server takes, but for a few."""
    spec: Json = {"containers": [_container(rng, f"c{n}") for n in range(rng.choice((1, 1, 2, 3)))]}
    if rng.random() < 0.3:
        more = rng.choice(({}, {"restartPolicy": "Always"}))
        spec["initContainers"] = [_container(rng, "i") | more]
    if rng.random() < 0.2:
        spec["resources"] = {"requests": {"cpu": "3"}, "limits": {"cpu": rng.choice(("3", "4"))}}
    if scheduler := rng.choice(_SCHEDULERS):
        spec["schedulerName"] = scheduler
    if affinity := rng.choice(_AFFINITIES):
        spec["affinity"] = affinity
    if rng.random() < 0.1:
        spec["nodeName"] = "somewhere"
    if rng.random() < 0.1:
        spec["nodeSelector"] = {"tenure.sh/owned": rng.choice(("true", "false"))}
    if rng.random() < 0.15:
        spec["resourceClaims"] = [{"name": "r", "resourceClaimName": "r"}]
    spec["tolerations"] = rng.choice(_TOLERATIONS)
    spec["volumes"] = [{"name": "v", "emptyDir": {}}]
    metadata = {"name": name, "labels": _labels(rng), "annotations": _annotations(rng)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def random_change(rng: random.Random, pod: Json) -> tuple[str, Json]:
    """Return a path below a Pod, and a strategic merge patch for it that changes little."""
    metadata: Json = {}
    if rng.random() < 0.6:
        keys = [rng.choice(ANNOTATIONS), *pod["metadata"]["annotations"]]
        metadata["annotations"] = {rng.choice(keys): rng.choice((*VALUES, None))}
    if rng.random() < 0.4:
        label = rng.choice(sorted(LABELS))
        metadata["labels"] = {label: rng.choice((*LABELS[label], None))}
    way = rng.choice(("", "", "", "/status", "/status", "/ephemeralcontainers", "/resize"))
    spec: Json = {}
    if way == "/ephemeralcontainers":
        one = _container(rng, f"e{rng.randrange(1_000_000)}")
        spec["ephemeralContainers"] = [{**one, "resources": {}}]
    if way == "/resize":
        first = pod["spec"]["containers"][0]["name"]
        amount = {"cpu": rng.choice(("1", "2", "3"))}
        resources = {"limits": amount, "requests": amount}
        spec["containers"] = [{"name": first, "resources": resources}]
    if not way and rng.random() < 0.3:
        spec["tolerations"] = [*pod["spec"]["tolerations"], rng.choice((BY_NAME, ANYTHING))]
    return way, {"metadata": metadata, **({"spec": spec} if spec else {})}


def _container(rng: random.Random, name: str) -> Json:
    amounts = rng.choice(AMOUNTS)
    made: Json = {"name": name, "image": "x", "env": rng.choice(VARIABLES)}
    if amounts:
        made["resources"] = {"limits": amounts, "requests": amounts}
        if amounts.keys() <= {"cpu", "memory"} and rng.random() < 0.3:
            made["resources"] = {rng.choice(("limits", "requests")): amounts}
    if rng.random() < 0.1:
        path = "/var/run/nvidia-container-devices/all"
        made["volumeMounts"] = [{"name": "v", "mountPath": path}]
    return made


def _labels(rng: random.Random) -> Json:
    return {key: rng.choice(values) for key, values in LABELS.items() if rng.random() < 0.15}


def _annotations(rng: random.Random) -> Json:
    keys = rng.sample(ANNOTATIONS, rng.choice((0, 0, 1, 1, 2)))
    marked = ["tenure.sh/admitted"] if rng.random() < 0.4 else []
    return {key: rng.choice(VALUES) for key in (*keys, *marked)}
