"""The page docs/threat-model.md says what came of attacks that are played here."""

from __future__ import annotations

import pytest

from tests.support.hostile.attack import Attack
from tests.support.hostile.page import rows
from tests.support.hostile.real_node import ATTACKS as ON_A_REAL_NODE
from tests.support.hostile.table import ATTACKS


def test_the_page_has_every_attack_and_no_other() -> None:
    """In the order in which they are listed; what is played on a real node stands apart."""
    assert list(rows(real=False)) == [(one.who, one.what) for one in ATTACKS]
    assert list(rows(real=True)) == [(one.who, one.what) for one in ON_A_REAL_NODE]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: f"{one.who} {one.what}")
def test_what_came_is_what_the_page_says(attack: Attack) -> None:
    """Word by word."""
    assert rows(real=False)[attack.who, attack.what] == attack.play()
