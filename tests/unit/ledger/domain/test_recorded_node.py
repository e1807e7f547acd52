"""The facts of a node in a ledger: all that deciding reads, in one text."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import pytest

from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.events import NodeDescribed, decode_event, encode_event
from ledger.domain.log.recorded_node import RecordedNode, node_from, recorded_node
from ledger.domain.nodes import KubeletPolicy, NodeFacts, NumaZone, Taint
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.quantity import parse_quantity
from ledger.domain.topology import LinkMatrix

NODE = NodeFacts(
    uid="u",
    name="n",
    taints=(Taint(key="gpu", value="", effect="NoSchedule"),),
    unschedulable=True,
    cpu_milli=0,
    pods_max=110,
    dialects=frozenset({Dialect.NVIDIA, Dialect.MGPU}),
    card_amounts={1: {"huawei.com/npu-core": 8}, 0: {"huawei.com/npu-core": 4}},
    kubelet=KubeletPolicy(whole_cores=True),
    numa_zones=(NumaZone(id=0, cpu_milli=4_000),),
    cpu_amplification=Fraction(3, 2),
    links=LinkMatrix(rows=((0.0, 400.5), (400.0, 0.0))),
    partitions={
        2: (GpuPartition(minors=(0, 1), ring_bus_bandwidth=parse_quantity("300Gi")),),
        1: (),
    },
)


BY_INVENTORY = frozenset(
    {
        *("uid", "name", "system_uuid", "machine_id", "boot_id", "labels", "devices"),
        *("cpu_topology", "cpu_ref_count_max"),
    }
)
"""The fields of a node that its inventory has."""
BY_OTHERS = frozenset({"lost", "derived_links"})
"""What an event of its own says, and what follows from the others."""


def test_every_field_of_a_node_is_recorded() -> None:
    """Here, by the inventory or by an event of its own: a new field is in none and fails here."""
    fields = {field.name for field in dataclasses.fields(NodeFacts)}
    recorded = {field.name for field in dataclasses.fields(RecordedNode)} - {"version"}

    assert recorded | BY_INVENTORY | BY_OTHERS == fields
    assert not recorded & (BY_INVENTORY | BY_OTHERS)


@pytest.mark.parametrize(
    "node",
    [
        NODE,
        NodeFacts(uid="u", name="n"),
        dataclasses.replace(NODE, partitions={}, dialects=frozenset(), links=None),
    ],
    ids=["full", "bare", "empty"],
)
def test_a_node_comes_back_whole(node: NodeFacts) -> None:
    """No limit and none left, no table and an empty one stay what they are."""
    event = NodeDescribed(node_uid="u", node_name="n", facts=recorded_node(node))

    again = decode_event(event.event_type, encode_event(event))

    assert isinstance(again, NodeDescribed)
    assert node_from(again.facts, NodeFacts(uid="u", name="n"), ()) == node


def body(**changes: object) -> str:
    """Return the body of a description with other words in its facts."""
    event = NodeDescribed(node_uid="u", node_name="n", facts=recorded_node(NODE))
    words = json.loads(encode_event(event))
    words["facts"] |= changes
    return canonical_json(words)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"unschedulable": False}, "one form"),
        ({"cpu_amplification": "6/4"}, "one form"),
        ({"cpu_amplification": "1/0"}, "not a fraction"),
        ({"links": "[[0, 1],[1,0]]"}, "one form"),
        ({"links": "[[0,1]]"}, "not square"),
        ({"reserved_cpus": "0,1"}, "one form"),
        ({"pods_max": -1}, "expected `int` [<>]="),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_another_text_for_the_same_facts_is_none(changes: dict[str, object], fact: str) -> None:
    """Strict, down to how a number is written."""
    with pytest.raises(InputError, match=fact):
        decode_event(NodeDescribed.event_type, body(**changes))


def test_facts_of_another_version_stop_the_reader() -> None:
    """Never guess what they mean."""
    with pytest.raises(UnknownEventError, match="RecordedNode of another version: version=2"):
        decode_event(NodeDescribed.event_type, body(version=2))
