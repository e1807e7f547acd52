"""The writer dies at any moment; what it acknowledged is there, and nothing is half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.campaign import print_figures, run_campaign


@pytest.mark.integration
@pytest.mark.parametrize(
    ("cycles", "seed"),
    [
        pytest.param(20, 1, id="20 kills", marks=pytest.mark.campaign_sample),
        pytest.param(60, 2, id="60 kills", marks=pytest.mark.slow),
        pytest.param(1_000, 3, id="1000 kills", marks=pytest.mark.slow),
    ],
)
def test_a_killed_writer_leaves_a_ledger_that_proves_itself(
    tmp_path: Path, cycles: int, seed: int
) -> None:
    """After every SIGKILL all of it verifies, and every acknowledged position is there."""
    answer = run_campaign("tests.support.crashing", tmp_path, cycles, seed)

    assert answer["findings"] == []
    assert answer["killed"] == cycles
    assert answer["acknowledged"] > 10 * cycles
    figures = {
        "seconds": answer["seconds"],
        "SIGKILLs": answer["killed"],
        "events acknowledged": answer["acknowledged"],
        "findings": len(answer["findings"]),
    }
    print_figures("killed writers", figures)
