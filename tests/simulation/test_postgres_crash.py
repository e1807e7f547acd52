"""The writer or its Postgres dies at any moment; what was acknowledged is there, exactly once."""

from __future__ import annotations

import pytest

from tests.support.campaign import print_figures, run_campaign


@pytest.mark.integration
@pytest.mark.parametrize(
    ("cycles", "seed", "seconds_max"),
    [
        pytest.param(10, 1, 1_800, id="10 crashes", marks=pytest.mark.campaign_sample),
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
    # No timeout from here, which would kill it before it stops its server.
    answer = run_campaign("tests.support.crashing_postgres", cycles, seed, seconds_max)

    assert answer["findings"] == []
    assert (answer["servers"], answer["clients"]) == (cycles - cycles // 2, cycles // 2)
    assert answer["acknowledged"] > cycles
    assert answer["repeated"] > 0, "no writer died with a question unanswered"
    figures = {
        "seconds": answer["seconds"],
        "servers ended": answer["servers"],
        "clients killed": answer["clients"],
        "commands acknowledged": answer["acknowledged"],
        "batches asked again": answer["repeated"],
        "of them recorded before": answer["recorded_after_all"],
        "findings": len(answer["findings"]),
    }
    print_figures("crashes of Postgres and its writers", figures)
