"""Random clusters of every system of devices, as objects."""

from __future__ import annotations

from random import Random

from tests.support.objects import Object, container, node, pod

DRIVER = "gpu.example.com"
CLOSED: tuple[Object, ...] = (
    {},
    {},
    {"unschedulable": True},
    {"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]},
)
BASE = {"cpu": "64", "memory": "256Gi", "pods": "110"}


def plugged(name: str, rng: Random) -> tuple[Object, dict[str, int]]:
    """Return a node of device plugins, some of whose cards are ill, and what it offers."""
    labels: dict[str, str] = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "40960"}
    kind = rng.choice(("plain", "replicas", "renamed", "single", "mixed", "amd", "i915"))
    there: dict[str, int] = {"nvidia.com/gpu": rng.choice((1, 2, 8))}
    if kind == "replicas":
        there = {"nvidia.com/gpu": 8}
        labels |= {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
    elif kind == "renamed":
        there = {"nvidia.com/gpu.shared": 8}
        labels |= {"nvidia.com/gpu.replicas": "4"}
    elif kind == "single":
        labels["nvidia.com/gpu.product"] = "A100-MIG-2g.10gb"
        there = {"nvidia.com/gpu": 3}
    elif kind == "mixed":
        there |= {"nvidia.com/mig-1g.5gb": 7, "nvidia.com/mig-3g.20gb": 2}
        labels["nvidia.com/gpu.count"] = str(there["nvidia.com/gpu"] + 2)
    elif kind == "amd":
        there = {"amd.com/gpu": 4}
    elif kind == "i915":
        there = {"gpu.intel.com/i915": 2}
    if rng.random() < 0.5:
        there = {**there, "rdma/hca": 4}
    offers = {key: amount - (rng.random() < 0.2) for key, amount in there.items()}
    body = node(name, allocatable={**BASE, **offers}, labels=labels, **rng.choice(CLOSED))
    body["status"]["capacity"] = {**BASE, **there}
    return body, offers


def registered(name: str, cards: int, rng: Random) -> Object:
    """Return a node whose cards Volcano's plugin registers."""
    entries = [
        f"{name}-{card},10,20000,NVIDIA-A10,{rng.random() < 0.8},hami-core:"
        for card in range(cards)
    ]
    annotations = {"volcano.sh/node-vgpu-register": "".join(entries)}
    offered = {**BASE, "volcano.sh/vgpu-number": 10 * cards}
    return node(name, allocatable=offered, annotations=annotations, **rng.choice(CLOSED))


def sliced(name: str, cards: int) -> Object:
    """Return the slice of a node's cards, of which the first can be cut, and of a NIC."""
    uses = {"consumesCounters": [{"counterSet": "set-0", "counters": {}}]}
    devices: list[Object] = [
        {
            "name": f"gpu-{card}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"{name}-{card}"}},
            "capacity": {"memory": {"value": "80Gi"}},
            **({} if card else uses),
        }
        for card in range(cards)
    ]
    part: Object = {
        "name": "gpu-0-mig-1",
        "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": f"{name}-0"}},
        "capacity": {"memory": {"value": "20Gi"}},
        **uses,
    }
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": [*devices, part]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{name}"},
        "spec": spec,
    }


def claim(name: str, on: str, device: str, pods: tuple[str, ...]) -> Object:
    """Return a claim that is allocated one device of a node."""
    result = {"driver": DRIVER, "pool": on, "device": device, "request": "r"}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [on]}]}
    reserved = [{"resource": "pods", "name": each, "uid": each} for each in pods]
    status: Object = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [term]},
        },
        "reservedFor": reserved,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {},
        "status": status,
    }


def a_cluster(rng: Random) -> list[Object]:
    """Return nodes of random systems with Pods that run there."""
    items: list[Object] = []
    for number in range(rng.randint(2, 4)):
        name, system = f"n{number}", rng.choice(("plugin", "plugin", "volcano", "dra"))
        if system == "plugin":
            body, offers = plugged(name, rng)
            items.append(body)
            left = dict(offers)
            for place in range(rng.randint(0, 3)):
                resource = rng.choice(sorted(left))
                amount = rng.randint(1, max(1, min(2, left[resource])))
                if left[resource] < amount:
                    continue
                left[resource] -= amount
                items.append(running(f"p{number}-{place}", name, {resource: amount}))
        elif system == "volcano":
            cards = rng.randint(1, 3)
            items.append(registered(name, cards, rng))
            for place in range(rng.randint(0, 3)):
                given = f"{name}-{rng.randrange(cards)},NVIDIA,5000,{rng.choice((10, 30))}:"
                told = {"volcano.sh/vgpu-ids-new": given} if rng.random() < 0.8 else {}
                limits = {"volcano.sh/vgpu-number": 1}
                items.append(running(f"p{number}-{place}", name, limits, told))
        else:
            cards = rng.randint(1, 3)
            items += [node(name, allocatable=BASE, **rng.choice(CLOSED)), sliced(name, cards)]
            devices = [f"gpu-{card}" for card in range(1, cards)]
            devices += [rng.choice(("gpu-0", "gpu-0-mig-1", "gpu-9"))]
            for place, device in enumerate(rng.sample(devices, rng.randint(0, len(devices)))):
                pods = tuple(f"p{number}-{place}-{each}" for each in range(rng.randint(0, 2)))
                items.append(claim(f"c{number}-{place}", name, device, pods))
                items += (running(each, name, {}) for each in pods if rng.random() < 0.8)
    return items


def running(
    name: str, on: str, limits: dict[str, int], annotations: dict[str, str] | None = None
) -> Object:
    """Return a Pod that runs."""
    return pod(
        container(limits=limits),
        name=name,
        uid=name,
        nodeName=on,
        phase="Running",
        annotations=annotations or {},
    )
