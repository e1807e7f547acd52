from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.annotations.device_allocated import decode_device_allocated
from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.devices import DeviceShare
from ledger.domain.dialects.gpushare.annotations import read_gpushare_allocation
from ledger.domain.dialects.mgpu.annotations import read_mgpu_allocation
from ledger.domain.request.requests import GroupRef, PodRequest
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from scheduler.decide.answers import encode, resources_of
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Placement
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from tests.support.cards import (
    GIB,
    MIB,
    card,
    gpushare_pod,
    mgpu_pod,
    need,
    nic,
    node_of,
    part,
    pod,
    rdma,
    whole,
)

SETTINGS = SchedulingSettings()
NOW_NS = 1_767_225_600_000_000_000

DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
TOPOLOGY = "topology.scheduling.koordinator.sh/gpu"


def answer(
    request: PodRequest,
    node: NodeView,
    *,
    settings: SchedulingSettings = SETTINGS,
    cpuset: CpuSet = EMPTY,
    visible: tuple[int, ...] = (),
) -> dict[str, str]:
    """Place the Pod on the node and return its annotations."""
    choice = choose(request, node, settings)
    assert isinstance(choice, Choice), choice
    placement = Placement(
        request=request,
        node=0,
        node_uid=node.facts.uid,
        node_name=node.facts.name,
        shares=choice.shares,
        cpuset=cpuset,
        visible_minors=visible,
    )
    return encode(placement, node=node.facts, now_ns=NOW_NS, settings=settings)


def test_a_pod_with_nothing_gets_no_annotation() -> None:
    """No devices and no cpuset: an empty Binding."""
    assert answer(pod(), node_of()) == {}


def test_device_allocated_is_written_exactly() -> None:
    """Koordinator contract 2.2: per device, decimal strings, sorted keys, no spaces."""
    request = pod(part(40, ratio=35), rdma(1), containers=(need("w", "0", gpu=1, rdma=1),))
    node = node_of(card(3, memory_bytes=24 * GIB), nic(11))

    annotations = answer(request, node)

    assert annotations == {
        DEVICE_ALLOCATED: (
            '{"gpu":[{"id":"GPU-3","minor":3,"resources":{"koordinator.sh/gpu-core":"40",'
            '"koordinator.sh/gpu-memory":"9019431321","koordinator.sh/gpu-memory-ratio":"35"}}],'
            '"rdma":[{"id":"RDMA-11","minor":11,"resources":{"koordinator.sh/rdma":"1"}}]}'
        ),
        "tenure.sh/allocated.0": "GPU-3",
        "tenure.sh/visible.0": "GPU-3",
    }
    assert list(annotations) == sorted(annotations)


def test_the_proposals_domain_is_a_setting() -> None:
    """Contract 11: `compat.proposalDomain` writes kubernetes.io names inside."""
    annotations = answer(
        pod(whole(), rdma(100)),
        node_of(card(0), nic(1)),
        settings=SchedulingSettings(proposal_domain=True),
    )

    value = json.loads(annotations[DEVICE_ALLOCATED])
    assert value["gpu"][0]["resources"] == {
        "kubernetes.io/gpu-core": "100",
        "kubernetes.io/gpu-memory": "42949672960",
        "kubernetes.io/gpu-memory-ratio": "100",
    }
    assert value["rdma"][0]["resources"] == {"kubernetes.io/rdma": "100"}


def test_a_cpuset_is_a_resource_status() -> None:
    """Contract 2.2."""
    annotations = answer(pod(), node_of(), cpuset=parse_cpuset("4-7,28-31"))

    assert annotations == {RESOURCE_STATUS: '{"cpuset":"4-7,28-31"}'}


def test_each_container_sees_its_own_cards() -> None:
    """Design section 3: by place in the spec; an init container reuses the first card."""
    request = pod(
        whole(2),
        containers=(
            need("i", "init-0", "init", gpu=1),
            need("a", "0", gpu=1),
            need("log", "1"),
            need("b", "2", gpu=1),
        ),
    )

    annotations = answer(request, node_of(card(0), card(1)))

    ours = {key: value for key, value in annotations.items() if key.startswith("tenure.sh/")}
    assert ours == {
        "tenure.sh/allocated.0": "GPU-0",
        "tenure.sh/allocated.2": "GPU-1",
        "tenure.sh/allocated.init-0": "GPU-0",
        "tenure.sh/visible.0": "GPU-0",
        "tenure.sh/visible.2": "GPU-1",
        "tenure.sh/visible.init-0": "GPU-0",
    }


def test_a_group_sees_all_its_cards_on_the_node() -> None:
    """GPU-topology proposal: the Pod's own cards allocated, the group's visible."""
    request = pod(
        whole(2), group=GroupRef(name="job", replica=2), containers=(need("w", "0", gpu=2),)
    )

    annotations = answer(
        request, node_of(*(card(minor) for minor in range(4))), visible=(0, 1, 2, 3)
    )

    assert annotations[TOPOLOGY] == (
        '{"allocatedGPUs":{"0":["0","1"]},"visibleGPUs":["0","1","2","3"]}'
    )
    assert annotations["tenure.sh/allocated.0"] == "GPU-0,GPU-1"
    assert annotations["tenure.sh/visible.0"] == "GPU-0,GPU-1,GPU-2,GPU-3"


def test_a_single_pod_of_whole_gpus_is_recorded_too() -> None:
    """GPU-topology proposal, Record the allocation information: for every Pod, groups or not."""
    request = pod(whole(2), containers=(need("a", "0", gpu=1), need("b", "1", gpu=1)))

    annotations = answer(request, node_of(card(0), card(1)))

    assert annotations[TOPOLOGY] == (
        '{"allocatedGPUs":{"0":["0"],"1":["1"]},"visibleGPUs":["0","1"]}'
    )


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            pod(part(50, ratio=50), containers=(need("a", "0", gpu=1),)), id="a part of a GPU"
        ),
        pytest.param(gpushare_pod(4 * GIB), id="a GPU share"),
    ],
)
def test_other_dialects_and_parts_have_their_own_record(request_: PodRequest) -> None:
    """The annotation names GPUs that a Pod has for itself."""
    assert TOPOLOGY not in answer(request_, node_of(card(0), card(1)))


def without_ids(*cards: CardView) -> NodeView:
    """Return a node whose cards have no UUID, as without a Device object."""
    return node_of(*(replace(view, record=replace(view.record, device_id="")) for view in cards))


def test_cards_without_uuid_are_named_by_minor() -> None:
    """DIVERGENCES, "GPUs without a known UUID": an absent list would show the container no GPU."""
    request = pod(
        whole(2), containers=(need("a", "0", gpu=1), need("b", "1", gpu=1), need("log", "2"))
    )
    busy = card(0, tenants=1)

    annotations = answer(request, without_ids(busy, card(1), card(2)))

    ours = {key: value for key, value in annotations.items() if key.startswith("tenure.sh/")}
    assert ours == {
        "tenure.sh/visible.0": "1",
        "tenure.sh/allocated.0": "0",
        "tenure.sh/visible.1": "2",
        "tenure.sh/allocated.1": "0",
    }
    assert '"id"' not in annotations[DEVICE_ALLOCATED]


@pytest.mark.parametrize("unknown", [(0, 1, 2, 3), (1,), (3,)])
def test_a_group_with_an_unknown_uuid_is_told_by_index(unknown: tuple[int, ...]) -> None:
    """CUDA counts what the container sees: the member's GPUs 2 and 3 are the last of the group."""
    request = pod(
        whole(2), group=GroupRef(name="job", replica=2), containers=(need("w", "0", gpu=2),)
    )
    views = [card(minor, tenants=int(minor < 2)) for minor in range(4)]
    node = node_of(
        *(
            replace(view, record=replace(view.record, device_id=""))
            if view.record.minor in unknown
            else view
            for view in views
        )
    )

    annotations = answer(request, node, visible=(0, 1, 2, 3))

    assert annotations["tenure.sh/visible.0"] == "0,1,2,3"
    assert annotations["tenure.sh/allocated.0"] == "2,3"


def test_a_gpu_share_without_a_uuid_is_seen() -> None:
    """GPU-sharing contract B.1 names the index; the environment that admission injects does too."""
    request = gpushare_pod(4 * GIB)
    request = replace(request, containers=(need("w", "0", gpu=1),))

    annotations = answer(request, without_ids(card(0)))

    assert annotations["tenure.sh/visible.0"] == "0"
    assert annotations["tenure.sh/allocated.0"] == "0"


def test_mgpu_names_the_cards_of_each_container() -> None:
    """GPU-sharing contract A.5, output; read back by the contract's reader."""
    request = mgpu_pod(
        part(60, memory=GIB),
        part(50, memory=GIB, count=2),
        mgpu_policy="native-burst-share",
        mgpu_multi=True,
    )
    node = node_of(*(card(minor) for minor in range(3)), mgpu_policy="native-burst-share")

    annotations = answer(request, node)

    assert annotations["vke.volcengine.com/assumed"] == "true"
    assert annotations["vke.volcengine.com/gpu-index-container-c0"] == "0"
    assert annotations["vke.volcengine.com/gpu-index-container-c1"] == "1,2"
    assert annotations["tenure.sh/allocated.1"] == "GPU-1,GPU-2"
    assert read_mgpu_allocation(annotations, ("c0", "c1")) is not None


def test_mgpu_in_id_mode_names_uuids() -> None:
    """A.6: id mode writes device UUIDs under the same key; without UUIDs the index stays."""
    by_id = SchedulingSettings(mgpu=MGPUSettings(schedule_mode="id"))
    request = mgpu_pod(part(60, memory=GIB))
    key = "vke.volcengine.com/gpu-index-container-c0"

    assert answer(request, node_of(card(5)), settings=by_id)[key] == "GPU-5"
    assert answer(request, without_ids(card(5)), settings=by_id)[key] == "5"


def test_gpu_share_is_written_exactly() -> None:
    """GPU-sharing contract B.1, MiB; the proposal's name equals the index."""
    node = node_of(card(0, memory_bytes=16276 * MIB), card(1, memory_bytes=16276 * MIB))

    annotations = answer(gpushare_pod(8138 * MIB, containers=2), node)

    assert {key: value for key, value in annotations.items() if key.startswith("ALIYUN")} == {
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1767225600000000000",
        "ALIYUN_COM_GPU_MEM_DEV": "16276",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "8138",
        "ALIYUN_GPU_ID": "0",
    }
    assert annotations["tenure.sh/allocated.0"] == "GPU-0"
    assert annotations["tenure.sh/allocated.1"] == "GPU-0"
    assert read_gpushare_allocation(annotations) is not None
    entry = decode_device_allocated(annotations[DEVICE_ALLOCATED])["gpu"][0]
    assert [name for name, _ in entry.resources] == [
        "koordinator.sh/gpu-memory",
        "koordinator.sh/gpu-memory-ratio",
    ]


def test_gpu_share_counts_gib_where_the_daemon_does() -> None:
    """B.5: cards of 16276 and 24576 MiB are 15 and 24 units; the mean, rounded down, is 19."""
    node = node_of(card(0, memory_bytes=16276 * MIB), card(1, memory_bytes=24 * GIB))

    annotations = answer(
        gpushare_pod(8 * GIB, units=8),
        node,
        settings=SchedulingSettings(vocabulary=Vocabulary(gpushare_unit="GiB")),
    )

    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "8"
    assert annotations["ALIYUN_COM_GPU_MEM_DEV"] == "19"


def test_resources_carry_core_only_if_asked() -> None:
    """cli.md, Output: memory and ratio always, core only if asked, other types their own name."""
    plain = DeviceShare(device_type="gpu", minor=0, device_id="", memory_bytes=5)

    assert resources_of(structs.replace(plain, memory_ratio_percent=1), DEFAULT_VOCABULARY) == {
        "koordinator.sh/gpu-memory": 5,
        "koordinator.sh/gpu-memory-ratio": 1,
    }
    assert resources_of(structs.replace(plain, core_percent=7), DEFAULT_VOCABULARY) == {
        "koordinator.sh/gpu-core": 7,
        "koordinator.sh/gpu-memory": 5,
        "koordinator.sh/gpu-memory-ratio": 0,
    }
    other = structs.replace(plain, device_type="fpga", core_percent=7)
    assert resources_of(other, DEFAULT_VOCABULARY) == {"koordinator.sh/fpga": 7}
