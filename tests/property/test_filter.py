from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec
from ledger.domain.devices import DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.filter.filtering import Filtered
from scheduler.decide.nodes.arrays import row_counts, row_maxima, row_sums
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from tests.support.clusters import (
    GIB,
    fleets,
    gpu_bytes,
    gpu_node,
    pod,
    requests_of_any_dialect,
    running,
    share,
)
from tests.support.examples import examples

CARD: Final = 10 * GIB
INSTANCES_MAX: Final = 3

Use = tuple[int, int, int, bool]
"""Core percent, GiB and containers on a card, and whether it is closed."""


def _part(demand: DeviceDemand, place: int) -> DeviceDemand:
    return replace(demand, containers=(str(place),))


PARTS: Final = st.lists(
    st.one_of(
        st.builds(
            lambda core, size: gpu_bytes(size * GIB, core=core),
            st.sampled_from((1, 20, 34, 50, 51)),
            st.integers(1, 9),
        ),
        st.just(share(100)),
    ),
    min_size=2,
    max_size=4,
).map(lambda parts: tuple(_part(part, place) for place, part in enumerate(parts)))

USES: Final = st.tuples(
    st.sampled_from((0, 0, 0, 30, 50, 66)), st.integers(0, 8), st.integers(0, 3), st.booleans()
)


def _fits_by_trying(uses: Sequence[Use], parts: Sequence[DeviceDemand]) -> bool:
    """Try every assignment of parts to cards."""
    return any(
        all(
            _card_takes(use, [part for part, at in zip(parts, cards, strict=True) if at == card])
            for card, use in enumerate(uses)
        )
        for cards in product(range(len(uses)), repeat=len(parts))
    )


def _card_takes(use: Use, parts: Sequence[DeviceDemand]) -> bool:
    core, gib, instances, closed = use
    if not parts:
        return True
    if closed or instances + len(parts) > INSTANCES_MAX:
        return False
    if any(part.exclusive for part in parts):
        return len(parts) == 1 and instances == 0
    free_core = 100 - sum(part.core_percent for part in parts) - (core if instances else 0)
    free = CARD - sum(part.memory_bytes for part in parts) - (gib * GIB if instances else 0)
    return free_core >= 0 and free >= 0


@settings(max_examples=examples(300), deadline=None)
@given(nodes=st.lists(st.lists(USES, min_size=1, max_size=5), min_size=1, max_size=5), parts=PARTS)
def test_parts_that_are_tested_together_fit_exactly_when_some_assignment_does(
    nodes: list[list[Use]], parts: tuple[DeviceDemand, ...]
) -> None:
    """For containers of one card each the arrays alone are exact: no closer look fails."""
    facts = [
        gpu_node(f"n{number}", len(uses), card_bytes=CARD, closed=_closed(uses))
        for number, uses in enumerate(nodes)
    ]
    mgpu = MGPUSettings(max_containers_per_card=INSTANCES_MAX)
    engine = Engine(facts, SchedulingSettings(mgpu=mgpu))
    for number, uses in enumerate(nodes):
        for minor, (core, gib, instances, _) in enumerate(uses):
            if instances:
                held = DeviceShare(
                    device_type="gpu",
                    minor=minor,
                    device_id="",
                    core_percent=core,
                    memory_bytes=gib * GIB,
                    instances=instances,
                )
                seen = structs.replace(running(f"r{number}-{minor}", held), dialect="mgpu")
                engine.adopt(number, seen)
    request = pod("p", *parts, dialect=Dialect.MGPU, memory_bytes=0)
    passing = set(engine.candidates(request))
    for number, uses in enumerate(nodes):
        assert (number in passing) == _fits_by_trying(uses, parts), uses


def _closed(uses: Sequence[Use]) -> frozenset[int]:
    return frozenset(minor for minor, use in enumerate(uses) if use[3])


Move = tuple[str, PodRequest, int]
MOVES: Final = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "arrive", "leave")), requests_of_any_dialect(), st.integers(0, 9)
    ),
    max_size=12,
)


def _play(engine: Engine, moves: Sequence[Move]) -> None:
    held: list[str] = []
    for number, (kind, request, choice) in enumerate(moves):
        if kind == "leave" and held:
            engine.release(held.pop(choice % len(held)))
            continue
        answer = engine.decide(replace(request, uid=f"h{number}"))
        if isinstance(answer, Placement):
            engine.reserve(answer)
            held.append(f"h{number}")


@settings(max_examples=examples(150), deadline=None)
@given(arrays=fleets(), moves=MOVES, request=requests_of_any_dialect(), data=st.data())
def test_the_filter_answers_as_the_decision_does(
    arrays: tuple[NodeFacts, ...], moves: list[Move], request: PodRequest, data: st.DataObject
) -> None:
    """Over all nodes, in any order, the best node and its devices are those of `decide`."""
    engine = Engine(arrays, SchedulingSettings())
    _play(engine, moves)
    asked = data.draw(st.permutations(range(len(arrays))))
    filtered = engine.filter(request, sorted(asked))
    answer = engine.decide(request)
    assert filtered.best == (answer if isinstance(answer, Placement) else None)
    assert sorted([*filtered.passing, *filtered.failing]) == list(range(len(arrays)))
    assert (filtered.codes > 0).all(), "every failing node has a reason"
    if not isinstance(answer, Placement):
        assert answer.nodes is not None
        told = [", ".join(answer.nodes.texts[code]) for code in answer.nodes.codes]
        assert [filtered.reasons[code] for code in filtered.codes] == told
    other = engine.filter(request, asked)
    if filtered.best is not None:
        assert other.best is not None
        assert _rating(other, asked, other.best.node) == _rating(
            filtered, sorted(asked), filtered.best.node
        ), "another order may only choose among equals"


def _rating(filtered: Filtered, asked: Sequence[int], node: int) -> int:
    at = list(asked).index(node)
    return int(filtered.ratings[filtered.passing.tolist().index(at)])


@settings(max_examples=examples(100), deadline=None)
@given(arrays=fleets(), moves=MOVES, request=requests_of_any_dialect(), data=st.data())
def test_the_filter_asks_about_no_other_nodes(
    arrays: tuple[NodeFacts, ...], moves: list[Move], request: PodRequest, data: st.DataObject
) -> None:
    """A node passes or fails by itself, whichever other nodes are asked about."""
    engine = Engine(arrays, SchedulingSettings())
    _play(engine, moves)
    engine.forget()
    some = sorted(data.draw(st.sets(st.integers(0, len(arrays) - 1), min_size=1)))
    filtered = engine.filter(request, some)
    assert filtered.best is None or filtered.best.node in some
    engine.forget()
    for number, node in enumerate(some):
        alone = engine.filter(request, [node])
        passes = alone.best is not None
        if not passes:
            # Beside a better node it may pass by its arrays alone: it is not looked at closely.
            assert number in filtered.failing or filtered.best is not None
        else:
            assert number in filtered.passing
            assert alone.best is not None
            assert engine.try_place(request, node) is not None
            engine.release(request.uid)


@settings(max_examples=examples(60), deadline=None)
@given(arrays=fleets(), moves=MOVES, request=requests_of_any_dialect())
def test_only_nodes_too_small_for_the_pod_are_called_hopeless_for_their_size(
    arrays: tuple[NodeFacts, ...], moves: list[Move], request: PodRequest
) -> None:
    """Where the Pod would pass if all others were gone, the end of other Pods could help."""
    engine, empty = (Engine(arrays, SchedulingSettings()) for _ in range(2))
    _play(engine, moves)
    nodes = range(len(arrays))
    filtered = engine.filter(request, nodes)
    for number, hopeless in zip(filtered.failing.tolist(), filtered.hopeless.tolist(), strict=True):
        alone = empty.filter(request, [number])
        if alone.best is not None:
            assert not hopeless
        elif hopeless:
            assert alone.hopeless.tolist() == [True]


def test_what_a_small_pod_was_told_is_no_reason_for_one_that_lacks_memory() -> None:
    """Answers do not depend on who asked before: memory is the first reason, for ever."""
    node = gpu_node("n", memory_bytes=8 * GIB)
    aligned = NumaTopologySpec(policy=NumaPolicy.RESTRICTED)
    small = replace(pod("small", share(50), memory_bytes=GIB), numa=aligned)
    large = replace(small, uid="large", memory_bytes=16 * GIB)
    asked, fresh = (Engine([node], SchedulingSettings()) for _ in range(2))

    told = asked.filter(small, [0])
    after, alone = asked.filter(large, [0]), fresh.filter(large, [0])

    assert told.reasons[told.codes.item(0)] == "node(s) missing NUMA resources"
    assert after.reasons[after.codes.item(0)] == alone.reasons[alone.codes.item(0)]
    assert after.hopeless.tolist() == alone.hopeless.tolist() == [True]


@given(
    rows=st.sampled_from((1, 5, 191, 192, 400)), width=st.integers(1, 17), seed=st.integers(0, 99)
)
def test_sums_along_rows_are_those_of_numpy_at_any_size(rows: int, width: int, seed: int) -> None:
    """The two ways to reduce rows, for few and for many of them, give the same numbers."""
    values = np.random.default_rng(seed).integers(-(1 << 60) // 20, (1 << 60) // 20, (rows, width))
    assert (row_sums(values) == values.sum(axis=1)).all()
    assert (row_maxima(values) == values.max(axis=1)).all()
    assert (row_counts(values > 0) == np.count_nonzero(values > 0, axis=1)).all()
