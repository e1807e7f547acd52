from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice
from scheduler.decide.dialects.mgpu.search import CardStates, best_assignment, shape_of
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import CardView, Placement
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from tests.support.cards import MIB, card, mgpu_pod, node_of, part, whole

Assignment = tuple[tuple[int, ...], ...]


@st.composite
def cards(draw: st.DrawFn, minor: int) -> CardView:
    """One open card; few sizes and states, so that equal cards are common."""
    total = draw(st.sampled_from([8192, 8192, 12288]))
    used = draw(st.sampled_from([0, 0, 0, 30, 50]))
    return card(
        minor,
        memory_bytes=total * MIB,
        core_used=used,
        memory_used=used * total // 100 * MIB,
        instances=int(bool(used)),
        model=draw(st.sampled_from(["", "A"])),
    )


@st.composite
def containers(draw: st.DrawFn) -> DeviceDemand:
    """What one container asks for: a fraction, parts of several cards, or whole cards."""
    if draw(st.integers(0, 3)) == 0:
        return whole(draw(st.integers(1, 2)))
    return part(
        draw(st.sampled_from([10, 20, 50, 70])),
        memory=draw(st.sampled_from([256, 2048, 5000])) * MIB,
        count=draw(st.sampled_from([1, 1, 1, 2])),
    )


def after(
    assignment: Assignment, demands: list[DeviceDemand], views: list[CardView], cap: int
) -> list[tuple[Fraction, Fraction]] | None:
    """Return idle shares (core, memory) of each card, None when the assignment breaks a rule."""
    core = [view.core_free for view in views]
    memory = [view.memory_free for view in views]
    instances = [view.instances for view in views]
    touched = [view.tenants > 0 for view in views]
    for group, demand in zip(assignment, demands, strict=True):
        for place in group:
            total = views[place].record.memory_bytes
            if demand.exclusive and touched[place]:
                return None
            core[place] -= demand.core_percent
            memory[place] -= total if demand.exclusive else demand.memory_bytes
            instances[place] += 1
            touched[place] = True
            if core[place] < 0 or memory[place] < 0 or instances[place] > cap:
                return None
    return [
        (Fraction(c, 100), Fraction(m, view.record.memory_bytes))
        for c, m, view in zip(core, memory, views, strict=True)
    ]


def score(idle: list[tuple[Fraction, Fraction]], settings: MGPUSettings) -> Fraction:
    """Return the contract's score, formula by formula."""
    core = sum((c**2 for c, _ in idle), Fraction(0)) / len(idle)
    memory = sum((m**2 for _, m in idle), Fraction(0)) / len(idle)
    weight = settings.weight_of_core
    binpack = (weight * core + (100 - weight) * memory) / 100
    return binpack if settings.policy == "binpack" else 1 - binpack


def brute_force(
    demands: list[DeviceDemand], views: list[CardView], settings: MGPUSettings
) -> tuple[Assignment, Fraction] | None:
    """Return the first best of all assignments in ascending order."""
    best: tuple[Assignment, Fraction] | None = None
    cap = settings.max_containers_per_card
    groups = [combinations(range(len(views)), demand.count) for demand in demands]
    for assignment in product(*(list(group) for group in groups)):
        idle = after(assignment, demands, views, cap)
        if idle is not None:
            worth = score(idle, settings)
            if best is None or worth > best[1]:
                best = (assignment, worth)
    return best


settings_ = st.builds(
    MGPUSettings,
    policy=st.sampled_from(["binpack", "spread"]),
    weight_of_core=st.sampled_from([0, 20, 50, 100]),
    max_containers_per_card=st.sampled_from([1, 2, 16]),
)


@given(data=st.data(), settings=settings_)
def test_the_search_finds_what_brute_force_finds(
    data: st.DataObject, settings: MGPUSettings
) -> None:
    """Feasibility, score and the very assignment, ties included, on nodes of up to four cards."""
    count = data.draw(st.integers(1, 4), label="cards")
    views = [data.draw(cards(minor)) for minor in range(count)]
    demands = data.draw(st.lists(containers(), min_size=1, max_size=3), label="containers")

    result = best_assignment(demands, views, settings)
    expected = brute_force(demands, views, settings)

    assert not result.cut
    if expected is None:
        assert result.assignment is None
    else:
        assert (result.assignment, result.score) == expected


@given(data=st.data(), levels=st.integers(0, 3))
def test_a_cut_search_finds_a_place_whenever_there_is_one(data: st.DataObject, levels: int) -> None:
    """First fit gives up the best score, never the place; what it finds fits the node."""
    views = [data.draw(cards(minor)) for minor in range(data.draw(st.integers(1, 4)))]
    demands = data.draw(st.lists(containers(), min_size=1, max_size=3))
    settings = MGPUSettings(search_levels=levels)

    answer = choose(mgpu_pod(*demands), node_of(*views), SchedulingSettings(mgpu=settings))

    assert isinstance(answer, Choice) == (brute_force(demands, views, settings) is not None)
    if isinstance(answer, Choice):
        assert answer.search_cut == (len(demands) > levels)
        by_minor = {view.record.minor: view for view in views}
        for share in answer.shares:
            view = by_minor[share.minor]
            assert share.core_percent <= view.core_free
            assert share.memory_bytes <= view.memory_free
            assert view.instances + share.instances <= settings.max_containers_per_card
            assert sum(use.core_percent for use in share.containers) == share.core_percent


@given(data=st.data(), settings=settings_)
def test_no_assignment_scores_above_the_bound(data: st.DataObject, settings: MGPUSettings) -> None:
    """What branches are pruned by: never below the best that brute force finds behind it."""
    views = [data.draw(cards(minor)) for minor in range(data.draw(st.integers(1, 4)))]
    demands = data.draw(st.lists(containers(), min_size=1, max_size=3), label="containers")
    best = brute_force(demands, views, settings)
    states = CardStates([shape_of(view) for view in views], settings)
    asks = states.asks(demands)

    bound = states.bound(asks)

    assert best is None or (bound is not None and states.score(bound) >= best[1])
    assert best is None or not states.cannot_hold(asks)


@given(data=st.data(), settings=settings_)
def test_what_is_taken_off_again_was_never_there(
    data: st.DataObject, settings: MGPUSettings
) -> None:
    """After any containers were put on and taken off the cards and the score are as before."""
    views = [data.draw(cards(minor)) for minor in range(data.draw(st.integers(1, 4)))]
    states = CardStates([shape_of(view) for view in views], settings)
    asks = states.asks(data.draw(st.lists(containers(), min_size=1, max_size=4)))
    before, units = list(states.states), states.units
    path = []
    for ask in asks:
        groups = list(states.groups(ask))
        if groups:
            group = data.draw(st.sampled_from(groups))
            path.append((group, states.take(group, ask)))

    fresh = CardStates(
        [
            shape_of(replace(view, core_free=state[1], memory_free=state[2], instances=state[3]))
            for view, state in zip(views, states.states, strict=True)
        ],
        settings,
    )
    assert states.units == fresh.units

    for group, taken in reversed(path):
        states.undo(group, taken)
    assert (states.states, states.units) == (before, units)


@given(
    arrivals=st.lists(st.lists(containers(), min_size=1, max_size=3), min_size=1, max_size=8),
    leaving=st.lists(st.booleans(), min_size=8, max_size=8),
    settings=settings_,
)
def test_release_gives_back_exactly_what_was_given(
    arrivals: list[list[DeviceDemand]], leaving: list[bool], settings: MGPUSettings
) -> None:
    """GPU-sharing contract A.5: every (container, card) row once; the cap holds at any time."""
    idle = node_of(*(card(minor, memory_bytes=8192 * MIB) for minor in range(3)))
    engine = Engine([idle.facts], SchedulingSettings(mgpu=settings))
    held: list[str] = []
    for number, demands in enumerate(arrivals):
        before = engine.view(0)
        request = replace(mgpu_pod(*demands), uid=f"uid-{number}")
        answer = engine.decide(request)
        if isinstance(answer, Placement):
            engine.reserve(answer)
            rows = [part for share in answer.shares for part in share.containers]
            assert len(rows) == sum(demand.count for demand in demands)
            if leaving[number]:
                engine.release(request.uid)
                assert engine.view(0) == before
            else:
                held.append(request.uid)
        for view in engine.view(0).cards:
            assert min(view.core_free, view.memory_free) >= 0
            assert view.instances <= settings.max_containers_per_card
            assert view.tenants == 1 or not view.exclusive
    for uid in held:
        engine.release(uid)
    assert engine.view(0) == idle
