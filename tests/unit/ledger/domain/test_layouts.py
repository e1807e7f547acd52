"""CPUs that many nodes have alike, read once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.annotations.node_cpu import decode_cpu_topology, encode_cpu_topology
from ledger.domain.errors import InputError
from ledger.domain.log.codec import read_value
from ledger.domain.log.events import NodeInventoried, decode_event, encode_event
from ledger.domain.log.state import Folding
from ledger.domain.log.state_codec import decode_state, encode_state
from ledger.domain.topology import Cpu, cpu_topology_of

CPUS = tuple(Cpu(id=number, core=number // 2, socket=0, numa=0) for number in range(8))


def _inventory(uid: str, cpus: tuple[Cpu, ...] = CPUS) -> NodeInventoried:
    labels = {"cpus": '"cpus":[1,2]', "text": '},{"cpus":['}
    return NodeInventoried(node_uid=uid, node_name=uid, labels=labels, cpus=cpus)


def _read(event: NodeInventoried) -> NodeInventoried:
    read = decode_event(NodeInventoried.event_type, encode_event(event))
    assert isinstance(read, NodeInventoried)
    return read


def test_alike_nodes_share_their_cpus_wherever_they_are_told_of() -> None:
    """By an event, by a state, by the API: what was recorded is read back, and is there once."""
    events = [_inventory("a"), _inventory("b"), _inventory("bare", ())]
    read = [_read(event) for event in events]
    assert read == events
    assert read[0].cpus is read[1].cpus
    fold = Folding()
    for position, event in enumerate(events, 1):
        fold.add(position, event)
    state = decode_state(encode_state(fold.state))
    assert state == fold.state
    assert state.nodes["a"].cpus is state.nodes["b"].cpus is read[0].cpus
    assert state.nodes["bare"].cpus == ()
    text = encode_cpu_topology(cpu_topology_of(CPUS))
    assert decode_cpu_topology(text).cpus is read[0].cpus


@pytest.mark.parametrize(
    "cpus", [tuple(reversed(CPUS)), (CPUS[0], replace(CPUS[0], core=3))], ids=["order", "twice"]
)
def test_what_is_no_topology_is_read_as_it_was_recorded(cpus: tuple[Cpu, ...]) -> None:
    """The order, and an id that is there twice, are the event's own."""
    assert _read(_inventory("a", cpus)).cpus == cpus


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"core":1,', '"core":1.5,'),
        ('"core":1,', '"core":01,'),
        ('"core":1,', '"core": 1,'),
        ('"core":1,', ""),
        ('"id":2,', '"id":-1,'),
        ('"cpus":[{', '"cpus":[[],{'),
        ('"cpus":[', '"cpus":[],"cpus":['),
    ],
)
def test_broken_cpus_are_refused_in_the_same_words(before: str, after: str) -> None:
    """Who shares says no other thing of a text than who reads all of it."""
    body = encode_event(_inventory("a"))
    assert before in body
    body = body.replace(before, after, 1)
    kind = NodeInventoried.event_type
    with pytest.raises(InputError) as whole:
        read_value(NodeInventoried, body, kind)
    with pytest.raises(InputError) as shared:
        decode_event(kind, body)
    assert str(shared.value) == str(whole.value)
