from __future__ import annotations

from typing import Final

import pytest

from tests.support.objects import Object, device, gpu_device, node, nrt
from tests.support.requests_to_admit import AGENT, change, creation, rules_of
from webhook.decide.validating.validate import validate

PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
CHECKPOINTS = "node.koordinator.sh/devices-checkpoints"
TOPOLOGY = "node.koordinator.sh/cpu-topology"


def place(pcie: str, numa: int) -> Object:
    """Return a device's topology."""
    return {"socketID": -1, "nodeID": numa, "pcieID": pcie, "busID": ""}


GOOD_DEVICES: Final = {
    "no devices": device(),
    "two GPUs": device(gpu_device(0), gpu_device(1)),
    "the release's table of partitions": device(
        gpu_device(0), annotations={PARTITIONS: {"1": [{"minors": [0]}]}}
    ),
    "the proposal's spelling": device(
        {"deviceType": "gpu", "health": True, "resource": {"kubernetes.io/gpu-core": "100"}}
    ),
    "a GPU and a NIC with functions": device(
        gpu_device(0, topology=place("pci0000:3a", 0)),
        {
            "type": "rdma",
            "id": "0000:5e:00.0",
            "minor": 1,
            "health": True,
            "resources": {"koordinator.sh/rdma": "100"},
            "topology": place("pci0000:5d", 0),
            "vfGroups": [{"labels": {"use": "t"}, "vfs": [{"minor": -1, "busID": "0000:5e:01.0"}]}],
        },
    ),
    "one PCIe root on an unknown NUMA node": device(
        gpu_device(0, topology=place("a", 0)), gpu_device(1, topology=place("a", -1))
    ),
    "a matrix of links": device(
        gpu_device(0),
        gpu_device(1),
        topologies={"gpu": [{"name": "bandwidth", "topology": "[[0,1.5],[1.5,0]]"}]},
    ),
}


@pytest.mark.parametrize("body", GOOD_DEVICES.values(), ids=GOOD_DEVICES)
def test_good_devices_are_allowed(body: Object) -> None:
    """Koordinator contract 2.5, 3.1; GPU-topology proposal."""
    assert validate(creation(body, kind="Device")).allowed


BAD_DEVICES: Final = {
    "a device without a type": (device({"minor": 0}), ["spec.devices[0].type"]),
    "a negative minor": (device(gpu_device(-1)), ["spec.devices[0].minor"]),
    "two of one minor": (
        device(gpu_device(0), gpu_device(0, id="GPU-other")),
        ["spec.devices[1].minor"],
    ),
    "two of one id": (device(gpu_device(0), gpu_device(1, id="GPU-0")), ["spec.devices[1].id"]),
    "a bad quantity": (
        device(gpu_device(0, resources={"koordinator.sh/gpu-core": "all"})),
        ["spec.devices[0].resources[koordinator.sh/gpu-core]"],
    ),
    "a health in words": (device(gpu_device(0, health="yes")), ["spec.devices[0].health"]),
    "a torn PCIe root": (
        device(gpu_device(0, topology=place("a", 0)), gpu_device(1, topology=place("a", 1))),
        ["spec.devices[1].topology.nodeID"],
    ),
    "a matrix that is no matrix": (
        device(gpu_device(0), topologies={"gpu": [{"name": "bandwidth", "topology": "[[0,1]]"}]}),
        ["spec.topologies.gpu[0].topology"],
    ),
    "a partition of another size": (
        device(gpu_device(0), annotations={PARTITIONS: {"2": [{"minors": [0]}]}}),
        [f"metadata.annotations[{PARTITIONS}][2][0].minors"],
    ),
    "everything at once": (
        device(
            gpu_device(0),
            {"type": "", "minor": 1},
            gpu_device(0, health="yes"),
            gpu_device(0, id="GPU-other"),
            annotations={PARTITIONS: "{"},
        ),
        [
            "spec.devices[1].type",
            "spec.devices[2].health",
            "spec.devices[3].minor",
            f"metadata.annotations[{PARTITIONS}]",
        ],
    ),
}


@pytest.mark.parametrize(("body", "fields"), BAD_DEVICES.values(), ids=BAD_DEVICES)
def test_bad_devices_are_refused_with_everything_that_is_wrong(
    body: Object, fields: list[str]
) -> None:
    """Koordinator contract 2.5, 3.1."""
    answer = validate(creation(body, kind="Device"))

    assert list(rules_of(answer)) == fields
    assert set(rules_of(answer).values()) == {"DeviceObject"}


def test_broken_checkpoints_are_refused_from_the_agent_too() -> None:
    """Koordinator contract 2.7: what nobody can read witnesses nothing."""
    body = device(annotations={CHECKPOINTS: "[{}"})

    answer = validate(creation(body, kind="Device", user=AGENT))
    assert rules_of(answer) == {f"metadata.annotations[{CHECKPOINTS}]": "DeviceObject"}


def test_what_was_wrong_before_does_not_stop_a_report() -> None:
    """A card that dies has to be reported, whatever else is wrong with the object."""
    old = device(gpu_device(0), annotations={PARTITIONS: "{"})
    new = device(gpu_device(0, health=False), annotations={PARTITIONS: "{"})

    assert validate(change(old, new, kind="Device")).allowed


def test_objects_of_another_group_are_not_ours() -> None:
    """A kind is ours by its group."""
    request = creation({"metadata": {"name": "x"}, "spec": {"devices": [1]}}, kind="Device")
    foreign = type(request)(
        uid="u", operation="CREATE", kind="Device", group="acme.io", obj=request.obj
    )

    assert validate(foreign).allowed


PROPOSAL_NRT: Final = nrt(
    cpu_manager_policy={
        "policy": "static",
        "options": {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
    },
    cpu_topology={
        "detail": [
            {"id": 0, "core": 0, "socket": 0, "node": 0},
            {"id": 1, "core": 1, "socket": 1, "node": 1},
        ]
    },
    pod_cpu_allocs=[
        {
            "namespace": "default",
            "name": "static-guaranteed-pod",
            "uid": "32b14702-2efe-4be9-a9da-f3b779175846",
            "cpu": "4-8",
            "managedByKubelet": "true",
        }
    ],
)


def test_the_proposals_example_is_allowed_with_a_word_about_unknown_cpus() -> None:
    """CPU-orchestration proposal, NodeResourceTopology CRD: its topology lists 2 CPUs of many."""
    answer = validate(creation(PROPOSAL_NRT, kind="NodeResourceTopology", user=AGENT))

    assert answer.allowed
    assert any('does not list "4-8"' in text for text in answer.warnings)


BAD_NRTS: Final = {
    "a topology that is no JSON": (nrt(cpu_topology="{"), TOPOLOGY),
    "two CPUs of one id": (
        nrt(cpu_topology={"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0}] * 2}),
        f"{TOPOLOGY}].detail",
    ),
    "a bad CPU list": (
        nrt(cpu_manager_policy={"reservedCPUs": "0-"}),
        "kubelet.koordinator.sh/cpu-manager-policy].reservedCPUs",
    ),
    "allocations that are no list": (
        nrt(pod_cpu_allocs={"a": 1}),
        "node.koordinator.sh/pod-cpu-allocs",
    ),
    "an unknown apply policy": (
        nrt(reservation={"applyPolicy": "Never"}),
        "node.koordinator.sh/reservation].applyPolicy",
    ),
}


@pytest.mark.parametrize(("body", "where"), BAD_NRTS.values(), ids=BAD_NRTS)
def test_a_topology_that_cannot_be_read_is_refused(body: Object, where: str) -> None:
    """Koordinator contract 2.4."""
    answer = validate(creation(body, kind="NodeResourceTopology"))

    (field,) = rules_of(answer)
    assert field.startswith(f"metadata.annotations[{where}")
    assert set(rules_of(answer).values()) == {"TopologyObject"}


LABELS: Final = {
    "node.koordinator.sh/cpu-bind-policy": (
        ["None", "FullPCPUsOnly", "SpreadByPCPUs", "PCPUOnly"],
        "FullPCPUs",
    ),
    "node.koordinator.sh/numa-allocate-strategy": (
        ["MostAllocated", "LeastAllocated", "DistributeEvenly"],
        "Most",
    ),
    "node.koordinator.sh/numa-topology-policy": (
        ["None", "BestEffort", "Restricted", "SingleNUMANode", "SingleNUMANodePodLevel"],
        "Single",
    ),
    "node.koordinator.sh/numa-topology-alignment-policy": (["BestEffort"], "PodLevel"),
    "node.koordinator.sh/enable-numa-reservation": (["true", "false"], "yes"),
    "vke.node.gpu.schedule": (["mgpu", "nvidia"], "vgpu"),
    "vke.volcengine.com/mgpu-compute-policy": (
        ["fixed-share", "guaranteed-burst-share", "native-burst-share"],
        "burst",
    ),
}


@pytest.mark.parametrize("key", LABELS)
def test_node_labels_of_ours_say_something(key: str) -> None:
    """Koordinator contract 2.3, 3.2; GPU-sharing contract A.1; the proposal's own examples."""
    values, wrong = LABELS[key]
    for value in (*values, ""):
        assert validate(change(node(), node(labels={key: value}), kind="Node")).allowed
    answer = validate(change(node(), node(labels={key: wrong}), kind="Node"))

    assert rules_of(answer) == {f"metadata.labels[{key}]": "NodeLabels"}
    (cause,) = answer.causes
    assert cause.reason == "FieldValueNotSupported"
    assert cause.message.startswith(f'Unsupported value: "{wrong}": supported values: "')


def test_a_node_can_always_register_and_report() -> None:
    """Kubelet creates it and updates it all day; only what changes is judged, and on UPDATE."""
    key = "node.koordinator.sh/cpu-bind-policy"
    wrong = node(labels={key: "FullPCPUs"})
    kubelet = "system:node:n1"

    answer = validate(creation(wrong, kind="Node", user=kubelet))
    assert answer.allowed
    assert any("Unsupported value" in text for text in answer.warnings)
    assert validate(change(wrong, wrong, kind="Node", user=kubelet)).allowed
    assert validate(change(wrong, node(), kind="Node")).allowed


def test_node_annotations_of_ours_can_be_read() -> None:
    """Koordinator contract 2.3."""
    key = "node.koordinator.sh/reservation"
    good = node(annotations={key: {"resources": {"cpu": "2"}, "reservedCPUs": "0-3"}})
    bad = node(annotations={key: {"reservedCPUs": "0-x"}})

    assert validate(change(node(), good, kind="Node")).allowed
    assert rules_of(validate(change(node(), bad, kind="Node"))) == {
        f"metadata.annotations[{key}].reservedCPUs": "NodeLabels"
    }
