"""What a container with CPUs of its own gains: it does not wait for others on them."""

from __future__ import annotations

import json
import sys
from statistics import median

import pytest

from tests.support.guest.delays import Waited
from tests.support.guest.machine import Guest


@pytest.mark.slow
def test_a_busy_loop_with_its_own_cpu_waits_less_than_half_as_long(machine: Guest) -> None:
    """
    By the kernel's `run_delay`, beside twelve busy loops of best effort on eight CPUs.

    At equal weights, in the median of turns. By kubelet's weights it goes before best effort
    anyway: what that leaves is the emulator's own, and is told only.
    """
    came: dict[str, Waited] = json.loads(
        machine.python(
            "tests.support.guest.delays",
            *(machine.form, machine.release, "/run/tmp/delays"),
            seconds=900,
        )
    )

    for whose, waited in came.items():
        sys.stderr.write(f"\n{machine.release} {machine.form}: {whose} weights, ms: {waited}\n")
    equal = came["equal"]
    assert 2 * median(equal["bound"]) < median(equal["unbound"])
