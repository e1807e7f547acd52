from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from ledger.domain.proofs import merkle
from scheduler.decide.cards import link_table
from scheduler.decide.cpusets import picker
from scheduler.decide.group import cover
from scheduler.decide.score import pools


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(picker, id="CPU picker"),
        pytest.param(link_table, id="link table"),
        pytest.param(cover, id="group cover"),
        pytest.param(pools, id="scarcity"),
        pytest.param(merkle, id="Merkle tree"),
    ],
)
def test_the_worked_example_is_what_the_code_does(module: ModuleType) -> None:
    """Each algorithm is shown at work at its head."""
    failed, tried = doctest.testmod(module)

    assert tried > 0
    assert failed == 0
