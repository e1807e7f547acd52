"""The writer or its Postgres dies at any moment; what was acknowledged is there, exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.integration
@pytest.mark.parametrize(
    ("cycles", "seed", "seconds_max"),
    [
        pytest.param(10, 1, 180, id="10 crashes", marks=pytest.mark.campaign_sample),
        pytest.param(300, 2, 3_600, id="300 crashes", marks=pytest.mark.slow),
    ],
)
def test_a_crash_of_either_side_loses_and_doubles_nothing(
    cycles: int, seed: int, seconds_max: int
) -> None:
    """
    After every crash all of it verifies, and every acknowledged key is at its position, once.

    Half of the crashes are the client's (SIGKILL), half the server's ("immediate"); what was not
    answered is asked for again by the next writer, which takes over and goes on.
    """
    arguments = (str(cycles), str(seed), str(seconds_max))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.crashing_postgres", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,  # and no timeout, which would kill it before it stops its server
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)

    assert answer["findings"] == [], done.stderr
    assert (answer["servers"], answer["clients"]) == (cycles - cycles // 2, cycles // 2)
    assert answer["acknowledged"] > cycles
    assert answer["repeated"] > 0, "no writer died with a question unanswered"
