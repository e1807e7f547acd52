"""Random Pods on the kernel's own cgroups: what the kernel enforces is what was granted."""

from __future__ import annotations

import json
import sys

import pytest

from agent.decide.cgroup_plan import PARTITIONS_SINCE
from tests.support.guest.cpu_steps import EFFECTIVE, Came
from tests.support.guest.machine import CGROUPS, CgroupForm, Guest
from tests.support.guest.poller import Seen

SAMPLE_STEPS = 20
CAMPAIGN_STEPS = 250
"""By eight seeds: 2,000 in all on each machine."""


def _run(machine: Guest, seed: int, steps: int) -> tuple[Came, Seen]:
    claims = f"/run/tmp/claims-{seed}"
    top = CGROUPS / "cpuset" if machine.form is CgroupForm.V1 else CGROUPS
    machine.run("sh", "-c", f"echo {{}} > {claims}")
    command = (sys.executable, "-m", "tests.support.guest.poller")
    poller = machine.start(
        *command, claims, top / "kubepods", EFFECTIVE[machine.form], seconds=3_600
    )
    try:
        came = machine.python(
            "tests.support.guest.cpu_steps",
            *(machine.form, machine.release, str(seed), str(steps), claims),
            seconds=3_000,
        )
    finally:
        machine.run("touch", f"{claims}.end")
        code = poller.wait()
    assert code == 0, poller.file("err").read_text()
    return json.loads(came), json.loads(poller.file("out").read_text())


def _judge(machine: Guest, came: Came, seen: Seen, steps: int) -> None:
    parts = machine.form is CgroupForm.V2 and _version(machine) >= PARTITIONS_SINCE
    born = [each["lasted"] for each in seen["exposures"] if each["at_birth"]]
    sys.stderr.write(
        f"\n{machine.release} {machine.form}: {came['steps']} steps, {came['writes']} writes,"
        f" {came['rounds']} rounds at most, slowest {came['slowest']:.2f} s;"
        f" {seen['looks']} looks at {seen['cgroups']} cgroups,"
        f" {seen['longest'] * 1000:.0f} ms apart at most; born exposed {len(born)},"
        f" {max(born, default=0) * 1000:.0f} ms at most\n"
    )
    assert came["wrong"] == []
    assert came["left"] == []
    assert came["steps"] == steps
    assert seen["looks"] > steps
    excused = [each for each in seen["exposures"] if each["at_birth"]]
    if parts:  # who is born runs on no CPU of a partition either
        excused = [each for each in excused if each["whose"] not in came["alone"]]
        assert came["partitions"] > 0
    assert [each for each in seen["exposures"] if each not in excused] == []


def _version(machine: Guest) -> tuple[int, ...]:
    return tuple(map(int, machine.release.split(".")))


@pytest.mark.parametrize("seed", [2, 3], ids=["without kubelet's policy", "beside it"])
def test_a_sample_of_steps(machine: Guest, seed: int) -> None:
    """After each one the kernel's word equals the grant; nobody ran on another's CPU between."""
    _judge(machine, *_run(machine, seed, SAMPLE_STEPS), SAMPLE_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 18))
def test_the_campaign_of_steps(machine: Guest, seed: int) -> None:
    """The same, 2,000 steps long on each machine."""
    _judge(machine, *_run(machine, seed, CAMPAIGN_STEPS), CAMPAIGN_STEPS)
