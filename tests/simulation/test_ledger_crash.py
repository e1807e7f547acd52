"""The writer dies at any moment; what it acknowledged is there, and nothing is half there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.integration
@pytest.mark.parametrize(
    ("cycles", "seed"),
    [
        pytest.param(20, 1, id="20 kills"),
        pytest.param(60, 2, id="60 kills", marks=pytest.mark.campaign_sample),
        pytest.param(1_000, 3, id="1000 kills", marks=pytest.mark.slow),
    ],
)
def test_a_killed_writer_leaves_a_ledger_that_proves_itself(
    tmp_path: Path, cycles: int, seed: int
) -> None:
    """After every SIGKILL all of it verifies, and every acknowledged position is there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.crashing", str(tmp_path), str(cycles), str(seed)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)

    assert answer["findings"] == []
    assert answer["killed"] == cycles
    assert answer["acknowledged"] > 10 * cycles
