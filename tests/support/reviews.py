"""AdmissionReviews of every kind that admission meets, and ways to break them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from typing import Any, Final

from tests.support.kube.pods import GPUSHARE, HALF, MGPU, WHOLE, binding, pod

_KINDS: Final = {
    "Pod": ("", "v1", "pods"),
    "Binding": ("", "v1", "pods"),
    "Node": ("", "v1", "nodes"),
    "Device": ("scheduling.koordinator.sh", "v1alpha1", "devices"),
    "NodeResourceTopology": ("topology.node.k8s.io", "v1alpha1", "noderesourcetopologies"),
}
_JUNK: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 2**63, 1.5, "", "x", "-1", "1e9", "\u0000", "\U0001f4a5", "9" * 400,
    "{", "[]", '{"a":', "0-3,99999999999", "100Gi", "koordinator.sh/gpu-core", [], {}, [[]], [None],
    [{}], {"": ""}, {"name": 1}, "\u202e", "LSR", "true", "a" * 10_000,
)  # fmt: skip
_KEYS: Final = (
    "koordinator.sh/gpu-core", "koordinator.sh/gpu.shared", "nvidia.com/gpu", "aliyun.com/gpu-mem",
    "vke.volcengine.com/mgpu-core", "scheduling.koordinator.sh/resource-spec",
    "scheduling.koordinator.sh/device-allocate-hint", "koordinator.sh/qosClass", "spec", "metadata",
    "gputopology.scheduling.koordinator.sh/name", "containers", "resources", "limits", "env", "",
)  # fmt: skip


def review(
    obj: Mapping[str, Any] | None,
    *,
    kind: str = "Pod",
    operation: str = "CREATE",
    subresource: str = "",
    old: Mapping[str, Any] | None = None,
    user: str = "ada",
) -> dict[str, Any]:
    """Return the AdmissionReview of a request."""
    group, version, resource = _KINDS[kind]
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "7a0a3c9e-0b1c-4a5e-8f0e-0123456789ab",
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": resource},
            "subResource": subresource,
            "operation": operation,
            "namespace": "team-a",
            "name": "train",
            "userInfo": {"username": user, "groups": ["system:authenticated"]},
            "object": obj,
            "oldObject": old,
            "dryRun": False,
            "options": {"kind": "CreateOptions"},
        },
    }


def corpus() -> list[dict[str, Any]]:
    """Return one request of each kind that admission decides on."""
    spec = json.dumps({"preferredCPUBindPolicy": "FullPCPUs"})
    hint = json.dumps({"gpu": {"selector": {"matchLabels": {"type": "A100"}}}})
    pods = [
        pod("train", WHOLE),
        pod("train", HALF, annotations={"scheduling.koordinator.sh/device-allocate-hint": hint}),
        pod("train", MGPU, annotations={"vke.volcengine.com/container-multiple-gpu": "main:2"}),
        pod("train", GPUSHARE),
        pod(
            "train",
            {"cpu": "4"},
            labels={
                "koordinator.sh/qosClass": "LSR",
                "gputopology.scheduling.koordinator.sh/name": "g",
                "gputopology.scheduling.koordinator.sh/replica": "2",
            },
            annotations={"scheduling.koordinator.sh/resource-spec": spec},
        ),
    ]
    for one in pods:
        one["metadata"]["namespace"] = "team-a"
    bigger = copy.deepcopy(pods[1])
    bigger["spec"]["containers"][0]["resources"]["limits"]["koordinator.sh/gpu-core"] = "100"
    device = {
        "metadata": {"name": "node-1"},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "minor": 0,
                    "id": "GPU-0",
                    "health": True,
                    "resources": {"koordinator.sh/gpu-core": "100"},
                }
            ]
        },
    }
    zone = {"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": "8"}]}
    topology = {"metadata": {"name": "node-1"}, "topologyPolicies": ["None"], "zones": [zone]}
    node = {
        "metadata": {
            "name": "node-1",
            "labels": {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"},
        }
    }
    return [
        *(review(one) for one in pods),
        review(bigger, operation="UPDATE", old=pods[1]),
        review(bigger, operation="UPDATE", old=pods[1], subresource="resize"),
        review(pods[1], operation="UPDATE", old=pods[1], subresource="ephemeralcontainers"),
        review(binding("train", "node-1"), kind="Binding", subresource="binding"),
        review(device, kind="Device"),
        review(topology, kind="NodeResourceTopology"),
        review(node, kind="Node"),
        review(None, operation="DELETE", old=pods[0]),
    ]


def broken(rng: random.Random, base: list[dict[str, Any]]) -> bytes:
    """Return a request that was changed in a few places, as bytes."""
    body = copy.deepcopy(rng.choice(base))
    for _ in range(rng.randrange(5)):
        _change(rng, body)
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5)
    raw = text.encode(errors="surrogatepass")
    match rng.randrange(12):
        case 0:
            cut = rng.randrange(len(raw))
            return raw[:cut]
        case 1:
            at = rng.randrange(len(raw))
            return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        case 2:
            return text.replace('"metadata":', '"metadata": {}, "metadata":', 1).encode()
        case 3:
            depth = rng.choice((10, 63, 64, 65, 2_000))
            deep = "[" * depth + "]" * depth
            return text.replace('"options":', f'"deep": {deep}, "options":', 1).encode()
        case _:
            return raw


def _change(rng: random.Random, body: Any) -> None:  # noqa: ANN401 - JSON
    """Change one place of a JSON value, wherever it is."""
    holder = body
    for _ in range(rng.randrange(1, 12)):
        inner = list(holder.values()) if isinstance(holder, dict) else holder
        choices = [one for one in inner if isinstance(one, dict | list) and one]
        if not choices:
            break
        holder = rng.choice(choices)
    if isinstance(holder, list):
        match rng.randrange(3):
            case 0:
                holder[rng.randrange(len(holder))] = rng.choice(_JUNK)
            case 1:
                holder *= rng.choice((0, 2, 50))
            case _:
                holder.append(rng.choice(_JUNK))
        return
    match rng.randrange(3):
        case 0:
            holder[rng.choice(list(holder))] = rng.choice(_JUNK)
        case 1:
            holder.pop(rng.choice(list(holder)))
        case _:
            holder[rng.choice(_KEYS)] = rng.choice(_JUNK)
