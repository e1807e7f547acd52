import json
from dataclasses import replace

import pytest

from scheduler.usage.model import History
from tenure.report.packing import unpack
from tenure.report.thin import fit, levels_at_steps, step_moments
from tests.support.histories import SECOND, week


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
