"""Objects of dynamic resource allocation as an API server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledger.domain.dialects.dra.objects import Pool, pools_of, read_slice

GIB = 1 << 30
DRIVER = "gpu.nvidia.com"


def card(
    name: str,
    uuid: str = "",
    *,
    gib: int = 80,
    said: Mapping[str, Any] | None = None,
    **more: object,
) -> dict[str, Any]:
    """Return a whole card as NVIDIA's driver lists it; `said` are more attributes."""
    attributes = {"uuid": {"string": uuid}} if uuid else {}
    return {
        "name": name,
        "attributes": {**attributes, "productName": {"string": "H100"}, **(said or {})},
        "capacity": {"memory": {"value": f"{gib}Gi"}},
        **more,
    }


def part(name: str, parent: str, *, gib: int = 10, **more: object) -> dict[str, Any]:
    """Return a partition of a card."""
    return {
        "name": name,
        "attributes": {"uuid": {"string": f"MIG-{name}"}, "parentUUID": {"string": parent}},
        "capacity": {"memory": {"value": f"{gib}Gi"}},
        **more,
    }


def consumes(counter_set: str, **amounts: str | int) -> dict[str, Any]:
    """Return what a device consumes of a counter set; underscores are dashes."""
    return {"consumesCounters": [{"counterSet": counter_set, "counters": counters(**amounts)}]}


def counters(**amounts: str | int) -> dict[str, Any]:
    """Return counters with their values; underscores are dashes."""
    return {name.replace("_", "-"): {"value": str(each)} for name, each in amounts.items()}


def resource_slice(
    devices: Sequence[Mapping[str, Any]] = (),
    *,
    node: str = "n-1",
    driver: str = DRIVER,
    pool: str = "",
    generation: int = 1,
    of: int = 1,
    sets: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Return a ResourceSlice of a node's pool."""
    spec: dict[str, Any] = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": of},
        "devices": list(devices),
    }
    if sets is not None:
        spec["sharedCounters"] = [
            {"name": each, "counters": amounts} for each, amounts in sets.items()
        ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-{driver}-{generation}"},
        "spec": spec,
    }


def resource_claim(
    name: str,
    *results: Mapping[str, Any],
    node: str = "n-1",
    pods: Sequence[str] = (),
    version: str = "7",
    uid: str = "",
    namespace: str = "team-c",
) -> dict[str, Any]:
    """Return a ResourceClaim, allocated where it has results."""
    status: dict[str, Any] = {}
    if results:
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        status["allocation"] = {
            "devices": {"results": [dict(each) for each in results]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        }
    if pods:
        status["reservedFor"] = [
            {"resource": "pods", "name": each, "uid": f"uid-{each}"} for each in pods
        ]
    exactly = {"deviceClassName": "gpu.nvidia.com"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "resourceVersion": version,
        },
        "spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}},
        "status": status,
    }


def result(
    device: str, *, node: str = "n-1", driver: str = DRIVER, **more: object
) -> dict[str, Any]:
    """Return one device of an allocation."""
    return {"request": "g", "driver": driver, "pool": node, "device": device, **more}


def pools(*slices: Mapping[str, Any]) -> tuple[Pool, ...]:
    """Return the whole pools of some slices."""
    return pools_of(read_slice(each) for each in slices)
