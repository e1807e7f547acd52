"""What the kernels answer to what is done to CPU sets: the ground under every plan of writes."""

from __future__ import annotations

import json

import pytest

from tests.support.guest.machine import CGROUPS, CgroupForm, Guest
from tests.support.guest.model_steps import ModelCgroups, plain
from tests.support.guest.random_steps import random_steps
from tests.support.guest.scenarios import Scenario, kind, scenarios


def answers(machine: Guest, scripts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return what the guest's kernel answers to scripts of steps."""
    hierarchy = CGROUPS / "cpuset" if machine.form is CgroupForm.V1 else CGROUPS
    came = machine.python(
        "tests.support.guest.cgroup_steps",
        *(machine.form, hierarchy),
        seconds=300,
        stdin=json.dumps(scripts),
    )
    return dict(json.loads(came))


@pytest.fixture(scope="session")
def answered(machine: Guest) -> dict[str, list[str]]:
    """What this kernel answers to all scenarios, asked once."""
    return answers(machine, {each.name: list(each.steps) for each in scenarios()})


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda each: each.name)
def test_the_kernel_answers_as_the_table_says(
    machine: Guest, answered: dict[str, list[str]], scenario: Scenario
) -> None:
    """Step by step; plans and models rest on these answers."""
    expected = scenario.answers[kind(machine.form, machine.release)]

    assert list(zip(scenario.steps, answered[scenario.name], strict=True)) == list(
        zip(scenario.steps, expected, strict=True)
    )


def test_the_model_answers_random_writes_as_the_kernel(machine: Guest) -> None:
    """Every file of every cgroup after each write, refused ones too."""
    of_kind = kind(machine.form, machine.release)
    scripts = {str(seed): random_steps(of_kind, seed, 25) for seed in range(4)}

    came = answers(machine, scripts)

    for seed, steps in scripts.items():
        modelled = ModelCgroups(machine.form, machine.release).answers(steps)
        real = [
            plain(step.split()[-1], answer) for step, answer in zip(steps, came[seed], strict=True)
        ]
        assert list(zip(steps, real, strict=True)) == list(zip(steps, modelled, strict=True))
