"""What a refusal costs where many nodes are alike, and for which of them it says to wait."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from types import FrameType

import pytest

from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Unplaced
from scheduler.decide.settings import SchedulingSettings


def _node(name: str, there: int = 8, offers: int = 8, **labels: str) -> NodeFacts:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    body = {
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "labels": labels},
        "status": {
            "capacity": {**amounts, "nvidia.com/gpu": str(there)},
            "allocatable": {**amounts, "nvidia.com/gpu": str(offers)},
        },
    }
    facts, _ = decode_node(body)
    return facts


def _asks(limits: dict[str, str], **selector: str) -> PodRequest:
    containers = [{"name": "c", "resources": {"limits": limits}}]
    body = {
        "metadata": {"name": "p", "namespace": "d", "uid": "p"},
        "spec": {"containers": containers, "nodeSelector": selector},
    }
    request, _ = examine_pod(body, DEFAULT_VOCABULARY)
    assert isinstance(request, PodRequest)
    return request


def _calls(nodes: int, limits: dict[str, str]) -> int:
    """Return how many functions of Python one refusal calls."""
    alike = [replace(_node("n"), uid=f"n{i}", name=f"n{i}") for i in range(nodes)]
    engine = Engine(alike, SchedulingSettings())
    request, calls = _asks(limits), Counter[str]()

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        calls[event] += 1

    engine.decide(request)  # what is made once, is made
    engine.forget()
    sys.setprofile(count)
    try:
        assert isinstance(engine.decide(request), Unplaced)
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"nvidia.com/gpu": "16"}, id="more cards than a node has"),
        pytest.param({"nvidia.com/gpumem": "20000"}, id="a name that nobody offers"),
        pytest.param({"nvidia.com/gpu": "1", "cpu": "100"}, id="more cpu than a node has"),
    ],
)
def test_nodes_that_are_alike_are_looked_at_once(limits: dict[str, str]) -> None:
    """Each filter pays for it: words for people are made per kind of node, not per node."""
    assert _calls(400, limits) < 1.2 * _calls(40, limits)


def test_nodes_that_are_alike_are_counted_each() -> None:
    """By how many offer it, and what is free of them together."""
    kinds = [_node("a"), _node("b"), _node("c", there=4, offers=4)]
    answer = Engine(kinds, SchedulingSettings()).decide(_asks({"nvidia.com/gpumem": "20000"}))

    assert isinstance(answer, Unplaced)
    assert "meant nvidia.com/gpu? 3 of 3 nodes offer it, 20 free" in answer.message


@pytest.mark.parametrize(("zone", "waits"), [("a", True), ("b", False)])
def test_nobody_waits_for_a_node_that_he_may_not_go_to(zone: str, *, waits: bool) -> None:
    """Its card may be opened, and the Pod waits for another zone."""
    nodes = [_node("n1", there=4, offers=3, zone="a"), _node("n2", there=2, offers=2, zone="b")]
    engine = Engine(nodes, SchedulingSettings(), by_count=True)
    answer = engine.decide(_asks({"nvidia.com/gpu": "4"}, zone=zone))

    assert isinstance(answer, Unplaced)
    said = " ".join(each.remedy for each in answer.reasons)
    assert ("wait until it is open: 1 of 4 nvidia.com/gpu of n1" in said) is waits
