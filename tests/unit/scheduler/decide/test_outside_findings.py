"""What an outside tester found, so that it stays found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings

GIB = 1 << 30
POLICIES = ("binpack", "spread", "bestfit", "fgd", "scarcity", "random")


def _node(name: str, cards: int) -> NodeFacts:
    devices = tuple(
        DeviceRecord(device_type="gpu", minor=minor, device_id="") for minor in range(cards)
    )
    return NodeFacts(uid=name, name=name, devices=devices)


def _pod(name: str, *, gpus: int = 0, memory_bytes: int = 0) -> PodRequest:
    whole = DeviceDemand(
        device_type="gpu", count=gpus, core_percent=100, memory_ratio_percent=100, exclusive=True
    )
    return PodRequest(
        uid=name,
        namespace="default",
        name=name,
        cpu_milli=0,
        memory_bytes=memory_bytes,
        devices=(whole,) if gpus else (),
    )


def _holder(node: str) -> PodObserved:
    return PodObserved(
        pod_uid="r",
        attempt=1,
        namespace="default",
        pod_name="r",
        node_uid=node,
        node_name=node,
        source="device-allocated",
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_held_on_a_card_of_unknown_size_hides_no_other_card(policy: str) -> None:
    """Whatever is held beyond what a unit has, a node with free cards is still chosen."""
    engine = Engine([_node("n", 3)], SchedulingSettings(node_policy=policy))
    share = DeviceShare(
        device_type="gpu", minor=0, device_id="", core_percent=100, memory_bytes=24 * GIB
    )

    conflicts = engine.adopt(0, structs.replace(_holder("n"), shares=(share,)))

    assert conflicts == []
    placement = engine.decide(_pod("p", gpus=1))
    assert isinstance(placement, Placement), placement
    assert [share.minor for share in placement.shares] == [1]


@pytest.mark.parametrize("policy", POLICIES)
def test_more_cpu_held_than_there_is_does_not_hide_the_memory(policy: str) -> None:
    """A node without cpu whose running Pod asks for some still serves a Pod that asks for none."""
    node = replace(_node("n", 0), cpu_milli=0, memory_bytes=8 * GIB)
    engine = Engine([node], SchedulingSettings(node_policy=policy))
    engine.adopt(0, structs.replace(_holder("n"), cpu_milli=5000))

    placement = engine.decide(_pod("p", memory_bytes=GIB))

    assert isinstance(placement, Placement), placement


def test_the_nearest_node_is_one_that_gave_the_reason() -> None:
    """Advice about a node that has another reason would be false."""
    nodes = [_node("a", 1), _node("b", 0)]
    engine = Engine(nodes, SchedulingSettings())
    engine.adopt(0, structs.replace(_holder("a"), unknown_types=("gpu",)))

    answer = engine.decide(_pod("p", gpus=1))

    assert isinstance(answer, Unplaced)
    nearest = {count.reason: count.nearest_node for count in answer.reasons}
    assert nearest["Insufficient gpu devices"] == "b"
