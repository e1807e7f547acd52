"""Small random nodes, dialect by dialect: the allocator's choice is the oracle's, to the byte."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.oracles.campaign import DIALECTS, case_of, disagreements, told
from tests.support.campaign import print_figures

SAMPLE = 600
WHOLE = 200_000
BATCH = 10_000


@pytest.mark.campaign_sample
@pytest.mark.parametrize("dialect", DIALECTS)
def test_six_hundred_nodes_are_decided_as_by_trying_everything(dialect: str) -> None:
    """A bounded sample of the campaign below."""
    _agree(dialect, range(SAMPLE))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_two_hundred_thousand_nodes_are_decided_as_by_trying_everything(dialect: str) -> None:
    """Refused, unfit, or the very devices, units, bytes, VFs and containers, ties included."""
    _agree(dialect, range(SAMPLE, SAMPLE + WHOLE))


def _agree(dialect: str, seeds: range) -> None:
    """Fail at the first case that is decided otherwise; show it, and how to run it again."""
    outcomes: Counter[str] = Counter()
    for first in range(0, len(seeds), BATCH):
        batch = seeds[first : first + BATCH]
        different = disagreements(dialect, batch, outcomes)
        print_figures(f"{dialect} up to seed {batch[-1]}", outcomes)
        assert not different, f"python -m tests.oracles.campaign {dialect} {different[0]}\n" + told(
            case_of(dialect, different[0])
        )
    rare = min(outcomes["placed"], outcomes["unfit"])
    assert rare > outcomes.total() // 20, outcomes
