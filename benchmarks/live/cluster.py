"""A cluster as API objects: nodes of eight cards, what runs on them, and Pods that come."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

SEED: Final = 11
GPUS: Final = 8
GIB: Final = 2**30
CARD_GIB: Final = 80
CPUS: Final = 128
MODELS: Final = ("A100", "L40S", "T4")
NAMESPACE: Final = "ml"
Json = dict[str, Any]

_ASKED: Final[tuple[Json, ...]] = (
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"nvidia.com/gpu": "1"},
    {"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory-ratio": "25"},
    {"nvidia.com/gpu": "2"},
    {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"},
    {"aliyun.com/gpu-mem": "16384"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"},
)
_CPU_SET: Final = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}


def nodes(count: int) -> Iterator[Json]:
    """Yield Nodes with 8 GPUs, 2 NICs and 128 CPUs, of one of three models."""
    for number in range(count):
        name = node_name(number)
        memory = GPUS * CARD_GIB * GIB
        amounts = {
            "cpu": str(CPUS),
            "memory": "1Ti",
            "pods": "110",
            "nvidia.com/gpu": str(GPUS),
            "koordinator.sh/gpu-core": str(100 * GPUS),
            "koordinator.sh/gpu-memory-ratio": str(100 * GPUS),
            "koordinator.sh/gpu-memory": str(memory),
            "aliyun.com/gpu-mem": str(memory >> 20),
        }
        labels = {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": f"zone-{number % 3}",
            "node.koordinator.sh/gpu-model": MODELS[number % len(MODELS)],
            "koordinator.sh/gpu-isolation-provider": "HAMi-core",
            "tenure.sh/cpu-managed": "true",
        }
        yield {
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "nodeInfo": {"machineID": f"m-{number}", "systemUUID": f"s-{number}"},
            },
        }


def devices(count: int) -> Iterator[Json]:
    """Yield the Device of every node."""
    for number in range(count):
        gpus = [
            {
                "type": "gpu",
                "id": card_id(number, minor),
                "minor": minor,
                "health": True,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": f"{CARD_GIB}Gi",
                    "koordinator.sh/gpu-memory-ratio": "100",
                },
                "topology": {"socketID": minor // 4, "nodeID": minor // 4, "pcieID": str(minor)},
            }
            for minor in range(GPUS)
        ]
        nics = [
            {
                "type": "rdma",
                "id": f"0000:{number % 256:02x}:00.{minor}",
                "minor": minor,
                "health": True,
                "resources": {"koordinator.sh/rdma": "100"},
                "topology": {"socketID": minor, "nodeID": minor, "pcieID": str(4 * minor)},
            }
            for minor in range(2)
        ]
        yield {"metadata": {"name": node_name(number)}, "spec": {"devices": [*gpus, *nics]}}


def topologies(count: int) -> Iterator[Json]:
    """Yield the NodeResourceTopology of every node: two sockets of 64 CPUs, two to a core."""
    detail = [
        {"id": cpu, "core": cpu % 64, "socket": cpu % 64 // 32, "node": cpu % 64 // 32}
        for cpu in range(CPUS)
    ]
    text = json.dumps({"detail": detail})
    for number in range(count):
        annotations = {"node.koordinator.sh/cpu-topology": text}
        yield {
            "metadata": {"name": node_name(number), "annotations": annotations},
            "topologyPolicies": ["None"],
            "zones": [],
        }


def running(count: int, on_nodes: int) -> Iterator[Json]:
    """Yield that many bound Pods, each on a part of one card or on one whole card."""
    rng = random.Random(SEED)
    free = [[100] * GPUS for _ in range(on_nodes)]
    for made in range(count):
        number = made % on_nodes
        asked = rng.choice((10, 25, 50, 100))
        minor = next((at for at, left in enumerate(free[number]) if left >= asked), None)
        if minor is None:
            continue
        free[number][minor] -= asked
        share = {
            "koordinator.sh/gpu-core": str(asked),
            "koordinator.sh/gpu-memory": str(CARD_GIB * GIB * asked // 100),
            "koordinator.sh/gpu-memory-ratio": str(asked),
        }
        held = {"gpu": [{"minor": minor, "id": card_id(number, minor), "resources": share}]}
        amounts = {key: share[key] for key in share if key != "koordinator.sh/gpu-memory"}
        pod = _pod(f"running-{made}", amounts)
        pod["metadata"]["annotations"] = {
            "scheduling.koordinator.sh/device-allocated": json.dumps(held)
        }
        pod["spec"]["nodeName"] = node_name(number)
        pod["status"] = {"phase": "Running", "qosClass": "Burstable"}
        yield pod


def coming(count: int) -> Iterator[Json]:
    """Yield Pods that wait, of several dialects and sizes, every eighth with a CPU set."""
    for number in range(count):
        if number % 8 == 7:
            pod = _pod(f"coming-{number}", {}, cpu="4")
            pod["metadata"]["labels"] |= _CPU_SET
        else:
            pod = _pod(f"coming-{number}", _ASKED[number % 8])
        pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}
        yield pod


def node_name(number: int) -> str:
    """Return a node's name."""
    return f"node-{number:05}"


def card_id(node: int, minor: int) -> str:
    """Return the UUID of a card."""
    return f"GPU-{node:08x}-0000-0000-0000-{minor:012x}"


def _pod(name: str, amounts: Json, *, cpu: str = "2") -> Json:
    """Return a Pod as the API server has it, with what its defaults add."""
    amounts = {"cpu": cpu, "memory": "4Gi", **amounts}
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"limits": amounts, "requests": amounts},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    tolerations = [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        }
        for key in ("not-ready", "unreachable")
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": "2026-11-21T08:18:44Z",
            "labels": {"app": "train"},
            "annotations": {},
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "tenure",
            "tolerations": tolerations,
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
    }
