from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.score.gradient import expected_fill
from scheduler.decide.score.pools import Asks, Market, PoolPrices
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import SchedulingSettings
from tests.support.clusters import fleets, requests, requests_of_any_dialect
from tests.support.examples import examples

PODS = st.lists(requests(), max_size=12)


def _named(request: PodRequest, number: int) -> PodRequest:
    return replace(request, uid=f"p{number}")


def _fill(engine: Engine, arrivals: list[PodRequest]) -> list[Placement | Unplaced]:
    answers = []
    for number, request in enumerate(arrivals):
        answer = engine.decide(_named(request, number))
        answers.append(answer)
        if isinstance(answer, Placement):
            engine.reserve(answer)
    return answers


def _engine(
    nodes: tuple[NodeFacts, ...], policy: str = "scarcity", typical: list[PodRequest] | None = None
) -> Engine:
    return Engine(
        nodes, SchedulingSettings(node_policy=policy), workload=workload_of(typical or [])
    )


@given(nodes=fleets(), arrivals=st.lists(requests_of_any_dialect(), max_size=12))
@settings(max_examples=examples(100), deadline=None)
def test_without_a_history_it_is_fgd(
    nodes: tuple[NodeFacts, ...], arrivals: list[PodRequest]
) -> None:
    """Where no Pod is typical, nothing is expected and nothing is scarce."""
    assert _fill(_engine(nodes), arrivals) == _fill(_engine(nodes, "fgd"), arrivals)


@given(nodes=fleets(), typical=PODS, arrivals=PODS, left=st.sets(st.integers(0, 11)))
@settings(max_examples=examples(100), deadline=None)
def test_prices_are_the_states_and_not_its_histories(
    nodes: tuple[NodeFacts, ...],
    typical: list[PodRequest],
    arrivals: list[PodRequest],
    left: set[int],
) -> None:
    """After Pods came and went, prices and ratings are those of an engine that never saw them."""
    engine, fresh = _engine(nodes, typical=typical), _engine(nodes, typical=typical)
    placements = [each for each in _fill(engine, arrivals) if isinstance(each, Placement)]
    for number, placement in enumerate(placements):
        if number in left:
            engine.release(placement.request.uid)
        else:
            fresh.reserve(placement)

    assert _pool_prices(engine).prices() == _pool_prices(fresh).prices()
    for request in typical:
        shape, again = (each._shapes.shape_of(request) for each in (engine, fresh))
        assert engine._rows.current(shape).tolist() == fresh._rows.current(again).tolist()


def _pool_prices(engine: Engine) -> PoolPrices:
    pool_prices = engine._rows.policy._pool_prices  # type: ignore[attr-defined]
    assert isinstance(pool_prices, PoolPrices)
    return pool_prices


@given(
    counts=st.dictionaries(st.integers(1, 100), st.integers(1, 500), min_size=1, max_size=6),
    others=st.integers(0, 500),
    arrivals=st.integers(0, 6),
)
def test_the_fill_is_the_expectation(counts: dict[int, int], others: int, arrivals: int) -> None:
    """Equal to the recursion in fractions, but for what fixed point rounds off."""
    weight = sum(counts.values()) + others
    often = {percent: np.array([[count]]) for percent, count in counts.items()}
    table = expected_fill(often, weight, (1, 1), arrivals=arrivals)[0, 0].tolist()

    exact = [Fraction(0)] * 101
    for _ in range(arrivals):
        exact = [
            exact[left]
            + sum(
                Fraction(count, weight)
                * max(Fraction(0), percent + exact[left - percent] - exact[left])
                for percent, count in counts.items()
                if percent <= left
            )
            for left in range(101)
        ]
    for left in range(101):
        assert abs(table[left] - exact[left] * weight) <= 1 + weight * Fraction(arrivals, 1 << 12)
        assert 0 <= table[left] <= left * weight
    assert table == sorted(table)


@given(data=st.data(), pools=st.integers(1, 5), pods=st.integers(1, 8))
@settings(max_examples=examples(100), deadline=None)
def test_prices_do_not_depend_on_any_order(data: st.DataObject, pools: int, pods: int) -> None:
    """Typical Pods and pools may be listed in any order; sums are exact."""
    cells = st.lists(st.integers(-1, 8), min_size=pools, max_size=pools)
    rows = np.array(data.draw(st.lists(cells, min_size=pods, max_size=pods))) * 50
    cpus = data.draw(st.lists(st.integers(0, 64_000), min_size=pods, max_size=pods))
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=pods, max_size=pods))
    idle = data.draw(st.lists(st.integers(0, 10_000), min_size=pools, max_size=pools))
    cpu = data.draw(st.lists(st.integers(0, 1 << 41), min_size=pools, max_size=pools))
    pod_order = data.draw(st.permutations(range(pods)))
    pool_order = data.draw(st.permutations(range(pools)))

    def prices(order: list[int], places: list[int]) -> tuple[list[int], list[int]]:
        picked = rows[order][:, places]
        asks = Asks(
            cpu_milli=[cpus[each] for each in order],
            gpu_percent=np.maximum(picked, 0),
            allowed=picked >= 0,
        )
        found = Market(asks, [counts[each] for each in order]).prices(
            [idle[each] for each in places], [cpu[each] for each in places]
        )
        return list(found.gpu), list(found.core)

    gpu, core = prices(list(range(pods)), list(range(pools)))
    assert prices(pod_order, pool_order) == (
        [gpu[each] for each in pool_order],
        [core[each] for each in pool_order],
    )
    assert all(0 <= each <= 24 for each in gpu)
    assert all(0 <= each <= 77 for each in core)
