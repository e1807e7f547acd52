from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.requests import CpuSetDemand, PodRequest
from ledger.domain.resources import Dialect
from scheduler.decide.shapes import ShapeIndex, shape_of
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
