"""The page docs/threat-model.md says what came of attacks that are played here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.hostile.attack import Attack
from tests.support.hostile.table import ATTACKS

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|\n").split("|"))
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| (?!who |---)", line)
]


def test_the_page_has_every_attack_and_no_other() -> None:
    """In the order in which they are listed."""
    assert [row[:2] for row in ROWS] == [(one.who, one.what) for one in ATTACKS]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: f"{one.who} {one.what}")
def test_what_came_is_what_the_page_says(attack: Attack) -> None:
    """Word by word."""
    assert {row[:2]: row[2] for row in ROWS}[attack.who, attack.what] == attack.play()
