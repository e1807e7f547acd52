"""Pods as users write them, one of each dialect, and their collection's path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

WHOLE: Final = {"nvidia.com/gpu": "2"}
HALF: Final = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
MGPU: Final = {"vke.volcengine.com/mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "1024"}
GPUSHARE: Final = {"aliyun.com/gpu-mem": "2048"}
Amounts = Mapping[str, str]
MOUNT: Final = "/var/run/nvidia-container-devices/all"


def pod(
    name: str,
    amounts: Mapping[str, str],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    **spec: object,
) -> dict[str, Any]:
    """Return a Pod with one container that asks for these amounts."""
    container: dict[str, Any] = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"limits": dict(amounts)},
    }
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def pods_in(namespace: str) -> str:
    """Return the path of a namespace's Pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def binding(name: str, node: str, **annotations: str) -> dict[str, Any]:
    """Return the Binding that puts a Pod on a node."""
    metadata: dict[str, Any] = {"name": name}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"kind": "Node", "name": node},
    }


def mounting(made: dict[str, Any], path: str = MOUNT) -> dict[str, Any]:
    """Return the Pod with a mount of nothing in its container."""
    made["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/dev/null"}}]
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": path}]
    return made


def _annotated(key: str) -> Callable[[Amounts, Amounts], dict[str, Any]]:
    return lambda amounts, marks: pod(
        "a", amounts, annotations={**marks, key: "nvidia.com/gpu=all"}
    )


def _mounted(path: str) -> Callable[[Amounts, Amounts], dict[str, Any]]:
    return lambda amounts, marks: mounting(pod("a", amounts, annotations=marks), path)


SEEING: Final = {
    "a mount": _mounted(MOUNT),
    "a mount, written otherwise": _mounted("/var/run/.//nvidia-container-devices/0"),
    "a mount of CDI's": _mounted(f"{MOUNT[:-4]}/cdi/nvidia.com/gpu/all"),
    "a CDI annotation": _annotated("cdi.k8s.io/x"),
    "a CDI annotation of NVIDIA's": _annotated("nvidia.cdi.k8s.io/x"),
}
"""Ways besides the environment to see cards: what a Pod asks for, its marks -> the Pod."""
