"""Cgroups that systemd makes: it is the guest's first process, and reads its units again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.guest.judged import judge, run_steps
from tests.support.guest.machine import CgroupForm, Guest, guest
from tests.support.kube.binaries import MissingProgramError

STEPS = 30
"""By two seeds: 60."""


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest of systemd's."""
    folder = tmp_path_factory.mktemp("systemd")
    try:
        with guest(folder, "6.12", CgroupForm.V2, by_systemd=True) as running:
            yield running
    except MissingProgramError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20, 21], ids=["without kubelet's policy", "beside it"])
def test_cgroups_are_as_planned_however_often_systemd_reads_its_units(
    booted: Guest, seed: int
) -> None:
    """`systemctl daemon-reload` is among the steps; what it writes over is there after a round."""
    assert booted.run("cat", "/proc/1/comm") == "systemd\n"

    came, seen = run_steps(booted, seed, STEPS, "systemd", kubepods="kubepods.slice")

    judge(booted, came, seen, STEPS)
    assert came["acts"]["reload"] > 0
