"""Which node a Pod whose request is a claim is sent to."""

from __future__ import annotations

from dataclasses import replace

from ledger.domain.cpuset import EMPTY
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.log.state import GRANTED, Holding, NodeState
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.normalise import decode_pod
from scheduler.decide.claimed_nodes import Planned, node_for
from scheduler.decide.settings import SchedulingSettings
from tests.support.gated import CARD_BYTES, GIB, card
from tests.support.objects import gpu_pod

HALF = gpu_pod({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"})
WHOLE = gpu_pod({"nvidia.com/gpu": "1"})
SETTINGS = SchedulingSettings()

Node = tuple[NodeFacts, NodeState]


def share(minor: int, percent: int) -> DeviceShare:
    """Return so many percent of a card."""
    return DeviceShare(
        device_type=GPU,
        minor=minor,
        device_id=f"GPU-{minor}",
        core_percent=percent,
        memory_bytes=CARD_BYTES * percent // 100,
    )


def node(name: str, *held: DeviceShare) -> Node:
    """Return a node of two cards, on which claims hold this."""
    claims = {
        f"{name}-{number}/1": Holding(
            pod_uid=f"{name}-{number}",
            attempt=1,
            namespace="ml",
            pod_name="c",
            kind=GRANTED,
            phase="bound",
            opened_position=1,
            shares=(each,),
            cpuset=EMPTY,
            holder="claim",
        )
        for number, each in enumerate(held)
    }
    state = NodeState(uid=f"uid-{name}", name=name, devices=(card(0), card(1)), claims=claims)
    return NodeFacts(uid=state.uid, name=name), state


def sent(pod: dict[str, object], *nodes: Node, planned: dict[str, Planned] | None = None) -> str:
    """Return the node that a Pod is sent to."""
    found = node_for(decode_pod(pod), nodes, planned or {}, SETTINGS)
    return "" if found is None else found.node


def test_a_part_goes_to_the_card_that_it_fills() -> None:
    """And a whole card to the node that has the fewest idle ones; else by name."""
    assert sent(HALF, node("a"), node("b", share(1, 50))) == "b"
    assert sent(WHOLE, node("a"), node("b", share(1, 50))) == "b"
    assert sent(WHOLE, node("b"), node("a")) == "a"


def test_where_it_does_not_fit_nobody_is_sent() -> None:
    """Nor where its Pod may not go."""
    full = node("a", share(0, 100), share(1, 100))
    facts, state = node("b")
    fenced = replace(facts, taints=(Taint(key="x", value="", effect="NoSchedule"),))

    assert sent(WHOLE, full) == ""
    assert sent(WHOLE, full, (fenced, state)) == ""
    assert sent(WHOLE, (replace(facts, unschedulable=True), state)) == ""
    assert sent(gpu_pod({"nvidia.com/gpu": "1"}, nodeSelector={"zone": "z"}), node("b")) == ""


def test_who_is_on_the_way_counts_where_it_goes() -> None:
    """The ledger has nothing of it yet."""
    first = node_for(decode_pod(HALF), [node("a"), node("b")], {}, SETTINGS)
    assert first is not None
    assert [(one.core_percent, one.memory_bytes) for one in first.shares] == [(50, 8 * GIB)]
    planned = {"p1": first, "p2": first}

    assert sent(HALF, node("a"), node("b"), planned={"p1": first}) == first.node
    assert sent(gpu_pod({"nvidia.com/gpu": "2"}), node("a"), node("b"), planned=planned) == "b"
