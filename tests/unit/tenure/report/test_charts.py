import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from scheduler.usage.model import CapacityPoint, History
from tenure.report.page import areas, axis_ticks, nice_step, y_ticks

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time with a summer and a winter."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(year: int, month: int, day: int, hour: int = 0) -> int:
    """A moment in UTC."""
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * SECOND


def between(start: int, end: int) -> History:
    """A history without anything in it."""
    return History(axis="time", start=start, end=end, nodes=(), cards=())


@pytest.mark.usefixtures("berlin")
def test_a_week_has_a_mark_at_every_local_midnight() -> None:
    """The first one is 23:00 UTC."""
    ticks = axis_ticks(between(at(2026, 3, 2), at(2026, 3, 9)))

    assert [tick.label for tick in ticks][:2] == ["Tue 3 Mar", "Wed 4 Mar"]
    assert ticks[0].percent == pytest.approx(23 / 168 * 100, abs=0.01)


@pytest.mark.parametrize("hours", [0.01, 0.5, 3, 20, 100, 1000, 20_000])
def test_an_axis_has_few_marks_whatever_its_length(hours: float) -> None:
    """Between one and nine, inside the axis, in order."""
    start = at(2026, 3, 2, 7) + 123_456

    percents = [tick.percent for tick in axis_ticks(between(start, start + round(hours * HOUR)))]

    assert 1 <= len(percents) <= 9
    assert percents == sorted(percents)
    assert 0 <= percents[0] <= percents[-1] <= 100


def test_positions_have_round_marks() -> None:
    """A run without a clock is told by the order of its events."""
    history = replace(between(1_214, 9_365), axis="position")

    assert [tick.label for tick in axis_ticks(history)] == ["2,000", "4,000", "6,000", "8,000"]


@pytest.mark.parametrize(
    ("span", "step"), [(1, 1), (5, 1), (6, 2), (11, 5), (990, 200), (1001, 500)]
)
def test_steps_are_one_two_or_five(span: int, step: int) -> None:
    """The smallest that cuts the span in at most five."""
    assert nice_step(span, 5) == step


def test_the_height_is_marked_in_whole_cards() -> None:
    """From 0, in round steps, never above the top."""
    assert [(tick.label, tick.percent) for tick in y_ticks(6)] == [
        ("0", 0.0),
        ("2", 33.333),
        ("4", 66.667),
        ("6", 100.0),
    ]


def test_areas_are_stacked_and_empty_ones_left_out() -> None:
    """Each band begins where the one below ends; all are closed paths in the box."""
    points = [
        CapacityPoint(at=0, allocated=50, stranded=25, idle=25, closed=0),
        CapacityPoint(at=10, allocated=100, stranded=0, idle=0, closed=0),
    ]

    bands = areas(between(0, 10), points)

    assert [band.name for band in bands] == ["allocated", "stranded", "idle"]
    assert bands[0].path.startswith("M0 50 L1000 50 L1000 0")
    for band in bands:
        assert band.path.endswith("Z")
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", band.path)]
        assert min(numbers) >= 0
        assert max(numbers) <= 1000


def test_no_capacity_has_no_areas() -> None:
    """A ledger without GPUs has no chart."""
    assert (
        areas(between(0, 10), [CapacityPoint(at=0, allocated=0, stranded=0, idle=0, closed=0)])
        == ()
    )
