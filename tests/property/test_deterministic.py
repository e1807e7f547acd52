from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import PodRequest
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import POLICIES, SchedulingSettings
from tests.support.clusters import fleets, nodes, requests_of_any_dialect
from tests.support.decided import answers, digest
from tests.support.examples import examples
from tests.support.mixed import (
    NOW_NS,
    Amounts,
    as_running,
    asked,
    asking,
    node_with_device,
    node_without_device,
)
from tests.support.process import ROOT

SETTINGS: Final = SchedulingSettings()
Asks = tuple[str, tuple[Amounts, ...]]


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, dict[str, str]]:
    """What two other processes say under hash seeds of their own: a digest per policy."""
    said = {}
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        there = subprocess.run(
            [sys.executable, "-m", "tests.support.decided"],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        said[seed] = json.loads(there.stdout)
    return said


def test_answers_are_the_same_in_every_process_and_under_every_hash_seed(
    elsewhere: dict[str, dict[str, str]],
) -> None:
    """Placements, reasons, ratings and annotations, byte for byte, in two other processes."""
    here = {policy: list(answers(policy)) for policy in POLICIES}
    digests = {policy: digest(said) for policy, said in here.items()}

    assert all(len(set(said)) > 100 for said in here.values()), "it says many different things"
    assert elsewhere == {"0": digests, "4242": digests}


def _engine(facts: Sequence[NodeFacts], policy: str = "binpack") -> Engine:
    return Engine(facts, SchedulingSettings(node_policy=policy))


def _fill(engine: Engine, requests: Sequence[PodRequest]) -> list[Placement]:
    placements = []
    for number, request in enumerate(requests):
        answer = engine.decide(replace(request, uid=f"f{number}"), ordinal=number)
        if isinstance(answer, Placement):
            engine.reserve(answer)
            placements.append(answer)
    return placements


FILLS: Final = st.lists(requests_of_any_dialect(), max_size=8)


@settings(max_examples=examples(100), deadline=None)
@given(arrays=fleets(), fills=FILLS, request=requests_of_any_dialect(), data=st.data())
def test_what_came_in_another_order_decides_alike(
    arrays: tuple[NodeFacts, ...],
    fills: list[PodRequest],
    request: PodRequest,
    data: st.DataObject,
) -> None:
    """The state is what is held, not how it came to be: reservations and releases in any order."""
    first = _engine(arrays)
    placements = _fill(first, fills)
    gone = {placement.request.uid for placement in placements if data.draw(st.booleans())}
    for uid in sorted(gone):
        first.release(uid)
    second = _engine(arrays)
    for placement in data.draw(st.permutations(placements)):
        second.reserve(placement)
    for uid in data.draw(st.permutations(sorted(gone))):
        second.release(uid)
    assert _text(first.decide(request)) == _text(second.decide(request))
    assert [first.view(node) for node in range(len(arrays))] == [
        second.view(node) for node in range(len(arrays))
    ]


@settings(max_examples=examples(60), deadline=None)
@given(pods=st.lists(asked(), min_size=1, max_size=8), ask=asked(), data=st.data())
def test_running_pods_read_in_another_order_decide_alike(
    pods: list[Asks], ask: Asks, data: st.DataObject
) -> None:
    """A restart may list the Pods in any order."""
    facts = (node_with_device("a"), node_without_device("b"))
    engine = _engine(facts)
    seen = []
    for number, (dialect, containers) in enumerate(pods):
        body = asking(f"p{number}", dialect, *containers)
        answer = engine.decide(decode_pod(body))
        if isinstance(answer, Placement):
            engine.reserve(answer)
            node = facts[answer.node]
            written = encode(answer, node=node, now_ns=NOW_NS, settings=SETTINGS)
            seen.append((answer.node, as_running(body, node, written)))
    request = decode_pod(asking("next", ask[0], *ask[1]))
    expected = _text(engine.decide(request))
    again = _engine(facts)
    for place, observed in data.draw(st.permutations(seen)):
        assert again.adopt(place, observed) == []
    assert _text(again.decide(request)) == expected


@settings(max_examples=examples(100), deadline=None)
@given(
    arrays=fleets(most=4),
    stranger=nodes("stranger"),
    fills=FILLS,
    request=requests_of_any_dialect(),
    data=st.data(),
)
def test_another_node_never_changes_what_a_pod_gets_on_a_node(
    arrays: tuple[NodeFacts, ...],
    stranger: NodeFacts,
    fills: list[PodRequest],
    request: PodRequest,
    data: st.DataObject,
) -> None:
    """Devices and CPUs are picked from the node alone, and so is the verdict on it."""
    small = _engine(arrays)
    placements = _fill(small, fills)
    at = data.draw(st.integers(0, len(arrays)))
    large = _engine((*arrays[:at], stranger, *arrays[at:]))
    for placement in placements:
        large.reserve(structs.replace(placement, node=placement.node + (placement.node >= at)))
    for node in range(len(arrays)):
        there = node + (node >= at)
        one, other = small.try_place(request, node), large.try_place(request, there)
        assert (one is None) == (other is None), node
        if one is not None and other is not None:
            assert (one.shares, one.cpuset, one.devices) == (
                other.shares,
                other.cpuset,
                other.devices,
            )
            small.release(request.uid)
            large.release(request.uid)
        assert small.view(node) == large.view(there)


@settings(max_examples=examples(100), deadline=None)
@given(arrays=fleets(), fills=FILLS, data=st.data())
def test_release_restores_every_number_exactly(
    arrays: tuple[NodeFacts, ...], fills: list[PodRequest], data: st.DataObject
) -> None:
    """Whatever came and went, in any order: arrays, sums and verdicts are those of an empty one."""
    engine, untouched = _engine(arrays), _engine(arrays)
    placements = _fill(engine, fills)
    for placement in data.draw(st.permutations(placements)):
        engine.release(placement.request.uid)
    assert engine.core_percent_allocated == 0
    assert _numbers(engine) == _numbers(untouched)
    assert [engine.view(node) for node in range(len(arrays))] == [
        untouched.view(node) for node in range(len(arrays))
    ]


def _numbers(engine: Engine) -> dict[str, list[object]]:
    """Return every array of the fleet as lists."""
    arrays: NodeArrays = engine._arrays
    holders = {"": arrays, **arrays.devices}
    return {
        f"{kind}.{name}": value.tolist()
        for kind, holder in holders.items()
        for name, value in vars(holder).items()
        if isinstance(value, np.ndarray)
    }


def _text(answer: Placement | Unplaced) -> str:
    return repr(answer)
