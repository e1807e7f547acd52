"""A report of a part of a day, on either database: its counts, its waits and what it draws."""

from __future__ import annotations

import pytest

from ledger.domain.errors import InputError
from ledger.domain.log.events import LedgerEvent
from tenure.report.build import Period, read_report
from tenure.report.model import Report
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    Clock,
    Store,
    node,
    refused,
    released,
    reserved,
    share,
    start,
)

DAY: tuple[tuple[float, LedgerEvent], ...] = (
    (9, node()),
    (10, refused("early")),
    (11, reserved("long", share(0))),
    (12, reserved("early", share(1))),
    (13, refused("big")),
    (14, released("early")),
    (15, reserved("late", share(1))),
    (16, refused("late-too")),
    (17, reserved("late-too", share(2))),
    (20, released("late")),
)


def report(store: Store, period: Period) -> Report:
    """The report of that day."""
    clock = Clock()
    with store.open() as ledger:
        start(ledger).append(
            [clock.new(event, at_us=MONDAY_US + int(hour * HOUR_US)) for hour, event in DAY]
        )
        return read_report(ledger, proof=None, command="", period=period)


def hours(*given: float | None) -> list[int | None]:
    """Hours of that day as moments."""
    return [None if hour is None else MONDAY_US + int(hour * HOUR_US) for hour in given]


def test_the_numbers_of_a_period_are_those_of_the_period(store: Store) -> None:
    """From half past ten to two: whoever waits at its end may have begun before."""
    since, until = hours(10.5, 13.5)

    told = report(store, Period(since_us=since, until_us=until))

    totals = told.totals
    assert (totals.decided, totals.placed, totals.refused, totals.waiting) == (3, 2, 1, 1)
    assert [(wait.name, wait.node) for wait in told.waits] == [("early", "n-1"), ("big", "")]
    (early, big) = told.waits
    assert [early.opened, early.closed, big.closed] == hours(10, 12, None)
    assert [row.group for row in told.usage] == ["team-a"]
    assert told.usage[0].gpu_hours == pytest.approx((2.5 + 1.5) / 2)  # halves of a card
    assert {told.history.pods[hold.pod][1] for hold in told.history.holds} == {"long", "early"}
    assert [point.at for point in told.capacity][:: len(told.capacity) - 1] == [since, until]


def test_without_a_period_a_report_tells_everything(store: Store) -> None:
    """From the first inventory to the head."""
    told = report(store, Period())

    totals = told.totals
    assert (totals.decided, totals.placed, totals.refused, totals.waiting) == (5, 4, 3, 1)
    assert [wait.name for wait in told.waits] == ["early", "big", "late-too"]
    assert [told.history.start, told.history.end] == hours(9, 20)


def test_one_end_is_enough(store: Store) -> None:
    """The other one is the ledger's, and so is one that lies beyond it."""
    told = report(store, Period(since_us=hours(14.5)[0], until_us=hours(99)[0]))

    assert [told.history.start, told.history.end] == hours(14.5, 20)
    assert (told.totals.decided, told.totals.placed) == (2, 2)
    assert [wait.name for wait in told.waits] == ["big", "late-too"]


def test_a_period_in_which_nothing_is_recorded_is_refused(store: Store) -> None:
    """With what could be chosen."""
    with pytest.raises(InputError, match="nothing is recorded in this period"):
        report(store, Period(since_us=hours(21)[0]))
