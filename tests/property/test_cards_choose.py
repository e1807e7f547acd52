from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.dialects.names import Dialect
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Placement, Unfit
from scheduler.decide.settings import DeviceSettings, SchedulingSettings
from tests.support.cards import GIB, card, gpushare_pod, node_of, part, pod, whole
from tests.support.trial_cluster import ListCluster

MODELS = ("", "A", "B")


@st.composite
def cards(draw: st.DrawFn, minor: int) -> CardView:
    """One GPU in any state, honest or not."""
    total = draw(st.sampled_from([0, 16 * GIB, 24 * GIB, 24 * GIB + 1]))
    core_used = draw(st.sampled_from([0, 0, 10, 50, 100]))
    memory_used = draw(st.integers(0, 4)) * total // 4
    return card(
        minor,
        core=draw(st.sampled_from([100, 100, 100, 0])),
        memory_bytes=total,
        core_used=core_used,
        memory_used=memory_used,
        tenants=draw(st.integers(int(bool(core_used or memory_used)), 3)),
        exclusive=draw(st.booleans()) and draw(st.booleans()),
        closed=draw(st.booleans()) and draw(st.booleans()),
        model=draw(st.sampled_from(MODELS)),
    )


@st.composite
def nodes(draw: st.DrawFn) -> NodeView:
    """A node with up to six GPUs."""
    return node_of(*(draw(cards(minor)) for minor in range(draw(st.integers(0, 6)))))


@st.composite
def demands(draw: st.DrawFn) -> DeviceDemand:
    """A demand as the dialects' normalisation makes them."""
    count = draw(st.integers(1, 3))
    core = draw(st.sampled_from([0, 1, 50, 90]))
    kind = draw(st.sampled_from(["whole", "ratio", "bytes"]))
    if kind == "whole":
        models = draw(st.sampled_from([(), ("A",), ("A", "B")]))
        return whole(count, model_names=models)
    if kind == "ratio":
        return part(core, ratio=draw(st.integers(1, 99)), count=count)
    return part(core, memory=draw(st.integers(1, 24 * GIB)), count=count)


def can_serve(view: CardView, demand: DeviceDemand) -> bool:
    """Say in other words than the code when a card can serve one part of a demand."""
    total = view.record.memory_bytes
    wanted = demand.memory_bytes or total * demand.memory_ratio_percent // 100
    refusals = (
        view.closed,
        view.exclusive,
        view.core_free < demand.core_percent,
        wanted > view.memory_free,
        demand.exclusive and view.tenants > 0,
        bool(demand.model_names) and view.record.model not in demand.model_names,
        total == 0 and not demand.exclusive and demand.memory_ratio_percent > demand.core_percent,
    )
    return not any(refusals)


@given(node=nodes(), demand=demands(), scoring=st.sampled_from(["MostAllocated", "LeastAllocated"]))
def test_a_single_demand_fits_exactly_when_enough_cards_can_serve_it(
    node: NodeView, demand: DeviceDemand, scoring: str
) -> None:
    """Brute force over the cards agrees; what is chosen fits; a refusal has a reason."""
    settings = SchedulingSettings(devices=DeviceSettings(scoring=scoring))
    serving = [view for view in node.cards if can_serve(view, demand)]

    answer = choose(pod(demand), node, settings)

    assert isinstance(answer, Choice) == (len(serving) >= demand.count)
    if isinstance(answer, Unfit):
        assert answer.reason
        return
    allowed = {view.record.minor: view for view in serving}
    assert len({share.minor for share in answer.shares}) == demand.count
    for share in answer.shares:
        view = allowed[share.minor]
        assert share.core_percent == demand.core_percent
        assert share.memory_bytes <= view.memory_free
        assert share.memory_ratio_percent >= (1 if share.memory_bytes else 0)


@given(node=nodes(), wanted=st.integers(1, 24 * GIB))
def test_gpu_share_takes_the_card_with_the_least_left(node: NodeView, wanted: int) -> None:
    """No fitting card has less memory available than the one chosen."""
    serving = [view for view in node.cards if can_serve(view, part(memory=wanted))]

    answer = choose(gpushare_pod(wanted), node, SchedulingSettings())

    if not serving:
        assert isinstance(answer, Unfit)
        return
    assert isinstance(answer, Choice)
    best = min(serving, key=lambda view: (view.memory_free, view.record.minor))
    assert answer.shares[0].minor == best.record.minor


@given(
    arrivals=st.lists(demands(), max_size=12),
    dialects=st.lists(st.sampled_from(["koordinator", "gpushare"]), min_size=12, max_size=12),
    leaving=st.lists(st.integers(0, 20), max_size=12),
)
def test_no_card_is_ever_promised_beyond_what_it_has(
    arrivals: list[DeviceDemand], dialects: list[str], leaving: list[int]
) -> None:
    """Whatever arrives and leaves, in several dialects, core, bytes and exclusivity hold."""
    idle = node_of(*(card(minor, memory_bytes=24 * GIB) for minor in range(3)))
    cluster = ListCluster([idle])
    held: list[Placement] = []
    for position, demand in enumerate(arrivals):
        if leaving and held and leaving[position % len(leaving)] % 3 == 0:
            cluster.undo(held.pop(0))
        placed = cluster.try_place(_request(demand, dialects[position]), 0)
        if placed is not None:
            held.append(placed)

        for view in cluster.view(0).cards:
            assert view.core_free >= 0
            assert view.memory_free >= 0
            assert view.tenants == 1 or not view.exclusive

    for placed in held:
        cluster.undo(placed)
    assert cluster.view(0) == idle


def _request(demand: DeviceDemand, dialect: str) -> PodRequest:
    if dialect == "gpushare" and demand.memory_bytes:
        return gpushare_pod(demand.memory_bytes)
    return pod(demand, dialect=Dialect.KOORDINATOR)
