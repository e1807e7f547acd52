from __future__ import annotations

import json
import uuid
from fractions import Fraction

import pytest

from ledger.domain.annotations.node_cpu import encode_cpu_topology
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import DeviceTopology, VirtualFunction
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import decode_node, decode_witnesses
from ledger.domain.nodes import NumaZone, Taint
from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Object, device, gpu_device, node, nrt
from tests.support.topologies import EIGHT_GPU_DEVICE_TEXT, MACHINE_X

GIB = 2**30
MIB = 2**20
MGPU_LABEL = "vke.node.gpu.schedule"
POLICY_LABEL = "vke.volcengine.com/mgpu-compute-policy"
MODEL = "node.koordinator.sh/gpu-model"
TWO_CPUS = {
    "detail": [
        {"id": 0, "core": 0, "socket": 0, "node": 0},
        {"id": 1, "core": 0, "socket": 0, "node": 0},
    ]
}


def test_a_plain_node_is_read() -> None:
    """Identity, labels, taints, capacity; a missing UID follows from the name."""
    body = node(
        allocatable={"cpu": "7910m", "memory": "32Gi", "pods": "110"},
        labels={"zone": "a"},
        taints=[{"key": "tenure.sh/owned", "effect": "NoSchedule"}],
        unschedulable=True,
    )
    body["status"]["nodeInfo"] = {"machineID": "abc"}

    facts, warnings = decode_node(body)

    assert facts.uid == str(uuid.uuid5(uuid.NAMESPACE_URL, "tenure:Node//n1"))
    assert (facts.name, facts.machine_id, facts.labels) == ("n1", "abc", {"zone": "a"})
    assert facts.taints == (Taint(key="tenure.sh/owned", value="", effect="NoSchedule"),)
    assert facts.unschedulable
    assert (facts.cpu_milli, facts.memory_bytes, facts.pods_max) == (7910, 32 * GIB, 110)
    assert (facts.devices, facts.cpu_topology, facts.mgpu_policy) == ((), None, "fixed-share")
    assert warnings == []


@pytest.mark.parametrize(
    ("labels", "model"),
    [
        pytest.param({"nvidia.com/gpu.product": "Tesla-T4"}, "Tesla-T4", id="as it stands"),
        pytest.param({"nvidia.com/gpu.product": "T4", MODEL: "A10"}, "A10", id="behind the own"),
        pytest.param({}, "", id="not at all"),
    ],
)
def test_cards_without_a_device_object_are_of_the_product_that_the_node_says(
    labels: dict[str, str], model: str
) -> None:
    """What hours by model and the map call the commonest cluster's cards by."""
    facts, _ = decode_node(node(allocatable={"nvidia.com/gpu": "2"}, labels=labels))

    assert [card.model for card in facts.devices] == [model, model]


@pytest.mark.parametrize("product", ["L40S-SHARED", "A100-MIG-1g.5gb"])
def test_parts_of_cards_are_no_cards_of_the_inventory(product: str) -> None:
    """Two replicas or instances may be of one card; none has a minor."""
    labels = {"nvidia.com/gpu.product": product}
    facts, _ = decode_node(node(allocatable={"nvidia.com/gpu": "2"}, labels=labels))

    assert (facts.devices, facts.dialects) == ((), frozenset({Dialect.NVIDIA}))
    assert dict(facts.systems.offers) == {"nvidia.com/gpu": 2}


def test_a_node_says_which_machine_it_is_and_which_start_of_it() -> None:
    """The UUID in lower case, machine and boot ids, and when the Node object was made."""
    body = node()
    body["metadata"]["creationTimestamp"] = "2026-03-02T09:00:00Z"
    info = {"systemUUID": "4C4C4544-0042", "machineID": "abc", "bootID": "6c1fe9b1"}
    body["status"]["nodeInfo"] = info

    facts, _ = decode_node(body)

    assert (facts.system_uuid, facts.machine_id, facts.boot_id) == (
        "4c4c4544-0042",
        "abc",
        "6c1fe9b1",
    )
    assert facts.created == "2026-03-02T09:00:00Z"
    assert not facts.lost


@pytest.mark.parametrize("effect", ["NoExecute", "NoSchedule", "PreferNoSchedule"])
def test_a_node_out_of_service_is_lost(effect: str) -> None:
    """The taint alone says so, whatever its effect or value, as for Kubernetes' own controllers."""
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": effect}

    facts, _ = decode_node(node(taints=[taint]))

    assert facts.lost


LIMITS = {
    "nothing given is no limit": ({}, (None, None, None)),
    "missing cpu and memory are 0": ({"allocatable": {"pods": 10}}, (0, 0, 10)),
    "missing pods are unlimited": ({"allocatable": {"cpu": 1, "memory": 5}}, (1000, 5, None)),
    "capacity without allocatable": ({"capacity": {"cpu": 2, "memory": 5}}, (2000, 5, None)),
    "allocatable before capacity": (
        {"allocatable": {"cpu": 1}, "capacity": {"cpu": 2, "memory": 5}},
        (1000, 0, None),
    ),
    "capacity is rounded down": (
        {"allocatable": {"cpu": "1500u", "memory": "1500m"}},
        (1, 1, None),
    ),
}


@pytest.mark.parametrize(("status", "expected"), LIMITS.values(), ids=LIMITS)
def test_limits_follow_what_the_node_says(
    status: Object, expected: tuple[int | None, int | None, int | None]
) -> None:
    """cli.md, Predicates."""
    body = node()
    body["status"] = status

    facts, _ = decode_node(body)

    assert (facts.cpu_milli, facts.memory_bytes, facts.pods_max) == expected


QUANTITIES = {
    "mgpu": (
        {"vke.volcengine.com/mgpu-core": 250, "vke.volcengine.com/mgpu-memory": 32769},
        Dialect.MGPU,
        2,
        16384 * MIB,
    ),
    "gpushare": (
        {"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 32552},
        Dialect.GPUSHARE,
        2,
        16276 * MIB,
    ),
    "koordinator": (
        {"koordinator.sh/gpu-core": 400, "koordinator.sh/gpu-memory": "96Gi"},
        Dialect.KOORDINATOR,
        4,
        24 * GIB,
    ),
    "the proposal": (
        {"kubernetes.io/gpu-core": 400, "kubernetes.io/gpu-memory": "32G"},
        Dialect.KOORDINATOR,
        4,
        8 * 10**9,
    ),
    "nvidia": ({"nvidia.com/gpu": 8}, Dialect.NVIDIA, 8, 0),
}


@pytest.mark.parametrize(
    ("quantities", "dialect", "count", "memory"), QUANTITIES.values(), ids=QUANTITIES
)
def test_quantities_describe_cards_of_one_dialect(
    quantities: Object, dialect: Dialect, count: int, memory: int
) -> None:
    """cli.md, Inventory without a Device object: minors from 0, no ids, memory divided evenly."""
    facts, warnings = decode_node(node(allocatable=quantities))

    assert facts.dialects == frozenset({dialect})
    assert [card.key for card in facts.devices] == [("gpu", minor) for minor in range(count)]
    assert {card.memory_bytes for card in facts.devices} == {memory}
    assert all(card.core_percent == 100 and not card.device_id for card in facts.devices)
    assert all(card.healthy for card in facts.devices)
    assert warnings == []


def test_the_unit_of_gpu_share_is_a_setting() -> None:
    """GPU-sharing contract B.5: 15 units of a GiB are one 16276 MiB card."""
    quantities = {"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 30}

    facts, _ = decode_node(node(allocatable=quantities), vocabulary=Vocabulary(gpushare_unit="GiB"))

    assert [card.memory_bytes for card in facts.devices] == [15 * GIB] * 2


def test_quantities_fall_back_to_capacity() -> None:
    """cli.md: from allocatable, else capacity."""
    body = node()
    body["status"] = {"capacity": {"nvidia.com/gpu": 1}}

    assert len(decode_node(body)[0].devices) == 1


def test_several_quantities_describe_the_same_cards() -> None:
    """cli.md: the smallest count wins, with a warning; each dialect is served."""
    quantities = {
        "nvidia.com/gpu": 8,
        "koordinator.sh/gpu-core": 600,
        "koordinator.sh/gpu-memory": "144Gi",
        "aliyun.com/gpu-count": 0,
    }

    facts, warnings = decode_node(node(allocatable=quantities))

    assert len(facts.devices) == 6
    assert facts.dialects == frozenset({Dialect.NVIDIA, Dialect.KOORDINATOR})
    assert len(warnings) == 1
    assert "different numbers of cards" in warnings[0]
    assert warnings[0].endswith("koordinator.sh/gpu-core 6, nvidia.com/gpu 8")


def test_quantities_that_agree_are_no_warning() -> None:
    """Several plugins may advertise the same cards."""
    quantities = {
        "nvidia.com/gpu": 2,
        "vke.volcengine.com/mgpu-core": 200,
        "vke.volcengine.com/mgpu-memory": 32768,
    }

    facts, warnings = decode_node(node(allocatable=quantities))

    assert [card.memory_bytes for card in facts.devices] == [16384 * MIB] * 2
    assert warnings == []


def test_different_memory_per_card_is_a_warning() -> None:
    """The smallest size counts, as the smallest number does."""
    quantities = {
        "koordinator.sh/gpu-core": 100,
        "koordinator.sh/gpu-memory": "16Gi",
        "vke.volcengine.com/mgpu-core": 100,
        "vke.volcengine.com/mgpu-memory": 15000,
    }

    facts, warnings = decode_node(node(allocatable=quantities))

    assert facts.devices[0].memory_bytes == 15000 * MIB
    assert "different bytes per card" in warnings[0]


def test_a_node_without_cards_serves_no_dialect() -> None:
    """Not the same as a Device object, whose cards serve every dialect."""
    facts, _ = decode_node(node(allocatable={"cpu": 1}))

    assert (facts.devices, facts.dialects) == ((), frozenset())


def test_more_cards_than_a_machine_has_are_refused() -> None:
    """A quantity in the wrong unit is an error, not a billion cards."""
    with pytest.raises(InputError, match="more cards") as caught:
        decode_node(node(allocatable={"nvidia.com/gpu": "1G"}))

    assert caught.value.field == "status.allocatable[nvidia.com/gpu]"


def test_a_device_object_is_the_inventory() -> None:
    """Koordinator contract 3.1, the whole example; the Node's quantities are not looked at."""
    gpu = gpu_device(
        0,
        gib=48,
        moduleID=2,
        labels={"tier": "gold"},
        topology={"socketID": -1, "nodeID": 0, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"},
    )
    nic = {
        "type": "rdma",
        "id": "0000:5e:00.0",
        "minor": 1,
        "health": True,
        "labels": {"fabric": "roce"},
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:5d", "busID": "0000:5e:00.0"},
        "vfGroups": [
            {
                "labels": {"use": "train"},
                "vfs": [{"minor": 0, "busID": "0000:5e:01.0"}, {"busID": "0000:5e:01.1"}],
            }
        ],
    }
    labels = {MODEL: "L40S", "node.koordinator.sh/gpu-vendor": "nvidia", "other": "x"}

    facts, warnings = decode_node(
        node(allocatable={"nvidia.com/gpu": 8}, labels={"zone": "a"}),
        device(nic, gpu, labels=labels),
    )

    card, port = facts.devices
    assert card.key == ("gpu", 0)
    assert (card.device_id, card.model, card.labels) == ("GPU-0", "L40S", {"tier": "gold"})
    assert (card.core_percent, card.memory_bytes, card.healthy) == (100, 48 * GIB, True)
    assert card.topology == DeviceTopology(
        socket=-1, numa_node=0, pcie_id="pci0000:3a", bus_id="0000:3b:00.0"
    )
    assert (port.device_type, port.model, port.core_percent) == ("rdma", "", 100)
    assert port.vfs == (
        VirtualFunction(minor=0, bus_id="0000:5e:01.0", labels={"use": "train"}),
        VirtualFunction(minor=0, bus_id="0000:5e:01.1", labels={"use": "train"}),
    )
    assert facts.dialects is None
    assert facts.labels == {
        "zone": "a",
        MODEL: "L40S",
        "node.koordinator.sh/gpu-vendor": "nvidia",
    }
    assert warnings == []


def test_the_proposals_device_object_is_read_too() -> None:
    """Koordinator contract 3.1: `deviceType` and `resource`, the other domain, a missing minor."""
    old = {
        "deviceType": "gpu",
        "id": "GPU-a",
        "health": True,
        "resource": {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory": "15472384Ki"},
    }

    card = decode_node(node(), device(old))[0].devices[0]

    assert (card.minor, card.core_percent, card.memory_bytes) == (0, 100, 15472384 * 1024)


def test_health_is_false_until_said() -> None:
    """Koordinator contract 3.1: default false."""
    item = gpu_device(0)
    del item["health"]

    assert not decode_node(node(), device(item))[0].devices[0].healthy


def test_a_resource_that_a_device_lacks_counts_nothing() -> None:
    """Koordinator contract Q3, ours: missing = 0."""
    card = decode_node(node(), device(gpu_device(0, resources=None)))[0].devices[0]

    assert (card.core_percent, card.memory_bytes) == (0, 0)


def test_the_model_may_come_from_the_node() -> None:
    """Koordinator contract 1.2; the Node's own label wins over the Device's."""
    facts, _ = decode_node(node(labels={MODEL: "A10"}), device(gpu_device(0), labels={MODEL: "T4"}))

    assert (facts.devices[0].model, facts.labels[MODEL]) == ("A10", "A10")


def test_an_empty_device_object_still_is_the_inventory() -> None:
    """cli.md: with a Device the Node's device quantities are not looked at."""
    facts, _ = decode_node(node(allocatable={"nvidia.com/gpu": 8}), device())

    assert (facts.devices, facts.dialects) == ((), None)


def test_the_link_matrix_is_read() -> None:
    """Koordinator GPU-topology proposal, GPU topology resource reporting."""
    cards = [gpu_device(minor) for minor in range(8)]
    topologies = {"gpu": [{"name": "bandwidth", "topology": EIGHT_GPU_DEVICE_TEXT}]}

    links = decode_node(node(), device(*cards, topologies=topologies))[0].links

    assert links is not None
    assert links.bandwidth_gbps(2, 3) == 6.02


def test_a_link_matrix_that_is_too_small_is_ignored_with_a_warning() -> None:
    """Rows are minors; a card without a row has no known link."""
    topologies = {"gpu": [{"name": "bandwidth", "topology": "[[0,1],[1,0]]"}]}

    facts, warnings = decode_node(node(), device(gpu_device(2), topologies=topologies))

    assert facts.links is None
    assert "link matrix ignored" in warnings[0]


def test_places_stand_in_for_a_matrix() -> None:
    """Without measured links the places and partitions of the GPUs suggest some, else none."""
    placed = [
        gpu_device(minor, topology={"nodeID": minor // 2, "pcieID": f"pci{minor}"})
        for minor in range(4)
    ]
    topologies = {"gpu": [{"name": "bandwidth", "topology": EIGHT_GPU_DEVICE_TEXT}]}

    derived = decode_node(node(), device(*placed))[0].derived_links

    assert derived is not None
    assert derived.bandwidth_gbps(0, 1) > derived.bandwidth_gbps(1, 2)
    assert decode_node(node(), device(*placed, topologies=topologies))[0].derived_links is None
    assert decode_node(node(), device(gpu_device(0)))[0].derived_links is None


def test_listed_cards_are_unhealthy() -> None:
    """GPU-sharing contract B.3, ours: a token that is no index is ignored and reported."""
    cards = device(gpu_device(0), gpu_device(1), gpu_device(2))

    facts, warnings = decode_node(node(), cards, unhealthy_gpus="1, x,7")

    assert [card.healthy for card in facts.devices] == [True, False, True]
    assert warnings == [
        "node n1: unhealthy-gpu-n1: not a card index, ignored: value='x'",
        "node n1: unhealthy-gpu-n1: the node has no such card, ignored: value=7",
    ]


MGPU_NODES = {
    "mgpu": ({MGPU_LABEL: "mgpu"}, "fixed-share", False),
    "mgpu with a policy": (
        {MGPU_LABEL: "mgpu", POLICY_LABEL: "native-burst-share"},
        "native-burst-share",
        False,
    ),
    "no label": ({}, "fixed-share", False),
    "nvidia": ({MGPU_LABEL: "nvidia"}, "fixed-share", True),
    "an unknown kind": ({MGPU_LABEL: "share"}, "fixed-share", True),
    "an unknown policy": ({MGPU_LABEL: "mgpu", POLICY_LABEL: "best"}, "", True),
}


@pytest.mark.parametrize(("labels", "policy", "closed"), MGPU_NODES.values(), ids=MGPU_NODES)
def test_labels_open_and_close_a_node_to_mgpu(
    labels: dict[str, str], policy: str, *, closed: bool
) -> None:
    """GPU-sharing contract A.1; a node that advertises mgpu-core and stays closed says why."""
    quantities = {"vke.volcengine.com/mgpu-core": 100, "vke.volcengine.com/mgpu-memory": 16384}

    facts, warnings = decode_node(node(allocatable=quantities, labels=labels))

    assert (facts.mgpu_policy, facts.mgpu_invalid) == (policy, closed)
    assert bool(warnings) is closed


@pytest.mark.parametrize(
    ("quantities", "said"),
    [
        pytest.param(
            {"aliyun.com/gpu-mem": 32552}, "aliyun.com/gpu-count of at least 1", id="share"
        ),
        pytest.param(
            {"vke.volcengine.com/mgpu-core": 99, "vke.volcengine.com/mgpu-memory": 16384},
            "vke.volcengine.com/mgpu-core of at least 100",
            id="mGPU below a card",
        ),
        pytest.param({"vke.volcengine.com/mgpu-core": 99}, None, id="nothing offered"),
    ],
)
def test_memory_without_a_number_of_cards_is_said(
    quantities: dict[str, int], said: str | None
) -> None:
    """GPU-sharing contract A.1: 0 cards, no devices; and a reader of the dump learns why."""
    facts, warnings = decode_node(node(allocatable=quantities))

    assert facts.devices == ()
    if said is None:
        assert warnings == []
    else:
        assert [said in warning for warning in warnings] == [True]


@pytest.mark.parametrize(
    ("quantities", "said"),
    [
        pytest.param((200, 49152), None, id="the same cards"),
        pytest.param((250, 49153), None, id="the same after rounding down"),
        pytest.param((200, 32768), "2 cards of 16384 MiB", id="less memory"),
        pytest.param((300, 73728), "3 cards of 24576 MiB", id="one card more"),
        pytest.param((2**53 - 1, 1), "90071992547409 cards of 0 MiB", id="more than memory"),
        pytest.param((0, 0), None, id="no mGPU advertised"),
    ],
)
def test_mgpu_quantities_that_differ_from_the_cards_are_said(
    quantities: tuple[int, int], said: str | None
) -> None:
    """GPU-sharing contract A.1, ours: the reported inventory counts, and the drift is named."""
    names = ("vke.volcengine.com/mgpu-core", "vke.volcengine.com/mgpu-memory")
    body = node(allocatable=dict(zip(names, quantities, strict=True)))

    facts, warnings = decode_node(body, device(gpu_device(0), gpu_device(1)))

    assert [card.memory_bytes for card in facts.devices] == [24 * 2**30] * 2
    if said is None:
        assert warnings == []
    else:
        (warning,) = warnings
        assert said in warning
        assert "24576, 24576 MiB; the Device object counts" in warning


def test_cpus_come_from_the_topology_object() -> None:
    """Koordinator contract 2.4."""
    detail = [
        {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.numa}
        for cpu in MACHINE_X.cpus
    ]

    facts, _ = decode_node(node(), None, nrt(cpu_topology={"detail": detail}))

    assert facts.cpu_topology == MACHINE_X
    assert facts.cpu_ref_count_max == 1


def test_a_topology_without_cpus_is_none() -> None:
    """Nothing can be pinned there."""
    assert decode_node(node(), None, nrt(cpu_topology={"detail": []}))[0].cpu_topology is None
    assert decode_node(node(), None, nrt())[0].cpu_topology is None


def test_reserved_cpus_are_those_of_kubelet_the_node_and_the_system() -> None:
    """Koordinator contract 6.3; a set that is not exclusive is not reserved."""
    topology = nrt(
        cpu_topology=TWO_CPUS,
        cpu_manager_policy={"policy": "static", "reservedCPUs": "0,12"},
        pod_cpu_allocs=[
            {"uid": "u1", "cpuset": "6-7", "managedByKubelet": True},
            {"uid": "u2", "cpuset": "8", "managedByKubelet": False},
            {"cpuset": "9", "managedByKubelet": True},
        ],
        system_qos_resource={"cpuset": "1"},
    )
    body = node(annotations={"node.koordinator.sh/reservation": {"reservedCPUs": "2-3"}})

    facts, warnings = decode_node(body, None, topology)

    assert facts.reserved_cpus == parse_cpuset("0-3,6-7,12")
    assert warnings == []


def test_a_shared_system_set_is_not_reserved() -> None:
    """Koordinator contract 2.3: `cpusetExclusive` false."""
    topology = nrt(system_qos_resource={"cpuset": "1", "cpusetExclusive": False})

    assert not decode_node(node(), None, topology)[0].reserved_cpus


def test_the_nodes_own_reservation_wins_over_the_copy() -> None:
    """Koordinator contract 2.4: the annotation is copied for the scheduler, and may be stale."""
    body = node(annotations={"node.koordinator.sh/reservation": {"reservedCPUs": "2"}})
    topology = nrt(reservation={"reservedCPUs": "4"})

    assert decode_node(body, None, topology)[0].reserved_cpus == parse_cpuset("2")
    assert decode_node(node(), None, topology)[0].reserved_cpus == parse_cpuset("4")


def test_pinned_cpus_of_a_known_pod_are_its_own() -> None:
    """A Pod that is adopted holds them; counting them as the node's reserve would hide that."""
    topology = nrt(
        pod_cpu_allocs=[
            {"uid": "u1", "cpuset": "6", "managedByKubelet": True},
            {"uid": "u2", "cpuset": "7", "managedByKubelet": True},
        ]
    )

    facts, _ = decode_node(node(), None, topology, known_pods={"u1"})

    assert facts.reserved_cpus == parse_cpuset("7")
    assert decode_witnesses(None, topology).cpus == {
        "u1": parse_cpuset("6"),
        "u2": parse_cpuset("7"),
    }


def test_checkpoints_are_sorted_by_pod() -> None:
    """Koordinator contract 2.7: one entry per container and resource."""
    entries = [
        {
            "podUID": "u1",
            "containerName": "a",
            "resourceName": "nvidia.com/gpu",
            "deviceIDs": ["A"],
        },
        {"podUID": "u2", "resourceName": "nvidia.com/gpu", "deviceIDs": ["B"]},
        {
            "podUID": "u1",
            "containerName": "b",
            "resourceName": "nvidia.com/gpu",
            "deviceIDs": ["C"],
        },
    ]
    item = device(annotations={"node.koordinator.sh/devices-checkpoints": entries})

    found = decode_witnesses(item).checkpoints

    assert [entry.device_ids for entry in found["u1"]] == [("A",), ("C",)]
    assert set(found) == {"u1", "u2"}


LABEL = "node.koordinator.sh/cpu-bind-policy"
FULL_ONLY = {"policy": "static", "options": {"full-pcpus-only": "true"}}


@pytest.mark.parametrize(
    ("label", "kubelet", "policy"),
    [
        pytest.param("", {}, "", id="no policy"),
        pytest.param("None", {"policy": "static"}, "", id="none, by name"),
        pytest.param("FullPCPUsOnly", {}, "FullPCPUs", id="whole cores"),
        pytest.param("SpreadByPCPUs", {}, "SpreadByPCPUs", id="spread"),
        pytest.param("", FULL_ONLY, "FullPCPUs", id="kubelet's option"),
        pytest.param("None", FULL_ONLY, "FullPCPUs", id="a label of none"),
        pytest.param("SpreadByPCPUs", FULL_ONLY, "SpreadByPCPUs", id="the label beats kubelet"),
    ],
)
def test_a_nodes_cpu_bind_policy_is_read(label: str, kubelet: Object, policy: str) -> None:
    """CPU proposal, "Compatible kubelet CPU management policies": the label's, else kubelet's."""
    labels = {LABEL: label} if label else {}
    facts, warnings = decode_node(node(labels=labels), None, nrt(cpu_manager_policy=kubelet))

    assert facts.cpu_bind_policy == policy
    assert not warnings


NUMA_LABEL = "node.koordinator.sh/numa-topology-policy"
NUMA_PROPOSAL = "node.koordinator.sh/numa-topology-alignment-policy"


@pytest.mark.parametrize(
    ("labels", "topology", "policy"),
    [
        ({}, {}, ""),
        ({NUMA_LABEL: "Restricted"}, {}, "Restricted"),
        ({NUMA_PROPOSAL: "SingleNUMANode"}, {}, "SingleNUMANode"),
        ({NUMA_LABEL: "BestEffort", NUMA_PROPOSAL: "Restricted"}, {}, "BestEffort"),
        ({}, {"topologyPolicies": ["SingleNUMANodePodLevel"]}, "SingleNUMANode"),
        ({}, {"topologyPolicies": ["RestrictedContainerLevel"]}, "Restricted"),
        ({}, {"topologyPolicies": ["None"]}, ""),
        (
            {},
            {"attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]},
            "SingleNUMANode",
        ),
        (
            {},
            {
                "attributes": [{"name": "topologyManagerPolicy", "value": "restricted"}],
                "topologyPolicies": ["BestEffort"],
            },
            "Restricted",
        ),
        ({NUMA_LABEL: "BestEffort"}, {"topologyPolicies": ["Restricted"]}, "BestEffort"),
        ({NUMA_LABEL: "None"}, {"topologyPolicies": ["Restricted"]}, ""),
    ],
)
def test_a_nodes_numa_policy_is_read(
    labels: dict[str, str], topology: dict[str, object], policy: str
) -> None:
    """Koordinator contract 3.2 and 7; CPU proposal, NUMA topology alignment policy."""
    facts, _ = decode_node(node(labels=labels), None, {**nrt(), **topology})

    assert facts.numa_policy == policy


def test_zones_that_are_numa_nodes_are_read() -> None:
    """Koordinator contract 3.2: `allocatable`, type `Node`, named `node-<int>`."""
    zones = [
        {
            "name": "node-1",
            "type": "Node",
            "resources": [
                {"name": "cpu", "capacity": "12", "allocatable": "11500m", "available": "1"},
                {"name": "memory", "capacity": "64Gi", "allocatable": "60Gi", "available": "1"},
            ],
        },
        {"name": "node-0", "type": "Node", "resources": []},
        {"name": "socket-0", "type": "Socket", "resources": []},
        {"name": "node-x", "type": "Node", "resources": []},
    ]

    facts, _ = decode_node(node(), None, {**nrt(), "zones": zones})

    assert facts.numa_zones == (
        NumaZone(id=0),
        NumaZone(id=1, cpu_milli=11500, memory_bytes=60 * 2**30),
    )


def test_two_zones_of_one_name_are_refused() -> None:
    """One of them would silently be the other."""
    zone = {"name": "node-0", "type": "Node", "resources": []}

    with pytest.raises(InputError) as caught:
        decode_node(node(), None, {**nrt(), "zones": [zone, zone]})

    assert (caught.value.field, caught.value.place) == ("zones", "NodeResourceTopology n1")


@pytest.mark.parametrize(
    ("label", "options", "strategy"),
    [
        ("", {}, ""),
        ("MostAllocated", {}, "MostAllocated"),
        ("", {"distribute-cpus-across-numa": "true"}, "DistributeEvenly"),
        ("LeastAllocated", {"distribute-cpus-across-numa": "true"}, "LeastAllocated"),
    ],
)
def test_a_nodes_numa_strategy_is_read(label: str, options: dict[str, str], strategy: str) -> None:
    """CPU proposal, NUMA allocate strategy: the label first, then kubelet's own option."""
    labels = {"node.koordinator.sh/numa-allocate-strategy": label} if label else {}
    kubelet = {"policy": "static", "options": options}

    facts, _ = decode_node(node(labels=labels), None, nrt(cpu_manager_policy=kubelet))

    assert facts.numa_strategy == strategy


def test_kubelets_reserve_is_pooled_and_the_nodes_is_not() -> None:
    """Koordinator contract 9.4, "OURS"."""
    annotations = {"node.koordinator.sh/reservation": {"reservedCPUs": "2"}}
    kubelet = {"policy": "none", "reservedCPUs": "0-1"}

    facts, _ = decode_node(node(annotations=annotations), None, nrt(cpu_manager_policy=kubelet))

    assert (str(facts.reserved_cpus), str(facts.unpooled_cpus)) == ("0-2", "2")


RESERVATION = "node.koordinator.sh/reservation"


@pytest.mark.parametrize(
    ("reservation", "cpu_milli", "gib", "cpus"),
    [
        pytest.param(None, 24000, 128, "", id="nothing kept"),
        pytest.param({"reservedCPUs": "0-1"}, 22000, 128, "0-1", id="CPUs"),
        pytest.param(
            {"reservedCPUs": "0-1", "resources": {"cpu": "8", "memory": "28Gi"}},
            22000,
            100,
            "0-1",
            id="with CPUs, the amount of cpu picks none and counts for nothing",
        ),
        pytest.param(
            {"resources": {"cpu": "2500m"}}, 21500, 128, "0-1,12", id="2.5 CPUs are three"
        ),
        pytest.param(
            {"reservedCPUs": "0-1", "applyPolicy": "ReservedCPUsOnly"},
            24000,
            128,
            "0-1",
            id="CPUs only: the amounts stay",
        ),
    ],
)
def test_what_a_node_keeps_for_itself_is_not_given(
    reservation: Object | None, cpu_milli: int, gib: int, cpus: str
) -> None:
    """Koordinator contract 2.3, reservation rule."""
    annotations = {} if reservation is None else {RESERVATION: reservation}
    body = node(allocatable={"cpu": "24", "memory": "128Gi"}, annotations=annotations)

    facts, _ = decode_node(body, None, nrt(cpu_topology=json.loads(encode_cpu_topology(MACHINE_X))))

    assert (facts.cpu_milli, facts.memory_bytes) == (cpu_milli, gib * GIB)
    assert str(facts.reserved_cpus) == cpus


def test_amplification_costs_cpu_sets_and_not_shares() -> None:
    """Koordinator contract 6.6: r = 1.4; 14000m of which a 4-CPU set count 15600."""
    ratio = {"node.koordinator.sh/resource-amplification-ratio": {"cpu": 1.4}}

    facts, warnings = decode_node(node(annotations=ratio))
    copied, _ = decode_node(node(), None, nrt(resource_amplification_ratio={"cpu": 1.4}))

    assert facts.cpu_amplification == copied.cpu_amplification == Fraction(7, 5)
    assert not warnings
    assert facts.cpu_cost_milli(14000, 4) == 15600
    assert facts.cpu_cost_milli(18000, 0) == 18000
    assert [facts.cpu_cost_milli(cpus * 1000, cpus) for cpus in (12, 13)] == [16800, 18200]
    assert facts.cpu_cost_milli(1000, 1) == 1400


BROKEN = {
    "no name": ({"metadata": {}}, None, None, "metadata.name"),
    "a bad quantity": (
        node(allocatable={"memory": "32Gb"}),
        None,
        None,
        "status.allocatable[memory]",
    ),
    "a negative quantity": (node(allocatable={"cpu": -1}), None, None, "status.allocatable[cpu]"),
    "beyond counting": (
        node(allocatable={"memory": "16E"}),
        None,
        None,
        "status.allocatable[memory]",
    ),
    "a taint without a key": (
        node(taints=[{"effect": "NoSchedule"}]),
        None,
        None,
        "spec.taints[0].key",
    ),
    "a taint without effect": (node(taints=[{"key": "a"}]), None, None, "spec.taints[0].effect"),
    "a label that is a number": (
        {"metadata": {"name": "n", "labels": {"a": 1}}},
        None,
        None,
        "metadata.labels[a]",
    ),
    "unschedulable as text": (node(unschedulable="yes"), None, None, "spec.unschedulable"),
    "two cards of one minor": (
        node(),
        device(gpu_device(0), gpu_device(0, id="GPU-b")),
        None,
        "spec.devices[1].minor",
    ),
    "two cards without a minor": (
        node(),
        device({**gpu_device(0), "minor": None}, {**gpu_device(1), "minor": None}),
        None,
        "spec.devices[1].minor",
    ),
    "two cards of one id": (
        node(),
        device(gpu_device(0), gpu_device(1, id="GPU-0")),
        None,
        "spec.devices[1].id",
    ),
    "two virtual functions of one bus id": (
        node(),
        device(
            *(
                {
                    "type": "rdma",
                    "id": f"0000:{minor}e:00.0",
                    "minor": minor,
                    "vfGroups": [{"labels": {}, "vfs": [{"minor": 0, "busID": "0000:5e:01.0"}]}],
                }
                for minor in (5, 6)
            )
        ),
        None,
        "spec.devices[1].vfGroups",
    ),
    "a device without a type": (node(), device({"minor": 0}), None, "spec.devices[0].type"),
    "a negative minor": (node(), device(gpu_device(-1)), None, "spec.devices[0].minor"),
    "a bad device quantity": (
        node(),
        device(gpu_device(0, resources={"koordinator.sh/gpu-memory": "48GiB"})),
        None,
        "spec.devices[0].resources[koordinator.sh/gpu-memory]",
    ),
    "health as text": (
        node(),
        device(gpu_device(0, health="true")),
        None,
        "spec.devices[0].health",
    ),
    "a matrix that is none": (
        node(),
        device(topologies={"gpu": [{"name": "bandwidth", "topology": "[[0,1]]"}]}),
        None,
        "spec.topologies.gpu[0].topology",
    ),
    "a CPU topology that is no JSON": (
        node(),
        None,
        nrt(cpu_topology="{"),
        "metadata.annotations[node.koordinator.sh/cpu-topology]",
    ),
    "reserved CPUs that run backwards": (
        node(),
        None,
        nrt(cpu_manager_policy={"reservedCPUs": "5-3"}),
        "metadata.annotations[kubelet.koordinator.sh/cpu-manager-policy].reservedCPUs",
    ),
}


@pytest.mark.parametrize(("body", "devices", "topology", "field"), BROKEN.values(), ids=BROKEN)
def test_an_unreadable_node_names_its_field(
    body: Object, devices: Object | None, topology: Object | None, field: str
) -> None:
    """cli.md, exit code 2."""
    with pytest.raises(InputError) as caught:
        decode_node(body, devices, topology)

    assert caught.value.field == field
    other = "Device n1" if devices is not None else "NodeResourceTopology n1" if topology else ""
    assert caught.value.place == other


@pytest.mark.parametrize(
    ("status", "taints", "keys"),
    [
        ("True", [], []),
        ("False", [], ["node.kubernetes.io/not-ready"]),
        ("Unknown", [], ["node.kubernetes.io/unreachable"]),
        (
            "False",
            [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}],
            ["node.kubernetes.io/not-ready"],
        ),
    ],
    ids=["ready", "not ready", "silent", "tainted already"],
)
def test_a_node_that_is_not_ready_is_tainted_before_its_controller_says_so(
    status: str, taints: list[Object], keys: list[str]
) -> None:
    """Nobody is sent there in between."""
    facts, _ = decode_node(
        {
            "metadata": {"name": "n"},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        }
    )
    assert [taint.key for taint in facts.taints] == keys
