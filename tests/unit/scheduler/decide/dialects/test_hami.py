from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.cards.fit import fits
from scheduler.decide.cards.view import Choice
from scheduler.decide.dialects.hami import choose_hami
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings
from tests.support.cards import GIB, card, need, node_of, part, pod, whole

SETTINGS = SchedulingSettings()


def choice(demands: list[DeviceDemand], *cards: CardView) -> list[tuple[int, int, int]] | Unfit:
    """Return minor, core and GiB of each share of containers `0`, `1`, ..., one per demand."""
    node = node_of(*cards)
    needs = tuple(need(f"c{i}", str(i), gpu=one.count) for i, one in enumerate(demands))
    answer = choose_hami(
        pod(*demands, containers=needs),
        demands,
        node.cards,
        node,
        SchedulingSettings(),
        preferred_card=None,
    )
    if isinstance(answer, Unfit):
        return answer
    return [(share.minor, share.core_percent, share.memory_bytes // GIB) for share in answer.shares]


def test_each_container_gets_a_card_of_its_own() -> None:
    """Contract 1, fact 12, as ours: the fullest that fits, in the order of the containers."""
    demands = [part(30, memory=3 * GIB), part(10, memory=5 * GIB)]

    assert choice(demands, card(0), card(1, memory_used=20 * GIB, core_used=20), card(2)) == [
        (1, 30, 3),
        (0, 10, 5),
    ]


def test_a_part_leaves_a_later_one_the_only_card_that_does() -> None:
    """The first would fit the fullest card, which alone has the memory for the second."""
    small, large = part(memory=3 * GIB), part(memory=20 * GIB)
    cards = [card(0, memory_bytes=8 * GIB), card(1, memory_bytes=24 * GIB, memory_used=GIB)]

    assert choice([small, large], *cards) == [(0, 0, 3), (1, 0, 20)]


def test_a_whole_card_beside_a_share() -> None:
    """The share is not on it, and goes to a card in use already."""
    assert choice([whole(), part(memory=GIB)], card(0, memory_used=GIB), card(1)) == [
        (1, 100, 40),
        (0, 0, 1),
    ]


def test_what_does_not_fit_together_says_so() -> None:
    """Each finds a card, both find the same one: other Pods' end would help only if they hold."""
    demands = [part(memory=20 * GIB), part(memory=21 * GIB)]

    busy = choice(demands, card(0), card(1, memory_used=30 * GIB))
    assert isinstance(busy, Unfit)
    assert (busy.reason, busy.requested, busy.available, busy.preemptible) == (
        "NoCombinationOfDevices",
        2,
        1,
        True,
    )
    small = choice(demands, card(0), card(1, memory_bytes=8 * GIB))
    assert isinstance(small, Unfit)
    assert not small.preemptible


def test_a_container_that_no_card_serves_is_named_by_its_own_lack() -> None:
    """The words of every dialect: what is asked for and what there is."""
    answer = choice([part(memory=GIB), part(memory=50 * GIB)], card(0), card(1))

    assert isinstance(answer, Unfit)
    assert (answer.reason, answer.requested, answer.available) == (
        "Insufficient gpu devices",
        1,
        0,
    )


@pytest.mark.parametrize("others", [[], [part(20, memory=GIB)]], ids=["alone", "beside another"])
def test_no_compute_is_taken_of_a_card_that_has_none_left(others: list[DeviceDemand]) -> None:
    """Contract 1, fact 9."""
    full = [card(0, core_used=100, memory_used=GIB), card(1, core_used=99, memory_used=GIB)]
    answer = choice([part(memory=GIB), *others], *full, card(2))

    assert isinstance(answer, list)
    assert answer[0][0] == 1


AMOUNTS = st.tuples(st.sampled_from([0, 20, 50, 80]), st.integers(1, 6), st.booleans())


@given(
    wanted=st.lists(AMOUNTS, min_size=2, max_size=3),
    used=st.lists(st.tuples(st.sampled_from([0, 40, 70]), st.integers(0, 8)), max_size=4),
)
def test_what_can_be_placed_is_placed(
    wanted: list[tuple[int, int, bool]], used: list[tuple[int, int]]
) -> None:
    """For any amounts: if any assignment of cards fits, one that fits is found."""
    demands = [whole() if alone else part(core, memory=gib * GIB) for core, gib, alone in wanted]
    cards = [
        card(minor, memory_bytes=8 * GIB, core_used=core, memory_used=gib * GIB)
        for minor, (core, gib) in enumerate(used)
    ]
    able = [
        places
        for places in permutations(range(len(cards)), len(demands))
        if all(fits(cards[place], one) for place, one in zip(places, demands, strict=True))
    ]

    node = node_of(*cards)
    answer = choose_hami(
        pod(*demands), demands, node.cards, node, SchedulingSettings(), preferred_card=None
    )

    assert isinstance(answer, Choice) is bool(able)
    if isinstance(answer, Choice):
        assert tuple(share.minor for share in answer.shares) in able
