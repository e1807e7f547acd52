"""Random Pods on the kernel's own cgroups: what the kernel enforces is what was granted."""

from __future__ import annotations

import pytest

from tests.support.guest.judged import judge, run_steps
from tests.support.guest.machine import Guest

SAMPLE_STEPS = 20
CAMPAIGN_STEPS = 168
"""By four seeds on three machines: 2,000 in all."""
BUSY_STEPS = 30


@pytest.mark.parametrize("seed", [2, 3], ids=["without kubelet's policy", "beside it"])
def test_a_sample_of_steps(machine: Guest, seed: int) -> None:
    """After each one the kernel's word equals the grant; nobody ran on another's CPU between."""
    judge(machine, *run_steps(machine, seed, SAMPLE_STEPS), SAMPLE_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_the_campaign_of_steps(machine: Guest, seed: int) -> None:
    """The same, 2,000 steps long on all machines together."""
    judge(machine, *run_steps(machine, seed, CAMPAIGN_STEPS), CAMPAIGN_STEPS)


@pytest.mark.slow
def test_steps_beside_containers_that_never_rest(machine: Guest) -> None:
    """The same while every container computes without a pause, each on as many CPUs as it may."""
    judge(machine, *run_steps(machine, 30, BUSY_STEPS, "busy"), BUSY_STEPS)
