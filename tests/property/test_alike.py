from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.devices import DeviceRecord
from ledger.domain.nodes import NodeFacts
from ledger.domain.requests import PodRequest
from scheduler.decide import engine as deciding
from scheduler.decide import filtering
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from tests.property.test_cards_hints import machines, requests

NEVER = 10**9


@contextmanager
def grouped_after(refusals: int) -> Iterator[None]:
    """Group nodes alike after so many refusals of one decision."""
    with (
        mock.patch.object(deciding, "REFUSALS_BEFORE", refusals),
        mock.patch.object(filtering, "REFUSALS_BEFORE", refusals),
    ):
        yield


@st.composite
def fleets(draw: st.DrawFn) -> tuple[NodeFacts, ...]:
    """A few kinds of machines, several of each, one of them perhaps with a card that is ill."""
    kinds = draw(st.lists(machines(), min_size=1, max_size=2))
    nodes = []
    for number in range(draw(st.integers(2, 6))):
        kind = kinds[number % len(kinds)]
        name = f"n{number}"
        ill = draw(st.sampled_from([-1, -1, -1, 0]))
        devices = tuple(
            _named(record, name, healthy=record.healthy and place != ill)
            for place, record in enumerate(kind.devices)
        )
        nodes.append(replace(kind, uid=f"uid-{name}", name=name, devices=devices))
    return tuple(nodes)


def _named(record: DeviceRecord, node: str, *, healthy: bool) -> DeviceRecord:
    return replace(record, device_id=f"{node}-{record.device_id}", healthy=healthy)


def decisions(
    nodes: Sequence[NodeFacts], pods: Sequence[PodRequest], policy: str
) -> list[Placement | Unplaced]:
    """Return what becomes of the Pods, one after the other; every third one ends at once."""
    engine = Engine(nodes, SchedulingSettings(node_policy=policy))
    answers = []
    for number, request in enumerate(pods):
        answer = engine.decide(request)
        answers.append(answer)
        if isinstance(answer, Placement):
            engine.reserve(answer)
            if number % 3 == 2:
                engine.release(request.uid)
    return answers


@given(
    nodes=fleets(),
    pods=st.lists(requests(), min_size=1, max_size=8),
    policy=st.sampled_from(["scarcity", "binpack", "bestfit", "random"]),
)
def test_one_refusal_for_nodes_alike_changes_no_answer(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest], policy: str
) -> None:
    """Places, devices, reasons and numbers are those of looking at every node by itself."""
    named = [replace(request, uid=f"p{number}") for number, request in enumerate(pods)]
    with grouped_after(NEVER):
        expected = decisions(nodes, named, policy)
    with grouped_after(1):
        assert decisions(nodes, named, policy) == expected


@given(nodes=fleets(), pods=st.lists(requests(), min_size=2, max_size=8))
def test_a_filter_fails_only_nodes_that_would_refuse(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest]
) -> None:
    """The best node is the same; of the others those fail that give the Pod nothing alone."""
    engine = Engine(nodes, SchedulingSettings(node_policy="binpack"))
    *earlier, last = [replace(request, uid=f"p{number}") for number, request in enumerate(pods)]
    for request in earlier:
        answer = engine.decide(request)
        if isinstance(answer, Placement):
            engine.reserve(answer)
    engine.forget()
    everywhere = list(range(len(nodes)))
    with grouped_after(NEVER):
        expected = engine.filter(last, everywhere)
    engine.forget()
    with grouped_after(1):
        judged = engine.filter(last, everywhere)

    assert judged.best == expected.best
    assert set(judged.passing.tolist()) <= set(expected.passing.tolist())
    for place in set(expected.passing.tolist()) - set(judged.passing.tolist()):
        assert engine.filter(last, [place]).best is None
