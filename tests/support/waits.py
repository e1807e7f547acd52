"""Pods that wait, each for another cause, in a cluster that has free cards."""

from __future__ import annotations

from tests.support.objects import Json, Object, container, gpu_pod, node, pod

GPU = {"nvidia.com/gpu": 1}


def waits(name: str, limits: Object, **spec: Json) -> Object:
    """Return a Pod that has no node."""
    return gpu_pod(limits, name=name, **spec)


def cluster() -> list[Object]:
    """Return cards that are free where memory or CPU is short, and room without a free card."""
    small = {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": 4}
    large = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": 1}
    return [
        node("small", allocatable=small),
        node("large", allocatable=large),
        node("away", allocatable=large, unschedulable=True, labels={"pool": "away"}),
        waits("holds", GPU, nodeName="large", phase="Running"),
        pod(
            container(requests={"cpu": "6", "memory": "2Gi"}),
            name="busy",
            nodeName="small",
            phase="Running",
        ),
    ]


def waiting() -> list[Object]:
    """Return Pods that wait, each for a cause of its own; for CPU three, as far as cards go."""
    return [
        waits("rule", {"koordinator.sh/gpu-core": 150, "koordinator.sh/gpu-memory-ratio": 150}),
        waits("gated", GPU, schedulingGates=[{"name": "acme.io/later"}]),
        waits("label", GPU, nodeSelector={"disk": "tape"}),
        waits("cordoned", GPU, nodeSelector={"pool": "away"}),
        waits("never", {"nvidia.com/gpu": 9}),
        waits("memory", GPU | {"memory": "64Gi"}),
        *(waits(f"cpu-{n}", GPU | {"cpu": "4"}) for n in range(4)),
        waits("mig", {"nvidia.com/mig-1g.5gb": 1}),
    ]


CAUSES = {
    "ml/rule": ("1", "a rule refuses it: "),
    "ml/gated": ("1", "a rule refuses it: scheduling is blocked until the gate is lifted"),
    "ml/label": ("1", "no node has the label that it selects: disk=tape"),
    "ml/cordoned": ("1", "there is room only on nodes that are cordoned or tainted"),
    "ml/never": ("1", "never as it is: no node in this cluster has 9 GPU; the most is 4"),
    "ml/memory": ("1", "cards are free only where too little memory is left"),
    "ml/cpu-0": ("3", "cards are free only where too little CPU is left"),
    "ml/cpu-3": ("1", "no card has as much left as it asks for"),
    "ml/mig": ("1", "never as it is: no node in this cluster has 1 nvidia.com/mig-1g.5gb"),
}
