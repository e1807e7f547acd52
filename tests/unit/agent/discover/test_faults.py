"""A card that was found bad stays closed until somebody says that it is whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.discover.faults import (
    CARD_FAULTS_MAX,
    CardFault,
    Faults,
    after_events,
    after_look,
    marked,
    recovered,
)
from agent.discover.machine import Fault
from ledger.domain.log.codec import encode_value, read_value
from tests.support.machines_found import CUT, TWO_CARDS

FIRST, SECOND = TWO_CARDS.cards[0].uuid, TWO_CARDS.cards[1].uuid


@pytest.mark.parametrize(
    ("xid", "closes"),
    [
        *((xid, False) for xid in (13, 31, 43, 45, 68, 109)),
        *((xid, True) for xid in (48, 63, 74, 79, 94, 95)),
    ],
    ids=str,
)
def test_which_xids_close_a_card(xid: int, closes: bool) -> None:  # noqa: FBT001 - a case
    """Koordinator contract 9.1: six of them are the program's fault."""
    faults = after_events(Faults(), [CardFault(uuid=FIRST, reason=f"Xid{xid}")])

    first, second = marked(TWO_CARDS, faults).cards
    assert (bool(first.faults), second.faults) == (closes, ())


def test_only_a_word_opens_a_card_again() -> None:
    """Neither a look that finds nothing nor a restart does."""
    faults = after_events(Faults(), [CardFault(uuid=FIRST, reason="Xid79")])
    faults = after_look(faults, TWO_CARDS)
    again: Faults = read_value(Faults, encode_value(faults), "faults")

    assert marked(TWO_CARDS, again).cards[0].faults == (Fault(reason="Xid79"),)
    assert marked(TWO_CARDS, recovered(again, SECOND)) == marked(TWO_CARDS, again)
    assert marked(TWO_CARDS, recovered(again, FIRST)) == TWO_CARDS


def test_what_a_look_finds_stays_and_mig_mode_passes() -> None:
    """ECC errors are counted from the driver's start, so a new start would hide them."""
    bad = replace(TWO_CARDS.cards[0], faults=(Fault(reason="UncorrectedECC", message="3"),))
    found = replace(TWO_CARDS, cards=(bad, TWO_CARDS.cards[1], CUT))
    faults = after_look(Faults(), found)

    assert [one.reason for one in faults.kept] == ["UncorrectedECC"]
    assert marked(TWO_CARDS, faults).cards[0].faults == bad.faults


def test_a_card_without_a_name_closes_no_other() -> None:
    """Upstream closes all of them."""
    assert after_events(Faults(), [CardFault(uuid="", reason="Xid79")]) == Faults()


@given(
    st.lists(
        st.builds(
            CardFault,
            uuid=st.sampled_from([FIRST, SECOND]),
            reason=st.integers(1, 200).map("Xid{}".format),
        ),
        max_size=60,
    )
)
def test_faults_are_bounded_and_the_same_however_they_come(events: list[CardFault]) -> None:
    """At once or one by one; twice is once; no card has more than the bound."""
    at_once = after_events(Faults(), events)
    stepwise = Faults()
    for event in events:
        stepwise = after_events(stepwise, [event])

    assert at_once == stepwise == after_events(at_once, [])
    assert all(len(at_once.of(uuid)) <= CARD_FAULTS_MAX for uuid in (FIRST, SECOND))
