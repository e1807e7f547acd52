"""Nodes with CPU topologies and Pods with CPU policies, as Kubernetes objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.cli import CommandLine
from tests.support.objects import Object, container, device, gpu_device, nrt, pod

SPEC: Final = "scheduling.koordinator.sh/resource-spec"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
NUMA_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
QOS: Final = "koordinator.sh/qosClass"
BIND_POLICY: Final = "node.koordinator.sh/cpu-bind-policy"
NUMA_POLICY: Final = "node.koordinator.sh/numa-topology-policy"
STRATEGY: Final = "node.koordinator.sh/numa-allocate-strategy"
RESERVATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
RATIO: Final = "node.koordinator.sh/resource-amplification-ratio"


def machine_x() -> Object:
    """
    Return the topology of the contract's machine X (6.5).

    One socket, two NUMA nodes of six cores, two threads: CPU i and i+12 share core i.
    """
    return {
        "detail": [
            {"id": thread * 12 + core, "core": core, "socket": 0, "node": core // 6}
            for thread in range(2)
            for core in range(12)
        ]
    }


def zone(numa: int, memory: str = "64Gi") -> Object:
    """Return a NUMA node with memory, as a NodeResourceTopology lists it."""
    amounts = {"name": "memory", "capacity": memory, "allocatable": memory, "available": memory}
    return {"name": f"node-{numa}", "type": "Node", "resources": [amounts]}


def cpu_node(
    name: str = "x",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, object] | None = None,
    cpu: str = "24",
    zones: Iterable[Object] = (),
    policies: Iterable[str] = (),
    gpu_numas: Iterable[int] = (),
    **told: object,
) -> list[Object]:
    """
    Return a Node that is machine X, its NodeResourceTopology, and its Device if it has GPUs.

    Args:
        gpu_numas: the NUMA node of each GPU.
        told: annotations of the NodeResourceTopology, by their last word.
    """
    metadata: Object = {"name": name, "labels": {**(labels or {})}}
    metadata["annotations"] = {key: json.dumps(value) for key, value in (annotations or {}).items()}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": "128Gi"}},
    }
    topology = nrt(name, cpu_topology=machine_x(), **told)
    topology |= {"zones": [*zones], "topologyPolicies": [*policies]}
    cards = [
        gpu_device(minor, topology={"socketID": 0, "nodeID": numa, "pcieID": str(minor)})
        for minor, numa in enumerate(gpu_numas)
    ]
    return [node, topology, *([device(*cards, name=name)] if cards else [])]


def cpu_pod(
    name: str,
    cpu: str,
    qos: str = "LSR",
    *,
    on: str = "",
    limit: str = "",
    memory: str = "8Gi",
    spec: Mapping[str, str] | None = None,
    numa: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    gpus: int = 0,
) -> Object:
    """Return a Pod; `on` a node it runs. Limits equal requests unless `limit` says otherwise."""
    amounts = {"cpu": cpu, "memory": memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    running: Object = {"nodeName": on} if on else {}
    words = {SPEC: spec, NUMA_SPEC: numa, STATUS: status}
    return pod(
        container("m", requests=amounts, limits=amounts | ({"cpu": limit} if limit else {})),
        name=name,
        uid=f"uid-{name}",
        labels={QOS: qos} if qos else {},
        annotations={key: value for key, value in words.items() if value is not None},
        phase="Running" if on else "",
        **running,
    )


def kubelet_pin(name: str, cpus: str, *, managed: bool = True) -> Object:
    """Return an entry of `pod-cpu-allocs` for a Pod of `cpu_pod`."""
    return {
        "namespace": "ml",
        "name": name,
        "uid": f"uid-{name}",
        "cpuset": cpus,
        "managedByKubelet": managed,
    }


def written(folder: Path, objects: Iterable[Object]) -> str:
    """Write the objects as a List; return the file."""
    path = folder / "in.json"
    path.write_text(json.dumps({"kind": "List", "items": [*objects]}), encoding="utf-8")
    return str(path)


def simulated(line: CommandLine, objects: Iterable[Object], *more: str) -> dict[str, Any]:
    """Simulate the objects into the line's ledger, prove it, and return the answer."""
    done = line.ask("simulate", written(line.ledger.parent, objects), "-o", "json", *more)
    assert done.code == 0, done.err
    proof = line.ask("verify")
    assert proof.code == 0, proof.out
    answer: dict[str, Any] = json.loads(done.out)
    return answer
