from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.devices import ratio_to_bytes
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unfit, Unplaced
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import POLICIES, SchedulingSettings
from tests.support.clusters import fleets, rated_anew, requests, requests_of_any_dialect
from tests.support.examples import examples

Step = tuple[str, PodRequest, int]


def _steps(*, any_dialect: bool = False) -> st.SearchStrategy[list[Step]]:
    """Draw arrivals and departures: what happens, the Pod's shape, which of the held leaves."""
    kinds = st.sampled_from(("arrive", "arrive", "arrive", "leave", "toggle"))
    pods = requests_of_any_dialect() if any_dialect else requests()
    return st.lists(st.tuples(kinds, pods, st.integers(0, 9)), max_size=20)


def _engine(nodes: tuple[NodeFacts, ...], policy: str, steps: list[Step], seed: int = 0) -> Engine:
    return Engine(
        nodes,
        SchedulingSettings(node_policy=policy),
        workload=workload_of(request for _, request, _ in steps[:12]),
        seed=seed,
    )


def _named(request: PodRequest, number: int) -> PodRequest:
    return replace(request, uid=f"p{number}")


def _play(
    engine: Engine, nodes: tuple[NodeFacts, ...], steps: list[Step]
) -> tuple[dict[str, Placement], list[Placement | Unplaced]]:
    """Do the steps; return what is held at the end and every answer."""
    held: dict[str, Placement] = {}
    answers: list[Placement | Unplaced] = []
    for number, (kind, request, choice) in enumerate(steps):
        if kind == "arrive":
            answer = engine.decide(_named(request, number), ordinal=number)
            answers.append(answer)
            if isinstance(answer, Placement):
                engine.reserve(answer)
                held[answer.request.uid] = answer
        elif kind == "leave" and held:
            uid = sorted(held)[choice % len(held)]
            engine.release(uid)
            del held[uid]
        elif kind == "toggle" and nodes[choice % len(nodes)].devices:
            place = choice % len(nodes)
            record = nodes[place].devices[choice % len(nodes[place].devices)]
            facts = engine.view(place).facts
            healthy = choice % 2 == 0
            engine.put_node(facts.with_health(record.device_type, record.minor, healthy=healthy))
    return held, answers


@given(
    nodes=fleets(),
    steps=st.one_of(_steps(), _steps(any_dialect=True)),
    policy=st.sampled_from(POLICIES),
)
@settings(max_examples=examples(150), deadline=None)
def test_remembered_ratings_equal_ratings_from_nothing(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str
) -> None:
    """Rows that were brought up to date on changed nodes only hold what a new row would."""
    engine = _engine(nodes, policy, steps)
    _play(engine, nodes, steps)

    for _, request, _ in steps:
        shape = engine._shapes.shape_of(request)
        assert engine._rows.current(shape).tolist() == rated_anew(engine._rows, shape).tolist()


@given(
    nodes=fleets(),
    steps=st.one_of(_steps(), _steps(any_dialect=True)),
    policy=st.sampled_from(POLICIES),
)
@settings(max_examples=examples(150), deadline=None)
def test_nothing_is_promised_beyond_what_there_is(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str
) -> None:
    """Core, bytes, exclusivity, cpu, memory and Pod places hold, whatever came in what order."""
    held, _ = _play(_engine(nodes, policy, steps), nodes, steps)

    for place, node in enumerate(nodes):
        here = [placement for placement in held.values() if placement.node == place]
        if node.cpu_milli is not None:
            assert sum(each.request.cpu_milli for each in here) <= node.cpu_milli
        if node.memory_bytes is not None:
            assert sum(each.request.memory_bytes for each in here) <= node.memory_bytes
        if node.pods_max is not None:
            assert len(here) <= node.pods_max
        for record in node.devices:
            shares = [part for each in here for part in each.shares if part.key == record.key]
            assert sum(part.core_percent for part in shares) <= record.core_percent
            assert sum(part.memory_bytes for part in shares) <= record.memory_bytes
            assert sum(part.instances for part in shares) <= 16
            assert len(shares) <= 1 or not any(part.exclusive for part in shares)


@given(nodes=fleets(), steps=_steps(), policy=st.sampled_from(POLICIES))
@settings(max_examples=examples(150), deadline=None)
def test_every_pod_gets_what_it_asked_for(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str
) -> None:
    """As many different devices as asked, each giving the whole share, of an allowed model."""
    _, answers = _play(_engine(nodes, policy, steps), nodes, steps)

    for answer in answers:
        if not isinstance(answer, Placement):
            continue
        keys = [part.key for part in answer.shares]
        assert keys == sorted(set(keys))
        assert [record.key for record in answer.devices] == keys
        for demand in answer.request.devices:
            mine = [
                (part, record)
                for part, record in zip(answer.shares, answer.devices, strict=True)
                if part.device_type == demand.device_type
            ]
            assert len(mine) == demand.count
            for part, record in mine:
                assert part.core_percent == demand.core_percent
                assert not demand.model_names or record.model in demand.model_names
                if demand.memory_ratio_percent:
                    ratio = demand.memory_ratio_percent
                    assert part.memory_bytes == ratio_to_bytes(ratio, record.memory_bytes)


@given(nodes=fleets(), steps=_steps(), policy=st.sampled_from(POLICIES))
@settings(max_examples=examples(150), deadline=None)
def test_shortcuts_on_a_node_equal_the_card_choice(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str
) -> None:
    """What the engine takes without building a view is what `choose` answers for that view."""
    engine = _engine(nodes, policy, steps)
    _play(engine, nodes, steps)

    for _, request, _ in steps:
        answer = engine.decide(request)
        if isinstance(answer, Placement) and request.devices:
            shape, place = engine._shapes.shape_of(request), engine._node_rows.of[answer.node]
            best = engine._allocator._policy.card(shape, place)
            preferred = None if best is None else engine._arrays.gpus.records[place][best].minor
            choice = choose(
                request,
                engine.view(answer.node),
                SchedulingSettings(node_policy=policy),
                preferred_card=preferred,
            )
            assert isinstance(choice, Choice)
            assert answer.shares == choice.shares


@given(nodes=fleets(), steps=_steps(), policy=st.sampled_from(POLICIES))
@settings(max_examples=examples(150), deadline=None)
def test_a_node_that_can_take_the_pod_has_no_reason_and_every_other_has_one(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str
) -> None:
    """Rating and explaining agree on every node, and the last word of the node agrees too."""
    engine = _engine(nodes, policy, steps)
    _play(engine, nodes, steps)

    for _, request, _ in steps:
        shape = engine._shapes.shape_of(request)
        fits = engine._takes(engine._rows.current(shape), request.memory_bytes).tolist()
        codes = engine._refusals.codes(request, shape).tolist()
        assert fits == [code == 0 for code in codes]
        for node, fit in enumerate(fits):
            trial = engine.try_place(_named(request, 999), node)
            assert (trial is not None) == fit
            if trial is not None:
                engine.undo(trial)


@given(nodes=fleets(), steps=_steps(any_dialect=True), policy=st.sampled_from(POLICIES))
@settings(max_examples=examples(150), deadline=None)
def test_no_node_that_would_do_is_passed_over(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str
) -> None:
    """Where cpu, memory and rules allow and the choice on the node finds devices, it is rated."""
    engine = _engine(nodes, policy, steps)
    _play(engine, nodes, steps)

    for _, request, _ in steps:
        shape = engine._shapes.shape_of(request)
        ratings = engine._rows.current(shape).tolist()
        unmet = engine._refusals.codes(request, shape).tolist()
        for node, rating in enumerate(ratings):
            view = engine.view(node)
            choice = choose(request, view, SchedulingSettings())
            cpus = engine._allocator._cpus(request, node) if request.cpuset else None
            if rating < 0 and isinstance(choice, Choice) and not isinstance(cpus, Unfit):
                texts = engine._refusals._row(request, shape).texts[unmet[node]]
                assert all(not _about_devices(reason.text) for reason in texts), texts


def _about_devices(text: str) -> bool:
    return "devices" in text or "cpus" in text or text.startswith(("GPU", "MGPU", "RDMA"))


@given(
    nodes=fleets(),
    steps=st.one_of(_steps(), _steps(any_dialect=True)),
    policy=st.sampled_from(POLICIES),
)
@settings(max_examples=examples(100), deadline=None)
def test_refusals_remember_nothing_stale(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str
) -> None:
    """A refusal from codes kept up to date equals that of an engine that sees the state first."""
    engine = _engine(nodes, policy, steps)
    held, _ = _play(engine, nodes, steps)
    fresh = _engine(nodes, policy, steps)
    for number, (kind, _, choice) in enumerate(steps):
        if kind == "toggle" and nodes[choice % len(nodes)].devices:
            _play(fresh, nodes, [steps[number]])
    for placement in held.values():
        fresh.reserve(placement)

    for _, request, _ in steps:
        first, second = engine.decide(request), fresh.decide(request)
        assert first == second
        if isinstance(first, Unplaced) and nodes:
            assert first.message.startswith(f"0/{len(nodes)} nodes are available: ")
            assert first.nodes is not None
            assert len(first.nodes.codes) == len(nodes)


@given(nodes=fleets(), steps=_steps(), policy=st.sampled_from(POLICIES), data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_rank_is_the_order_of_nodes_by_another_name(
    nodes: tuple[NodeFacts, ...], steps: list[Step], policy: str, data: st.DataObject
) -> None:
    """Nodes given in rank order, or given in any order with that rank: the same placements."""
    rank = data.draw(st.permutations(range(len(nodes))))
    ordered = tuple(nodes[rank.index(place)] for place in range(len(nodes)))
    arrivals = [step for step in steps if step[0] != "toggle"]
    settings_ = SchedulingSettings(node_policy=policy)
    typical = [request for _, request, _ in steps[:12]]
    _, first = _play(
        Engine(nodes, settings_, workload=workload_of(typical), rank=rank), nodes, arrivals
    )
    _, second = _play(Engine(ordered, settings_, workload=workload_of(typical)), ordered, arrivals)

    def shown(answers: list[Placement | Unplaced]) -> list[object]:
        return [
            (answer.node_name, answer.shares)
            if isinstance(answer, Placement)
            else (answer.message, answer.reasons)
            for answer in answers
        ]

    assert shown(first) == shown(second)
