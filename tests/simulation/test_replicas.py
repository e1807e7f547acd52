"""Replicas that compete for a Lease: one answers, no card is given twice, and nothing leaks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.service.leading import NOT_LEADER, Leading
from tests.support.campaign import print_figures
from tests.support.pausing import run_with_processes
from tests.support.replicas import Replicated

SAMPLE = 2
CAMPAIGN = 30
FAULTS = 1_000
SEEDS_MAX = 8


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of Pods are bound in here, and nobody reads the line of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(world: Replicated) -> list[str]:
    """Run a world to its end; return what must not be."""
    run_with_processes(world.run())
    return world.broken


class AnswersByItsEpochAlone(Leading):
    """Believes to lead until somebody tells it otherwise."""

    def why_not(self) -> str:
        """Return why nothing is given out, whoever has the Lease."""
        return self.fresh() if self.epoch and not self.is_deposed else NOT_LEADER


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_one_answers_and_nothing_is_given_twice_or_lost(seed: int, tmp_path: Path) -> None:
    """Whoever is killed, stopped, cut off or has a wrong clock; whoever stands by knows it all."""
    assert play(Replicated(seed, tmp_path)) == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(86, id="a Pod that was asked about and never seen holds nothing for ever"),
        pytest.param(109, id="whoever is never told of its own epoch ends, and another leads"),
        pytest.param(170, id="a reservation is refused whose group is gone by then"),
    ],
)
def test_what_single_histories_have_shown(seed: int, tmp_path: Path) -> None:
    """Histories in which something stood still, outlived its Pod or was asked of what had gone."""
    assert play(Replicated(seed, tmp_path, groups=True)) == []


@pytest.mark.slow
def test_a_thousand_faults_around_leaders_change_nothing(tmp_path: Path) -> None:
    """Pauses, partitions from either side, clocks, a Lease that is deleted, rollouts, crashes."""
    counts, takeovers = Counter[str](), 0
    for seed in range(SAMPLE, SAMPLE + CAMPAIGN):
        world = Replicated(seed, tmp_path, groups=seed % 2 == 0)
        assert play(world) == [], seed
        counts += world.faults.counts
        takeovers += world.takeovers
    faults = counts.total() - counts["act"]
    figures = {"worlds": CAMPAIGN, "acts": counts["act"], "faults": faults, "takeovers": takeovers}
    print_figures("replicas", figures)
    assert faults >= FAULTS
    assert takeovers > 3 * CAMPAIGN
    assert counts.keys() >= {
        *("pause", "cut from api", "cut from ledger", "clock off", "lease deleted"),
        *("told to stop", "crash anywhere", "deposed"),
    }


def test_who_goes_by_its_epoch_alone_is_found(tmp_path: Path) -> None:
    """It answers beside the next leader until it hears of it."""
    seeds = range(SEEDS_MAX)  # 1 and 7 show it; others do where the worlds have changed
    worlds = (Replicated(seed, tmp_path, leads=AnswersByItsEpochAlone) for seed in seeds)
    assert any("two answer" in words for world in worlds for words in play(world))
