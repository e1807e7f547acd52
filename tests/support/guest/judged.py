"""Random steps in a guest with the poller beside them, and what must be true of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from agent.decide.cgroup_plan import PARTITIONS_SINCE
from tests.support.guest.cpu_steps import EFFECTIVE, Came
from tests.support.guest.machine import CGROUPS, CgroupForm, Guest
from tests.support.guest.poller import Seen


def run_steps(
    machine: Guest,
    seed: int,
    steps: int,
    *more: str | Path,
    module: str = "cpu_steps",
    kubepods: str = "kubepods",
    beside: Sequence[str] = (),
) -> tuple[Came, Seen]:
    """
    Return what came of random steps, and what the poller saw meanwhile.

    Args:
        beside: the beginning of the poller's command, such as `nice`.
    """
    claims = f"/run/tmp/claims-{seed}"
    top = CGROUPS / "cpuset" if machine.form is CgroupForm.V1 else CGROUPS
    machine.run("sh", "-c", f"echo {{}} > {claims}")
    command = (*beside, sys.executable, "-m", "tests.support.guest.poller")
    poller = machine.start(
        *command, claims, top / kubepods, EFFECTIVE[machine.form], seconds=11_000
    )
    try:
        came = machine.python(
            f"tests.support.guest.{module}",
            *(machine.form, machine.release, str(seed), str(steps), claims),
            *more,
            seconds=10_800,
        )
    finally:
        machine.run("touch", f"{claims}.end")
        code = poller.wait()
    assert code == 0, poller.file("err").read_text()
    return json.loads(came), json.loads(poller.file("out").read_text())


def judge(machine: Guest, came: Came, seen: Seen, steps: int) -> None:
    """
    Print the figures; nobody used another's CPUs but who was just born.

    Who is born uses no CPU of a partition either.
    """
    version = tuple(map(int, machine.release.split(".")))
    parts = machine.form is CgroupForm.V2 and version >= PARTITIONS_SINCE
    born = [each["lasted"] for each in seen["exposures"] if each["at_birth"]]
    sys.stderr.write(
        f"\n{machine.release} {machine.form}, seed {came['seed']}: {came['steps']} steps,"
        f" {came['writes']} writes,"
        f" {came['rounds']} rounds at most, slowest {came['slowest']:.2f} s;"
        f" {seen['looks']} looks at {seen['cgroups']} cgroups,"
        f" {seen['longest'] * 1000:.0f} ms apart at most; born exposed {len(born)},"
        f" {max(born, default=0) * 1000:.0f} ms at most; {came['switches']} switches,"
        f" of newborn on CPUs of others {sum(each['times'] for each in came['ran'])};"
        f" {dict(sorted(came['acts'].items()))}\n"
    )
    for each in came["rewritten"]:
        sys.stderr.write(f"systemd, reading its units again: {each}\n")
    assert came["wrong"] == []
    assert came["left"] == []
    assert came["steps"] == steps
    assert seen["looks"] > steps
    assert came["switches"] > steps
    assert came["partitions"] > 0 or not parts
    alone = came["alone"] if parts else []
    pairs = [(one["at_birth"], one["whose"], str(one)) for one in seen["exposures"]]
    pairs += [(one["at_birth"], one["whose"], str(one)) for one in came["ran"]]
    assert [about for newborn, whose, about in pairs if not newborn or whose in alone] == []
