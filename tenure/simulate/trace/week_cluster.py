"""The cluster of the virtual week: nodes, cards, NICs and CPU topologies as API objects."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ledger.domain import resources as names
from ledger.domain.dialects.mgpu import words as mgpu
from tenure.simulate.trace.shapes import CARD_MEMORY_MIB, NodeShape, scaled_node_shapes

MGPU_EVERY: Final = 12
"""One node in so many is an mGPU node (label `vke.node.gpu.schedule`)."""

RESEARCH_TAINT: Final = {"key": "pool", "value": "research", "effect": "NoSchedule"}
RESEARCH_MODEL: Final = "V100M32"
NUMA_NODES: Final = 2
THREADS_PER_CORE: Final = 2


def cluster_objects(rng: random.Random, nodes: int) -> Iterator[Mapping[str, Any]]:
    """Yield Node, Device and NodeResourceTopology objects for `nodes` nodes, node by node."""
    shapes = scaled_node_shapes(nodes)
    rng.shuffle(shapes)
    for index, shape in enumerate(shapes):
        name = f"gpu-{index:04d}"
        yield _node(name, index, shape)
        yield _device(name, shape)
        if shape.gpus == 8:
            yield _topology(name, shape)


def stable_uuid(kind: str, name: str) -> str:
    """Return a UUID that is the same in every run."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tenure:week/{kind}/{name}"))


def card_id(node: str, minor: int) -> str:
    """Return the UUID of one card, as NVML writes it."""
    return f"GPU-{stable_uuid('gpu', f'{node}/{minor}')}"


def _node(name: str, index: int, shape: NodeShape) -> Mapping[str, Any]:
    labels = {names.LABEL_HOSTNAME: name, names.LABEL_GPU_MODEL: shape.model}
    if index % MGPU_EVERY == 0:
        labels |= {
            mgpu.LABEL_MGPU_NODE: "mgpu",
            mgpu.LABEL_MGPU_COMPUTE_POLICY: "native-burst-share",
        }
    taints = [RESEARCH_TAINT] if shape.model == RESEARCH_MODEL else []
    size = {
        names.CPU: str(shape.cpu_cores),
        names.MEMORY: f"{shape.memory_gib}Gi",
        names.PODS: "110",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": stable_uuid("node", name), "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "allocatable": size,
            "nodeInfo": {"machineID": stable_uuid("machine", name).replace("-", "")},
        },
    }


def _device(name: str, shape: NodeShape) -> Mapping[str, Any]:
    cards = [_card(name, shape, minor) for minor in range(shape.gpus)]
    nics = [_nic(name, minor) for minor in range(2 if shape.gpus == 8 else 0)]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name, "labels": {names.LABEL_GPU_MODEL: shape.model}},
        "spec": {"devices": cards + nics},
    }


def _card(name: str, shape: NodeShape, minor: int) -> Mapping[str, Any]:
    numa = minor * NUMA_NODES // shape.gpus
    return {
        "type": names.TYPE_GPU,
        "id": card_id(name, minor),
        "minor": minor,
        "health": True,
        "resources": {
            names.GPU_CORE: "100",
            names.GPU_MEMORY: f"{CARD_MEMORY_MIB[shape.model]}Mi",
            names.GPU_MEMORY_RATIO: "100",
        },
        "topology": {
            "socketID": numa,
            "nodeID": numa,
            "pcieID": f"pci{minor // 2:04x}:{numa:02x}",
            "busID": f"0000:{minor + 0x1A:02x}:00.0",
        },
    }


def _nic(name: str, minor: int) -> Mapping[str, Any]:
    bus = f"0000:{minor + 0x5E:02x}:00.0"
    return {
        "type": names.TYPE_RDMA,
        "id": bus,
        "minor": minor,
        "health": True,
        "labels": {"host": name},
        "resources": {names.RDMA: "100"},
        "topology": {"socketID": minor, "nodeID": minor, "pcieID": f"pci5e:{minor}", "busID": bus},
    }


def _topology(name: str, shape: NodeShape) -> Mapping[str, Any]:
    cores = shape.cpu_cores // THREADS_PER_CORE
    detail = [
        {
            "id": cpu,
            "core": cpu % cores,
            "socket": (cpu % cores) * NUMA_NODES // cores,
            "node": (cpu % cores) * NUMA_NODES // cores,
        }
        for cpu in range(shape.cpu_cores)
    ]
    text = json.dumps({"detail": detail}, separators=(",", ":"))
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": {names.ANNOTATION_CPU_TOPOLOGY: text}},
        "topologyPolicies": [],
        "zones": [],
    }
