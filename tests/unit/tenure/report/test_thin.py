import json
from dataclasses import replace

import pytest

from scheduler.usage.model import History
from tenure.report.thin import fit, levels_at_steps, pack, step_moments, tick_of, within
from tests.support.histories import HOUR, SECOND, week
from tests.support.packing import unpack


def levels(history: History, at: int) -> list[int]:
    """How full each card is at a moment."""
    result = [0] * len(history.cards)
    for hold in history.holds:
        if hold.opened <= at and (hold.closed is None or hold.closed > at):
            result[hold.card] += history.shares[hold.share].percent
    return result


def size_of(document: object) -> int:
    """Bytes of a document as the page carries it."""
    return len(json.dumps(document, separators=(",", ":")))


def test_what_fits_is_carried_whole() -> None:
    """No note, no hold left out."""
    history = week()

    fitted = fit(history)

    assert fitted.document is not None
    assert not fitted.note
    assert unpack(fitted.document).holds == history.holds


@pytest.mark.parametrize("budget", [30_000, 24_000, 12_000, 4_000])
def test_what_is_left_out_changes_no_moment_of_the_slider(budget: int) -> None:
    """Smaller pages have fewer moments; at each of them every card is as full as it was."""
    history = week(nodes=16, pods=1500)

    fitted = fit(history, budget)

    assert fitted.document is not None
    assert fitted.note
    assert size_of(fitted.document) <= budget
    document = fitted.document
    shown = unpack(document)
    for i in range(0, fitted.steps + 1, max(1, fitted.steps // 40)):
        at = shown.start + document["tick"] * (document["end"] * i // fitted.steps)
        assert levels(shown, at) == levels(history, at)


def test_the_note_says_how_much_is_left_out() -> None:
    """First the holdings between two moments, then the names, then the map."""
    history = week(nodes=16, pods=1500)
    short = replace(
        history,
        holds=tuple(
            replace(hold, closed=hold.opened + 7 * SECOND) if hold.position % 4 else hold
            for hold in history.holds
        ),
    )

    between = fit(short, 20_000)
    assert "begin and end between two of them and are not drawn" in between.note
    assert between.steps >= 125
    assert "how full each card is" in fit(history, 12_000).note
    nothing = fit(history, 100)
    assert nothing.document is None
    assert "too many" in nothing.note


def test_levels_carry_no_names() -> None:
    """One nameless holder per card and stretch."""
    history = week()

    merged = levels_at_steps(history, step_moments(history, 20, 1))

    assert set(merged.pods) == {("", "")}
    assert len(merged.holds) < len(history.holds)


def test_a_part_of_a_week_is_as_full_as_the_whole_week_was() -> None:
    """At every hour of it, on every card, with the true beginning of what began before."""
    history = week()
    since, until = history.start + 50 * HOUR, history.start + 74 * HOUR

    part = unpack(json.loads(json.dumps(pack(shown := within(history, since, until), 1))))

    assert (part.start, part.end) == (since, until)
    assert part.holds == shown.holds
    assert any(hold.opened < since for hold in part.holds)
    assert len(part.pods) < len(history.pods)
    for at in range(since, until, HOUR):
        assert levels(part, at) == levels(history, at)
    assert {outage.reason for outage in part.outages} == {"Xid79"}


def test_the_unit_of_time_divides_what_began_before_too() -> None:
    """A hold that is older than the part is packed to the microsecond."""
    history = week()
    part = within(history, history.start + 50 * HOUR, history.end)

    assert unpack(pack(part, tick_of(part))).holds == part.holds
