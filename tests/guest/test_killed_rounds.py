"""SIGKILL before writes of each kind, on the kernel's own cgroups."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.guest.killed_rounds import Killed
from tests.support.guest.machine import CgroupForm, Guest

KILLS_MIN = 6
NARROW = {"cpuset.cpus=some"}
PART = {"cpuset.cpus.exclusive=some", "cpuset.cpus.partition=root"}
DROP = {"cpuset.cpus.exclusive=none", "cpuset.cpus.partition=member"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3], ids=["without kubelet's policy", "beside it"])
def test_who_is_killed_before_a_write_is_followed_by_one_that_finishes(
    machine: Guest, seed: int
) -> None:
    """Binding, and giving all back once the Node's label went."""
    came: Killed = json.loads(
        machine.python(
            "tests.support.guest.killed_rounds",
            *(machine.form, machine.release, str(seed), f"/run/tmp/killed-{seed}"),
            seconds=900,
        )
    )

    sys.stderr.write(
        f"\n{machine.release} {machine.form}, seed {seed}: killed as it bound {came['binding']},"
        f" as it gave back {came['giving_back']}\n"
    )
    parts = machine.release == "6.12"
    quota = "cpu.max=max" if machine.form is CgroupForm.V2 else "cpu.cfs_quota_us=-1"
    assert came["wrong"] == []
    assert came["left"] == []
    assert came["binding"].keys() >= {quota} | NARROW | (PART if parts else set())
    assert came["giving_back"].keys() >= (DROP if parts else set())
    assert min(sum(came["binding"].values()), sum(came["giving_back"].values())) >= KILLS_MIN
