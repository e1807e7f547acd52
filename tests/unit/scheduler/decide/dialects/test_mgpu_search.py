from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Final

import pytest

from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.cards.choose import choose
from scheduler.decide.dialects.mgpu import search as mgpu_search
from scheduler.decide.dialects.mgpu.search import Ask, CardStates, best_assignment, shape_of
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import CardView, Unfit, Unplaced
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from tests.support.cards import MIB, card, mgpu_pod, node_of, part, whole

TOTAL_MIB: Final = 16384


def free(
    minor: int,
    core: int,
    memory_mib: int = TOTAL_MIB,
    *,
    exclusive: bool = False,
    closed: bool = False,
    instances: int | None = None,
) -> CardView:
    """Return a card of 100 core and 16384 MiB with so much free."""
    return card(
        minor,
        memory_bytes=TOTAL_MIB * MIB,
        core_used=100 - core,
        memory_used=(TOTAL_MIB - memory_mib) * MIB,
        exclusive=exclusive,
        closed=closed,
        instances=instances,
    )


def ask(core: int, memory_mib: int = 256, count: int = 1) -> DeviceDemand:
    """Return what one container takes of each of its cards."""
    return part(core, memory=memory_mib * MIB, count=count)


def states_of(cards: Sequence[CardView], settings: MGPUSettings) -> CardStates:
    """Return the cards as the search has them."""
    return CardStates([shape_of(view) for view in cards], settings)


Path = tuple[int, ...]

CARDS: Final = [free(0, 100), free(1, 60), free(2, 30)]
CONTAINERS: Final = [ask(50), ask(40), ask(30)]

TREE: Final[dict[Path, bool]] = {
    (0,): True,  # 100 -> 50
    (0, 0): True,  # 50 -> 10
    (0, 0, 0): False,  # 10 < 30
    (0, 0, 1): True,
    (0, 0, 2): True,
    (0, 1): True,  # 60 -> 20
    (0, 1, 0): True,
    (0, 1, 1): False,  # 20 < 30
    (0, 1, 2): True,
    (0, 2): False,  # 30 < 40
    (1,): True,  # 60 -> 10
    (1, 0): True,  # 100 -> 60
    (1, 0, 0): True,
    (1, 0, 1): False,  # 10 < 30
    (1, 0, 2): True,
    (1, 1): False,  # 10 < 40
    (1, 2): False,  # 30 < 40
    (2,): False,  # 30 < 50
}
"""
The proposal's tree: a level per container, in each node the card, True where it is admitted.

Nodes that are missing lie behind a node that is not admitted: those paths were pruned.
"""

LEAVES: Final = [
    path for path, admitted in TREE.items() if admitted and len(path) == len(CONTAINERS)
]


def walk(states: CardStates, asks: Sequence[Ask], path: Path = ()) -> Iterator[tuple[Path, bool]]:
    """Yield every node of the tree in depth-first order, with whether it is admitted."""
    if len(path) == len(asks):
        return
    admitted = states.admitted(asks[len(path)])
    for place in range(len(states.states)):
        yield (*path, place), place in admitted
        if place in admitted:
            taken = states.take((place,), asks[len(path)])
            yield from walk(states, asks, (*path, place))
            states.undo((place,), taken)


def score_of(path: Path, cards: Sequence[CardView], asks: Sequence[DeviceDemand]) -> Fraction:
    """Return the binpack score after the path, formula by formula, with a weight of 20."""
    core = [view.core_free for view in cards]
    memory = [view.memory_free for view in cards]
    for place, demand in zip(path, asks, strict=True):
        core[place] -= demand.core_percent
        memory[place] -= demand.memory_bytes
    by_core = sum((Fraction(left, 100) ** 2 for left in core), Fraction(0)) / len(cards)
    squares = (Fraction(left, TOTAL_MIB * MIB) ** 2 for left in memory)
    by_memory = sum(squares, Fraction(0)) / len(cards)
    return (20 * by_core + 80 * by_memory) / 100


def test_every_node_of_the_proposals_tree() -> None:
    """
    Volcano mGPU proposal, "Allocate": three containers, three cards, every node of the tree.

    The admission of a layer counts what all layers before it on the path took; what is not
    admitted is pruned with all that lies below it: 18 of 39 nodes are looked at.
    """
    states = states_of(CARDS, MGPUSettings())

    visited = dict(walk(states, states.asks(CONTAINERS)))

    assert visited == TREE
    assert list(visited) == sorted(TREE)
    every = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    behind = {
        path for path in every if any(not TREE.get(path[:n], True) for n in range(1, len(path)))
    }
    assert (len(every), len(visited)) == (39, 18)
    assert set(every) - behind == set(TREE)


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_every_leaf_has_the_score_of_its_state(leaf: Path) -> None:
    """End condition 3: at the lowest level the combination is scored (contract A.5)."""
    states = states_of(CARDS, MGPUSettings())
    spread = states_of(CARDS, MGPUSettings(policy="spread"))
    for place, one in zip(leaf, states.asks(CONTAINERS), strict=True):
        states.take((place,), one)
        spread.take((place,), one)

    assert states.score(states.units) == score_of(leaf, CARDS, CONTAINERS)
    assert spread.score(spread.units) == 1 - score_of(leaf, CARDS, CONTAINERS)


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_the_best_leaf_is_the_answer(policy: str) -> None:
    """When the whole tree is searched the best combination and its score are known."""
    sign = 1 if policy == "binpack" else -1
    best = max(LEAVES, key=lambda leaf: sign * score_of(leaf, CARDS, CONTAINERS))

    result = best_assignment(CONTAINERS, CARDS, MGPUSettings(policy=policy))

    assert result.assignment == tuple((place,) for place in best)
    binpack = score_of(best, CARDS, CONTAINERS)
    assert result.score == (binpack if policy == "binpack" else 1 - binpack)
    assert not result.cut


def test_untouched_cards_alike_are_tried_once() -> None:
    """A.5, symmetry: of 39 nodes 8 are different when the three cards are alike."""
    states = states_of([free(minor, 100) for minor in range(3)], MGPUSettings())
    asks = states.asks([ask(50), ask(40), ask(30)])

    def groups(path: Path = ()) -> Iterator[Path]:
        if len(path) == len(asks):
            return
        for (place,) in list(states.groups(asks[len(path)])):
            yield (*path, place)
            taken = states.take((place,), asks[len(path)])
            yield from groups((*path, place))
            states.undo((place,), taken)

    assert list(groups()) == [
        (0,),
        (0, 0),
        (0, 0, 1),
        (0, 1),
        (0, 1, 0),
        (0, 1, 1),
        (0, 1, 2),
    ]


def test_a_container_over_several_cards_never_gets_one_twice() -> None:
    """A.5, multi: c different cards; of three alike the lowest two stand for all pairs."""
    alike = states_of([free(minor, 100) for minor in range(3)], MGPUSettings())
    (pair,) = alike.asks([ask(50, count=2)])
    differ = states_of([*CARDS[:2], free(2, 50)], MGPUSettings())
    (other,) = differ.asks([ask(50, count=2)])

    assert list(alike.groups(pair)) == [(0, 1)]
    assert list(differ.groups(other)) == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("demands", "cards"),
    [
        pytest.param([ask(51)] * 5, [free(n, 100) for n in range(4)], id="halves and a bit"),
        pytest.param([ask(34 + n) for n in range(9)], [free(n, 99) for n in range(4)], id="thirds"),
        pytest.param([ask(1, 5000)] * 13, [free(n, 100) for n in range(4)], id="memory"),
        pytest.param(
            [whole(2), ask(60), ask(60), ask(60)], [free(n, 100) for n in range(4)], id="whole"
        ),
        pytest.param([ask(1)] * 33, [free(n, 100, instances=8) for n in range(4)], id="instances"),
    ],
)
def test_room_that_can_not_suffice_is_seen_without_a_search(
    demands: list[DeviceDemand], cards: list[CardView]
) -> None:
    """Many containers on many cards: no step is spent on what counting refutes."""
    result = best_assignment(demands, cards, MGPUSettings())

    assert (result.assignment, result.cut, result.steps) == (None, False, 0)
    assert 0 < result.placed < len(demands)


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_sixteen_uneven_cards_are_searched_to_the_end(policy: str) -> None:
    """
    Five containers on sixteen cards, no two alike: 1,048,576 paths, a few thousand steps.

    The expected answers are those of scoring every one of the paths.
    """
    cards = [free(n, 97 - 3 * n, TOTAL_MIB - 100 - 37 * n) for n in range(16)]
    demands = [ask(7 + 3 * n, 300 + 91 * n) for n in range(5)]

    result = best_assignment(demands, cards, MGPUSettings(policy=policy))

    assert not result.cut
    assert 0 < result.steps < mgpu_search.STEPS_MAX
    if policy == "binpack":
        assert result.assignment == ((14,), (15,), (14,), (14,), (14,))
    else:
        assert result.assignment == ((4,), (3,), (2,), (1,), (0,))


def test_a_search_that_is_cut_answers_with_the_best_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One step reaches no leaf; the greedy walk before it does, and its score is the floor."""
    cards = [free(0, 100), free(1, 80), free(2, 90)]
    demands = [ask(10), ask(20)]
    full = best_assignment(demands, cards, MGPUSettings())

    monkeypatch.setattr(mgpu_search, "STEPS_MAX", 1)
    cut = best_assignment(demands, cards, MGPUSettings())

    assert (full.assignment, full.cut) == (((1,), (1,)), False)
    assert (cut.assignment, cut.cut, cut.steps) == (((1,), (1,)), True, 1)
    assert cut.score == full.score


def test_above_the_levels_it_is_the_first_fit_in_order() -> None:
    """A.2: more containers than levels: depth first, cards ascending, whatever the score."""
    cards = [free(0, 50), free(1, 100), free(2, 60)]
    demands = [ask(30), ask(30), ask(60)]

    result = best_assignment(demands, cards, MGPUSettings(search_levels=2))

    assert (result.assignment, result.cut) == (((0,), (1,), (1,)), True)
    assert not best_assignment(demands, cards, MGPUSettings(search_levels=3)).cut


def cut_short(steps: int, monkeypatch: pytest.MonkeyPatch) -> SchedulingSettings:
    """Return settings of a first-fit search that ends after so many steps."""
    monkeypatch.setattr(mgpu_search, "STEPS_MAX", steps)
    return SchedulingSettings(mgpu=MGPUSettings(search_levels=0))


def test_a_first_fit_that_is_cut_answers_with_what_a_greedy_walk_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order the small container takes the roomy card; by size there is a place for both."""
    settings = cut_short(1, monkeypatch).mgpu

    result = best_assignment([ask(20), ask(90)], [free(0, 100), free(1, 20)], settings)

    assert (result.assignment, result.cut) == (((1,), (0,)), True)


NEARLY: Final = [ask(50), *[ask(30)] * 5]
"""On two cards all but one: 50 and 30, three times 30; counting alone does not tell."""


def test_a_search_cut_before_it_found_anything_has_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A.5: recorded as cut, not as proven; a Pod's end could help."""
    node = node_of(free(0, 100), free(1, 100))

    cut = choose(mgpu_pod(*NEARLY), node, cut_short(2, monkeypatch))
    monkeypatch.undo()
    proven = choose(mgpu_pod(*NEARLY), node, SchedulingSettings())

    assert isinstance(cut, Unfit)
    assert (cut.reason, cut.preemptible) == ("MGPUSearchCut", True)
    assert (cut.requested, cut.available, cut.unit) == (6, 5, "containers")
    assert isinstance(proven, Unfit)
    assert (proven.reason, proven.preemptible) == ("NoCombinationOfDevices", False)


def test_people_read_that_it_was_cut_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `tenure why` shows: reason, numbers at the nearest node, remedy."""
    settings = cut_short(1, monkeypatch)
    facts = node_of(free(0, 100), free(1, 100)).facts

    answer = Engine([facts], settings).decide(mgpu_pod(*NEARLY))

    assert isinstance(answer, Unplaced)
    assert answer.message == "0/1 nodes are available: 1 MGPUSearchCut."
    (reason,) = answer.reasons
    assert reason.detail == "asks 6 containers, 5 there"
    assert "split the Pod" in reason.remedy


def test_nodes_alike_are_searched_once() -> None:
    """A Pod that fits none of a thousand equal nodes costs one search, not a thousand."""
    mgpu_search._searched.cache_clear()
    facts = node_of(free(0, 100), free(1, 100)).facts
    nodes = [replace(facts, name=f"n{number}", uid=f"u{number}") for number in range(50)]

    answer = Engine(nodes, SchedulingSettings()).decide(mgpu_pod(*NEARLY))

    assert isinstance(answer, Unplaced)
    assert answer.message == "0/50 nodes are available: 50 NoCombinationOfDevices."
    assert mgpu_search._searched.cache_info().misses == 2


@pytest.mark.parametrize(
    ("demands", "cards", "preemptible"),
    [
        pytest.param([ask(60), ask(60)], [free(0, 100)], False, id="never, on one card"),
        pytest.param(
            [ask(60), ask(60)], [free(0, 100), free(1, 50)], True, id="now, the other is in use"
        ),
        pytest.param(
            [ask(60), ask(60)],
            [free(0, 100), free(1, 100, exclusive=True)],
            True,
            id="now, the other is held alone",
        ),
        pytest.param(
            [ask(60), ask(60)],
            [free(0, 100), free(1, 100, closed=True)],
            False,
            id="the other is closed",
        ),
        pytest.param([whole(1), ask(1)], [free(0, 100)], False, id="whole and a bit more"),
    ],
)
def test_preemption_helps_only_where_the_empty_node_would_do(
    demands: list[DeviceDemand],
    cards: list[CardView],
    preemptible: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Contract C.3: unresolvable where it cannot; here all containers together decide."""
    answer = choose(mgpu_pod(*demands), node_of(*cards), SchedulingSettings())

    assert isinstance(answer, Unfit)
    assert (answer.reason, answer.preemptible) == ("NoCombinationOfDevices", preemptible)


def test_cards_at_their_limit_of_containers_say_so() -> None:
    """A.5, the cap: room enough, but no more instances."""
    full = [free(0, 84, instances=16), free(1, 84, instances=16)]

    answer = choose(mgpu_pod(ask(10)), node_of(*full), SchedulingSettings())

    assert isinstance(answer, Unfit)
    assert (answer.reason, answer.requested, answer.available) == ("GPUContainerLimit", 1, 0)
    one_left = [full[0], replace(full[1], instances=15)]
    assert not isinstance(
        choose(mgpu_pod(ask(10)), node_of(*one_left), SchedulingSettings()), Unfit
    )


def test_the_search_takes_the_first_of_the_best() -> None:
    """The example at the head of the search, by core alone."""
    settings = MGPUSettings(weight_of_core=100)

    best = best_assignment(CONTAINERS, CARDS, settings)

    assert best.assignment == ((0,), (0,), (2,))
    assert best.score == Fraction(37, 300)
