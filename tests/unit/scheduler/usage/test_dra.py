"""Cards out of slices and claims: every rule of docs/contracts/dra.md by itself."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ledger.domain.systems import NO_SYSTEMS, DeviceSystems
from scheduler.cluster.claims import Dra, given_by_claims, with_claims
from scheduler.cluster.dra import dra_of
from scheduler.usage.claims import dra_groups, dra_not_looked_at
from scheduler.usage.picture import CardGroup, Many, exactly
from tenure.manifests import read_manifests
from tests.support.objects import Object, container, pod

DRIVER = "gpu.example.com"


def gpu(name: str = "gpu-0", uuid: str = "GPU-0", **more: Any) -> Object:  # noqa: ANN401 - JSON
    """Return a whole card of a slice."""
    attributes = {"type": {"string": "gpu"}, f"{DRIVER}/uuid": {"string": uuid}}
    memory = {"memory": {"value": "80Gi"}}
    return {"name": name, "attributes": attributes, "capacity": memory, **more}


def resource_slice(*devices: Object, generation: int = 1, **more: Any) -> Object:  # noqa: ANN401
    """Return a ResourceSlice of node `n`."""
    pool = {"name": "n", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "n", "pool": pool, "devices": list(devices), **more}
    name = f"s{generation}"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": spec,
    }


def claim(*devices: str, pods: tuple[str, ...] = ("p",), **result: Any) -> Object:  # noqa: ANN401
    """Return an allocated claim for devices of node `n`."""
    results = [
        {"driver": DRIVER, "pool": "n", "device": name, "request": "r", **result}
        for name in devices
    ]
    on = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    status: Object = {
        "allocation": {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": on}}
    }
    if pods:
        status["reservedFor"] = [{"resource": "pods", "name": each, "uid": each} for each in pods]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "-".join(("c", *devices)), "namespace": "ml"},
        "spec": {},
        "status": status,
    }


def told(*objects: Object) -> Dra:
    """Return what objects tell."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    return dra_of(read_manifests(["-"], stdin=io.BytesIO(text.encode())))


def systems(*objects: Object) -> DeviceSystems:
    """Return what is said of node `n`; of Pods that run there nobody tells."""
    return with_claims(NO_SYSTEMS, given_by_claims(told(*objects), {}), "n")


def group(*objects: Object) -> CardGroup:
    """Return the one group of node `n`, which is open."""
    (found,) = dra_groups(systems(*objects), (), is_open=True)
    return found


def test_a_claim_says_who_holds_which_card() -> None:
    """Section 2."""
    found = group(resource_slice(gpu(), gpu("gpu-1", "GPU-1")), claim("gpu-1"))

    assert (found.system, found.mode, found.memory_mib) == ("dra", "whole", 80 << 10)
    assert (found.cards, found.free, found.gettable) == (exactly(2), exactly(1), exactly(1))
    assert [(each.id, each.minor) for each in found.devices] == [("GPU-0", 0), ("GPU-1", 1)]
    (holder,) = found.devices[1].holders
    assert (holder.path, holder.whole, holder.level_percent) == ("ml/p", True, 100)


def test_the_newest_generation_of_a_pool_counts() -> None:
    """Section 1."""
    old = resource_slice(gpu(), gpu("gpu-1", "GPU-1"))

    assert group(old, resource_slice(gpu(), generation=2)).cards == exactly(1)


def test_parts_of_one_card_are_one_card() -> None:
    """Section 1: with a part held the card is neither free nor to be had whole."""
    uses: Object = {"consumesCounters": [{"counterSet": "set-0", "counters": {}}]}
    part = {
        "name": "gpu-0-mig-1",
        "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": "GPU-0"}},
        "capacity": {"memory": {"value": "20Gi"}},
        **uses,
    }
    found = group(resource_slice(gpu(**uses), part, gpu("gpu-1", "GPU-1")), claim("gpu-0-mig-1"))

    assert (found.cards, found.free, found.gettable) == (exactly(2), exactly(1), exactly(1))
    (holder,) = found.devices[0].holders
    assert (found.devices[0].id, holder.whole, holder.memory_mib) == ("GPU-0", False, 20 << 10)
    assert (found.mode, found.devices[0].level_percent) == ("slices", 25)


def test_consumed_capacity_is_a_part() -> None:
    """Section 2."""
    consumed = {"cores": "25", "memory": "20Gi"}
    shared = gpu(allowMultipleAllocations=True)
    found = group(resource_slice(shared), claim("gpu-0", consumedCapacity=consumed))

    (holder,) = found.devices[0].holders
    assert (holder.core_percent, holder.memory_mib, holder.whole) == (25, 20 << 10, False)
    assert (found.mode, found.free) == ("shares", exactly(0))


def test_admin_access_holds_nothing() -> None:
    """Section 2."""
    found = group(resource_slice(gpu()), claim("gpu-0", adminAccess=True))

    assert (found.devices[0].holders, found.gettable) == ((), exactly(1))


def test_a_claim_that_nobody_uses_keeps_its_card() -> None:
    """Section 2."""
    found = group(resource_slice(gpu()), claim("gpu-0", pods=()))

    assert found.devices[0].closed == "allocated to claim ml/c-gpu-0, which no Pod uses"
    (holder,) = found.devices[0].holders
    assert (holder.path, holder.users, holder.whole, holder.lost) == ("ml/c-gpu-0", (), True, True)
    assert (found.cards, found.free, found.gettable) == (exactly(1), exactly(0), exactly(0))


@pytest.mark.parametrize(
    ("pods", "ended", "deleted", "state"),
    [
        (("p",), {}, True, "being deleted, its Pod is not there (p)"),
        (("p",), {"q": False}, False, "its Pod is not there (p)"),
        (("p",), {"p": True}, True, "being deleted, its Pod has ended (p)"),
        (("p", "q"), {"q": True}, False, "its Pod is not there (p, q)"),
        ((), {}, True, "being deleted"),
    ],
)
def test_a_claim_whose_pods_are_gone_is_the_holder(
    *, pods: tuple[str, ...], ended: dict[str, bool], deleted: bool, state: str
) -> None:
    """Section 2: by its name, with what became of it; no Pod that is not there holds anything."""
    body = claim("gpu-0", pods=pods)
    if deleted:
        body["metadata"]["deletionTimestamp"] = "2026-11-18T08:00:00Z"
    given = given_by_claims(told(resource_slice(gpu()), body), {}, ended)
    (found,) = dra_groups(with_claims(NO_SYSTEMS, given, "n"), (), is_open=True)

    assert found.devices[0].closed == f"allocated to claim ml/c-gpu-0, {state}"
    (holder,) = found.devices[0].holders
    assert (holder.path, holder.users, holder.state) == ("ml/c-gpu-0", (), state)
    assert (found.free, found.gettable) == (exactly(0), exactly(0))


def test_a_pod_that_waits_for_its_claim_is_its_user() -> None:
    """Section 2: it is there, and has no node yet; another one that is gone is not named."""
    body = claim("gpu-0", pods=("p", "gone"))
    given = given_by_claims(told(resource_slice(gpu()), body), {}, {"p": False})
    (found,) = dra_groups(with_claims(NO_SYSTEMS, given, "n"), (), is_open=True)

    assert [each.path for each in found.devices[0].holders] == ["ml/p"]


def test_a_claim_of_a_group_of_pods_is_its_own_holder() -> None:
    """Kubernetes 1.36, KEP-5729: a claim may be reserved for a PodGroup."""
    body = claim("gpu-0", pods=())
    body["status"]["reservedFor"] = [{"resource": "podgroups", "name": "g", "uid": "g"}]
    found = group(resource_slice(gpu()), body)

    assert found.devices[0].closed == "allocated to claim ml/c-gpu-0, reserved for podgroups/g"


def test_a_taint_closes_a_device() -> None:
    """Section 1."""
    taint = {"key": "x.com/ill", "value": "y", "effect": "NoExecute"}
    found = group(resource_slice(gpu(taints=[taint])))

    assert found.devices[0].closed == "taint x.com/ill=y:NoExecute"
    assert (found.free, found.gettable) == (exactly(1), exactly(0))


def test_a_claim_without_slices_is_a_card_or_more() -> None:
    """Section 2."""
    found = group(claim("gpu-0", "gpu-1"))

    assert found.cards == Many(least=2, most=None)
    assert [[each.path for each in card.holders] for card in found.devices] == [["ml/p"]] * 2
    assert found.unplaced == ()


def test_what_is_no_card_is_not_looked_at() -> None:
    """Section 1: with how many there are, and are allocated."""
    nic = {"name": "eth1", "attributes": {}}
    other = resource_slice(nic, {"name": "eth2"}, driver="dra.net")
    found = systems(other, claim("eth1", driver="dra.net"))

    assert list(dra_groups(found, (), is_open=True)) == []
    (units,) = dra_not_looked_at(found, ()).values()
    assert (units.allocatable, units.held) == (2, 1)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_older_versions_say_the_same(version: str) -> None:
    """v1beta1 has all but a device's name inside `basic`."""
    card = gpu()
    name = card.pop("name")
    inside = {"basic": card} if version == "v1beta1" else card
    old = resource_slice({"name": name, **inside})
    old["apiVersion"] = f"resource.k8s.io/{version}"

    assert [each.id for each in group(old).devices] == ["GPU-0"]


def test_a_class_serves_a_name_where_no_plugin_does() -> None:
    """Section 3."""
    served = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": "example.com/gpu"},
    }
    dra = told(served, resource_slice(gpu()))

    assert dra.by_claims("n", {}) == ("example.com/gpu",)
    assert dra.by_claims("n", {"example.com/gpu": 2}) == ()
    assert dra.by_claims("without-slices", {}) == ()
    assert told(served).by_claims("any", {}) == ("example.com/gpu",)


def test_a_pod_that_was_given_a_claim_holds_by_it() -> None:
    """Section 3: request and claim are one holding."""
    mine = pod(container(limits={"example.com/gpu": 1}), name="p", uid="p", nodeName="n")
    mapping = {"containerName": "main", "requestName": "r", "resourceName": "example.com/gpu"}
    mine["status"] = {
        "extendedResourceClaimStatus": {
            "resourceClaimName": "c-gpu-0",
            "requestMappings": [mapping],
        }
    }
    dra = told(mine, claim("gpu-0"))

    assert dra.claimed == {"p"}
    assert dra.by_claims("n", {}) == ("example.com/gpu",)
    assert told(mine).claimed == frozenset()


@pytest.mark.parametrize("broken", [None, "x", 3, [], {}, [{}], {"a": "b"}])
def test_what_is_not_as_the_api_says_tells_nothing(broken: object) -> None:
    """Others' objects stop nobody."""
    odd = resource_slice(gpu())
    for key in ("devices", "pool", "driver", "nodeName"):
        spec = {**odd["spec"], key: broken}
        systems({**odd, "spec": spec})
    for key in ("allocation", "reservedFor"):
        body = claim("gpu-0")
        body["status"][key] = broken
        systems(body, resource_slice(gpu()))
