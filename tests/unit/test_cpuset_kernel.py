"""The model of the kernel answers as the kernels do: plans that hold on it hold on them."""

from __future__ import annotations

import pytest

from tests.support.guest.model_steps import ModelCgroups, plain
from tests.support.guest.scenarios import KINDS, Scenario, scenarios

_NOT_MODELLED = ("granted",)
_MODELLED = [each for each in scenarios() if each.modelled]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", _MODELLED, ids=lambda each: each.name)
def test_the_model_answers_as_the_kernel(scenario: Scenario, kind: str) -> None:
    """Step by step, reasons aside; what kernels answer `make guest` asks them."""
    form, _, release = kind.partition(" ")
    asked = [
        (step, plain(step.split()[-1], answer))
        for step, answer in zip(scenario.steps, scenario.answers[kind], strict=True)
        if step.split()[-1] not in _NOT_MODELLED
    ]
    model = ModelCgroups(form, release or "6.1")

    answers = model.answers(step for step, _ in asked)

    assert list(zip([step for step, _ in asked], answers, strict=True)) == asked
