"""Budgets: a burst, what comes back with time, and no more memory than was given."""

from __future__ import annotations

from scheduler.service.budgets import Budgets, put_newest


class Moment:
    """A clock that stands still."""

    now = 0.0


def budgets(moment: Moment, *, kept_max: int = 100) -> Budgets:
    """Return budgets of 3, one of which comes back in 10 s."""
    return Budgets(lambda: moment.now, burst=3, seconds=10, kept_max=kept_max)


def test_a_burst_is_spent_and_comes_back_one_by_one() -> None:
    """Each key has its own; no more comes back than there was."""
    moment = Moment()
    all_of = budgets(moment)
    assert [all_of.take("a") for _ in range(5)] == [True, True, True, False, False]
    assert (all_of.has("a"), all_of.has("b")) == (False, True)
    moment.now = 9.9
    assert not all_of.take("a")
    moment.now = 20.0
    assert [all_of.take("a") for _ in range(3)] == [True, True, False]
    moment.now = 10_000.0
    assert [all_of.take("a") for _ in range(4)] == [True, True, True, False]


def test_what_was_taken_for_nothing_is_given_back() -> None:
    """No more than was taken."""
    moment = Moment()
    all_of = budgets(moment)
    for _ in range(3):
        all_of.take("a")
    all_of.give_back("a")
    assert [all_of.take("a") for _ in range(2)] == [True, False]
    for _ in range(10):
        all_of.give_back("a")
    assert len(all_of) == 0
    assert [all_of.take("a") for _ in range(4)] == [True, True, True, False]


def test_no_more_keys_are_remembered_than_there_is_room_for() -> None:
    """Who spent something the longest ago is forgotten first."""
    moment = Moment()
    all_of = budgets(moment, kept_max=10)
    for number in range(1_000):
        for _ in range(3):
            all_of.take(number)
        assert len(all_of) <= 10
    assert not all_of.has(999)
    assert all_of.has(989)


def test_what_is_put_newest_outlives_what_was_put_before() -> None:
    """What is put again counts as new."""
    newest: dict[str, int] = {}
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        put_newest(newest, key, value, 2)
    assert list(newest.items()) == [("a", 3), ("c", 4)]
