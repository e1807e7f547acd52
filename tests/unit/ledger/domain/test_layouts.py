"""What many nodes have alike, read once."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ledger.domain.annotations.node_cpu import decode_cpu_topology, encode_cpu_topology
from ledger.domain.annotations.tenure import encode_shown
from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.kube.device_objects import inventory_of_device
from ledger.domain.log import layouts
from ledger.domain.log.codec import read_value
from ledger.domain.log.events import NodeDescribed, NodeInventoried, decode_event, encode_event
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.state import Folding
from ledger.domain.log.state_codec import decode_state, encode_state
from ledger.domain.topology import Cpu, cpu_topology_of
from tests.support.stores import node, reserved, share

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
    assert state == fold.state == decode_state(encode_state(fold.state).encode())
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


def _described(uid: str, **more: int) -> NodeDescribed:
    facts = RecordedNode(version=1, mgpu_policy='},"node_name":"', faults=("facts",))
    return NodeDescribed(node_uid=uid, node_name=uid, facts=facts, **more)


def test_alike_nodes_share_the_facts_of_their_descriptions() -> None:
    """What was recorded is read back, fields at their default or not, and the facts are once."""
    events = [_described("a"), _described('b,"node_name":"', number=3, rank=2)]
    kind = NodeDescribed.event_type
    read = [decode_event(kind, encode_event(event)) for event in events]
    assert read == events
    first, other = read
    assert isinstance(first, NodeDescribed)
    assert isinstance(other, NodeDescribed)
    assert first.facts is other.facts
    made = [
        structs.replace(one, facts=replace(one.facts, created=created))
        for one in events
        for created in ("2026-01-01T00:00:00Z", "at-any-time", "b", '"', "\\", "Zürich")
    ]
    assert [decode_event(kind, encode_event(event)) for event in made] == made
    short = encode_event(events[0]).replace(',"number":0,"rank":0', "")
    assert decode_event(kind, short) == events[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"version":1', '"version":2'),
        ('"version":1', '"taints":[{"created":"x","effect":"e","key":"k"}],"version":1'),
        ('"version":1', '"taints":[{"created":"x","effect":"e","key":"at-any-time"}],"version":1'),
        ('{"faults"', '{"created":"","faults"'),
        ('"version":1', '"created":"x","version":1'),
        ('"version":1', '"links":null,"version":1'),
        ('"version":1', '"version":1,"x":1'),
        ('"version":1', '"version":1.0'),
        ('{"faults"', '[{"faults"'),
        ('{"faults"', ' {"faults"'),
        ('"version":1}', '"version":1},"facts":{"version":1}'),
        ('"number":0', '"facts":{"version":1},"number":0'),
        ('"number":0', '"number": 0'),
        ('"number":0', '"number":-1'),
        ('"number":0', '"number":0,"place":1'),
        ('"node_uid":"a"', '"node_uid":1'),
        ('"node_name":"a",', ""),
    ],
)
def test_broken_descriptions_are_refused_in_the_same_words(before: str, after: str) -> None:
    """Whichever part of it is broken."""
    body = encode_event(_described("a"))
    assert before in body
    body = body.replace(before, after, 1)
    kind = NodeDescribed.event_type
    with pytest.raises((InputError, UnknownEventError)) as whole:
        read_value(NodeDescribed, body, kind)
    with pytest.raises((InputError, UnknownEventError)) as apart:
        decode_event(kind, body)
    assert str(apart.value) == str(whole.value)
    assert type(apart.value) is type(whole.value)


@pytest.mark.parametrize(
    "text", [b"\xff", b'{"nodes":[],"planned_cards":["\xed\xa0\x80"]}', b"{}", b""]
)
def test_bytes_that_are_no_state_are_refused(text: bytes) -> None:
    """As a text is."""
    with pytest.raises(InputError):
        decode_state(text)


def test_what_cards_and_holdings_say_alike_is_there_once() -> None:
    """A large ledger has ten thousands of them: what was recorded is read back, each word once."""
    fold = Folding()
    for position, name in enumerate(("n-1", "n-2"), 1):
        fold.add(position, node(name))
        fold.add(position + 2, reserved(f"pod-{name}", share(0, 50, node=name), node=name))
    state = decode_state(encode_state(fold.state))
    assert state == fold.state
    one, other = state.nodes.values()
    assert one.devices[0].topology is other.devices[0].topology
    assert one.devices[0].model is other.devices[1].model
    [held], [alike] = one.holdings.values(), other.holdings.values()
    assert held.namespace is alike.namespace
    assert held.shares[0].device_id is one.devices[0].device_id
    assert held != alike


def _card(number: int, **changes: object) -> dict[str, object]:
    """Return one device of a Device object."""
    resources = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi"}
    told = {"type": "gpu", "minor": 0, "health": True, "resources": resources}
    return {**told, "id": f"GPU-{number}", "topology": {"nodeID": 0, "pcieID": "1"}, **changes}


def test_a_card_like_another_is_read_as_itself() -> None:
    """Its id is its own, and whatever else it says otherwise counts."""
    for changes in (
        {},
        {"health": False},
        {"minor": 3},
        {"resources": {"koordinator.sh/gpu-core": "50"}},
        {"labels": {"a": "b"}},
        {"id": ""},
    ):
        inventory_of_device({"spec": {"devices": [_card(1)]}}, "A100")
        [read] = inventory_of_device({"spec": {"devices": [_card(2, **changes)]}}, "A100").devices
        alone = _card(2, **changes)
        assert read.device_id == alone["id"]
        assert read.minor == alone["minor"]
        assert read.healthy is alone["health"]
        assert read.core_percent == (50 if "resources" in changes else 100)
        assert dict(read.labels) == changes.get("labels", {})
        assert read.model == "A100"
    [other] = inventory_of_device({"spec": {"devices": [_card(3)]}}, "L40S").devices
    assert other.model == "L40S"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"minor": "0"}, id="a minor in text"),
        pytest.param({"labels": {"made": date(2026, 1, 1)}}, id="a file's own date"),
        pytest.param({"id": 7}, id="an id that is a number"),
    ],
)
def test_a_card_that_cannot_be_read_is_named_though_another_is_like_it(
    changes: dict[str, object],
) -> None:
    """The error has the path of the card that is wrong, each time."""
    for _ in range(2):
        with pytest.raises(InputError, match=r"spec\.devices\[1\]"):
            inventory_of_device({"spec": {"devices": [_card(1), _card(2, **changes)]}}, "A100")


@given(st.lists(st.sampled_from(['"cpus":[', "[", "]", '"', "1"]), max_size=12).map("".join))
def test_lists_of_cpus_are_found_as_they_are_written(text: str) -> None:
    """Lists alone that have no list within, from the first to the last."""
    lists = re.compile(rb'"cpus":(\[[^\[\]]*\])')
    said = text.encode()
    assert layouts._apart(said) == (lists.sub(b'"cpus":[]', said), lists.findall(said))


def test_a_state_says_what_is_shown_of_those_alone_who_are_shown_something() -> None:
    """Snapshots of others are what they were, to the byte."""
    fold = Folding()
    fold.add(1, node("n-1", cpus=8))
    shown = structs.replace(reserved("p", share(0, 100)), annotations=encode_shown(("a", "b")))
    fold.add(2, shown)
    fold.add(3, reserved("q", share(1, 100)))
    text = encode_state(fold.state)
    assert text.count('"shown"') == 1
    assert decode_state(text) == fold.state
