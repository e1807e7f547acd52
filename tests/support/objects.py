"""Kubernetes objects as parsed JSON, short to write: only what a test is about is said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Json = Any
"""Whatever JSON may hold, or a keyword of the builder that it is passed on to."""

Object = dict[str, Json]


def container(
    name: str = "main", /, *, limits: Mapping[str, object] | None = None, **more: Json
) -> Object:
    """Return a container; keyword `requests` and `limits` are resource lists."""
    resources: Object = {}
    if limits is not None:
        resources["limits"] = dict(limits)
    if "requests" in more:
        resources["requests"] = dict(more.pop("requests"))
    return {"name": name, "resources": resources, **more}


def sidecar(name: str, /, *, limits: Mapping[str, object] | None = None, **more: Json) -> Object:
    """Return an init container that keeps running."""
    return container(name, limits=limits, restartPolicy="Always", **more)


def pod(
    *containers: Object,
    name: str = "p",
    namespace: str = "ml",
    labels: Mapping[str, object] | None = None,
    annotations: Mapping[str, object] | None = None,
    init: Sequence[Object] = (),
    uid: str = "",
    phase: str = "",
    **spec: Json,
) -> Object:
    """Return a Pod; mappings given as annotation values become their JSON text."""
    metadata: Object = {"name": name, "namespace": namespace}
    if uid:
        metadata["uid"] = uid
    if labels is not None:
        metadata["labels"] = dict(labels)
    if annotations is not None:
        metadata["annotations"] = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in annotations.items()
        }
    body = {"containers": list(containers) or [container()], **spec}
    if init:
        body["initContainers"] = list(init)
    result: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
    if phase:
        result["status"] = {"phase": phase}
    return result


def gpu_pod(limits: Mapping[str, object], **more: Json) -> Object:
    """Return a Pod of one container with these limits."""
    return pod(container(limits=limits), **more)


def node(
    name: str = "n1",
    /,
    *,
    allocatable: Mapping[str, object] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, object] | None = None,
    **spec: Json,
) -> Object:
    """Return a Node."""
    metadata: Object = {"name": name}
    if labels is not None:
        metadata["labels"] = dict(labels)
    if annotations is not None:
        metadata["annotations"] = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in annotations.items()
        }
    status: Object = {}
    if allocatable is not None:
        status["allocatable"] = dict(allocatable)
    return {"kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def gpu_device(minor: int, /, *, gib: int = 24, **more: Json) -> Object:
    """Return one healthy GPU of a Device object; its id is `GPU-<minor>`."""
    return {
        "type": "gpu",
        "id": f"GPU-{minor}",
        "minor": minor,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": f"{gib}Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        **more,
    }


def device(
    *devices: Object,
    name: str = "n1",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, object] | None = None,
    **spec: Json,
) -> Object:
    """Return a Device object."""
    metadata: Object = {"name": name}
    if labels is not None:
        metadata["labels"] = dict(labels)
    if annotations is not None:
        metadata["annotations"] = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in annotations.items()
        }
    return {"kind": "Device", "metadata": metadata, "spec": {"devices": list(devices), **spec}}


def nrt(name: str = "n1", /, **annotations: object) -> Object:
    """Return a NodeResourceTopology; annotations by their last word, such as `cpu_topology`."""
    keys = {
        "cpu_topology": "node.koordinator.sh/cpu-topology",
        "pod_cpu_allocs": "node.koordinator.sh/pod-cpu-allocs",
        "cpu_manager_policy": "kubelet.koordinator.sh/cpu-manager-policy",
        "system_qos_resource": "node.koordinator.sh/system-qos-resource",
        "reservation": "node.koordinator.sh/reservation",
        "resource_amplification_ratio": "node.koordinator.sh/resource-amplification-ratio",
    }
    texts = {
        keys[word]: value if isinstance(value, str) else json.dumps(value)
        for word, value in annotations.items()
    }
    return {"kind": "NodeResourceTopology", "metadata": {"name": name, "annotations": texts}}
