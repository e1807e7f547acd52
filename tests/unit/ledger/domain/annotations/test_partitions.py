from __future__ import annotations

import json

import pytest

from ledger.domain.annotations.partitions import (
    GpuPartition,
    decode_gpu_partitions,
    honors_partitions,
)
from ledger.domain.errors import InputError
from ledger.domain.quantity import parse_quantity
from tests.support.wishes import encode_gpu_partitions

TABLE = """
{"1": [{"minors": [0]}, {"minors": [1]}],
 "2": [{"minors": [0, 1], "gpuLinkType": "NVLink", "ringBusBandwidth": "300Gi",
        "allocationScore": 2},
       {"minors": [1, 2], "ringBusBandwidth": "60Gi", "allocationScore": 1}]}
"""


def test_the_contracts_table_round_trips() -> None:
    """Koordinator contract 2.5; table order is kept, it breaks ties."""
    table = {
        1: (GpuPartition(minors=(0,)), GpuPartition(minors=(1,))),
        2: (
            GpuPartition(
                minors=(0, 1),
                link_type="NVLink",
                ring_bus_bandwidth=parse_quantity("300Gi"),
                allocation_score=2,
            ),
            GpuPartition(
                minors=(1, 2), ring_bus_bandwidth=parse_quantity("60Gi"), allocation_score=1
            ),
        ),
    }

    assert decode_gpu_partitions(TABLE) == table
    assert json.loads(encode_gpu_partitions(table)) == json.loads(TABLE)


def test_counts_and_minors_are_ordered_as_numbers() -> None:
    """16 comes after 8, and a partition's minors ascend."""
    text = '{"2":[{"minors":[3,1]}],"10":[],"9":[]}'

    table = decode_gpu_partitions(text)
    assert list(table) == [2, 9, 10]
    assert table[2][0].minors == (1, 3)
    assert decode_gpu_partitions("{}") == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"two":[]}',
        '{"0":[]}',
        '{"1":{}}',
        '{"1":[{}]}',
        '{"2":[{"minors":[0]}]}',
        '{"2":[{"minors":[0,0]}]}',
        '{"1":[{"minors":[-1]}]}',
        '{"1":[{"minors":["0"]}]}',
        '{"1":[{"minors":[0],"ringBusBandwidth":"fast"}]}',
        '{"1":[{"minors":[0],"allocationScore":"1"}]}',
    ],
    ids=[
        "no text",
        "a list",
        "a count that is no number",
        "a count of none",
        "partitions that are no list",
        "a partition without minors",
        "fewer minors than the count",
        "a repeated minor",
        "a negative minor",
        "a minor as text",
        "a broken bandwidth",
        "a score as text",
    ],
)
def test_broken_tables_are_errors(text: str) -> None:
    """The caller takes a broken table for none, knowingly."""
    with pytest.raises(InputError, match="gpu-partitions"):
        decode_gpu_partitions(text)


def test_honor_on_node_or_device_binds() -> None:
    """Koordinator contract 2.3: anything else is `Prefer`."""
    honor = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
    other = {"node.koordinator.sh/gpu-partition-policy": "honor"}

    assert honors_partitions({}, honor)
    assert honors_partitions(honor, other)
    assert not honors_partitions({}, other)
    assert not honors_partitions()
