"""Random machines: the CPUs picked are the ones that the contract's text gives, every one."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.oracles.cpu_campaign import case_of, disagreements, told
from tests.support.campaign import print_figures

SAMPLE = 10_000
WHOLE = 1_000_000
BATCH = 50_000


@pytest.mark.campaign_sample
def test_ten_thousand_picks_are_those_of_the_contract() -> None:
    """A bounded sample of the campaign below."""
    _agree(range(SAMPLE))


@pytest.mark.slow
def test_a_million_picks_are_those_of_the_contract() -> None:
    """Any topology, holders, reference limit and policy: the same CPUs, or refused alike."""
    _agree(range(SAMPLE, SAMPLE + WHOLE))


def _agree(seeds: range) -> None:
    """Fail at the first case that is decided otherwise; show it, and how to run it again."""
    outcomes: Counter[str] = Counter()
    for first in range(0, len(seeds), BATCH):
        batch = seeds[first : first + BATCH]
        different = disagreements(batch, outcomes)
        print_figures(f"CPU picks up to seed {batch[-1]}", outcomes)
        assert not different, f"python -m tests.oracles.cpu_campaign {different[0]}\n" + told(
            case_of(different[0])
        )
    assert min(outcomes["placed"], outcomes["unfit"]) > outcomes.total() // 20, outcomes
