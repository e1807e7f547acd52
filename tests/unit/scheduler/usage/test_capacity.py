"""What became of GPUs at moments and over time, and cards that were ever over-full."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.store.reading.gpu_hours import CapacityChange
from scheduler.usage.capacity import capacity_at, capacity_between, cards_over, in_percent
from scheduler.usage.model import (
    CapacityPoint,
    CardInfo,
    History,
    Hold,
    HoldEnd,
    NodeInfo,
    Share,
)
from tests.support.histories import week

WHOLE = Share(core_percent=100, memory_bytes=0, memory_ratio_percent=100)
HALF = Share(core_percent=50, memory_bytes=0, memory_ratio_percent=50)
CHANGES = (
    CapacityChange(2, 0, 0, 200, 0, 0),
    CapacityChange(4, 60, 40, -100, 0, 0),
    CapacityChange(8, -60, -40, 0, 100, 0),
)


def two_cards(*holds: Hold) -> History:
    """One node with two cards over the moments 0 to 10."""
    return History(
        axis="time",
        start=0,
        end=10,
        nodes=(NodeInfo(name="a", cards=range(2)),),
        cards=tuple(CardInfo(node=0, device_type="gpu", minor=minor) for minor in range(2)),
        pods=(("ml", "x"),),
        shares=(WHOLE, HALF),
        endings=(HoldEnd(),),
        holds=holds,
    )


def test_a_change_counts_from_its_moment_on() -> None:
    """Before the first there is nothing; parts come in their order."""
    assert capacity_at(CHANGES, [1, 2, 7, 8, 99]) == (
        CapacityPoint(1, 0, 0, 0, 0),
        CapacityPoint(2, 0, 0, 200, 0),
        CapacityPoint(7, 60, 40, 100, 0),
        CapacityPoint(8, 0, 0, 100, 100),
        CapacityPoint(99, 0, 0, 100, 100),
    )


def test_parts_over_a_window_are_those_of_its_moments() -> None:
    """Half open: 4 of 60, 4 of 40, the rest idle but for one of 100 that is closed."""
    assert capacity_between(CHANGES, 1, 9) == {
        "allocated": 240,
        "stranded": 160,
        "idle": 2 * 200 + 5 * 100,
        "closed": 100,
        "unknown": 0,
    }
    assert in_percent(capacity_between(CHANGES, 1, 9)) == {
        "allocated": 17.1,
        "stranded": 11.4,
        "idle": 64.3,
        "closed": 7.1,
        "unknown": 0.0,
    }
    assert in_percent(capacity_between(CHANGES, 0, 2)) is None
    assert in_percent(capacity_between((), 0, 9)) is None


@given(cuts=st.tuples(*[st.integers(0, 12)] * 3))
def test_a_window_is_the_sum_of_its_halves(cuts: tuple[int, int, int]) -> None:
    """Wherever it is cut, at a change as well."""
    since, middle, until = sorted(cuts)
    parts = (capacity_between(CHANGES, since, middle), capacity_between(CHANGES, middle, until))

    assert capacity_between(CHANGES, since, until) == {
        name: sum(part[name] for part in parts) for name in parts[0]
    }


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
