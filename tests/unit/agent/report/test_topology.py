"""The NodeResourceTopology that an agent writes, field by field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from agent.decide.node_cpus import FoundCpus, KubeletManagers
from agent.decide.node_holdings import CpuClaim, HeldByPod
from agent.report.topology import build_topology
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tests.support.found_cpus import GIB, found_cpus, holding, pod_here
from tests.support.topologies import MACHINE_X

NODE: Final[dict[str, Any]] = {"metadata": {"name": "n1", "uid": "u"}}
KOORDINATOR: Final = "node.koordinator.sh"


def annotation(made: Any, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return what an annotation says."""
    return json.loads(made["metadata"]["annotations"][name])


def built(found: FoundCpus, *held: HeldByPod, node: Any = NODE) -> Any:  # noqa: ANN401 - JSON
    """Return the object of a node without devices."""
    return build_topology(found, node, (), held)


def test_the_object_is_the_nodes_and_koordinators_by_its_label() -> None:
    """Named as the Node and owned by it, so that it goes with it."""
    made = built(found_cpus(MACHINE_X))
    assert (made["apiVersion"], made["kind"]) == (
        "topology.node.k8s.io/v1alpha2",
        "NodeResourceTopology",
    )
    metadata = made["metadata"]
    assert (metadata["name"], metadata["labels"]) == (
        "n1",
        {"app.kubernetes.io/managed-by": "Koordinator"},
    )
    [owner] = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n1", "u")


def test_the_worked_pools_of_machine_x_are_on_it() -> None:
    """Koordinator contract 9.4: an LSR Pod, an LSE Pod, CPU 0 reserved for the node."""
    node = {"metadata": {**NODE["metadata"], "annotations": {}}}
    node["metadata"]["annotations"][f"{KOORDINATOR}/reservation"] = '{"reservedCPUs":"0"}'
    pods = [pod_here("r", "LSR"), pod_here("e", "LSE")]
    made = built(
        found_cpus(MACHINE_X, pods=pods),
        holding("r", "2-3,14-15"),
        holding("e", "6-7,18-19"),
        node=node,
    )
    assert annotation(made, f"{KOORDINATOR}/cpu-shared-pools") == [
        {"socket": 0, "node": 0, "cpuset": "1,4-5,12-13,16-17"},
        {"socket": 0, "node": 1, "cpuset": "8-11,20-23"},
    ]
    assert annotation(made, f"{KOORDINATOR}/be-cpu-shared-pools") == [
        {"socket": 0, "node": 0, "cpuset": "1-5,12-17"},
        {"socket": 0, "node": 1, "cpuset": "8-11,20-23"},
    ]
    assert annotation(made, f"{KOORDINATOR}/pod-cpu-allocs") == [
        {"namespace": "web", "name": "pod-e", "uid": "e", "cpuset": "6-7,18-19"},
        {"namespace": "web", "name": "pod-r", "uid": "r", "cpuset": "2-3,14-15"},
    ]


def test_cpus_of_claims_are_in_no_pool_and_available_to_nobody() -> None:
    """They are no Pod's: `pod-cpu-allocs` does not have them."""
    found = found_cpus(MACHINE_X)
    claim = CpuClaim(
        claim_uid="c", position=7, namespace="ml", name="c", cpus=parse_cpuset("2-3,14-15")
    )
    made = built(replace(found, told=(claim,)))
    for pools in ("cpu-shared-pools", "be-cpu-shared-pools"):
        assert [one["cpuset"] for one in annotation(made, f"{KOORDINATOR}/{pools}")] == [
            "0-1,4-5,12-13,16-17",
            "6-11,18-23",
        ]
    assert not annotation(made, f"{KOORDINATOR}/pod-cpu-allocs")
    cpus = [one["resources"][0] for one in made["zones"]]
    assert [one["available"] for one in cpus] == ["8", "12"]


def test_claims_that_nobody_tells_of_are_no_reason_to_guess() -> None:
    """A Pod that uses one may have CPUs by it."""
    user = pod_here("u")
    user["spec"] = {"resourceClaims": [{"name": "x", "resourceClaimName": "c"}]}
    found = found_cpus(MACHINE_X, pods=[user])
    with pytest.raises(InputError, match="which have CPUs"):
        built(found)
    assert built(replace(found, told=()))


def test_kubelets_policies_and_whom_it_pinned_are_on_it() -> None:
    """Its reserved CPUs are shared; what it gave is nobody else's."""
    managers = KubeletManagers(
        cpu=KubeletCpuPolicy(
            policy="static",
            options=(("full-pcpus-only", "true"),),
            reserved_cpus=parse_cpuset("0,12"),
        ),
        topology_policy="single-numa-node",
        topology_scope="pod",
    )
    found = found_cpus(
        MACHINE_X,
        managers=managers,
        pinned={"g": "6-7,18-19"},
        pods=[pod_here("g")],
    )
    made = built(found)
    assert annotation(made, "kubelet.koordinator.sh/cpu-manager-policy") == {
        "policy": "static",
        "options": {"full-pcpus-only": "true"},
        "reservedCPUs": "0,12",
    }
    assert annotation(made, f"{KOORDINATOR}/pod-cpu-allocs") == [
        {
            "namespace": "web",
            "name": "pod-g",
            "uid": "g",
            "cpuset": "6-7,18-19",
            "managedByKubelet": True,
        }
    ]
    pools = annotation(made, f"{KOORDINATOR}/cpu-shared-pools")
    assert [pool["cpuset"] for pool in pools] == ["0-5,12-17", "8-11,20-23"]
    assert annotation(made, f"{KOORDINATOR}/be-cpu-shared-pools") == pools
    assert made["topologyPolicies"] == ["SingleNUMANodePodLevel"]
    assert made["attributes"] == [
        {"name": "topologyManagerPolicy", "value": "single-numa-node"},
        {"name": "topologyManagerScope", "value": "pod"},
    ]


@pytest.mark.parametrize(
    ("policy", "scope", "listed"),
    [
        ("none", "container", "None"),
        ("none", "pod", "None"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
    ],
)
def test_policy_and_scope_are_one_word_for_readers_of_v1alpha1(
    policy: str, scope: str, listed: str
) -> None:
    """Which has no attributes."""
    managers = KubeletManagers(topology_policy=policy, topology_scope=scope)
    assert built(found_cpus(MACHINE_X, managers=managers))["topologyPolicies"] == [listed]


def test_a_numa_node_is_a_zone_with_cpus_memory_pages_caches_and_distances() -> None:
    """Of CPUs is available what no Pod has alone; huge pages are no memory for others."""
    found = found_cpus(MACHINE_X, pods=[pod_here("r", "LSR")])
    first, second = built(found, holding("r", "2-3,6"))["zones"]
    assert (first["name"], first["type"]) == ("node-0", "Node")
    assert first["costs"] == [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]
    assert first["attributes"] == [{"name": "lastLevelCaches", "value": "0-23"}]

    def amounts(name: str, *of: int) -> dict[str, str]:
        keys = ("capacity", "allocatable", "available")
        return {"name": name, **dict(zip(keys, map(str, of), strict=True))}

    assert first["resources"] == [
        amounts("cpu", 12, 12, 10),
        amounts("memory", 64 * GIB, 63 * GIB, 63 * GIB),
        amounts("hugepages-1Gi", 0, 0, 0),
        amounts("hugepages-2Mi", GIB, GIB, GIB),
    ]
    assert second["resources"][0] == amounts("cpu", 12, 12, 11)
    given = {0: {"memory": 5, "hugepages-2Mi": 4, "hugepages-1Gi": 0}}
    first, second = built(found_cpus(MACHINE_X, memory=given))["zones"]
    assert first["resources"][1] == amounts("memory", 64 * GIB, 5, 5)
    assert first["resources"][3] == amounts("hugepages-2Mi", GIB, 4, 4)
    assert second["resources"][1] == amounts("memory", 64 * GIB, 63 * GIB, 63 * GIB)


def test_devices_are_in_the_zone_that_they_sit_in() -> None:
    """All of them, and what takes holders; one without a place is in none."""

    def entry(numa: int | None, *, health: bool = True) -> dict[str, Any]:
        resources = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi"}
        place = {} if numa is None else {"topology": {"nodeID": numa}}
        return {"type": "gpu", "health": health, "resources": resources, **place}

    devices = [entry(0), entry(0, health=False), entry(None), entry(-1)]
    first, second = build_topology(found_cpus(MACHINE_X), NODE, devices, ())["zones"]
    assert first["resources"][4:] == [
        {
            "name": "koordinator.sh/gpu-core",
            "capacity": "200",
            "allocatable": "100",
            "available": "100",
        },
        {
            "name": "koordinator.sh/gpu-memory",
            "capacity": str(160 * GIB),
            "allocatable": str(80 * GIB),
            "available": str(80 * GIB),
        },
    ]
    assert len(second["resources"]) == 4


def test_what_the_node_keeps_back_has_to_be_readable() -> None:
    """Else nobody knows the pools, and nothing is written of them."""
    node = {"metadata": {**NODE["metadata"], "annotations": {f"{KOORDINATOR}/reservation": "["}}}
    with pytest.raises(InputError, match="reservation"):
        built(found_cpus(MACHINE_X), node=node)
