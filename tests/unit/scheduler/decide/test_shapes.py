from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import pytest

from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec
from ledger.domain.annotations.device_hints import JointAllocation, PartitionSpec
from ledger.domain.dialects.names import Dialect
from ledger.domain.request.requests import (
    CardFilter,
    ContainerCpus,
    ContainerNeed,
    CpuSetDemand,
    GangRef,
    GroupRef,
    PlacementRules,
    PodRequest,
    PodSnapshot,
)
from scheduler.decide.shapes import (
    NOT_READ,
    Shape,
    ShapeIndex,
    asked_by,
    shape_of,
    wishes_of,
)
from tests.support.clusters import GIB, gpu_bytes, nic, pod, share

PINNED = CpuSetDemand(cpus=1, bind_policy="FullPCPUs", required=False, exclusive_policy="None")


@pytest.mark.parametrize(
    ("request_", "plain"),
    [
        pytest.param(pod("p"), (0, 0), id="no devices"),
        pytest.param(pod("p", share(46)), (46, 1), id="a share of one GPU"),
        pytest.param(pod("p", share(100, 4)), (100, 4), id="whole GPUs"),
        pytest.param(pod("p", share(50, 2)), (50, 2), id="shares of several GPUs"),
        pytest.param(pod("p", gpu_bytes(GIB)), (-1, 0), id="bytes differ from card to card"),
        pytest.param(
            pod("p", replace(share(50), core_percent=30)), (-1, 0), id="core and memory differ"
        ),
        pytest.param(
            pod("p", replace(share(50), exclusive=True)), (-1, 0), id="a part that stays alone"
        ),
        pytest.param(pod("p", nic(50)), (-1, 0), id="another type"),
        pytest.param(pod("p", share(50), nic(50)), (-1, 0), id="two types"),
        pytest.param(pod("p", share(100), dialect=Dialect.MGPU), (-1, 0), id="instances count"),
        pytest.param(pod("p", share(50), cpuset=PINNED), (-1, 0), id="CPUs of its own"),
    ],
)
def test_plain_requests(request_: PodRequest, plain: tuple[int, int]) -> None:
    """One number per card says all about these and about no others."""
    shape = shape_of(request_)

    assert (shape.plain_percent, shape.plain_count) == plain
    assert shape.is_plain == (plain[0] >= 0)


def test_models_are_a_question_about_cards_where_nodes_mix_them() -> None:
    """Else the node's predicates answer it."""
    request = pod("p", share(50, models=("T4",)))

    assert shape_of(request).is_plain
    assert not shape_of(request, mixed_models=True).is_plain


def test_requests_alike_have_one_shape() -> None:
    """By value, whatever objects they are made of; the Pod's name is no part of it."""
    index = ShapeIndex(with_memory=True, mixed_models=False)
    first = index.shape_of(pod("a", share(50)))

    assert index.shape_of(pod("b", share(50))) is first
    assert index.shape_of(pod("b", share(51))) is not first
    assert index.shape_of(pod("b", share(50), cpu_milli=1)) is not first
    assert index.shape_of(pod("b", share(50), memory_bytes=1)) is not first


def test_memory_is_no_part_of_a_shape_where_policies_ignore_it() -> None:
    """It is checked apart, so fewer rows are needed."""
    index = ShapeIndex(with_memory=False, mixed_models=False)
    shape = index.shape_of(pod("a", share(50), memory_bytes=1))

    assert index.shape_of(pod("b", share(50), memory_bytes=2)) is shape
    assert shape.memory_bytes == 0


OTHER: Final[dict[str, Any]] = {
    "uid": "uid-other",
    "namespace": "other",
    "name": "other",
    "cpu_milli": 7,
    "memory_bytes": 7,
    "dialect": Dialect.NVIDIA,
    "devices": (share(51),),
    "containers": (ContainerNeed(name="c", index="0", kind="app", device_counts=(("gpu", 1),)),),
    "cpuset": PINNED,
    "joint": JointAllocation(device_types=("gpu", "rdma")),
    "partition": PartitionSpec(),
    "placement": PlacementRules(node_selector=(("zone", "a"),)),
    "group": GroupRef(name="job", replica=2),
    "gang": GangRef(name="g", min_available=2, waiting_seconds=60),
    "numa": NumaTopologySpec(policy=NumaPolicy.SINGLE_NUMA_NODE),
    "burst_milli": 7,
    "bound_cpus": 7,
    "kubelet_cpus": (ContainerCpus(kind="app", cpus=7),),
    "mgpu_policy": "fixed-share",
    "mgpu_multi": True,
    "gpushare_units": 7,
    "card_filter": CardFilter(models=("A100",)),
    "node_policy": "spread",
    "by_plugin": True,
    "card_scoring": "LeastAllocated",
    "extended": (("example.com/nic", 1),),
    "stored": ("nvidia.com/gpu",),
    "snapshot": PodSnapshot(qos="LSE"),
}
"""Every field of a request with a value that is not the usual one."""


@pytest.mark.parametrize("name", [field.name for field in fields(PodRequest)])
def test_every_field_of_a_request_tells_two_apart_or_is_never_read(name: str) -> None:
    """Once for all who ask it: what waits together, what is planned alike, what is remembered."""
    one = pod("p", share(50))
    other = replace(one, **{name: OTHER[name]})
    index = ShapeIndex(with_memory=True, mixed_models=False)

    differs = asked_by(one) != asked_by(other)
    remembered = (index.shape_of(one), wishes_of(one)) != (index.shape_of(other), wishes_of(other))

    assert differs is remembered is (name not in NOT_READ or name == "snapshot")
    assert hash(asked_by(other)) == hash(asked_by(replace(other)))


@pytest.mark.parametrize("name", [field.name for field in fields(PodRequest)])
def test_a_shape_is_never_that_of_another_request(name: str) -> None:
    """Whatever was asked for before: what is looked up is what would be made anew."""
    one = pod("p", share(50))
    other = replace(one, **{name: OTHER[name]})
    index = ShapeIndex(with_memory=True, mixed_models=False)
    index.shape_of(one)

    found, anew = index.shape_of(other), shape_of(other)

    assert all(getattr(found, field.name) == getattr(anew, field.name) for field in fields(Shape))
