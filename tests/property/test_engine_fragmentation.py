from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.log.workload import TypicalPod, Workload
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.score.gradient import Gradient
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import SchedulingSettings
from tests.support.clusters import fleets, gpu_node, pod, rated_anew, share
from tests.support.examples import examples

PERCENTS = (5, 10, 33, 47, 50, 81, 100)


def _sharing() -> st.SearchStrategy[PodRequest]:
    """Draw requests for GPUs by share, or for none."""
    return st.builds(
        lambda percent, count, cpu, models: pod(
            "p",
            *((share(percent, count, models=models),) if count else ()),
            cpu_milli=cpu,
            memory_bytes=0,
        ),
        st.sampled_from(PERCENTS),
        st.sampled_from((0, 1, 1, 1, 2, 4)),
        st.integers(0, 6).map(lambda cores: cores * 700),
        st.sampled_from(((), (), ("T4",))),
    )


def _lost(workload: Workload, node: NodeFacts, cpu_milli: int, left: list[int]) -> int:
    """Return F(n) x Pods seen, straight from the definition."""
    idle, lost = sum(left), 0
    for typical, count in zip(workload.pods, workload.counts, strict=True):
        lost += count * _lost_on(typical, node, cpu_milli, left, idle)
    return lost


def _lost_on(
    typical: TypicalPod, node: NodeFacts, cpu_milli: int, left: list[int], idle: int
) -> int:
    fitting = [share for share in left if share >= typical.gpu_percent]
    models = {record.model for record in node.devices if record.device_type == "gpu"}
    runs = (
        not node.unschedulable
        and typical.gpu_count > 0
        and cpu_milli >= typical.cpu_milli
        and len(fitting) >= typical.gpu_count
        and (not typical.model_names or not models.isdisjoint(typical.model_names))
    )
    return idle - sum(fitting) if runs else idle


def _state(engine: Engine, place: int) -> tuple[int, list[int]]:
    arrays = engine._arrays
    return arrays.cpu_free.item(place), arrays.gpus.left[place].tolist()


def _filled(
    nodes: tuple[NodeFacts, ...], typical: list[PodRequest], arrivals: list[PodRequest]
) -> Engine:
    engine = Engine(nodes, SchedulingSettings(node_policy="fgd"), workload=workload_of(typical))
    for number, request in enumerate(arrivals):
        answer = engine.decide(replace(request, uid=f"p{number}"))
        if isinstance(answer, Placement):
            engine.reserve(answer)
    return engine


@given(
    nodes=fleets(),
    typical=st.lists(_sharing(), min_size=1, max_size=12),
    arrivals=st.lists(_sharing(), max_size=15),
)
@settings(max_examples=examples(200), deadline=None)
def test_tables_equal_the_definition(
    nodes: tuple[NodeFacts, ...], typical: list[PodRequest], arrivals: list[PodRequest]
) -> None:
    """The cluster's fragmentation is the sum of F over nodes, from the formula, exactly."""
    engine = _filled(nodes, typical, arrivals)
    workload = workload_of(typical)
    cards = sum(1 for node in nodes for card in node.devices if card.device_type == "gpu")
    lost = sum(_lost(workload, node, *_state(engine, place)) for place, node in enumerate(nodes))
    expected = Fraction(100 * lost, max(1, sum(workload.counts) * cards * 100))

    assert engine.fragmentation_percent() == float(expected)


@given(
    nodes=fleets(),
    typical=st.lists(_sharing(), min_size=1, max_size=12),
    arrivals=st.lists(_sharing(), max_size=15),
    request=_sharing(),
)
@settings(max_examples=examples(200), deadline=None)
def test_scores_equal_the_definition(
    nodes: tuple[NodeFacts, ...],
    typical: list[PodRequest],
    arrivals: list[PodRequest],
    request: PodRequest,
) -> None:
    """A node's score is that of the best card, or of the lowest untouched ones, by the formula."""
    engine = _filled(nodes, typical, arrivals)
    workload = workload_of(typical)
    ratings = rated_anew(engine._rows, engine._shapes.shape_of(request))
    bare = any(not node.devices for node in nodes) and any(node.devices for node in nodes)
    for place, node in enumerate(nodes):
        rating = int(ratings[place])
        if rating < 0:
            continue
        if bare and not request.devices:
            rating //= 2
        cpu_milli, left = _state(engine, place)
        before = _lost(workload, node, cpu_milli, left)
        after = [
            _lost(workload, node, cpu_milli - request.cpu_milli, rest)
            for rest in _rests(node, request, left)
        ]
        scores = [_score(before - each, sum(workload.counts)) for each in after]
        assert rating == max(scores)


def _rests(node: NodeFacts, request: PodRequest, left: list[int]) -> list[list[int]]:
    """Return what may be left on the cards after placement."""
    if not request.devices:
        return [left]
    (demand,) = request.devices
    records = [record for record in node.devices if record.device_type == "gpu"]
    fitting = [
        column
        for column, record in enumerate(records)
        if left[column] >= demand.core_percent
        and (not demand.model_names or record.model in demand.model_names)
    ]
    if demand.count == 1 and demand.core_percent < 100:
        taken = [[column] for column in fitting]
    else:
        taken = [sorted(fitting, key=lambda column: (left[column], column))[: demand.count]]
    return [
        [share - demand.core_percent * (column in columns) for column, share in enumerate(left)]
        for columns in taken
    ]


def _score(gain: int, weight: int) -> int:
    if gain == 0:
        return 50
    return math.floor(100 / (1 + math.exp(-gain / (100 * weight))))


@given(
    percents=st.lists(st.sampled_from(PERCENTS), min_size=1, max_size=8),
    held=st.lists(st.integers(1, 100), max_size=4),
    request=st.sampled_from(PERCENTS),
    cpus=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
@settings(max_examples=examples(150), deadline=None)
def test_the_table_of_gains_equals_trying_every_card(
    percents: list[int], held: list[int], request: int, cpus: tuple[int, int]
) -> None:
    """The short way and the general way rate alike."""
    typical = [pod("t", share(percent), cpu_milli=1000 * cpus[0]) for percent in percents]
    engine = Engine(
        (gpu_node("n", 4, cpu_milli=8000),),
        SchedulingSettings(node_policy="fgd"),
        workload=workload_of(typical),
    )
    for number, percent in enumerate(held):
        answer = engine.decide(pod(f"p{number}", share(percent), cpu_milli=0))
        if isinstance(answer, Placement):
            engine.reserve(answer)
    shape = engine._shapes.shape_of(pod("r", share(request), cpu_milli=1000 * cpus[1]))
    policy = engine._rows.policy
    assert isinstance(policy, Gradient)
    nodes = np.array([0])
    short = policy.rate(shape, nodes)
    measure = policy._measure
    general = policy._searched(shape, nodes, policy._cpu_class(shape, nodes))

    assert short.tolist() == policy._score(general - measure.usable_now.take(nodes)).tolist()
