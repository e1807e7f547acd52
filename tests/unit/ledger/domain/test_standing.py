from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.log.events import LedgerRecovered
from ledger.domain.log.standing import (
    FIRST,
    Ahead,
    Behind,
    ForeignOrigin,
    Forked,
    Incarnation,
    InStep,
    Lost,
    Own,
    Standing,
    Witness,
    incarnations_of,
    standing,
)

OWN = Own(origin="ledger/a", position=50, epoch=3, chains={40: "aa", 50: "bb"})
SEEN = Witness(origin="ledger/a", incarnation=FIRST, epoch=3, position=50, chain="bb")
RECOVERED = Own(
    origin="ledger/a",
    position=80,
    epoch=9,
    incarnations=(
        Incarnation(name=FIRST, began_at=1),
        Incarnation(name="i2", began_at=51),
    ),
    lost=(Lost(incarnation=FIRST, first=51, last=100),),
    chains={50: "bb", 60: "cc", 80: "dd"},
)


def seen(position: int, incarnation: str = FIRST, **changes: object) -> Witness:
    """Return a witness of that position who did not see the chain."""
    words = {"incarnation": incarnation, "position": position, "chain": "", **changes}
    return replace(SEEN, **words)  # type: ignore[arg-type]


def behind(incarnation: str, first: int, last: int, epoch: int = 3) -> Behind:
    """Return the loss of one range."""
    return Behind(lost=(Lost(incarnation=incarnation, first=first, last=last),), epoch=epoch)


NEVER = {
    "nobody has seen anything": ([], Ahead(position=50, seen=0)),
    "the head was seen": ([SEEN], InStep(position=50)),
    "the head was seen, its chain was not": ([seen(50)], InStep(position=50)),
    "an earlier position was seen": ([seen(40, chain="aa")], Ahead(position=50, seen=40)),
    "the highest witness counts": ([seen(40), SEEN], InStep(position=50)),
    "nothing but the start was seen": ([seen(0, epoch=0)], Ahead(position=50, seen=0)),
    "more was seen": ([seen(51)], behind(FIRST, 51, 51)),
    "more was seen, by one of two": ([SEEN, seen(70, epoch=5)], behind(FIRST, 51, 70, epoch=5)),
    "more was seen of a life unheard of": ([seen(70, "i2")], behind("i2", 51, 70)),
    "more was seen of two lives": (
        [seen(100), seen(70, "i2", epoch=7)],
        Behind(
            lost=(
                Lost(incarnation=FIRST, first=51, last=100),
                Lost(incarnation="i2", first=51, last=70),
            ),
            epoch=7,
        ),
    ),
}


@pytest.mark.parametrize(("witnesses", "expected"), NEVER.values(), ids=NEVER)
def test_a_ledger_that_was_never_recovered(witnesses: list[Witness], expected: Standing) -> None:
    """It stands where its highest witness stands, ahead of it, or behind."""
    assert standing(OWN, witnesses) == expected


AGAIN = {
    "the head of the new life was seen": ([seen(80, "i2", chain="dd")], InStep(position=80)),
    "what was kept of the old one": ([seen(50, chain="bb")], Ahead(position=80, seen=50)),
    "what is known to be lost": ([seen(100)], Ahead(position=80, seen=0)),
    "more of the old life than was known": ([seen(105)], behind(FIRST, 101, 105)),
    "more of the new life": ([seen(90, "i2", epoch=9)], behind("i2", 81, 90, epoch=9)),
    "more of a third one": ([seen(90, "i3", epoch=12)], behind("i3", 81, 90, epoch=12)),
}


@pytest.mark.parametrize(("witnesses", "expected"), AGAIN.values(), ids=AGAIN)
def test_a_ledger_that_was_recovered(witnesses: list[Witness], expected: Standing) -> None:
    """A named loss is no new loss, and positions are told apart by their incarnation."""
    assert standing(RECOVERED, witnesses) == expected


FORKS = {
    "another chain at the head": (OWN, seen(50, chain="cc"), "another event"),
    "another chain before it": (OWN, seen(40, chain="cc"), "another event"),
    "another chain in the old life": (RECOVERED, seen(50, chain="cc"), "another event"),
    "another chain in the new one": (RECOVERED, seen(60, "i2", chain="aa"), "another event"),
    "a later epoch at a position we have": (OWN, seen(40, epoch=4), "later epoch"),
    "a life that began before our end": (OWN, seen(45, "i2"), "an incarnation that began"),
}


@pytest.mark.parametrize(("own", "witness", "fact"), FORKS.values(), ids=FORKS)
def test_another_history_is_no_loss(own: Own, witness: Witness, fact: str) -> None:
    """A fork counts before any loss, and names its witness."""
    found = standing(own, [seen(500), witness])

    assert isinstance(found, Forked)
    assert found.witness == witness
    assert fact in found.fact


def test_another_origin_counts_before_everything() -> None:
    """Nothing can be compared with another cluster's ledger."""
    other = seen(10, origin="ledger/b")

    assert standing(OWN, [seen(40, chain="cc"), seen(500), other]) == ForeignOrigin(witness=other)


def test_witnesses_of_two_ledgers_say_nothing_of_an_empty_one() -> None:
    """An unwritten ledger takes the origin that all agree on."""
    empty = Own(origin="", position=0, epoch=0)

    assert standing(empty, [seen(7)]) == behind(FIRST, 1, 7)
    assert isinstance(standing(empty, [seen(7), seen(7, origin="ledger/b")]), ForeignOrigin)


def test_a_second_loss_of_a_life_that_this_copy_never_had_goes_on_from_the_first() -> None:
    """What was named stays named, in whichever copy it is found."""
    own = replace(OWN, lost=(Lost(incarnation="i9", first=51, last=70),))

    assert standing(own, [seen(45, "i9"), seen(75, "i9")]) == behind("i9", 71, 75)


def test_incarnations_are_those_of_the_recorded_recoveries() -> None:
    """Two losses of one recovery are one incarnation."""

    def event(name: str, lost: str, first: int, last: int, began: int) -> LedgerRecovered:
        return LedgerRecovered(
            incarnation=name, lost_incarnation=lost, lost_from=first, lost_to=last, began_at=began
        )

    lives, lost = incarnations_of(
        [
            event("i2", FIRST, 51, 60, 51),
            event("i3", "i2", 71, 80, 71),
            event("i3", FIRST, 61, 65, 71),
        ]
    )

    assert lives == (
        Incarnation(name=FIRST, began_at=1),
        Incarnation(name="i2", began_at=51),
        Incarnation(name="i3", began_at=71),
    )
    assert lost == (
        Lost(incarnation=FIRST, first=51, last=60),
        Lost(incarnation="i2", first=71, last=80),
        Lost(incarnation=FIRST, first=61, last=65),
    )


def test_each_life_keeps_what_is_before_the_next() -> None:
    """What a life had beyond that is not in this ledger."""
    assert RECOVERED.kept_to(FIRST) == 50
    assert RECOVERED.kept_to("i2") == 80
    assert RECOVERED.kept_to("i3") is None
    assert (RECOVERED.incarnation, OWN.incarnation) == ("i2", FIRST)
    assert RECOVERED.has(FIRST, 50)
    assert not RECOVERED.has(FIRST, 51)
