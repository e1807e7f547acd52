"""A file says what a machine has, strictly, and errors name the place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.discover.declared import BYTES_MAX, FileProbe
from agent.discover.machine import Discovery, Kind, checked
from ledger.domain.errors import InputError
from ledger.domain.topology import link_matrix_of
from tests.support.machines_found import CUT, TWO_CARDS, card, write_machine


def look(path: Path, text: str) -> Discovery:
    """Look at a machine that is written so."""
    path.write_text(text)
    return FileProbe(path=path).look()


def test_every_field_comes_back(tmp_path: Path) -> None:
    """What the probe gives is what was written, MIG and measured links among it."""
    whole = replace(
        TWO_CARDS,
        cards=(*TWO_CARDS.cards, CUT),
        measured=link_matrix_of([[0, 235.5], [234.25, 0]]),
        unknown=(Kind.GPU,),
    )

    assert FileProbe(path=write_machine(tmp_path / "m.json", whole)).look() == whole


def test_little_is_enough_and_is_put_in_order(tmp_path: Path) -> None:
    """YAML by hand: what is left out is at its default, cards are by minor."""
    found = look(
        tmp_path / "m.yaml",
        "cards:\n- {uuid: GPU-b, minor: 1, memory_bytes: 2}\n"
        "- {uuid: GPU-a, minor: 0, memory_bytes: 1}\n",
    )

    assert [(one.uuid, one.memory_bytes) for one in found.cards] == [("GPU-a", 1), ("GPU-b", 2)]
    assert look(tmp_path / "none.yaml", "") == Discovery()


def test_the_file_is_read_at_every_look(tmp_path: Path) -> None:
    """A test takes a card away by writing the file again."""
    probe = FileProbe(path=write_machine(tmp_path / "m", TWO_CARDS))
    assert len(probe.look().cards) == 2
    write_machine(tmp_path / "m", replace(TWO_CARDS, cards=(card(0),), links=()))

    assert len(probe.look().cards) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cards: 1", "cards: expected `array`"),
        ("card: []", "unknown field 'card'"),
        ("cards: [{uuid: a, minor: 0}]", "missing required field `memory_bytes`"),
        ("cards: [{uuid: a, minor: -1, memory_bytes: 0}]", "cards[0].minor: expected `int` >= 0"),
        ("cards: [{uuid: a, minor: 0, memory_bytes: 1.5}]", "cards[0].memory_bytes: expected"),
        (
            "cards: [{uuid: a, minor: 0, memory_bytes: 0}, {uuid: a, minor: 1, memory_bytes: 0}]",
            "cards[1]: two have one id: value='a'",
        ),
        (
            "nics: [&a {name: a, minor: 0, place: {bus_id: x}}, {<<: *a, place: {bus_id: y}}]",
            "nics[1]: two have one minor: value=0",
        ),
        ("nics: [{name: a, minor: 0, place: {}}]", "nics[0]: missing; expected an id"),
        ("links: [{first: 0, second: 1}]", "links[0]: not two GPUs"),
        ("measured: '[[1,2]]'", "measured: the matrix is not square"),
        (
            "cards:\n- {uuid: a, minor: 0, memory_bytes: 1, uuid: b}",
            "the key 'uuid' stands twice in one mapping: line=2, column=40",
        ),
        ("cards: []\ncards: []", "the key 'cards' stands twice in one mapping: line=2, column=1"),
        ('{"cards": [], "cards": []}', "the key 'cards' stands twice"),
        ("a: [", "not YAML"),
        ("cards:\n\t- uuid: a", "a tab in column 1, where YAML takes spaces alone: line=2"),
        ("- 1\n---\n- 2", "not YAML"),
        ("[]", "expected `object`"),
    ],
    ids=lambda text: text.splitlines()[0][:50],
)
def test_whatever_is_no_machine_is_refused_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    """File, field and fact; nothing is guessed."""
    with pytest.raises(InputError) as caught:
        look(tmp_path / "m.yaml", text)

    assert str(caught.value).startswith(f"{tmp_path / 'm.yaml'}: ")
    assert message in str(caught.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    """A wrong path is no machine without devices."""
    with pytest.raises(InputError, match="can't be read"):
        FileProbe(path=tmp_path / "absent").look()
    with pytest.raises(InputError, match="too large"):
        look(tmp_path / "large", " " * (BYTES_MAX + 1))


def test_a_checked_machine_stays_itself() -> None:
    """Checking twice changes nothing."""
    assert checked(checked(TWO_CARDS)) == TWO_CARDS
