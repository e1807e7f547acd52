from __future__ import annotations

import pytest

from ledger.domain.adopted.pods import adopt
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import ContainerShare, DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import decode_node, decode_witnesses
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Object, container, device, gpu_device, node, nrt, pod, sidecar

GIB = 2**30
MIB = 2**20
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
INDEX = "vke.volcengine.com/gpu-index-container-"
V2 = "scheduler.framework.gpushare.allocation"
IDX = "ALIYUN_COM_GPU_MEM_IDX"
TOPOLOGY = "topology.scheduling.koordinator.sh/gpu"
CHECKPOINTS = "node.koordinator.sh/devices-checkpoints"
STATUS = "scheduling.koordinator.sh/resource-status"
MGPU_CORE = "vke.volcengine.com/mgpu-core"
MGPU_MEMORY = "vke.volcengine.com/mgpu-memory"
GPU_MEM = "aliyun.com/gpu-mem"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"

NIC = {
    "type": "rdma",
    "id": "0000:5e:00.0",
    "minor": 11,
    "health": True,
    "resources": {"koordinator.sh/rdma": "100"},
}
FOUR_CARDS = decode_node(node(), device(*(gpu_device(minor) for minor in range(4)), NIC))[0]
"""Cards GPU-0 to GPU-3 of 24 GiB, and one NIC."""

NO_IDS = decode_node(node(allocatable={"nvidia.com/gpu": 2}))[0]
"""Two cards that the Node advertises: no ids, memory unknown."""


def running(*containers: Object, annotations: Object | None = None, **more: object) -> Object:
    """Return a Pod that runs on the node."""
    fields: Object = {"uid": "u1", "nodeName": "n1", "phase": "Running", **more}
    return pod(*containers, annotations=annotations, **fields)


def adopted(
    limits: Object,
    annotations: Object | None = None,
    *,
    facts: NodeFacts = FOUR_CARDS,
    devices: Object | None = None,
    topology: Object | None = None,
) -> PodObserved:
    """Return what a Pod of one container holds."""
    return adopt(
        running(container(limits=limits), annotations=annotations),
        facts,
        Vocabulary(),
        decode_witnesses(devices, topology),
    )


def share(minor: int, **fields: object) -> DeviceShare:
    """Return a share of one of the four cards."""
    return DeviceShare(device_type="gpu", minor=minor, device_id=f"GPU-{minor}", **fields)  # type: ignore[arg-type]  # keywords of the builder


def main(core: int, memory: int) -> tuple[ContainerShare, ...]:
    """Return the part of the only container."""
    return (ContainerShare(container="main", index="0", core_percent=core, memory_bytes=memory),)


def entry(minor: int, card: str = "", **resources: object) -> Object:
    """Return one entry of the allocation annotation."""
    names = {"core": CORE, "memory": MEMORY, "ratio": RATIO, "gpu": "kubernetes.io/gpu"}
    found: Object = {
        "minor": minor,
        "resources": {names[word]: amount for word, amount in resources.items()},
    }
    if card:
        found["id"] = card
    return found


def test_the_id_decides_where_an_entry_has_another_cards_minor() -> None:
    """Both cards are held, by name; never the id with the minor that it does not have."""
    held = adopted({CORE: 50, RATIO: 50}, {ALLOCATED: {"gpu": [entry(3, "GPU-0", ratio=50)]}})

    assert [(each.minor, each.device_id) for each in held.shares] == [(0, "GPU-0"), (3, "GPU-3")]
    assert {each.memory_ratio_percent for each in held.shares} == {50}
    assert held.unknown_types == ()
    assert held.faults == (
        "device-allocated names gpu 3 by the id of gpu 0, which counts; both are held: id=GPU-0",
    )


def test_two_entries_with_their_ids_swapped_hold_each_card_once() -> None:
    """What is held for sure is not held in doubt again."""
    entries = [entry(0, "GPU-3", ratio=50), entry(3, "GPU-0", ratio=50)]

    held = adopted({CORE: 100, RATIO: 100}, {ALLOCATED: {"gpu": entries}})

    assert [(each.minor, each.memory_ratio_percent) for each in held.shares] == [(0, 50), (3, 50)]
    assert len(held.faults) >= 2


def test_a_card_in_doubt_is_none_of_those_that_were_asked_for() -> None:
    """Of two cards asked for one is named: the other is unknown, as without the wrong minor."""
    whole = entry(3, "GPU-0", core=100, ratio=100)

    held = adopted({"nvidia.com/gpu": 2}, {ALLOCATED: {"gpu": [whole]}})

    assert [share.minor for share in held.shares] == [0, 3]
    assert held.unknown_types == ("gpu",)


def test_a_minor_that_the_node_lacks_beside_a_known_id_is_named() -> None:
    """There is no other card to hold."""
    held = adopted({CORE: 50, RATIO: 50}, {ALLOCATED: {"gpu": [entry(9, "GPU-0", ratio=50)]}})

    assert [share.minor for share in held.shares] == [0]
    assert len(held.faults) == 1


def test_device_allocated_gives_its_own_numbers() -> None:
    """Koordinator contract 2.2, the whole example: cards, a NIC with a VF."""
    annotation = {
        "gpu": [entry(3, "GPU-3", core="40", memory="9019431321", ratio="35")],
        "rdma": [
            {
                "minor": 11,
                "id": "0000:5e:00.0",
                "resources": {"koordinator.sh/rdma": "1"},
                "extension": {"vfs": [{"minor": 4, "busID": "0000:5e:01.4"}]},
            }
        ],
    }
    limits = {CORE: 40, RATIO: 35, "koordinator.sh/rdma": 1, "cpu": 2, "memory": "4Gi"}

    held = adopted(limits, {ALLOCATED: annotation})

    assert held.source == "device-allocated"
    assert held.shares == (
        share(3, core_percent=40, memory_bytes=9019431321, memory_ratio_percent=35),
        DeviceShare(
            device_type="rdma",
            minor=11,
            device_id="0000:5e:00.0",
            core_percent=1,
            vf_bus_ids=("0000:5e:01.4",),
        ),
    )
    assert held.unknown_types == ()
    assert (held.cpu_milli, held.memory_bytes, held.dialect) == (2000, 4 * GIB, "koordinator")
    assert (held.pod_uid, held.namespace, held.pod_name, held.node_name) == ("u1", "ml", "p", "n1")


@pytest.mark.parametrize(
    ("resources", "memory", "ratio"),
    [
        pytest.param({"ratio": 35}, 9019431321, 35, id="bytes from the ratio"),
        pytest.param({"memory": "7Gi"}, 7 * GIB, 29, id="ratio from the bytes"),
        pytest.param({"core": 50}, 9019431321, 35, id="neither: as the Pod asks"),
        pytest.param({}, 9019431321, 35, id="nothing: as the Pod asks"),
        pytest.param({"gpu": 60}, 60 * 24 * GIB // 100, 60, id="both from the percent"),
    ],
)
def test_a_missing_memory_unit_is_filled(resources: Object, memory: int, ratio: int) -> None:
    """Koordinator contract 4.5, both directions."""
    held = adopted({CORE: 50, RATIO: 35}, {ALLOCATED: {"gpu": [entry(0, "GPU-0", **resources)]}})

    assert (held.shares[0].memory_bytes, held.shares[0].memory_ratio_percent) == (memory, ratio)


def test_a_card_named_without_amounts_is_held_whole() -> None:
    """A card never looks emptier than it is; where nobody asked, nobody knows how much is held."""
    held = adopted({}, {ALLOCATED: {"gpu": [{"minor": 0, "id": "GPU-0"}]}})

    assert (held.shares[0].core_percent, held.shares[0].memory_bytes) == (100, 24 * GIB)
    assert held.shares[0].exclusive
    assert held.faults == ("device-allocated names no amount of gpu 0",)


@pytest.mark.parametrize(
    ("limits", "memory"),
    [
        pytest.param({}, 24 * GIB, id="nobody asked: all of it"),
        pytest.param({CORE: 50, RATIO: 35}, 9019431321, id="as the Pod asks"),
        pytest.param({"nvidia.com/gpu": 1}, 24 * GIB, id="a whole card was asked for"),
    ],
)
def test_an_entry_without_a_memory_figure_is_named(limits: Object, memory: int) -> None:
    """Koordinator contract 2.2: entries of GPUs always carry memory."""
    held = adopted(limits, {ALLOCATED: {"gpu": [entry(0, "GPU-0", core=50)]}})

    assert held.shares[0].memory_bytes == memory
    assert held.faults == ("device-allocated names no memory of gpu 0",)


def test_an_entry_of_another_types_unit_is_held_whole_and_named() -> None:
    """A NIC never looks emptier than it is: percent of an FPGA says nothing about it."""
    resources = {"koordinator.sh/fpga": "5"}

    held = adopted({}, {ALLOCATED: {"rdma": [{"minor": 11, "resources": resources}]}})

    assert held.shares[0].core_percent == 100
    assert held.faults == ("device-allocated names no amount of rdma 11",)


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({ALLOCATED: {"gpu": [entry(0, "GPU-0", core=100, ratio=100)]}}, id="released"),
        pytest.param({TOPOLOGY: {"allocatedGPUs": {"0": ["0"]}}}, id="topology"),
    ],
)
def test_fewer_cards_than_asked_leave_the_others_unknown(annotations: Object) -> None:
    """cli.md, Running Pods: an unknown card closes the node for its type."""
    held = adopted({"nvidia.com/gpu": 2}, annotations)

    assert [share.minor for share in held.shares] == [0]
    assert held.unknown_types == ("gpu",)
    assert held.faults[0].endswith("names fewer GPUs than the pod asks for: asked=2, named=1")


def test_whole_cards_are_held_alone() -> None:
    """The Pod's request says whether the card is its own; without one the ratio does."""
    annotation = {"gpu": [entry(1, "GPU-1", core=100, memory="24Gi", ratio=100)]}

    assert adopted({"nvidia.com/gpu": 1}, {ALLOCATED: annotation}).shares[0].exclusive
    assert adopted({}, {ALLOCATED: annotation}).shares[0].exclusive
    shared = adopted({CORE: 100, MEMORY: "24Gi"}, {ALLOCATED: annotation})
    assert not shared.shares[0].exclusive


def test_the_proposals_annotation_is_read() -> None:
    """Koordinator contract 2.2: `resouurces` and `kubernetes.io/` names, no ids."""
    text = (
        '{"gpu":[{"minor":0,"resouurces":{"kubernetes.io/gpu-core":100,'
        '"kubernetes.io/gpu-mem-ratio":100,"kubernetes.io/gpu-mem":"16Gi"}}]}'
    )

    held = adopted({"kubernetes.io/gpu": 100}, {ALLOCATED: text})

    assert held.shares == (
        share(
            0,
            core_percent=100,
            memory_bytes=16 * GIB,
            memory_ratio_percent=100,
            exclusive=True,
        ),
    )


def test_a_card_is_its_id_not_its_minor() -> None:
    """Design section 8: a device is (machine, UUID); the one of that minor is held in case."""
    held = adopted({"nvidia.com/gpu": 1}, {ALLOCATED: {"gpu": [entry(0, "GPU-2", ratio=100)]}})

    assert [(item.minor, item.device_id) for item in held.shares] == [(0, "GPU-0"), (2, "GPU-2")]


def test_a_nic_named_without_an_amount_is_held_whole() -> None:
    """As a card is; a virtual function of it says by itself what is held."""
    vf = {"extension": {"vfs": [{"minor": 4, "busID": "0000:5e:01.4"}]}}
    bare, of_vf = (
        adopted({"koordinator.sh/rdma": 1}, {ALLOCATED: {"rdma": [{"minor": 11, **more}]}})
        for more in ({}, vf)
    )

    assert (bare.shares[0].core_percent, of_vf.shares[0].core_percent) == (100, 0)


def test_a_card_that_left_is_an_unknown_card() -> None:
    """Another card at the same minor is not the holder's: the node is closed for the type."""
    annotation = {"gpu": [entry(0, "GPU-old", ratio=100), entry(1, "GPU-1", ratio=100)]}

    held = adopted({"nvidia.com/gpu": 2}, {ALLOCATED: annotation})

    assert [item.minor for item in held.shares] == [1]
    assert held.unknown_types == ("gpu",)


def test_without_ids_the_minor_counts() -> None:
    """An inventory that the Node advertises has no ids to compare."""
    held = adopted(
        {"nvidia.com/gpu": 1}, {ALLOCATED: {"gpu": [entry(1, "GPU-x", ratio=100)]}}, facts=NO_IDS
    )

    assert [item.key for item in held.shares] == [("gpu", 1)]


def test_mgpu_indexes_take_the_containers_request() -> None:
    """GPU-sharing contract A.5: a part per card, whole cards with their memory, merged by card."""
    body = running(
        container("c0", limits={MGPU_CORE: 30, MGPU_MEMORY: 2048}),
        container("c1", limits={MGPU_CORE: 40, MGPU_MEMORY: 4096}),
        container("c2", limits={MGPU_CORE: 200}),
        annotations={f"{INDEX}c0": "1", f"{INDEX}c1": "1", f"{INDEX}c2": "3,2"},
    )

    held = adopt(body, FOUR_CARDS)

    assert held.source == "gpu-index-container"
    assert held.dialect == "mgpu"
    first, second, third = held.shares
    assert (first.minor, first.core_percent, first.memory_bytes) == (1, 70, 6144 * MIB)
    assert (first.instances, first.exclusive) == (2, False)
    assert [part.container for part in first.containers] == ["c0", "c1"]
    assert [(item.minor, item.core_percent, item.memory_bytes) for item in (second, third)] == [
        (2, 100, 24 * GIB),
        (3, 100, 24 * GIB),
    ]
    assert second.exclusive


def test_a_multi_card_mgpu_container_holds_an_equal_part_of_each() -> None:
    """GPU-sharing contract A.5; a device UUID names a card as an index does (A.6)."""
    annotations = {"vke.volcengine.com/container-multiple-gpu": "2", f"{INDEX}main": "GPU-0,GPU-3"}

    held = adopted({MGPU_CORE: 100, MGPU_MEMORY: 2048}, annotations)

    assert held.shares == (
        share(
            0,
            core_percent=50,
            memory_bytes=GIB,
            memory_ratio_percent=4,
            containers=main(50, GIB),
        ),
        share(
            3,
            core_percent=50,
            memory_bytes=GIB,
            memory_ratio_percent=4,
            containers=main(50, GIB),
        ),
    )


def test_mgpu_ordinals_are_read() -> None:
    """GPU-sharing contract A.6: `...-0` when no container has that name."""
    held = adopted({MGPU_CORE: 100}, {f"{INDEX}0": "2"})

    assert [item.minor for item in held.shares] == [2]


def test_gpu_share_of_the_second_generation() -> None:
    """GPU-sharing contract B.1: container -> card -> units, on several cards."""
    body = running(
        container("a", limits={GPU_MEM: 1024}),
        container("b", limits={GPU_MEM: 7168}),
        annotations={V2: {"0": {"1": 1024}, "1": {"1": 3072, "2": 4096}}, IDX: "3"},
    )

    held = adopt(body, FOUR_CARDS)

    assert held.source == "gpushare-v2"
    assert [(item.minor, item.memory_bytes, item.instances) for item in held.shares] == [
        (1, 4 * GIB, 2),
        (2, 4 * GIB, 1),
    ]
    assert all(item.core_percent == 0 for item in held.shares)


@pytest.mark.parametrize("key", [IDX, "ALIYUN_GPU_ID"])
def test_gpu_share_of_the_first_generation(key: str) -> None:
    """GPU-sharing contract B.1: the index with the sum of limits; the proposal's name too."""
    held = adopted({GPU_MEM: 8138}, {key: "1"})

    assert held.source == "gpushare-v1"
    assert [(item.minor, item.memory_bytes) for item in held.shares] == [(1, 8138 * MIB)]
    assert held.dialect == "gpushare"


def test_gpu_share_in_gibibytes() -> None:
    """GPU-sharing contract B.5."""
    body = running(container(limits={GPU_MEM: 3}), annotations={IDX: "0"})

    held = adopt(body, FOUR_CARDS, Vocabulary(gpushare_unit="GiB"))

    assert held.shares[0].memory_bytes == 3 * GIB


def test_gpu_share_without_limits_takes_its_annotation() -> None:
    """A Pod whose request is gone still holds what was written for it."""
    held = adopted({}, {IDX: "0", "ALIYUN_COM_GPU_MEM_POD": "2048"})

    assert held.shares[0].memory_bytes == 2 * GIB


@pytest.mark.parametrize(
    "annotations", [{}, {IDX: "-1"}, {V2: "{"}], ids=["none", "-1", "broken v2"]
)
def test_a_card_is_never_guessed(annotations: Object) -> None:
    """GPU-sharing contract B.1: pending, never card 0; cli.md: the card is unknown."""
    held = adopted({GPU_MEM: 1024}, annotations)

    assert (held.source, held.shares, held.unknown_types) == ("", (), ("gpu",))


def test_gpu_share_without_any_amount_holds_all_of_its_card() -> None:
    """Nobody says how much: a card never looks emptier than it is, and the gap is named."""
    held = adopted({}, {IDX: "1"})

    assert [(one.minor, one.memory_bytes) for one in held.shares] == [(1, 24 * GIB)]
    assert held.shares[0].exclusive
    assert held.faults == ("gpushare-v1 names no amount of gpu 1",)


def test_the_topology_annotation_names_whole_cards_by_container() -> None:
    """Koordinator GPU-topology proposal, "Record the allocation information"."""
    body = running(
        container("a", limits={"nvidia.com/gpu": 1}),
        container("b", limits={"nvidia.com/gpu": 2}),
        annotations={TOPOLOGY: {"allocatedGPUs": {"0": ["3"], "1": ["0", "1"]}, "visibleGPUs": []}},
    )

    held = adopt(body, FOUR_CARDS)

    assert held.source == "topology"
    assert [(item.minor, item.containers[0].container) for item in held.shares] == [
        (0, "b"),
        (1, "b"),
        (3, "a"),
    ]
    assert all(item.exclusive and item.memory_bytes == 24 * GIB for item in held.shares)


def test_the_topology_annotation_of_a_shared_card_takes_the_request() -> None:
    """A Pod that asks for half of each card holds half."""
    held = adopted(
        {CORE: 100, RATIO: 100, "koordinator.sh/gpu.shared": 2},
        {TOPOLOGY: {"allocatedGPUs": {"0": ["0", "1"]}}},
    )

    assert [(item.core_percent, item.memory_bytes) for item in held.shares] == [(50, 12 * GIB)] * 2


def checkpoints(*entries: Object) -> Object:
    """Return a Device object with these entries."""
    return device(annotations={CHECKPOINTS: [{"podUID": "u1", **item} for item in entries]})


def test_kubelets_checkpoint_names_whole_cards() -> None:
    """Koordinator contract 2.7; entries of other Pods are theirs."""
    item = checkpoints(
        {"containerName": "main", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-2"]},
        {"podUID": "u2", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-3"]},
    )

    held = adopted({"nvidia.com/gpu": 1}, devices=item)

    assert held.source == "devices-checkpoints"
    assert held.shares == (
        share(
            2,
            core_percent=100,
            memory_bytes=24 * GIB,
            memory_ratio_percent=100,
            exclusive=True,
            containers=main(100, 24 * GIB),
        ),
    )


def test_an_id_that_the_checkpoint_lacks_is_an_unknown_card() -> None:
    """Two cards were asked for and kubelet's file, perhaps an old one, names one."""
    item = checkpoints(
        {"containerName": "main", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-2"]}
    )

    held = adopted({"nvidia.com/gpu": 2}, devices=item)

    assert ([share.minor for share in held.shares], held.unknown_types) == ([2], ("gpu",))


def test_replicas_of_one_card_are_that_card() -> None:
    """GPU-sharing contract D.2: `<id>::<n>`; the last separator counts."""
    item = checkpoints({"resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-2::0", "GPU-2::11"]})

    assert [one.minor for one in adopted({"nvidia.com/gpu": 2}, devices=item).shares] == [2]


def test_units_of_gpu_share_memory_are_counted() -> None:
    """GPU-sharing contract B.5: one fake device per unit, `<UUID>-_-<n>`."""
    ids = [f"GPU-1-_-{number}" for number in range(512)]
    item = checkpoints({"resourceName": GPU_MEM, "deviceIDs": ids})

    held = adopted({GPU_MEM: 512}, devices=item)

    assert [(one.minor, one.memory_bytes) for one in held.shares] == [(1, 512 * MIB)]


def test_an_init_container_and_the_main_one_share_what_kubelet_gave_them() -> None:
    """Design section 3: init containers reuse devices, and kubelet's file names them twice."""
    item = checkpoints(
        {
            "containerName": "prep",
            "resourceName": "nvidia.com/gpu",
            "deviceIDs": ["GPU-0", "GPU-1"],
        },
        {"containerName": "main", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-0"]},
    )
    body = running(
        container("main", limits={"nvidia.com/gpu": 1}),
        init=[container("prep", limits={"nvidia.com/gpu": 2})],
    )

    held = adopt(body, FOUR_CARDS, Vocabulary(), decode_witnesses(item))

    assert [
        (one.minor, one.core_percent, one.memory_bytes, one.instances) for one in held.shares
    ] == [(0, 100, 24 * GIB, 1), (1, 100, 24 * GIB, 1)]
    assert [[part.index for part in one.containers] for one in held.shares] == [
        ["init-0", "0"],
        ["init-0"],
    ]
    assert (held.unknown_types, held.faults) == ((), ())


def test_units_that_an_init_container_had_are_the_main_ones_too() -> None:
    """The union of kubelet's ids is held: two of the three ids are named by both containers."""
    item = checkpoints(
        {"containerName": "prep", "resourceName": GPU_MEM, "deviceIDs": _units(1, 0, 3)},
        {"containerName": "side", "resourceName": GPU_MEM, "deviceIDs": _units(1, 3, 4)},
        {"containerName": "main", "resourceName": GPU_MEM, "deviceIDs": _units(1, 0, 2)},
    )
    body = running(
        container("main", limits={GPU_MEM: 2}),
        init=[container("prep", limits={GPU_MEM: 3}), sidecar("side", limits={GPU_MEM: 1})],
    )

    (held,) = adopt(body, FOUR_CARDS, Vocabulary(), decode_witnesses(item)).shares

    assert (held.memory_bytes, held.instances) == (4 * MIB, 2)
    assert [(part.index, part.memory_bytes) for part in held.containers] == [
        ("init-0", 3 * MIB),
        ("init-1", 1 * MIB),
        ("0", 2 * MIB),
    ]


def test_an_id_that_kubelet_names_twice_is_one_card() -> None:
    """Three were asked for at once; the file, perhaps an old one, tells of two of them."""
    item = checkpoints(
        {
            "containerName": "prep",
            "resourceName": "nvidia.com/gpu",
            "deviceIDs": ["GPU-0", "GPU-1"],
        },
        {"containerName": "main", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-0"]},
    )
    body = running(
        container("main", limits={"nvidia.com/gpu": 1}),
        init=[container("prep", limits={"nvidia.com/gpu": 3})],
    )

    held = adopt(body, FOUR_CARDS, Vocabulary(), decode_witnesses(item))

    assert held.unknown_types == ("gpu",)
    assert held.faults == (
        "devices-checkpoints names fewer GPUs than the pod asks for: asked=3, named=2",
    )


def _units(card: int, first: int, end: int) -> list[str]:
    """Return ids of memory units of a card."""
    return [f"GPU-{card}-_-{number}" for number in range(first, end)]


def test_an_id_of_no_card_is_an_unknown_card() -> None:
    """Kubelet gave away something that the Device object does not list."""
    item = checkpoints({"resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-9"]})

    held = adopted({"nvidia.com/gpu": 1}, devices=item)

    assert (held.source, held.shares, held.unknown_types) == ("devices-checkpoints", (), ("gpu",))


def test_other_resources_in_a_checkpoint_are_no_devices_of_ours() -> None:
    """Kubelet lists every plugin's devices."""
    item = checkpoints({"resourceName": "example.com/dongle", "deviceIDs": ["x"]})

    assert adopted({"nvidia.com/gpu": 1}, devices=item).source == ""


ORDER = [ALLOCATED, INDEX, V2, IDX, TOPOLOGY, CHECKPOINTS]
SOURCES = [
    "device-allocated",
    "gpu-index-container",
    "gpushare-v2",
    "gpushare-v1",
    "topology",
    "devices-checkpoints",
]


@pytest.mark.parametrize("first", range(6), ids=SOURCES)
def test_the_first_source_that_exists_counts(first: int) -> None:
    """cli.md, Running Pods: the order of the sources, whatever the later ones say."""
    annotations: Object = {
        ALLOCATED: {"gpu": [entry(0, "GPU-0", ratio=100)]},
        f"{INDEX}main": "0",
        V2: {"0": {"0": 1}},
        IDX: "0",
        TOPOLOGY: {"allocatedGPUs": {"0": ["0"]}},
    }
    later = dict(list(annotations.items())[first:])
    item = checkpoints({"resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-0"]})

    held = adopted({"nvidia.com/gpu": 1}, later, devices=item)

    assert held.source == SOURCES[first]
    assert [one.minor for one in held.shares] == [0]


def test_a_plain_nvidia_pod_holds_an_unknown_card() -> None:
    """cli.md: any cluster's dump can be shown; the holder is named, its card is not."""
    held = adopted({"nvidia.com/gpu": 2, "koordinator.sh/rdma": 50, "cpu": 1})

    assert (held.source, held.shares) == ("", ())
    assert held.unknown_types == ("gpu", "rdma")
    assert (held.cpu_milli, held.dialect) == (1000, "nvidia")


def test_a_type_that_the_source_does_not_name_is_unknown() -> None:
    """The first source counts for the whole Pod; what it leaves out nobody knows."""
    held = adopted(
        {"nvidia.com/gpu": 1, "koordinator.sh/rdma": 50},
        {ALLOCATED: {"gpu": [entry(0, "GPU-0", ratio=100)]}},
    )

    assert held.unknown_types == ("rdma",)


def test_a_pod_without_devices_holds_cpu_and_memory() -> None:
    """cli.md: cpu, memory and Pod count always count."""
    held = adopted({"cpu": 3, "memory": "1Gi"})

    assert (held.cpu_milli, held.memory_bytes) == (3000, GIB)
    assert (held.source, held.shares, held.unknown_types, held.dialect) == ("", (), (), "")


def test_a_running_pod_that_breaks_our_rules_is_adopted() -> None:
    """It runs: dialects mixed, shares that no rule allows, wishes that are not built."""
    limits = {"koordinator.sh/gpu": 150, "nvidia.com/gpu": 1}
    annotations = {
        ALLOCATED: {"gpu": [entry(0, "GPU-0", core=50, memory="12Gi", ratio=50)]},
        "scheduling.koordinator.sh/gpu-partition-spec": "{}",
    }

    held = adopted(limits, annotations)

    assert [(one.minor, one.core_percent) for one in held.shares] == [(0, 50)]
    assert held.unknown_types == ()


def test_cpus_come_from_the_status_else_from_kubelet() -> None:
    """cli.md, Running Pods."""
    topology = nrt(pod_cpu_allocs=[{"uid": "u1", "cpuset": "6-7", "managedByKubelet": True}])

    ours = adopted({"cpu": 2}, {STATUS: {"cpuset": "0-1"}}, topology=topology)
    kubelets = adopted({"cpu": 2}, {STATUS: {}}, topology=topology)

    assert ours.cpuset == parse_cpuset("0-1")
    assert kubelets.cpuset == parse_cpuset("6-7")
    assert not adopted({"cpu": 2}).cpuset


BROKEN = {
    "an allocation that is no JSON": ({ALLOCATED: "{"}, ALLOCATED),
    "an entry without a minor": ({ALLOCATED: {"gpu": [{"id": "GPU-0"}]}}, "gpu[0].minor"),
    "a status that is no JSON": ({STATUS: "["}, STATUS),
    "a topology that is no JSON": ({TOPOLOGY: "x"}, TOPOLOGY),
}


@pytest.mark.parametrize(("annotations", "field"), BROKEN.values(), ids=BROKEN)
def test_an_unreadable_allocation_names_its_annotation(annotations: Object, field: str) -> None:
    """cli.md, exit code 2: JSON that does not parse in an annotation of ours."""
    with pytest.raises(InputError) as caught:
        adopted({"nvidia.com/gpu": 1}, annotations)

    assert field in caught.value.field


@pytest.mark.parametrize(
    ("annotations", "source"),
    [
        pytest.param({f"{INDEX}old": "0"}, "gpu-index-container", id="a container that is gone"),
        pytest.param({f"{INDEX}main": "0, 1"}, "gpu-index-container", id="a list with a blank"),
        pytest.param({IDX: "abc"}, "gpushare-v1", id="an index that is no number"),
        pytest.param(
            {IDX: "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "maybe"},
            "gpushare-v1",
            id="a flag that is no flag",
        ),
        pytest.param(
            {IDX: "0", "ALIYUN_COM_GPU_MEM_POD": "lots"},
            "gpushare-v1",
            id="an amount that is no number",
        ),
    ],
)
def test_plain_text_that_names_no_card_leaves_the_card_unknown(
    annotations: Object, source: str
) -> None:
    """cli.md, exit code 2 is for JSON that does not parse; here the node closes for the type."""
    held = adopted({}, annotations)

    assert (held.source, held.shares, held.unknown_types) == (source, (), ("gpu",))


def test_an_odd_amount_without_a_card_is_no_source() -> None:
    """Where no card is named, the next source is asked."""
    held = adopted({}, {"ALIYUN_COM_GPU_MEM_POD": "lots"})

    assert (held.source, held.unknown_types) == ("", ())


def test_the_snapshot_is_taken_of_adopted_pods_too() -> None:
    """Design section 8."""
    body = running(
        container(limits={"nvidia.com/gpu": 1}),
        labels={"team": "a", "koordinator.sh/qosClass": "LS"},
        priority=9000,
    )

    snapshot = adopt(body, FOUR_CARDS).snapshot

    assert (snapshot.labels, snapshot.qos, snapshot.priority) == ({"team": "a"}, "LS", 9000)
    assert snapshot.original == {"main.nvidia.com/gpu": "1"}


def test_the_snapshot_tells_init_containers_and_sidecars_in_their_order() -> None:
    """Design section 3: what a Pod asks for in sum depends on it; who asks for nothing is left."""
    body = running(
        container(limits={"nvidia.com/gpu": 1}),
        init=[
            sidecar("z", limits={"nvidia.com/gpu": 1}),
            container("idle"),
            container("a", limits={"nvidia.com/gpu": 2}),
        ],
    )

    snapshot = adopt(body, FOUR_CARDS).snapshot

    assert snapshot.init_containers == ("sidecar/z", "init/a")
    assert snapshot.kinds == {"z": "sidecar", "a": "init"}


def test_a_name_that_is_too_long_to_record_leaves_what_is_held_beside_it() -> None:
    """A stranger's annotation: the card is held, and what has the long name is unknown."""
    long = "x" * 300
    words = {"gpu": [entry(0, core=100, ratio=100)], long: [entry(0)], f"{long}y": [entry(1)]}

    held = adopted({CORE: 100, RATIO: 100}, {ALLOCATED: words})

    assert [share.minor for share in held.shares] == [0]
    assert all(len(name) <= 253 for name in held.unknown_types)
    assert len(set(held.unknown_types)) == 2
