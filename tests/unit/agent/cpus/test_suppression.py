from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from agent.cpus.suppression import SAMPLE_SECONDS, Suppression
from agent.cpus.tree import Kubepods
from agent.decide.pools import NodeCpus, PodCpus
from agent.decide.wanted_cpus import NodePlanned
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import CpuSet, parse_cpuset
from tests.support.cgroup_trees import FakeTree, Layout
from tests.support.topologies import MACHINE_X

PLAIN: Final = NodePlanned(cpus=NodeCpus(topology=MACHINE_X), held={}, pods=())
PERCENT: Final = 65


class Scene:
    """A node of 24 CPUs whose load is written down."""

    def __init__(self, folder: Path, tree: Kubepods, fake: FakeTree) -> None:
        self.fake, self.stat = fake, folder / "stat"
        self.now = 100.0
        self.used = {"machine": 0.0, "": 0.0, "besteffort": 0.0}
        self.suppression = Suppression(tree, self.stat, PERCENT, lambda: self.now)
        self.passes()

    def passes(self, seconds: float = 0.0, **cpus: float) -> None:
        """Let time pass in which so many CPUs were used: by the machine, all Pods, best effort."""
        self.now += seconds
        for name, path in (("machine", "machine"), ("pods", ""), ("best_effort", "besteffort")):
            self.used[path] += seconds * cpus.get(name, 0.0)
        ticks = round(self.used["machine"] * 100)
        self.stat.write_text(f"cpu  {ticks} 0 0 999 0 0 0 0 0 0\ncpu0 1 1\n")
        for path in ("", "besteffort"):
            if self.fake.cpu is not None:
                nanoseconds = round(self.used[path] * 1e9)
                (self.fake.cpu / path / "cpuacct.usage").write_text(f"{nanoseconds}\n")
            else:
                text = f"usage_usec {round(self.used[path] * 1e6)}\nuser_usec 1\n"
                (self.fake.cpuset / path / "cpu.stat").write_text(text)

    def cpus(self, node: NodePlanned = PLAIN) -> CpuSet | None:
        """Return the CPUs of best effort Pods."""
        return self.suppression.node(node).best_effort


@pytest.fixture(params=[1, 2], ids=["cgroup v1", "cgroup v2"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The node, on either version."""
    layout = Layout(version=request.param, driver="cgroupfs", runtime="containerd")
    fake = FakeTree(tmp_path / "cgroup", layout, "0-23")
    fake.make("besteffort")
    with closing(Kubepods(fake.cpuset, fake.cpu, (6, 12))) as tree:
        yield Scene(tmp_path, tree, fake)


def test_the_worked_example_as_it_is_measured(scene: Scene) -> None:
    """Contract 9.5: 24 CPUs, threshold 65 %; others use 7.6, the system 2: 6 are left."""
    assert scene.cpus() is None, "nothing is known yet: all of the pool"
    scene.passes(10, machine=9.6 + 3, pods=7.6 + 3, best_effort=3)

    assert len(scene.cpus() or ()) == 6


def test_it_looks_again_after_a_while_and_grows_slowly(scene: Scene) -> None:
    """A tenth of the node in a step, 3 of 24 CPUs; and no step between two looks."""
    scene.cpus()
    scene.passes(10, machine=20, pods=20)
    assert len(scene.cpus() or ()) == 2
    scene.passes(SAMPLE_SECONDS / 2)
    assert len(scene.cpus() or ()) == 2
    scene.passes(SAMPLE_SECONDS)
    assert [len(scene.cpus() or ()) for _ in range(3)] == [5, 5, 5]


def test_between_two_looks_nobodys_own_cpus_are_used(scene: Scene) -> None:
    """An LSE Pod comes: best effort gets as many other CPUs at once."""
    scene.cpus()
    scene.passes(10, machine=9.6, pods=7.6)
    before = scene.cpus()
    assert before is not None
    lse = PodCpus(cpus=before, qos=QosClass.LSE)
    after = scene.cpus(NodePlanned(cpus=PLAIN.cpus, held={"u": lse}, pods=()))

    assert after is not None
    assert after.isdisjoint(before)
    assert len(after) == 3, "as if it grew from nothing"


def test_a_load_that_can_not_be_read_changes_nothing(scene: Scene) -> None:
    """Neither at first nor later."""
    scene.stat.unlink()
    assert scene.cpus() is None
    scene.passes()
    scene.cpus()
    scene.passes(10, machine=9.6, pods=7.6)
    before = scene.cpus()
    scene.passes(10)
    scene.stat.write_text("torn")
    assert scene.cpus() == before


def test_reserved_cpus_count_where_the_system_uses_less(scene: Scene) -> None:
    """Kubelet's reserved CPUs: 2 of 24, and the system uses none."""
    cpus = NodeCpus(topology=MACHINE_X, kubelet_reserved=parse_cpuset("0,12"))
    node = NodePlanned(cpus=cpus, held={}, pods=())
    scene.cpus(node)
    scene.passes(10, machine=7.6, pods=7.6)
    found = scene.cpus(node)

    assert found is not None
    assert len(found) == 6
    assert parse_cpuset("0,12") <= found
