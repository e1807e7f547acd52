from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.service.binding import Binder
from tests.support.binder_mutants import MUTANTS
from tests.support.loops import run_in_virtual_time
from tests.support.two_services import World

SAMPLE = 3
CAMPAIGN = 40
FAULTS = 1_000
SEEDS_MAX = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of Pods are bound in here, and nobody reads the line of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(world: World) -> list[str]:
    """Run a world to its end; return what must not be."""
    run_in_virtual_time(world.run())
    return world.broken


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_no_card_is_given_twice_and_nothing_leaks(seed: int, tmp_path: Path) -> None:
    """Whatever fails: by the ledger and by bound Pods' annotations, once all goes well again."""
    assert play(World(seed, tmp_path)) == []


@pytest.mark.slow
def test_a_thousand_faults_change_nothing(tmp_path: Path) -> None:
    """Answers that are lost or late, crashes, deposed leaders, Pods and nodes under old names."""
    counts: Counter[str] = Counter()
    for seed in range(SAMPLE, SAMPLE + CAMPAIGN):
        world = World(seed, tmp_path)
        assert play(world) == [], seed
        counts += world.faults.counts

    assert counts.total() - counts["act"] >= FAULTS
    assert {word.partition(" ")[0] for word in counts} >= {
        *("act", "answer", "api", "append", "crash", "deposed", "ledger", "watch"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_broken_binder_is_found(mutant: type[Binder], tmp_path: Path) -> None:
    """Some world shows what comes of it."""
    assert any(play(World(seed, tmp_path, binder=mutant)) for seed in range(SEEDS_MAX))
