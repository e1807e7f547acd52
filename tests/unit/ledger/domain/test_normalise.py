from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations

import pytest

from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
    LabelSelector,
    TopologyScope,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import InputError, RefusedError
from ledger.domain.request.isolation import provider_of
from ledger.domain.request.normalise import decode_pod, examine_pod
from ledger.domain.request.requests import (
    ContainerNeed,
    CpuSetDemand,
    DeviceDemand,
    GangRef,
    GroupRef,
    MatchExpression,
)
from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Object, container, gpu_pod, pod, sidecar

GPU = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
RDMA = "koordinator.sh/rdma"
MGPU_CORE = "vke.volcengine.com/mgpu-core"
MGPU_MEMORY = "vke.volcengine.com/mgpu-memory"
COUNTS = "vke.volcengine.com/container-multiple-gpu"
GPU_MEM = "aliyun.com/gpu-mem"
QOS = "koordinator.sh/qosClass"
VENDOR = "node.koordinator.sh/gpu-vendor"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
NUMA = "scheduling.koordinator.sh/numa-topology-spec"
SPEC = "scheduling.koordinator.sh/resource-spec"
GROUP = "gputopology.scheduling.koordinator.sh/name"
REPLICA = "gputopology.scheduling.koordinator.sh/replica"
GANG = "gang.scheduling.koordinator.sh/name"
MIN_AVAILABLE = "gang.scheduling.koordinator.sh/min-available"
GIB = 2**30
MIB = 2**20


def demand(
    count: int = 1,
    device_type: str = "gpu",
    *,
    core_percent: int = 0,
    memory_bytes: int = 0,
    memory_ratio_percent: int = 0,
) -> DeviceDemand:
    """Return a demand of container 0; exclusive when it takes whole cards."""
    return DeviceDemand(
        device_type=device_type,
        count=count,
        core_percent=core_percent,
        memory_bytes=memory_bytes,
        memory_ratio_percent=memory_ratio_percent,
        exclusive=memory_ratio_percent == 100,
        containers=("0",),
    )


def whole(count: int) -> DeviceDemand:
    """Return a demand for whole cards."""
    return demand(count, core_percent=100, memory_ratio_percent=100)


def refusal(body: Object, settings: Vocabulary | None = None) -> dict[str, str]:
    """Return field -> message of every violation."""
    with pytest.raises(RefusedError) as caught:
        decode_pod(body, settings or Vocabulary())
    return {error.field: error.message for error in caught.value.errors}


KOORDINATOR = {
    "gpu 35": ({GPU: 35}, demand(core_percent=35, memory_ratio_percent=35)),
    "gpu 100": ({GPU: 100}, whole(1)),
    "gpu 400": ({GPU: 400}, whole(4)),
    "core 300, ratio 300": ({CORE: 300, RATIO: 300}, whole(3)),
    "core 35, ratio 35": (
        {CORE: 35, RATIO: 35},
        demand(core_percent=35, memory_ratio_percent=35),
    ),
    "shared 4, core 200, ratio 240": (
        {SHARED: 4, CORE: 200, RATIO: 240},
        demand(4, core_percent=50, memory_ratio_percent=60),
    ),
    "shared 2, ratio 200": ({SHARED: 2, RATIO: 200}, demand(2, memory_ratio_percent=100)),
    "memory 10Gi": ({MEMORY: "10Gi"}, demand(memory_bytes=10 * GIB)),
    "core 200, memory 40Gi becomes two cards": (
        {CORE: 200, MEMORY: "40Gi"},
        demand(2, core_percent=100, memory_bytes=20 * GIB),
    ),
    "shared 3, core 90, memory 9Gi": (
        {SHARED: 3, CORE: 90, MEMORY: "9Gi"},
        demand(3, core_percent=30, memory_bytes=3 * GIB),
    ),
    "core 30, memory 6Gi": (
        {CORE: 30, MEMORY: "6Gi"},
        demand(core_percent=30, memory_bytes=6 * GIB),
    ),
    "ratio 500": ({RATIO: 500}, demand(5, memory_ratio_percent=100)),
    "core 300, memory 90Gi": (
        {CORE: 300, MEMORY: "90Gi"},
        demand(3, core_percent=100, memory_bytes=30 * GIB),
    ),
    "core 90, ratio 60, shared 3": (
        {CORE: 90, RATIO: 60, SHARED: 3},
        demand(3, core_percent=30, memory_ratio_percent=20),
    ),
    "core 50, ratio 60 (proposal)": (
        {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory-ratio": 60},
        demand(core_percent=50, memory_ratio_percent=60),
    ),
    "core 60, memory 4Gi (proposal)": (
        {"kubernetes.io/gpu-core": 60, "kubernetes.io/gpu-memory": "4Gi"},
        demand(core_percent=60, memory_bytes=4 * GIB),
    ),
    "half a card (proposal)": (
        {"kubernetes.io/gpu": "50"},
        demand(core_percent=50, memory_ratio_percent=50),
    ),
    "the proposal's misspelt names": (
        {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-mem-ratio": 60},
        demand(core_percent=50, memory_ratio_percent=60),
    ),
    "a zero beside an amount": ({CORE: 0, MEMORY: "1Gi"}, demand(memory_bytes=GIB)),
}


@pytest.mark.parametrize(("limits", "expected"), KOORDINATOR.values(), ids=KOORDINATOR)
def test_koordinator_keys_become_one_demand(limits: Object, expected: DeviceDemand) -> None:
    """Koordinator contract 4.3, 4.4 and 5.1, every row; the proposal's scenarios."""
    request = decode_pod(gpu_pod(limits))

    assert request.devices == (expected,)
    assert request.dialect is Dialect.KOORDINATOR
    assert request.containers == (
        ContainerNeed(name="main", index="0", kind="app", device_counts=(("gpu", expected.count),)),
    )


@pytest.mark.parametrize(("limits", "expected"), KOORDINATOR.values(), ids=KOORDINATOR)
def test_limits_and_requests_say_the_same(limits: Object, expected: DeviceDemand) -> None:
    """cli.md, Defaults: either side is filled from the other."""
    assert decode_pod(pod(container(requests=limits))).devices == (expected,)


def test_nvidia_cards_are_whole_and_alone() -> None:
    """Koordinator contract 4.3: `nvidia.com/gpu: 3` is core 300 and ratio 300 on 3 cards."""
    request = decode_pod(gpu_pod({"nvidia.com/gpu": 3, "cpu": "4", "memory": "8Gi"}))

    assert request.devices == (whole(3),)
    assert request.dialect is Dialect.NVIDIA
    assert (request.cpu_milli, request.memory_bytes) == (4000, 8 * GIB)


@pytest.mark.parametrize("name", ["amd.com/gpu", "dcu.com/gpu"])
def test_other_vendors_cards_never_land_on_a_known_vendors_node(name: str) -> None:
    """Koordinator contract 4.3 converts them; 1.2 names the vendors whose cards they are not."""
    request = decode_pod(gpu_pod({name: 2}))

    assert request.devices == (whole(2),)
    assert request.dialect is Dialect.KOORDINATOR  # what a node advertises as nvidia.com/gpu is not
    assert request.placement.affinity_terms == (
        (
            MatchExpression(key=VENDOR, operator="Exists", values=()),
            MatchExpression(
                key=VENDOR,
                operator="NotIn",
                values=("", "baidu", "cambricon", "huawei", "metax", "nvidia"),
            ),
        ),
    )


def test_nvidias_cards_are_on_nodes_of_no_other_vendor() -> None:
    """Koordinator contract 1.2: no vendor label and an empty one are read as nvidia."""
    request = decode_pod(gpu_pod({"nvidia.com/gpu": 1}))

    assert request.placement.affinity_terms == (
        (MatchExpression(key=VENDOR, operator="DoesNotExist", values=()),),
        (MatchExpression(key=VENDOR, operator="In", values=("", "nvidia")),),
    )


@pytest.mark.parametrize("name", ["nvidia.com/gpu", RDMA, GPU_MEM, CORE, MEMORY])
def test_zero_asks_for_nothing(name: str) -> None:
    """Koordinator contract 4.1: zero entries are removed."""
    request = decode_pod(gpu_pod({name: 0}))

    assert request.devices == ()
    assert request.containers == ()
    assert request.dialect is None


def test_a_pod_without_devices_asks_for_none() -> None:
    """Only CPU and memory count."""
    request = decode_pod(gpu_pod({"cpu": "1", "example.com/dongle": 3}))

    assert (request.devices, request.dialect, request.cpuset) == ((), None, None)


REFUSED_KOORDINATOR = {
    "ratio 250": ({RATIO: 250}, RATIO, "200 and 300"),
    "gpu 150": ({GPU: 150}, GPU, "the requested GPU must be percentage of 100"),
    "gpu 0": ({GPU: 0}, GPU, "the requested GPU must be greater than zero"),
    "gpu and shared": ({GPU: 50, SHARED: 1}, GPU, "Forbidden declare GPU and GPU share"),
    "shared 0": ({SHARED: 0, MEMORY: "1Gi"}, SHARED, "must be greater than zero"),
    "shared alone": ({SHARED: 2}, SHARED, "all is zero"),
    "core 100 over three cards": ({CORE: 100, RATIO: 99, SHARED: 3}, CORE, "gpuCore"),
    "110 of each card": ({CORE: 330, MEMORY: "60Gi", SHARED: 3}, CORE, "more than 300"),
    "core alone": ({CORE: 50}, CORE, "invalid resource device requests"),
    "memory and ratio": ({MEMORY: "1Gi", RATIO: 50}, MEMORY, "invalid resource device requests"),
    "gpu beside core": ({GPU: 50, CORE: 50}, GPU, "invalid resource device requests"),
    "10Gi over three cards": (
        {SHARED: 3, CORE: 90, MEMORY: "10Gi"},
        MEMORY,
        "10737418239 and 10737418242",
    ),
    "10Gi over three cards by core": ({CORE: 300, MEMORY: "10Gi"}, MEMORY, "3 cards"),
    "AI cores that do not divide": (
        {"huawei.com/npu-core": 17, RATIO: 200},
        "huawei.com/npu-core",
        "must be a multiple of the 2 cards",
    ),
    "several cards by a template": (
        {SHARED: 2, "huawei.com/npu-core": 4, "huawei.com/npu-cpu": 4, MEMORY: "2Gi"},
        SHARED,
        "must be at most 1",
    ),
    "rdma 150": ({RDMA: 150}, RDMA, "invalid resource unit koordinator.sh/rdma: 150"),
}


@pytest.mark.parametrize(
    ("limits", "name", "fact"), REFUSED_KOORDINATOR.values(), ids=REFUSED_KOORDINATOR
)
def test_broken_koordinator_requests_name_the_key(limits: Object, name: str, fact: str) -> None:
    """Koordinator contract 4.2, 5.2 and Q13."""
    errors = refusal(gpu_pod(limits))

    assert fact in errors[f"spec.containers[0].resources.requests[{name}]"]


def test_violations_of_all_containers_come_at_once() -> None:
    """Koordinator contract 5.2: all problems are collected."""
    body = pod(
        container("a", limits={GPU: 150}),
        container("b", limits={CORE: 50}),
        init=[container("i", limits={RATIO: 250})],
        labels={QOS: "LSR"},
        annotations={HINT: {"gpu": {"vfSelector": {}}}},
    )

    assert set(refusal(body)) == {
        f"spec.containers[0].resources.requests[{GPU}]",
        f"spec.containers[1].resources.requests[{CORE}]",
        f"spec.initContainers[0].resources.requests[{RATIO}]",
        "spec.containers[0].resources.requests[cpu]",
        f"metadata.annotations[{HINT}].gpu.vfSelector",
    }


def test_two_containers_of_one_share_are_two_cards() -> None:
    """Koordinator contract 4.1: after the webhook each carries one card of its own."""
    request = decode_pod(pod(container("a", limits={GPU: 30}), container("b", limits={GPU: 30})))

    assert request.devices == (
        DeviceDemand(
            device_type="gpu",
            count=2,
            core_percent=30,
            memory_ratio_percent=30,
            containers=("0", "1"),
        ),
    )
    assert [need.device_counts for need in request.containers] == [(("gpu", 1),)] * 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({GPU: 30}, {GPU: 70}, id="30 and 70 percent"),
        pytest.param({GPU: 100}, {GPU: 50}, id="a card and half a card"),
        pytest.param({MEMORY: "4Gi"}, {MEMORY: "6Gi"}, id="4 and 6 GiB"),
        pytest.param({MEMORY: "4Gi"}, {CORE: 10, MEMORY: "4Gi"}, id="with and without core"),
        pytest.param({MEMORY: "4Gi"}, {RATIO: 50}, id="bytes and ratio"),
    ],
)
def test_different_shares_in_one_pod_are_refused(first: Object, second: Object) -> None:
    """Koordinator contract 4.1, ours: neither container's own number would survive."""
    errors = refusal(pod(container("a", limits=first), container("b", limits=second)))

    assert list(errors) == ["spec.containers[1].resources.requests"]
    assert "different shared amounts" in errors["spec.containers[1].resources.requests"]


def test_containers_with_different_numbers_of_whole_cards_add_up() -> None:
    """Two cards here and one there are three cards, for the share of each is the same."""
    request = decode_pod(pod(container("a", limits={GPU: 200}), container("b", limits={GPU: 100})))

    assert request.devices[0].count == 3
    assert [need.device_counts for need in request.containers] == [(("gpu", 2),), (("gpu", 1),)]


def test_init_containers_reuse_the_cards_of_the_pod() -> None:
    """Design section 3: max(apps + sidecars, one init container); in the order they start."""
    body = pod(
        container("a", limits={"nvidia.com/gpu": 1}),
        init=[
            container("i", limits={"nvidia.com/gpu": 4}),
            sidecar("s", limits={"nvidia.com/gpu": 2}),
        ],
    )

    request = decode_pod(body)

    assert request.devices[0].count == 4
    assert [(need.name, need.kind, need.device_counts) for need in request.containers] == [
        ("i", "init", (("gpu", 4),)),
        ("s", "sidecar", (("gpu", 2),)),
        ("a", "app", (("gpu", 1),)),
    ]


def test_a_sidecar_before_an_init_container_adds_to_it() -> None:
    """Design section 3."""
    body = pod(
        container("a", limits={"nvidia.com/gpu": 1}),
        init=[
            sidecar("s", limits={"nvidia.com/gpu": 2}),
            container("i", limits={"nvidia.com/gpu": 4}),
        ],
    )

    assert decode_pod(body).devices[0].count == 6


def test_a_larger_init_container_raises_the_share() -> None:
    """Design section 3: an init container that needs a whole card makes the Pod hold one."""
    body = pod(container(limits={GPU: 50}), init=[container("i", limits={GPU: 100})])

    assert decode_pod(body).devices[0].core_percent == 100


def test_an_init_container_that_the_aggregate_cannot_serve_is_refused() -> None:
    """The Pod would hold two halves, the init container needs one whole card."""
    body = pod(
        container("a", limits={GPU: 50}),
        container("b", limits={GPU: 50}),
        init=[container("i", limits={GPU: 100})],
    )

    errors = refusal(body)

    assert "core 50, memory ratio 50" in errors["spec.initContainers[0].resources.requests"]


DIALECTS: dict[str, Object] = {
    "nvidia": {"nvidia.com/gpu": 1},
    "koordinator": {GPU: 50},
    "the proposal": {"kubernetes.io/gpu": 50},
    "mgpu": {MGPU_CORE: 100},
    "mgpu of nothing": {MGPU_CORE: 0},
    "gpushare": {GPU_MEM: 1024},
}
ONE_DIALECT = [{"koordinator", "the proposal"}, {"mgpu", "mgpu of nothing"}]
MIXED = [
    pytest.param(DIALECTS[first], DIALECTS[second], id=f"{first} and {second}")
    for first, second in permutations(DIALECTS, 2)
    if {first, second} not in ONE_DIALECT
]


@pytest.mark.parametrize(("first", "second"), MIXED)
def test_a_pod_speaks_one_gpu_dialect(first: Object, second: Object) -> None:
    """Design section 3: a Pod that mixes GPU dialects is refused, in one container or in two."""
    together = pod(container(limits={**first, **second}))
    apart = pod(container("a", limits=first), init=[container("i", limits=second)])

    for body in (together, apart):
        assert any("one dialect only" in message for message in refusal(body).values())


def test_rdma_goes_with_every_dialect() -> None:
    """Koordinator contract 4.2, worked: `nvidia 1 + rdma 50`."""
    request = decode_pod(gpu_pod({"nvidia.com/gpu": 1, RDMA: 50, "kubernetes.io/fpga": 100}))

    assert request.devices == (
        whole(1),
        demand(device_type="fpga", core_percent=100),
        demand(device_type="rdma", core_percent=50),
    )
    assert request.containers[0].device_counts == (("gpu", 1), ("fpga", 1), ("rdma", 1))


UNITS = {
    "300 are three NICs": (300, {}, 3, 100, False),
    "50 are half of one": (50, {}, 1, 50, False),
    "5 as count": (5, {"allocateStrategy": "RequestsAsCount"}, 5, 1, False),
    "5 as count, alone": (
        5,
        {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"},
        5,
        100,
        True,
    ),
    "300 as count are three NICs": (300, {"allocateStrategy": "RequestsAsCount"}, 3, 100, False),
    "100 as count are a hundred": (100, {"allocateStrategy": "RequestsAsCount"}, 100, 1, False),
    "the empty selector": (50, {"selector": {}}, 1, 50, False),
}


@pytest.mark.parametrize(("percent", "hint", "count", "each", "alone"), UNITS.values(), ids=UNITS)
def test_secondary_devices_follow_their_hint(
    percent: int, hint: Object, count: int, each: int, *, alone: bool
) -> None:
    """Koordinator contract 8.3, every row that the plain allocator honours."""
    request = decode_pod(gpu_pod({RDMA: percent}, annotations={HINT: {"rdma": hint}}))

    assert request.devices == (
        DeviceDemand(
            device_type="rdma", count=count, core_percent=each, exclusive=alone, containers=("0",)
        ),
    )


def test_parts_of_one_nic_add_up() -> None:
    """Koordinator contract 4.1: the aggregate decides, two halves are one NIC."""
    request = decode_pod(pod(container("a", limits={RDMA: 50}), container("b", limits={RDMA: 50})))

    assert [(one.count, one.core_percent) for one in request.devices] == [(1, 100)]


def test_requests_and_limits_of_devices_must_be_equal() -> None:
    """Koordinator contract 1.1, ours: in both domains."""
    body = pod(
        container("a", requests={"kubernetes.io/gpu": 50}, limits={"kubernetes.io/gpu": 60}),
        container("b", requests={RDMA: 1}, limits={RDMA: 2}),
    )

    errors = refusal(body)

    assert errors["spec.containers[0].resources.requests[kubernetes.io/gpu]"] == (
        'Invalid value: "50": must be equal to kubernetes.io/gpu limit of 60'
    )
    assert f"spec.containers[1].resources.requests[{RDMA}]" in errors


def test_devices_are_no_overhead() -> None:
    """Overhead is for the sandbox; a card of its own would belong to no container."""
    errors = refusal(pod(overhead={"nvidia.com/gpu": "1"}))

    assert list(errors) == ["spec.overhead[nvidia.com/gpu]"]


def test_mgpu_containers_have_demands_of_their_own() -> None:
    """GPU-sharing contract A.5: a fraction, whole cards, and a container without any."""
    body = pod(
        container("c0", limits={MGPU_CORE: 30, MGPU_MEMORY: 2048}),
        container("c1"),
        container("c2", limits={MGPU_CORE: 200}),
    )

    request = decode_pod(body)

    assert request.devices == (
        DeviceDemand(
            device_type="gpu", count=1, core_percent=30, memory_bytes=2 * GIB, containers=("0",)
        ),
        DeviceDemand(
            device_type="gpu",
            count=2,
            core_percent=100,
            memory_ratio_percent=100,
            exclusive=True,
            containers=("2",),
        ),
    )
    assert request.dialect is Dialect.MGPU
    assert (request.mgpu_policy, request.mgpu_multi) == ("fixed-share", False)
    assert [(need.index, need.device_counts) for need in request.containers] == [
        ("0", (("gpu", 1),)),
        ("2", (("gpu", 2),)),
    ]


def test_a_multi_card_container_takes_an_equal_part_of_each_card() -> None:
    """GPU-sharing contract A.5: core/c and memory/c on c cards; whole cards without memory."""
    body = pod(
        container("c0", limits={MGPU_CORE: 100, MGPU_MEMORY: 2048}),
        container("c1", limits={MGPU_CORE: 100}),
        container("c2"),
        annotations={
            COUNTS: "2,1,0",
            "vke.volcengine.com/mgpu-compute-policy": "native-burst-share",
        },
    )

    request = decode_pod(body)

    assert [
        (one.count, one.core_percent, one.memory_bytes, one.exclusive) for one in request.devices
    ] == [(2, 50, GIB, False), (1, 100, 0, True)]
    assert (request.mgpu_policy, request.mgpu_multi) == ("native-burst-share", True)


def test_a_list_of_zeros_is_no_multi_card_pod() -> None:
    """GPU-sharing contract A.4, ours: multi means any count of at least 1 in a validated list."""
    body = pod(container("c0"), annotations={COUNTS: "0"})

    assert not decode_pod(body).mgpu_multi


def test_quantities_of_mgpu_count_mebibytes() -> None:
    """GPU-sharing contract A.1: `6k` is 6000 MiB, `6Ki` is 6144 MiB."""
    sizes = [
        decode_pod(gpu_pod({MGPU_CORE: 50, MGPU_MEMORY: text})).devices[0].memory_bytes
        for text in ("6k", "6Ki")
    ]

    assert sizes == [6000 * MIB, 6144 * MIB]


REFUSED_MGPU = {
    "N1 by zero": (gpu_pod({MGPU_CORE: 0, MGPU_MEMORY: 6000}), MGPU_CORE, "N1"),
    "N1 without core": (gpu_pod({MGPU_MEMORY: 6000}), MGPU_MEMORY, "N1"),
    "N2": (gpu_pod({MGPU_CORE: 50, MGPU_MEMORY: 255}), MGPU_MEMORY, "N2"),
    "N3": (gpu_pod({MGPU_CORE: 120, MGPU_MEMORY: 128}), MGPU_CORE, "N3"),
    "N4": (gpu_pod({MGPU_CORE: 200, MGPU_MEMORY: "6k"}), MGPU_MEMORY, "N4"),
    "6Gi": (gpu_pod({MGPU_CORE: 50, MGPU_MEMORY: "6Gi"}), MGPU_MEMORY, "6144 for 6 GiB"),
    "M6": (
        gpu_pod({MGPU_CORE: 200, MGPU_MEMORY: "6k"}, annotations={COUNTS: "2"}),
        MGPU_MEMORY,
        "M6",
    ),
    "M8": (
        gpu_pod({MGPU_CORE: 130, MGPU_MEMORY: "6k"}, annotations={COUNTS: "3"}),
        MGPU_CORE,
        "M8",
    ),
}


@pytest.mark.parametrize(("body", "name", "rule"), REFUSED_MGPU.values(), ids=REFUSED_MGPU)
def test_broken_mgpu_requests_name_container_and_rule(body: Object, name: str, rule: str) -> None:
    """GPU-sharing contract A.3 and A.6; Volcano mGPU proposal, Webhook Admission."""
    errors = refusal(body)

    assert list(errors) == [f"spec.containers[0].resources.requests[{name}]"]
    assert rule in next(iter(errors.values()))


@pytest.mark.parametrize("text", ["", "2, 1", "1.5,1", "a,b", "2,,1", "2,1,"])
def test_a_list_that_is_no_list_of_integers_is_refused(text: str) -> None:
    """GPU-sharing contract A.3, M0."""
    body = pod(container("a", limits={MGPU_CORE: 100}), container("b"), annotations={COUNTS: text})

    errors = refusal(body)

    assert "rule M0" in errors[f"metadata.annotations[{COUNTS}]"]


def test_the_list_has_one_count_per_container() -> None:
    """GPU-sharing contract A.3, M1; the proposal's example lists 3,2 for one container."""
    body = gpu_pod({MGPU_CORE: 200, MGPU_MEMORY: "6k"}, annotations={COUNTS: "3,2"})

    assert "rule M1" in refusal(body)[f"metadata.annotations[{COUNTS}]"]


def test_checks_continue_after_whole_cards_without_memory() -> None:
    """GPU-sharing contract A.3: upstream stops looking there, ours continues."""
    body = pod(
        container("a", limits={MGPU_CORE: 200}),
        container("b", limits={MGPU_CORE: 130, MGPU_MEMORY: 6000}),
        annotations={COUNTS: "2,3"},
    )

    assert list(refusal(body)) == [f"spec.containers[1].resources.requests[{MGPU_CORE}]"]


@pytest.mark.parametrize(
    "first", [container("i", limits={MGPU_CORE: 100}), sidecar("i", limits={MGPU_CORE: 100})]
)
def test_init_containers_hold_no_mgpu_share(first: Object) -> None:
    """GPU-sharing contract A.3, ours: init containers are looked at, and denied."""
    errors = refusal(pod(container(), init=[first]))

    assert list(errors) == [f"spec.initContainers[0].resources.requests[{MGPU_CORE}]"]


def test_a_long_container_name_is_refused_for_mgpu_alone() -> None:
    """GPU-sharing contract A.6: the answer's key could not carry it."""
    name = "c" * 44

    errors = refusal(pod(container(name, limits={MGPU_CORE: 100})))

    assert list(errors) == ["spec.containers[0].name"]
    assert decode_pod(pod(container(name, limits={GPU: 100}))).devices


def test_an_unknown_compute_policy_is_refused() -> None:
    """GPU-sharing contract A.1: three values."""
    key = "vke.volcengine.com/mgpu-compute-policy"

    assert list(refusal(gpu_pod({MGPU_CORE: 100}, annotations={key: "best-share"}))) == [
        f"metadata.annotations[{key}]"
    ]


def test_the_mgpu_floor_of_multi_card_pods_is_a_setting() -> None:
    """GPU-sharing contract A.3, `mgpu.multiMinMemoryMiB`."""
    body = gpu_pod({MGPU_CORE: 100, MGPU_MEMORY: 1024}, annotations={COUNTS: "2"})

    assert decode_pod(body)
    assert "M7" in str(refusal(body, Vocabulary(mgpu_multi_min_memory_mib=1024)))


@pytest.mark.parametrize(("unit", "size"), [("MiB", MIB), ("GiB", GIB)])
def test_a_gpu_share_is_memory_of_one_card(unit: str, size: int) -> None:
    """GPU-sharing contract B.3: the whole Pod sits on one card; the unit is a setting."""
    body = pod(
        container("a", limits={GPU_MEM: 3}),
        container("b", limits={GPU_MEM: 5}),
        init=[container("i", limits={GPU_MEM: 6})],
    )

    request = decode_pod(body, Vocabulary(gpushare_unit=unit))

    assert request.devices == (
        DeviceDemand(
            device_type="gpu",
            count=1,
            memory_bytes=8 * size,
            containers=("init-0", "0", "1"),
        ),
    )
    assert request.dialect is Dialect.GPUSHARE
    assert request.gpushare_units == 8
    assert {need.device_counts for need in request.containers} == {(("gpu", 1),)}


def test_a_large_init_container_decides_a_gpu_share() -> None:
    """GPU-sharing contract B.3, ours: max(sum of app, max of init)."""
    body = pod(container(limits={GPU_MEM: 3}), init=[container("i", limits={GPU_MEM: 9})])

    assert decode_pod(body).gpushare_units == 9


REFUSED_SHARES = {
    "two cards": ({GPU_MEM: 8, "aliyun.com/gpu-count": 2}, "aliyun.com/gpu-count", "on one card"),
    "a count without memory": ({"aliyun.com/gpu-count": 1}, GPU_MEM, "aliyun.com/gpu-mem beside"),
    "compute percent": (
        {GPU_MEM: 8, "aliyun.com/gpu-core.percentage": 10},
        "aliyun.com/gpu-core.percentage",
        "not supported by this release",
    ),
    "8Gi for 8192": ({GPU_MEM: "8Gi"}, GPU_MEM, "a number of MiB"),
}


@pytest.mark.parametrize(("limits", "name", "fact"), REFUSED_SHARES.values(), ids=REFUSED_SHARES)
def test_broken_gpu_shares_name_the_key(limits: Object, name: str, fact: str) -> None:
    """GPU-sharing contract B.1, B.3."""
    errors = refusal(gpu_pod(limits))

    assert fact in errors[f"spec.containers[0].resources.requests[{name}]"]


def test_one_card_may_be_named_beside_a_gpu_share() -> None:
    """GPU-sharing contract B.1: the count is informational."""
    assert decode_pod(gpu_pod({GPU_MEM: 8, "aliyun.com/gpu-count": 1})).gpushare_units == 8


def lsr(qos: str = "LSR", cpu: object = "4", **more: object) -> Object:
    """Return a Pod that wants CPUs of its own, of class prod."""
    fields: Object = {"labels": {QOS: qos}, "priority": 9500, **more}
    return pod(container(limits={"cpu": cpu}), **fields)


OWN_CPUS = {
    "the default policy": ({}, "FullPCPUs", False, "None"),
    "Default is the default policy": (
        {"preferredCPUBindPolicy": "Default"},
        "FullPCPUs",
        False,
        "None",
    ),
    "preferred": (
        {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"},
        "SpreadByPCPUs",
        False,
        "PCPULevel",
    ),
    "required": ({"requiredCPUBindPolicy": "FullPCPUs"}, "FullPCPUs", True, "None"),
    "required before preferred": (
        {"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUBindPolicy": "SpreadByPCPUs"},
        "FullPCPUs",
        True,
        "None",
    ),
    "a required Default leaves the preferred one": (
        {"requiredCPUBindPolicy": "Default", "preferredCPUBindPolicy": "SpreadByPCPUs"},
        "SpreadByPCPUs",
        False,
        "None",
    ),
}


@pytest.mark.parametrize("qos", ["LSR", "LSE"])
@pytest.mark.parametrize(
    ("spec", "policy", "required", "exclusive"), OWN_CPUS.values(), ids=OWN_CPUS
)
def test_lse_and_lsr_pods_get_cpus_of_their_own(
    spec: Object, policy: str, exclusive: str, qos: str, *, required: bool
) -> None:
    """Koordinator contract 6.1: effective = required if set, else preferred, else the setting."""
    request = decode_pod(lsr(qos, annotations={SPEC: spec}))

    assert request.cpuset == CpuSetDemand(
        cpus=4,
        bind_policy=policy,
        required=required,
        exclusive_policy=exclusive,
        alone=qos == "LSE",
    )


WHOLE = {"cpu": "2", "memory": "1Gi"}
PART = {"cpu": "500m", "memory": "1Gi"}
BURSTS = {SPEC: {"preferredCPUBindPolicy": "ConstrainedBurst"}}


@pytest.mark.parametrize(
    ("body", "bound", "by_kubelet"),
    [
        pytest.param(pod(container(limits=WHOLE)), 2, [("app", 2)], id="Guaranteed, whole"),
        pytest.param(pod(container(limits=PART)), 0, [], id="Guaranteed, a part of a CPU"),
        pytest.param(pod(container(limits={"cpu": "2"})), 0, [], id="no memory, so Burstable"),
        pytest.param(
            pod(container(limits=WHOLE, requests={"cpu": "1"})), 0, [], id="requests below limits"
        ),
        pytest.param(
            pod(container("a", limits=WHOLE), container("b", limits=PART)),
            0,
            [("app", 2)],
            id="kubelet pins one container and shares the other",
        ),
        pytest.param(
            pod(container(limits=WHOLE), init=[container("i", limits=WHOLE)]),
            2,
            [("init", 2), ("app", 2)],
            id="an init container first",
        ),
        pytest.param(
            pod(container(limits=WHOLE), labels={QOS: "LS"}), 0, [("app", 2)], id="LS shares"
        ),
        pytest.param(
            pod(container(limits=WHOLE), annotations=BURSTS), 0, [("app", 2)], id="a burst shares"
        ),
    ],
)
def test_who_is_bound_and_whom_kubelet_pins(
    body: Object, bound: int, by_kubelet: list[tuple[str, int]]
) -> None:
    """CPU proposal, basic principle 2: Guaranteed containers with whole CPUs, and no others."""
    request = decode_pod(body)

    assert request.bound_cpus == bound
    assert [(each.kind, each.cpus) for each in request.kubelet_cpus] == by_kubelet


SHARED_CPUS = {
    "no label": pod(container(limits={"cpu": "4"})),
    "LS": lsr("LS"),
    "SYSTEM": lsr("SYSTEM"),
    "a text that is no class": lsr("lsr"),
    "an unknown policy binds nothing": lsr(annotations={SPEC: {"preferredCPUBindPolicy": "Any"}}),
}


@pytest.mark.parametrize("body", SHARED_CPUS.values(), ids=SHARED_CPUS)
def test_other_pods_share_cpus(body: Object) -> None:
    """Koordinator contract 6.1."""
    assert decode_pod(body).cpuset is None


def test_the_default_policies_are_settings() -> None:
    """cli.md, `cpu.defaultBindPolicy` and `cpu.defaultExclusivePolicy`."""
    spread = Vocabulary(default_bind_policy="SpreadByPCPUs", default_exclusive_policy="PCPULevel")

    demanded = decode_pod(lsr(), spread).cpuset
    none = decode_pod(lsr(), Vocabulary(default_bind_policy="None")).cpuset

    assert demanded is not None
    assert (demanded.bind_policy, demanded.exclusive_policy) == ("SpreadByPCPUs", "PCPULevel")
    assert none is None


PRIORITIES = {
    "a number of class prod": ({"priority": 9999}, {}, True),
    "a number of class mid": ({"priority": 7500}, {}, False),
    "a number of no class": ({"priority": 1}, {}, False),
    "what the API server writes where nothing is said": ({"priority": 0}, {}, True),
    "the label overrides the number": (
        {"priority": 0},
        {"koordinator.sh/priority-class": "koord-prod"},
        True,
    ),
    "the label of another class": (
        {"priority": 9500},
        {"koordinator.sh/priority-class": "koord-batch"},
        False,
    ),
    "an unknown label alone": ({}, {"koordinator.sh/priority-class": "high"}, False),
    "the class by name": ({"priorityClassName": "koord-prod"}, {}, True),
    "another class by name": ({"priorityClassName": "koord-batch"}, {}, False),
    "nothing said": ({}, {}, True),
    "a class of the cluster's own": ({"priorityClassName": "high"}, {}, True),
}


@pytest.mark.parametrize(("spec", "labels", "fine"), PRIORITIES.values(), ids=PRIORITIES)
def test_lsr_needs_class_prod(spec: Object, labels: Object, *, fine: bool) -> None:
    """Koordinator contract 5.3 and 6.1: what is named counts, else the class of the QoS."""
    body = pod(container(limits={"cpu": 2}), labels={QOS: "LSR", **labels}, **spec)

    if fine:
        assert decode_pod(body).cpuset
    else:
        assert f"metadata.labels[{QOS}]" in refusal(body)


def test_best_effort_pods_are_not_prod() -> None:
    """Koordinator contract 5.3, row BE; without a priority its default class is batch."""
    assert decode_pod(pod(labels={QOS: "BE"})).snapshot.priority == 5500
    assert f"metadata.labels[{QOS}]" in refusal(pod(labels={QOS: "BE"}, priority=9500))
    assert decode_pod(pod(labels={QOS: "BE"}, priority=0)).snapshot.priority == 0
    assert f"metadata.labels[{QOS}]" in refusal(pod(labels={QOS: "BE"}, priority=1))


REFUSED_CPUS = {
    "a fraction": lsr(cpu="1500m"),
    "none": pod(container(), labels={QOS: "LSE"}),
    "limit above request": pod(
        container(requests={"cpu": 2}, limits={"cpu": 4}), labels={QOS: "LSR"}
    ),
    "no limit": pod(container(requests={"cpu": 2}), labels={QOS: "LSR"}),
    "two halves beside a fraction": pod(
        container("a", limits={"cpu": "500m"}),
        container("b", limits={"cpu": "700m"}),
        labels={QOS: "LSR"},
    ),
}


@pytest.mark.parametrize("body", REFUSED_CPUS.values(), ids=REFUSED_CPUS)
def test_own_cpus_are_whole_and_equal(body: Object) -> None:
    """Koordinator contract 5.3; the proposal: request and limit equal, a multiple of 1000."""
    assert "spec.containers[0].resources.requests[cpu]" in refusal(body)


def test_a_container_without_cpu_runs_on_the_cpus_of_its_pod() -> None:
    """Only containers that name cpu are compared; the Pod's sum is what is bound."""
    body = pod(container("a", limits={"cpu": 4}), container("b"), labels={QOS: "LSR"})

    demanded = decode_pod(body).cpuset

    assert demanded is not None
    assert demanded.cpus == 4


def test_batch_resources_are_for_best_effort_pods() -> None:
    """Koordinator contract 5.3."""
    limits = {"kubernetes.io/batch-cpu": "2000"}

    assert decode_pod(gpu_pod(limits, labels={QOS: "BE"}))
    assert list(refusal(gpu_pod(limits))) == [
        "spec.containers[0].resources.requests[kubernetes.io/batch-cpu]"
    ]


def test_groups_and_gangs_are_read() -> None:
    """Koordinator GPU-topology proposal; waiting time in whole seconds, rounded up."""
    body = pod(
        labels={GROUP: "job-7", REPLICA: "3"},
        annotations={
            GANG: "job-7",
            MIN_AVAILABLE: "3",
            "gang.scheduling.koordinator.sh/waiting-time": "1m0.5s",
        },
    )

    request = decode_pod(body)

    assert request.group == GroupRef(name="job-7", replica=3)
    assert request.gang == GangRef(name="job-7", min_available=3, waiting_seconds=61)


REFUSED_GROUPS = {
    "the name alone": ({GROUP: "a"}, {}, f"metadata.labels[{REPLICA}]"),
    "the replica alone": ({REPLICA: "2"}, {}, f"metadata.labels[{GROUP}]"),
    "a replica that is no number": (
        {GROUP: "a", REPLICA: "two"},
        {},
        f"metadata.labels[{REPLICA}]",
    ),
    "a replica of zero": ({GROUP: "a", REPLICA: "0"}, {}, f"metadata.labels[{REPLICA}]"),
    "another gang name": (
        {GROUP: "a", REPLICA: "2"},
        {GANG: "b", MIN_AVAILABLE: "2"},
        f"metadata.labels[{GROUP}]",
    ),
    "another minimum": (
        {GROUP: "a", REPLICA: "2"},
        {GANG: "a", MIN_AVAILABLE: "3"},
        f"metadata.labels[{REPLICA}]",
    ),
    "a gang whose name no PodGroup has": (
        {},
        {GANG: "a" * 254, MIN_AVAILABLE: "1"},
        f"metadata.annotations[{GANG}]",
    ),
    "a gang without a minimum": ({}, {GANG: "a"}, f"metadata.annotations[{MIN_AVAILABLE}]"),
    "a minimum that is no number": (
        {},
        {GANG: "a", MIN_AVAILABLE: "all"},
        f"metadata.annotations[{MIN_AVAILABLE}]",
    ),
    "a mode that is not built": (
        {},
        {GANG: "a", MIN_AVAILABLE: "1", "gang.scheduling.koordinator.sh/mode": "NonStrict"},
        "metadata.annotations[gang.scheduling.koordinator.sh/mode]",
    ),
    "gangs that wait for one another": (
        {},
        {
            GANG: "a",
            MIN_AVAILABLE: "1",
            "gang.scheduling.koordinator.sh/groups": '["ml/a","ml/b"]',
        },
        "metadata.annotations[gang.scheduling.koordinator.sh/groups]",
    ),
    "a network topology": (
        {},
        {
            GANG: "a",
            MIN_AVAILABLE: "1",
            "gang.scheduling.koordinator.sh/network-topology-spec": "{}",
        },
        "metadata.annotations[gang.scheduling.koordinator.sh/network-topology-spec]",
    ),
}


@pytest.mark.parametrize(
    ("labels", "annotations", "field"), REFUSED_GROUPS.values(), ids=REFUSED_GROUPS
)
def test_broken_groups_are_refused(labels: Object, annotations: Object, field: str) -> None:
    """Koordinator contract 10; the GPU-topology proposal's consistency of labels and gang."""
    assert list(refusal(pod(labels=labels, annotations=annotations))) == [field]


def test_a_gang_group_of_the_gang_itself_is_no_other_gang() -> None:
    """Koordinator contract 10: the list names the Pod's own gang too."""
    key = "gang.scheduling.koordinator.sh/groups"
    annotations = {GANG: "a", MIN_AVAILABLE: "1", key: '["ml/a"]'}

    assert decode_pod(pod(annotations=annotations)).gang


TWO_GPUS = {"nvidia.com/gpu": 2, RDMA: 100}
BURST = {SPEC: {"preferredCPUBindPolicy": "ConstrainedBurst"}}


@pytest.mark.parametrize(
    ("qos", "limits", "expected"),
    [
        pytest.param("LS", {"cpu": "4"}, 4000, id="an LS Pod, by its limit"),
        pytest.param("", {"cpu": "2500m"}, 2500, id="a Burstable one"),
        pytest.param("LS", {}, "needs a cpu limit", id="without a limit"),
        pytest.param("BE", {"cpu": "4"}, "not for BE", id="not for BE"),
        pytest.param("LSR", {"cpu": "4"}, "not for LSR", id="not for Pods with CPUs of their own"),
    ],
)
def test_a_burst_is_placed_by_its_limit(
    qos: str, limits: dict[str, str], expected: int | str
) -> None:
    """CPU proposal, ConstrainedBurst: for LS and Burstable Pods, filtered by the Pod's limit."""
    resources = {"requests": {"cpu": limits.get("cpu", "1")}, "limits": limits}
    body = {
        "metadata": {
            "name": "p",
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
            "annotations": {SPEC: json.dumps(BURST[SPEC])},
        },
        "spec": {"containers": [{"name": "m", "resources": resources}]},
    }

    if isinstance(expected, str):
        assert expected in " ".join(refusal(body).values())
    else:
        assert decode_pod(body, Vocabulary()).burst_milli == expected


NOT_YET = {
    "virtual functions of GPUs": ({HINT: {"gpu": {"vfSelector": {}}}}, "vfSelector"),
    "all GPUs": ({HINT: {"gpu": {"allocateStrategy": "ApplyForAll"}}}, "allocateStrategy"),
    "a strategy for GPUs": (
        {HINT: {"gpu": {"allocateStrategy": "RequestsAsCount"}}},
        "allocateStrategy",
    ),
    "two cards in one device": (
        {HINT: {"gpu": {"requiredTopologyScope": "Device"}}},
        "TopologyScope",
    ),
    "node names": (
        {"internal.scheduling.koordinator.sh/scheduling-hint": {"nodeNames": ["n1"]}},
        "nodeNames",
    ),
    "replaced resources": (
        {"pod.koordinator.sh/replace-resources": "cpu:kubernetes.io/batch-cpu"},
        "replace-resources",
    ),
}


@pytest.mark.parametrize(("annotations", "field"), NOT_YET.values(), ids=NOT_YET)
def test_a_wish_that_is_not_built_is_refused_and_never_ignored(
    annotations: Object, field: str
) -> None:
    """Koordinator contract 2.1: a Pod is not placed as if it had not wished."""
    errors = refusal(gpu_pod(TWO_GPUS, annotations=annotations))

    assert len(errors) == 1
    path, message = next(iter(errors.items()))
    assert field in path
    assert message.startswith("not supported by this release: ")


HARMLESS = {
    "a hint for a type that is not asked for": {HINT: {"fpga": {"vfSelector": {}}}},
    "the scope that every Pod has": {HINT: {"gpu": {"requiredTopologyScope": "Node"}}},
    "an empty selector": {HINT: {"gpu": {"selector": {}}}},
    "joint with a type that is not asked for": {
        JOINT: {"deviceTypes": ["gpu", "fpga"], "requiredScope": "SamePCIe"}
    },
    "NUMA by best effort": {NUMA: {"numaTopologyPolicy": "BestEffort"}},
    "nodes that are preferred": {
        "internal.scheduling.koordinator.sh/scheduling-hint": {"preferredNodeNames": ["n1"]}
    },
}


@pytest.mark.parametrize("annotations", HARMLESS.values(), ids=HARMLESS)
def test_a_wish_that_changes_nothing_passes(annotations: Object) -> None:
    """What the plain allocator's answer meets anyway, or may leave unmet."""
    assert decode_pod(gpu_pod(TWO_GPUS, annotations=annotations)).devices


GOLD = LabelSelector(match_labels=(("tier", "gold"),))
HONOURED: dict[str, tuple[Object, Object, DeviceDemand]] = {
    "a selector": (
        {"nvidia.com/gpu": 2},
        {"gpu": {"selector": {"matchLabels": {"tier": "gold"}}}},
        replace(whole(2), hint=DeviceHint(selector=GOLD)),
    ),
    "virtual functions": (
        {RDMA: 5},
        {"rdma": {"vfSelector": {}}},
        replace(
            demand(device_type="rdma", core_percent=5), hint=DeviceHint(vf_selector=LabelSelector())
        ),
    ),
    "all of a type": (
        {RDMA: 5},
        {"rdma": {"allocateStrategy": "ApplyForAll"}},
        replace(
            demand(device_type="rdma", core_percent=5),
            containers=(),
            hint=DeviceHint(allocate_strategy=AllocateStrategy.APPLY_FOR_ALL),
        ),
    ),
    "all of a type, for several whole ones": (
        {RDMA: 300},
        {"rdma": {"allocateStrategy": "ApplyForAll"}},
        demand(3, "rdma", core_percent=100),
    ),
    "a scope of several cards": (
        {"nvidia.com/gpu": 2},
        {"gpu": {"requiredTopologyScope": "NUMANode"}},
        replace(whole(2), hint=DeviceHint(required_topology_scope=TopologyScope.NUMA_NODE)),
    ),
    "a part alone on its device": (
        {RDMA: 5},
        {"rdma": {"exclusivePolicy": "DeviceLevel"}},
        replace(demand(device_type="rdma", core_percent=5), exclusive=True),
    ),
    "a part alone on its card": (
        {GPU: 50},
        {"gpu": {"exclusivePolicy": "DeviceLevel"}},
        replace(demand(core_percent=50, memory_ratio_percent=50), exclusive=True),
    ),
    "a root to itself": (
        {RDMA: 5},
        {"rdma": {"exclusivePolicy": "PCIeLevel"}},
        replace(
            demand(device_type="rdma", core_percent=5),
            hint=DeviceHint(exclusive_policy=DeviceExclusivePolicy.PCIE_LEVEL),
        ),
    ),
}


@pytest.mark.parametrize(("limits", "hint", "expected"), HONOURED.values(), ids=HONOURED)
def test_a_hint_is_part_of_the_demand_where_it_changes_anything(
    limits: Object, hint: Object, expected: DeviceDemand
) -> None:
    """Koordinator contract 2.1 and 8.3; what is in the numbers already is not said twice."""
    (found,) = decode_pod(gpu_pod(limits, annotations={HINT: hint})).devices

    assert found == expected


def test_devices_of_a_whole_type_belong_to_the_whole_pod() -> None:
    """Ours: how many they are differs from node to node, so no container is named."""
    hint = {HINT: {"rdma": {"allocateStrategy": "ApplyForAll"}}}

    assert decode_pod(gpu_pod({RDMA: 5}, annotations=hint)).containers == ()


@pytest.mark.parametrize("spec", [{}, {"allocatePolicy": "Restricted"}])
def test_joint_types_and_partitions_are_wishes_of_the_whole_pod(spec: Object) -> None:
    """Koordinator contract 2.1: only where the Pod asks for the types they are about."""
    joint = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    both = decode_pod(gpu_pod(TWO_GPUS, annotations={JOINT: joint, PARTITION: spec}))
    neither = decode_pod(gpu_pod({RDMA: 5}, annotations={JOINT: joint, PARTITION: spec}))

    assert both.joint is not None
    assert both.partition is not None
    assert (neither.joint, neither.partition) == (None, None)


@pytest.mark.parametrize(
    ("annotations", "field"),
    [
        ({PARTITION: {}}, "gpu-partition-spec"),
        ({HINT: {"gpu": {"exclusivePolicy": "PCIeLevel"}}}, "exclusivePolicy"),
    ],
)
@pytest.mark.parametrize(
    "limits",
    [
        {"vke.volcengine.com/mgpu-core": 30, "vke.volcengine.com/mgpu-memory": 1024},
        {"aliyun.com/gpu-mem": 1024},
    ],
    ids=["mGPU", "GPU share"],
)
def test_parts_of_cards_know_no_partitions_and_no_exclusive_parts(
    limits: Object, annotations: Object, field: str
) -> None:
    """Refused, never half-honoured: those words are Koordinator's."""
    errors = refusal(gpu_pod(limits, annotations=annotations))

    assert [field in path for path in errors] == [True]


@pytest.mark.parametrize("scope", ["Device", "PCIe", "NUMANode"])
def test_one_card_is_under_one_scope_of_any_depth(scope: str) -> None:
    """Koordinator contract Q16, ours: `Device` means exactly one GPU."""
    hint = {HINT: {"gpu": {"requiredTopologyScope": scope}}}

    assert decode_pod(gpu_pod({"nvidia.com/gpu": 1}, annotations=hint)).devices == (whole(1),)


@pytest.mark.parametrize(
    "key",
    [HINT, JOINT, PARTITION, NUMA, SPEC, "internal.scheduling.koordinator.sh/scheduling-hint"],
)
def test_json_that_does_not_parse_is_unreadable(key: str) -> None:
    """cli.md, exit code 2: JSON that does not parse in an annotation of ours."""
    with pytest.raises(InputError, match="not valid JSON") as caught:
        decode_pod(pod(annotations={key: "{"}))

    assert caught.value.field == f"metadata.annotations[{key}]"


def test_gang_groups_that_are_no_json_are_unreadable() -> None:
    """cli.md, exit code 2; plain text of a gang that breaks a rule is a refusal instead."""
    annotations = {GANG: "a", MIN_AVAILABLE: "1", "gang.scheduling.koordinator.sh/groups": "[a"}

    with pytest.raises(InputError, match="not valid JSON"):
        decode_pod(pod(annotations=annotations))


def test_shared_cards_go_to_nodes_with_the_same_isolation() -> None:
    """Koordinator contract 2.1, `gpu-isolation-provider`: only for shares, only on such nodes."""
    key = "koordinator.sh/gpu-isolation-provider"
    labels = {key: "HAMi-core"}

    shared = decode_pod(gpu_pod({GPU: 50}, labels=labels, nodeSelector={"a": "b"}))
    alone = decode_pod(gpu_pod({GPU: 100}, labels=labels))

    assert shared.placement.node_selector == (("a", "b"), (key, "HAMi-core"))
    assert alone.placement.node_selector == ()


@pytest.mark.parametrize(
    ("more", "provider"),
    [
        pytest.param({}, "HAMi-core", id="its words promise limits"),
        pytest.param({"annotations": {"tenure.sh/isolation": "none"}}, "", id="done without"),
        pytest.param({"annotations": {"tenure.sh/isolation": "None"}}, "HAMi-core", id="misspelt"),
        pytest.param(
            {
                "labels": {"koordinator.sh/gpu-isolation-provider": "MPS"},
                "annotations": {"tenure.sh/isolation": "none"},
            },
            "MPS",
            id="its own label",
        ),
    ],
)
def test_hamis_shares_go_to_nodes_that_limit_them(
    more: dict[str, dict[str, str]], provider: str
) -> None:
    """Whole cards, and shares in other words, go anywhere."""
    shared = decode_pod(gpu_pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, **more))
    other = decode_pod(gpu_pod({"aliyun.com/gpu-mem": 7}, annotations=more.get("annotations", {})))
    alone = decode_pod(gpu_pod({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100}, **more))

    assert provider_of(shared.placement) == provider
    assert provider_of(other.placement) == provider_of(alone.placement) == ""


def test_the_snapshot_keeps_what_can_never_be_asked_later() -> None:
    """Design section 8: owner, allow-listed labels, priority, QoS, original request, creation."""
    body = gpu_pod(
        {"kubernetes.io/gpu": "50", "cpu": 2},
        labels={
            "team": "vision",
            "app.kubernetes.io/name": "trainer",
            "kueue.x-k8s.io/queue-name": "fast",
            "quota.scheduling.koordinator.sh/name": "vision",
            "pod-template-hash": "5d9",
            QOS: "LS",
        },
        priority=9100,
    )
    body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    body["metadata"]["ownerReferences"] = [
        {"kind": "Job", "name": "train-7", "controller": True},
    ]

    snapshot = decode_pod(body).snapshot

    assert snapshot.owner == "job/train-7"
    assert snapshot.labels == {
        "team": "vision",
        "app.kubernetes.io/name": "trainer",
        "kueue.x-k8s.io/queue-name": "fast",
        "quota.scheduling.koordinator.sh/name": "vision",
    }
    assert (snapshot.priority, snapshot.qos) == (9100, "LS")
    assert snapshot.original == {"main.kubernetes.io/gpu": "50", "main.cpu": "2"}
    assert snapshot.created_at_us == 1767225600000000


def test_without_a_label_the_qos_is_kubernetes_own() -> None:
    """What the API server wrote into the status."""
    body = pod()
    body["status"] = {"qosClass": "Burstable"}

    assert decode_pod(body).snapshot.qos == "Burstable"


def test_a_refused_pod_keeps_what_its_refusal_records() -> None:
    """Callers that record a refusal get identity, CPU, memory and snapshot, but no devices."""
    body = gpu_pod({GPU: 150, "cpu": 2}, labels={"team": "a"}, uid="u1")

    request, errors = examine_pod(body)

    assert len(errors) == 1
    assert (request.uid, request.path, request.cpu_milli) == ("u1", "ml/p", 2000)
    assert request.snapshot.labels == {"team": "a"}
    assert (request.devices, request.dialect, request.group) == ((), None, None)


def test_allocation_annotations_of_a_pending_pod_are_ignored() -> None:
    """cli.md, Running Pods: they say nothing, not even when they do not parse."""
    annotations = {
        "scheduling.koordinator.sh/device-allocated": "{",
        "scheduling.koordinator.sh/resource-status": "{",
        "ALIYUN_COM_GPU_MEM_IDX": "x",
        "topology.scheduling.koordinator.sh/gpu": "{",
    }

    assert decode_pod(gpu_pod({GPU: 100}, annotations=annotations)).devices == (whole(1),)


def test_decoding_changes_nothing_in_the_object() -> None:
    """The same parsed object may be decoded again."""
    body = gpu_pod({"kubernetes.io/gpu": 50}, annotations={SPEC: {}})
    before = json.dumps(body, sort_keys=True)

    assert decode_pod(body) == decode_pod(body)
    assert json.dumps(body, sort_keys=True) == before


@pytest.mark.parametrize(
    "word", ["nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"]
)
def test_hamis_share_of_a_card_never_becomes_a_whole_one(word: str) -> None:
    """Beside `nvidia.com/gpu` it is HAMi's dialect; beside another's words it is refused."""
    request = decode_pod(gpu_pod({"nvidia.com/gpu": 1, word: 50}))

    assert request.dialect is Dialect.HAMI
    assert [demand.exclusive for demand in request.devices] == [False]
    with pytest.raises(RefusedError, match="in one dialect only"):
        decode_pod(gpu_pod({GPU: 100, word: 50}))


def test_hamis_priority_is_refused_by_name() -> None:
    """Beside a card it would be lost; alone it is nothing of ours."""
    word = "nvidia.com/priority"

    with pytest.raises(RefusedError, match="HAMi's order of the Pods on one card"):
        decode_pod(gpu_pod({"nvidia.com/gpu": 1, word: 1}))
    assert decode_pod(gpu_pod({word: 1})).devices == ()


@pytest.mark.parametrize(
    "body",
    [
        gpu_pod({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1}),
        pod(
            container("a", limits={GPU: 100}), container("b", limits={"nvidia.com/mig-2g.10gb": 1})
        ),
        pod(
            container(limits={"cpu": 2, "nvidia.com/mig-1g.5gb": 1}, requests={"cpu": 2}),
            labels={QOS: "LSR"},
        ),
    ],
)
def test_a_mig_instance_is_not_hidden_from_its_container(body: Object) -> None:
    """What the Pod does not hold of us is hidden, and the instance would be too."""
    with pytest.raises(RefusedError, match="a MIG instance in a pod"):
        decode_pod(body)
