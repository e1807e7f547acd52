from __future__ import annotations

from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings
from tests.support.cards import GIB, MIB, card, gpushare_pod, node_of

SETTINGS = SchedulingSettings()
CARD = 16276 * MIB


def sharing(*available_mib: int) -> tuple[CardView, ...]:
    """Return cards of 16276 MiB with so much available."""
    return tuple(
        card(minor, memory_bytes=CARD, memory_used=CARD - free * MIB)
        for minor, free in enumerate(available_mib)
    )


def test_a_node_without_enough_on_one_card_is_filtered_out() -> None:
    """GPU share proposal, 2.1: N2 has 8138 MiB in sum, 4069 on each card: 8138 do not fit."""
    answer = choose(gpushare_pod(8138 * MIB), node_of(*sharing(4069, 4069)), SETTINGS)

    assert isinstance(answer, Unfit)
    assert answer.reason == "Insufficient gpu devices"
    assert (answer.requested, answer.available) == (8138 * MIB, 4069 * MIB)
    assert answer.preemptible


def test_a_node_with_enough_on_one_card_is_taken() -> None:
    """GPU share proposal, 2.1: N3 has 8138 MiB on GPU 0."""
    answer = choose(gpushare_pod(8138 * MIB), node_of(*sharing(8138, 0)), SETTINGS)

    assert isinstance(answer, Choice)
    assert answer.shares[0].minor == 0


def test_the_fullest_card_that_fits_is_taken() -> None:
    """GPU share proposal, 2.2: of 12207, 8138, 4069 and 16276 MiB free 8138 go to GPU 1."""
    node = node_of(*sharing(12207, 8138, 4069, 16276))

    answer = choose(gpushare_pod(8138 * MIB, containers=2), node, SETTINGS)

    assert isinstance(answer, Choice)
    (share,) = answer.shares
    assert (share.minor, share.memory_bytes, share.core_percent) == (1, 8138 * MIB, 0)
    assert share.memory_ratio_percent == 50
    assert share.instances == 2
    assert share.containers == ()


def test_equal_cards_are_taken_from_the_lowest_index() -> None:
    """GPU-sharing contract B.4."""
    answer = choose(gpushare_pod(GIB), node_of(*sharing(9000, 4069, 4069)), SETTINGS)

    assert isinstance(answer, Choice)
    assert answer.shares[0].minor == 1


def test_an_unhealthy_or_exclusively_held_card_is_passed_over() -> None:
    """GPU-sharing contract B.1, unhealthy list; a card held alone is nobody else's."""
    node = node_of(
        card(0, closed=True),
        card(1, core_used=1, exclusive=True),
        card(2, memory_used=GIB),
        card(3),
    )

    answer = choose(gpushare_pod(GIB), node, SETTINGS)

    assert isinstance(answer, Choice)
    assert answer.shares[0].minor == 2


def test_in_gib_units_a_card_holds_fifteen() -> None:
    """GPU-sharing contract B.5: 16276 MiB are 15 units of GiB; a sixteenth does not fit."""
    node = node_of(*sharing(16276))

    assert isinstance(choose(gpushare_pod(15 * GIB, 15), node, SETTINGS), Choice)
    assert isinstance(choose(gpushare_pod(16 * GIB, 16), node, SETTINGS), Unfit)
