from __future__ import annotations

import pytest

from ledger.domain.annotations.gpu_topology import (
    GpuTopologyAllocation,
    decode_gpu_links,
    decode_gpu_topology,
    encode_gpu_links,
    encode_gpu_topology,
    read_gpu_group,
)
from ledger.domain.errors import InputError
from ledger.domain.request.requests import GroupRef
from ledger.domain.topology import parse_link_matrix
from tests.support.topologies import EIGHT_GPU_DEVICE_TEXT, EIGHT_GPU_NVLINK
from tests.support.wishes import encode_gpu_group

NAME = "gputopology.scheduling.koordinator.sh/name"
REPLICA = "gputopology.scheduling.koordinator.sh/replica"


def test_group_labels_round_trip() -> None:
    """Koordinator GPU-topology proposal, "How to identify pods are in the same group"."""
    group = GroupRef(name="job-7", replica=3)

    assert read_gpu_group({NAME: "job-7", REPLICA: "3"}) == group
    assert encode_gpu_group(group) == {NAME: "job-7", REPLICA: "3"}
    assert read_gpu_group({"app": "x"}) is None


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({NAME: "job-7"}, REPLICA),
        ({REPLICA: "3"}, NAME),
        ({NAME: "", REPLICA: "3"}, NAME),
        ({NAME: "job-7", REPLICA: ""}, REPLICA),
        ({NAME: "job-7", REPLICA: "0"}, REPLICA),
        ({NAME: "job-7", REPLICA: "-3"}, REPLICA),
        ({NAME: "job-7", REPLICA: "three"}, REPLICA),
    ],
    ids=[
        "no replica",
        "no name",
        "an empty name",
        "an empty replica",
        "none",
        "negative",
        "a word",
    ],
)
def test_half_a_group_is_an_error(labels: dict[str, str], place: str) -> None:
    """A Pod that names its group badly must not be placed alone."""
    with pytest.raises(InputError) as caught:
        read_gpu_group(labels)

    assert caught.value.field == f"metadata.labels[{place}]"


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ('{"allocatedGPUs":{"0":["4","5"]},"visibleGPUs":["4","5","6"]}', (4, 5, 6)),
        ('{"allocatedGPUs":{"0":["4","5"]},"visibleGPUs":["4","5","6","7"]}', (4, 5, 6, 7)),
    ],
    ids=["the contract's example", "the proposal's example"],
)
def test_the_documents_examples_round_trip(text: str, visible: tuple[int, ...]) -> None:
    """Indexes are text on the wire and integers inside."""
    allocation = GpuTopologyAllocation(allocated=((0, (4, 5)),), visible=visible)

    assert decode_gpu_topology(text) == allocation
    assert encode_gpu_topology(allocation) == text


def test_containers_are_ordered_as_numbers() -> None:
    """Container 10 comes after container 9."""
    text = '{"allocatedGPUs":{"10":["1"],"9":["0"]},"visibleGPUs":["0","1"]}'

    assert decode_gpu_topology(text).allocated == ((9, (0,)), (10, (1,)))
    assert decode_gpu_topology("{}") == GpuTopologyAllocation()
    assert encode_gpu_topology(GpuTopologyAllocation()) == '{"allocatedGPUs":{},"visibleGPUs":[]}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"allocatedGPUs":["0"]}',
        '{"allocatedGPUs":{"a":["0"]}}',
        '{"allocatedGPUs":{"0":"4"}}',
        '{"allocatedGPUs":{"0":["x"]}}',
        '{"allocatedGPUs":{"0":["-1"]}}',
        '{"visibleGPUs":[4]}',
        '{"visibleGPUs":[null]}',
    ],
    ids=[
        "no text",
        "a list",
        "allocations as a list",
        "a container that is no index",
        "GPUs that are no list",
        "a GPU that is no index",
        "a negative GPU",
        "a GPU as a number",
        "a null GPU",
    ],
)
def test_broken_allocations_are_errors(text: str) -> None:
    """Nothing is read as GPU 0 by guess."""
    with pytest.raises(InputError, match=r"topology\.scheduling\.koordinator\.sh/gpu"):
        decode_gpu_topology(text)


def test_the_devices_matrix_is_found_by_name() -> None:
    """Koordinator GPU-topology proposal, the Device example."""
    topologies = {
        "gpu": [
            {"name": "latency", "topology": "not read"},
            {"name": "bandwidth", "topology": EIGHT_GPU_DEVICE_TEXT},
        ]
    }

    assert decode_gpu_links(topologies) == parse_link_matrix(EIGHT_GPU_DEVICE_TEXT)
    assert decode_gpu_links(encode_gpu_links(EIGHT_GPU_NVLINK)) == EIGHT_GPU_NVLINK


@pytest.mark.parametrize(
    "topologies",
    [None, {}, {"gpu": []}, {"gpu": None}, {"rdma": [{"name": "bandwidth"}]}, {"gpu": [{}]}],
    ids=["absent", "empty", "no entry", "null", "another type", "an entry without name"],
)
def test_a_device_may_have_no_matrix(topologies: object) -> None:
    """Only an entry named `bandwidth` counts."""
    assert decode_gpu_links(topologies) is None


@pytest.mark.parametrize(
    ("topologies", "field"),
    [
        ({"gpu": [{"name": "bandwidth"}]}, "spec.topologies.gpu[0].topology"),
        (
            {"gpu": [{"name": "bandwidth", "topology": "[[1,2]]"}]},
            "spec.topologies.gpu[0].topology",
        ),
        (
            {"gpu": [{"name": "bandwidth", "topology": [[1]]}]},
            "spec.topologies.gpu[0].topology",
        ),
        ({"gpu": {}}, "spec.topologies.gpu"),
        ([], "spec.topologies"),
    ],
    ids=["no matrix", "not square", "a matrix that is no text", "no list", "no map"],
)
def test_a_broken_matrix_names_its_place(topologies: object, field: str) -> None:
    """The path starts at the Device's spec."""
    with pytest.raises(InputError) as caught:
        decode_gpu_links(topologies)

    assert caught.value.field == field
