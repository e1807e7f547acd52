from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.usage.capacity import capacity_over, cards_over
from scheduler.usage.model import (
    CardInfo,
    Claim,
    History,
    Hold,
    HoldEnd,
    Loss,
    NodeInfo,
    Outage,
    Share,
    WorkloadShape,
)
from tests.support.histories import week

WHOLE = Share(core_percent=100, memory_bytes=0, memory_ratio_percent=100)
HALF = Share(core_percent=50, memory_bytes=0, memory_ratio_percent=50)
MEMORY = Share(core_percent=0, memory_bytes=1, memory_ratio_percent=40)


def shape(count: int = 1, each: int = 100, cpu_milli: int = 0, pods: int = 1) -> WorkloadShape:
    """A kind of Pod."""
    return WorkloadShape(
        cpu_milli=cpu_milli, memory_bytes=0, gpu_count=count, core_percent_each=each, pods=pods
    )


def two_cards(
    *holds: Hold, shapes: tuple[WorkloadShape, ...] = (shape(),), cpu_milli: int = 0
) -> History:
    """One node with two cards over the moments 0 to 10."""
    return History(
        axis="time",
        start=0,
        end=10,
        nodes=(NodeInfo(name="a", cpu_milli=cpu_milli, cards=range(2)),),
        cards=tuple(CardInfo(node=0, device_type="gpu", minor=minor) for minor in range(2)),
        pods=(("ml", "x"),),
        shares=(WHOLE, HALF, MEMORY),
        endings=(HoldEnd(),),
        holds=holds,
        shapes=shapes,
    )


def parts(history: History, at: int) -> tuple[int, int, int, int]:
    """Allocated, stranded, usable, closed at one moment."""
    (point,) = capacity_over(history, [at])
    return point.allocated, point.stranded, point.usable, point.closed


def test_a_hold_counts_from_its_first_moment_to_before_its_last() -> None:
    """Intervals are half open."""
    history = two_cards(Hold(0, 0, 2, 5, 1, 0, 0))

    allocated = [parts(history, at)[0] for at in (1, 2, 4, 5)]

    assert allocated == [0, 100, 100, 0]


def test_what_a_lost_node_held_is_closed_and_not_allocated() -> None:
    """From the loss until the machine is cleared; what else the card has stays as it was."""
    lost = replace(two_cards(Hold(0, 0, 2, 8, 1, 1, 0), shapes=()), losses=(Loss(0, 4, 8, 50),))

    assert [parts(lost, at) for at in (3, 4, 7, 8)] == [
        (50, 0, 150, 0),
        (0, 0, 150, 50),
        (0, 0, 150, 50),
        (0, 0, 200, 0),
    ]
    dead = replace(lost, outages=(Outage(card=0, opened=4, closed=None, reason="lost"),))
    assert [parts(dead, at) for at in (4, 8)] == [(0, 0, 100, 100), (0, 0, 100, 100)]


def test_what_is_too_little_for_the_workload_is_stranded() -> None:
    """Half a card is left, and every Pod wants a whole one: the other card serves."""
    assert parts(two_cards(Hold(0, 0, 0, None, 1, 1, 0)), 1) == (50, 50, 100, 0)


def test_a_node_on_which_no_pod_fits_is_stranded_as_a_whole() -> None:
    """One whole card is free, and every Pod wants two."""
    history = two_cards(Hold(0, 0, 0, None, 1, 0, 0), shapes=(shape(count=2),))

    assert parts(history, 1) == (100, 100, 0, 0)


def test_free_cards_beside_too_few_cpus_are_stranded() -> None:
    """The Pods want 4 CPUs, 2 are left."""
    history = two_cards(shapes=(shape(cpu_milli=4000),), cpu_milli=8000)
    taken = replace(history, claims=(Claim(0, 3, 6, 6000, 0),))

    assert [parts(taken, at)[1] for at in (2, 3, 6)] == [0, 200, 0]


def test_kinds_of_pods_weigh_by_how_many_there_were() -> None:
    """Three of four Pods can use the half card."""
    shapes = (shape(each=50, pods=3), shape(each=100, pods=1))
    history = two_cards(Hold(0, 0, 0, None, 1, 1, 0), Hold(1, 0, 0, None, 2, 0, 0), shapes=shapes)

    assert parts(history, 1) == (150, 12, 38, 0)


def test_a_share_of_memory_alone_counts_by_its_ratio() -> None:
    """Where no core is asked, memory says how full the card is."""
    assert parts(two_cards(Hold(0, 0, 0, None, 1, 2, 0)), 1)[0] == 40


def test_the_free_share_of_a_closed_card_is_neither_usable_nor_stranded() -> None:
    """What it still holds stays allocated."""
    history = replace(
        two_cards(Hold(0, 0, 0, None, 1, 1, 0)),
        outages=(Outage(card=0, opened=4, closed=8, reason="Xid79"),),
    )

    assert [parts(history, at)[3] for at in (3, 4, 7, 8)] == [0, 50, 50, 0]


def test_other_devices_do_not_count() -> None:
    """The chart speaks of GPUs."""
    history = two_cards()
    nic = CardInfo(node=0, device_type="rdma", minor=0)
    mixed = replace(
        history,
        cards=(*history.cards, nic),
        nodes=(NodeInfo(name="a", cards=range(3)),),
        holds=(Hold(2, 0, 0, None, 1, 0, 0),),
    )

    assert parts(mixed, 1) == (0, 0, 200, 0)


@given(seed=st.integers(0, 50), at=st.integers(0, 100))
def test_the_parts_always_add_up_to_the_capacity(seed: int, at: int) -> None:
    """Nothing is counted twice, nothing is lost, at any moment."""
    history = week(nodes=4, pods=60, seed=seed)
    moment = history.start + (history.end - history.start) * at // 100

    assert sum(parts(history, moment)) == 100 * len(history.cards)


def test_moments_in_one_call_and_one_by_one_agree() -> None:
    """Only changed nodes are looked at again, which must not show."""
    history = week(nodes=4, pods=80)
    moments = [history.start + (history.end - history.start) * i // 30 for i in range(31)]

    together = capacity_over(history, moments)

    assert list(together) == [capacity_over(history, [moment])[0] for moment in moments]


@pytest.mark.parametrize(
    ("holds", "over"),
    [
        pytest.param((Hold(0, 0, 0, 5, 1, 0, 0), Hold(0, 0, 5, None, 2, 0, 0)), 0, id="in turn"),
        pytest.param((Hold(0, 0, 0, 6, 1, 0, 0), Hold(0, 0, 5, None, 2, 1, 0)), 1, id="at once"),
        pytest.param((Hold(0, 0, 0, 9, 1, 1, 0), Hold(0, 0, 5, None, 2, 1, 0)), 0, id="halves"),
    ],
)
def test_cards_over_are_those_with_too_much_at_any_moment(
    holds: tuple[Hold, ...], over: int
) -> None:
    """A successor at the very moment of the end is none too many."""
    assert len(cards_over(two_cards(*holds))) == over


def test_the_made_up_week_gives_no_card_away_twice() -> None:
    """The other tests may rely on it."""
    assert not cards_over(week())
