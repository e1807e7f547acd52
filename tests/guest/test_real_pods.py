"""Real Pods of a real kubelet on eight CPUs, bound by the runtime as it makes them."""

from __future__ import annotations

import compileall
from collections.abc import Iterator

import pytest

from tests.support.guest.judged import judge, run_steps
from tests.support.guest.machine import CgroupForm, Guest, guest
from tests.support.guest.programs import BOOT, NODE, busybox
from tests.support.kube.binaries import MissingProgramError
from tests.support.node.programs import node_programs
from tests.support.process import ROOT

SEED = 31
"""Odd: kubelet has its static policy."""
MACHINES = [
    pytest.param((release, CgroupForm.V2, steps), id=f"kernel {release}, {steps} steps")
    for release, steps in (("6.12", 60), ("6.1", 15))
]


@pytest.fixture(scope="module", params=MACHINES)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Guest, int]]:
    """A guest in which a kubelet can run, and how many steps it is to take."""
    release, form, steps = request.param
    for each in ("agent", "certs", "ledger", "scheduler", "tenure", "tests/support", "webhook"):
        compileall.compile_dir(ROOT / each, quiet=1)  # the guest can't, and starts them often
    folder = tmp_path_factory.mktemp("node")
    try:
        with guest(folder, release, form, memory_mib=4096, modules=(*BOOT, *NODE)) as running:
            yield running, steps
    except MissingProgramError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.slow
def test_real_pods_run_on_their_cpus_after_every_step(node: tuple[Guest, int]) -> None:
    """
    No process ran on another's CPU, not even as it was born: the runtime bound it before.

    Our process is killed among the steps. At the end the Node's label goes, and everything is given
    back.
    """
    machine, steps = node

    came, seen = run_steps(
        *(machine, SEED, steps, node_programs(), busybox()),
        module="real_pods",
        beside=("nice", "-n", "10", "taskset", "-c", "0"),
    )

    judge(machine, came, seen, steps)
    assert came["ran"] == []
