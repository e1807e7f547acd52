"""CPUs bound on the machine's own cgroups: the kernel says what came of it."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.cpus.applying import Refusal, apply
from agent.cpus.binder import MARK, Binder
from agent.cpus.tree import Kubepods
from agent.decide.cgroup_plan import plan
from agent.decide.cgroups import CgroupFile, Write
from agent.decide.container_cpus import KubeQos
from ledger.domain.annotations.qos import QosClass
from tests.support.cgroup_trees import id_of
from tests.support.cpu_trees import write_cpus
from tests.support.cpus_world import Cluster, CpusWorld, cpus_world, pod
from tests.support.planned import node, planned
from tests.support.real_cgroups import LAYOUT, RealTree, real_tree, writes_to
from tests.support.sys_trees import SysTree

BIRTHS: Final = 50
KILLS: Final = 12
LSR: Final = planned(1, QosClass.LSR, KubeQos.GUARANTEED, "1")
LS: Final = planned(2, QosClass.LS, KubeQos.BURSTABLE)
PLANNED: Final = node(LSR, LS, count=os.cpu_count() or 2)


class Scene:
    """An LSR Pod that has CPU 1 and one of shared CPUs, each with a process."""

    def __init__(self, tree: RealTree) -> None:
        self.real = tree
        self.own = f"{tree.pod(1, containers=[1])}/{LAYOUT.container(id_of(1))}"
        self.shared = f"{tree.pod(2, 'burstable', [2])}/{LAYOUT.container(id_of(2))}"
        for path in (self.own.rpartition("/")[0], self.own):
            tree.say(path, "200000", "cpu.cfs_quota_us")
        self.pids = tree.run(self.own), tree.run(self.shared)

    def opened(self) -> Kubepods:
        """Return the tree as a process opens it."""
        return Kubepods(self.real.cpuset, self.real.cpu, (6, 12))

    def affinities(self) -> tuple[set[int], set[int]]:
        """Return where the kernel lets both processes run."""
        return os.sched_getaffinity(self.pids[0]), os.sched_getaffinity(self.pids[1])

    def is_bound(self) -> bool:
        """Tell whether each runs on what is its own."""
        return self.affinities() == ({1}, self.all - {1})

    @property
    def all(self) -> set[int]:
        """Return every CPU."""
        return set(range(os.cpu_count() or 2))


@pytest.fixture
def scene() -> Iterator[Scene]:
    """The tree; above it nothing is written, whatever a test does."""
    with real_tree() as tree:
        made = Scene(tree)
        with writes_to(tree.parents) as written:
            yield made
        assert not written


@pytest.fixture
def world(scene: Scene, tmp_path: Path) -> Iterator[CpusWorld]:
    """A node with that tree, whose process can be started."""
    write_cpus(SysTree(root=tmp_path), PLANNED.cpus.topology, memory_kib=4096, pages={})
    with cpus_world(tmp_path, scene.real.cpuset, scene.real.cpu) as made:
        made.options["host"] = tmp_path
        made.runs(pod(1, qos="LSR", cpus="1"), pod(2, milli=500, limit=False))
        yield made


def test_the_kernel_has_what_was_planned_and_gives_it_back(scene: Scene, tmp_path: Path) -> None:
    """A second plan is empty, and processes run where they may and nowhere else."""
    tree = scene.opened()
    binder = Binder(tree=tree, state=tmp_path, clock=time.monotonic)
    made = binder.round(PLANNED, allowed=True)
    assert (made.applied.refused, made.problems) == ((), ())
    assert scene.is_bound()
    assert scene.real.says(scene.own, "cpu.cfs_quota_us") == "-1"
    assert not plan(tree.look(whole=True), PLANNED).writes
    assert binder.round(PLANNED, allowed=False).applied.done
    assert scene.affinities() == (scene.all, scene.all)
    assert scene.real.says(scene.own, "cpu.cfs_quota_us") == "200000"
    tree.close()


def test_a_process_killed_between_any_two_writes_is_followed_by_one_that_finishes(
    scene: Scene, tmp_path: Path
) -> None:
    """SIGKILL before each write in turn; the next one brings the cgroups to the plan."""
    count = 0
    while True:
        pid = os.fork()
        if not pid:
            _bind_until_killed(scene, tmp_path, count)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            break
        count += 1
        assert (tmp_path / MARK).exists()
        tree = scene.opened()
        Binder(tree=tree, state=tmp_path, clock=time.monotonic).round(PLANNED, allowed=True)
        assert scene.is_bound()
        assert not plan(tree.look(whole=True), PLANNED).writes
        Binder(tree=tree, state=tmp_path, clock=time.monotonic).round(PLANNED, allowed=False)
        assert scene.affinities() == (scene.all, scene.all)
        tree.close()
    assert os.WEXITSTATUS(status) == 0
    assert count >= 4


def _bind_until_killed(scene: Scene, state: Path, writes: int) -> None:
    class Killed(Kubepods):
        left = writes

        def write(self, path: str, file: CgroupFile, value: str) -> None:
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            super().write(path, file, value)

    code = 1
    try:
        tree = Killed(scene.real.cpuset, scene.real.cpu, (6, 12))
        Binder(tree=tree, state=state, clock=time.monotonic).round(PLANNED, allowed=True)
        code = 0
    finally:
        os._exit(code)


def test_what_this_kernel_refuses_is_named(scene: Scene) -> None:
    """EBUSY of a child that was born, EACCES outside of the parent, ENOSPC, ERANGE."""
    tree, pod_path = scene.opened(), scene.own.rpartition("/")[0]
    refused = {}
    for path, value in ((pod_path, "0"), (scene.own, ""), (scene.own, "4000")):
        [one] = apply(tree, [Write(path=path, file=CgroupFile.CPUS, value=value)]).refused
        refused[path, value] = one.reason
    apply(tree, [Write(path=scene.own, file=CgroupFile.CPUS, value="0")])
    apply(tree, [Write(path=pod_path, file=CgroupFile.CPUS, value="0")])
    [outside] = apply(tree, [Write(path=scene.own, file=CgroupFile.CPUS, value="1")]).refused
    assert refused == {
        (pod_path, "0"): Refusal.CHILD_HAS_MORE,
        (scene.own, ""): Refusal.EMPTY_WITH_TASKS,
        (scene.own, "4000"): Refusal.NO_SUCH_CPU,
    }
    assert outside.reason is Refusal.OUTSIDE_PARENT
    tree.close()


def test_a_child_that_is_born_between_plan_and_write_is_bound_in_the_same_round(
    scene: Scene, tmp_path: Path
) -> None:
    """Its parent can't be narrowed before: the round looks and plans again."""

    class Bearing(Kubepods):
        born = ""

        def write(self, path: str, file: CgroupFile, value: str) -> None:
            if not self.born:
                self.born = scene.real.make(f"{scene.own}/own")
            super().write(path, file, value)

    tree = Bearing(scene.real.cpuset, scene.real.cpu, (6, 12))
    made = Binder(tree=tree, state=tmp_path, clock=time.monotonic).round(PLANNED, allowed=True)
    assert not made.applied.refused
    assert scene.is_bound()
    assert scene.real.says(tree.born) == "1"
    tree.close()


def test_the_process_converges_however_often_it_is_killed(scene: Scene, world: CpusWorld) -> None:
    """Pods come and go meanwhile; a container that starts again is bound again."""
    rng = random.Random(38)
    world.allow(bind=True)
    pods = (pod(1, qos="LSR", cpus="1"), pod(2, milli=500, limit=False))
    for turn in range(KILLS):
        world.runs(*pods[turn % 2 :])
        world.start()
        world.until(lambda: bool(world.ready()), "it does not start")
        time.sleep(rng.uniform(0, 0.3))
        world.kill()
    world.runs(*pods)
    world.start()
    world.until(scene.is_bound, "it does not converge")
    world.until(lambda: world.label() == "true", "the Node does not say so")

    scene.real.remove(scene.own)
    scene.own = f"{scene.own.rpartition('/')[0]}/{LAYOUT.container(id_of(11))}"
    scene.real.make(scene.own)
    scene.pids = scene.real.run(scene.own), scene.pids[1]
    world.until(scene.is_bound, "the container that started again is not bound")

    world.allow(bind=False)
    world.until(lambda: scene.affinities() == (scene.all, scene.all), "nothing is given back")
    world.until(lambda: world.label() is None, "the Node still says so")


@pytest.mark.slow
def test_who_is_born_beside_a_bound_pod_leaves_its_cpus_within_200_ms(
    scene: Scene, world: CpusWorld
) -> None:
    """
    Where neither the runtime nor a partition binds; a class's Pods are born within its pool.

    Those that come right after another one wait for the next round.
    """
    rng = random.Random(38)
    Cluster.waits = 20.0  # a service that has nothing to tell does not answer
    world.allow(bind=True)
    world.start()
    world.until(scene.is_bound, "nothing is bound")
    numbers = itertools.count(100)
    figures: dict[str, list[float]] = {}
    for name, seconds in (("one at a time", 0.6), ("one after the other", 0.0)):
        exposed = figures[name] = []
        for number in itertools.islice(numbers, BIRTHS):
            Cluster.listed = [*Cluster.listed[:2], pod(number, milli=500)]
            exposed.append(_exposed_ms(scene, number))
            time.sleep(rng.uniform(seconds / 2, seconds))
        exposed.sort()
        sys.stderr.write(
            f"\n{BIRTHS} born {name}: milliseconds on an LSR Pod's CPU: median"
            f" {exposed[BIRTHS // 2]:.0f}, 95th percentile {exposed[BIRTHS * 95 // 100]:.0f},"
            f" most {exposed[-1]:.0f}\n"
        )
    assert all(exposed[BIRTHS // 2] < 200 for exposed in figures.values())
    assert scene.affinities()[0] == {1}


def _exposed_ms(scene: Scene, number: int) -> float:
    """Return for how long a process of a new Pod may run on the CPU of the LSR Pod."""
    pod_path = scene.real.pod(number, containers=[number])
    own = f"{pod_path}/{LAYOUT.container(id_of(number))}"
    began = time.perf_counter()
    process = scene.real.run(own)
    while os.sched_getaffinity(process) != scene.all - {1}:
        assert time.perf_counter() - began < 20
        time.sleep(0.0005)
    took = 1000 * (time.perf_counter() - began)
    scene.real.remove(own)
    scene.real.remove(pod_path)
    return took
