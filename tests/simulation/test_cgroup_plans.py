"""Plans applied to the kernel's model, step by step, by whatever Pods come and go."""

from __future__ import annotations

import random
from typing import Final

import pytest

from agent.decide.cgroup_plan import plan, plan_removal
from agent.decide.cgroups import UnboundReason
from tests.support.cgroup_world import ALL, KINDS, LSE, World
from tests.support.cpuset_kernel import Kernel
from tests.support.examples import seeds

ROUNDS: Final = 4
STEPS: Final = 25
KERNELS: Final = [
    pytest.param(1, (6, 1), id="cgroup v1"),
    pytest.param(2, (6, 1), id="v2 without remote partitions"),
    pytest.param(2, (6, 8), id="v2 with partitions within cpuset.cpus"),
    pytest.param(2, (6, 12), id="v2 with free partitions"),
]
every_kernel = pytest.mark.parametrize(("version", "release"), KERNELS)
every_policy = pytest.mark.parametrize("static", [False, True], ids=["policy none", "static"])


def world_of(version: int, release: tuple[int, int], seed: int, *, static: bool) -> World:
    """Return an empty node."""
    return World(Kernel(version, release, len(ALL)), random.Random(seed), static=static)


def settle(world: World) -> int:
    """Plan and write until nothing is left to write, and return how many rounds that took."""
    for rounds in range(ROUNDS + 1):
        planned = plan(world.tree(), world.node())
        if not planned.writes:
            return rounds
        world.apply(planned)
    raise AssertionError(f"still to write: {planned.writes}")


@every_policy
@every_kernel
@pytest.mark.parametrize("seed", seeds(3, 100))
def test_everybody_comes_to_run_where_he_is_to(
    seed: int, version: int, release: tuple[int, int], *, static: bool
) -> None:
    """In few rounds, without a refusal, and nobody is given another's own CPU on the way."""
    world = world_of(version, release, seed, static=static)
    for _ in range(STEPS):
        world.step()
        settle(world)
        world.check()
        told = {one.about: one.reason for one in plan(world.tree(), world.node()).unbound}
        for pod in world.pods.values():
            if not (pod.is_there and world.owned(pod) and KINDS[pod.kind][0] is LSE):
                continue
            if version == 2 and release >= (6, 7) and pod.kind == "LSE":
                assert world.kernel.groups[pod.path].partition == "root"
                assert told.get(pod.uid) is not UnboundReason.NO_PARTITION
            else:
                assert told[pod.uid] is not UnboundReason.NO_CPUS_LEFT


@every_policy
@every_kernel
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_an_end_between_any_two_writes_is_made_good(
    seed: int, version: int, release: tuple[int, int], *, static: bool
) -> None:
    """What was written of a plan is no harm, and the next plan begins with what is there."""
    world = world_of(version, release, seed, static=static)
    for _ in range(STEPS):
        for _ in range(world.rng.randint(1, 3)):
            world.step()
            writes = plan(world.tree(), world.node()).writes
            world.apply(writes[: world.rng.randint(0, len(writes))])
        settle(world)
        world.check()


@every_policy
@every_kernel
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_what_is_born_meanwhile_is_bound_by_the_next_plan(
    seed: int, version: int, release: tuple[int, int], *, static: bool
) -> None:
    """A write that comes too late is refused; then the plan of what is there now goes on."""
    world = world_of(version, release, seed, static=static)
    for _ in range(STEPS):
        world.step()
        planned = plan(world.tree(), world.node())
        for _ in range(2):
            world.step()
        world.apply_late(planned.writes)
        settle(world)
        world.check()


@every_policy
@every_kernel
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_removal_gives_everything_back(
    seed: int, version: int, release: tuple[int, int], *, static: bool
) -> None:
    """Every container has every CPU again, or what kubelet says; no partition is left."""
    world = world_of(version, release, seed, static=static)
    for _ in range(STEPS):
        world.step()
        settle(world)
    for _ in range(ROUNDS):
        planned = plan_removal(world.tree(), world.node())
        for write in planned.writes:
            world.write(write)
    assert not plan_removal(world.tree(), world.node()).writes
    for pod in world.pods.values():
        leaves = [*pod.containers] if static else [*pod.containers, pod.sandbox]
        for leaf in leaves if pod.is_there else ():
            wanted = (pod.pinned or world.kubelets_pool()) if static else ALL
            assert world.kernel.effective(f"{pod.path}/{leaf}") == wanted, (pod, leaf)
    for path, group in world.kernel.groups.items():
        assert (group.partition, group.exclusive) == ("member", frozenset()), path


@every_kernel
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_kubelets_own_writes_are_answered_once(
    seed: int, version: int, release: tuple[int, int]
) -> None:
    """Kubelet writes when it starts and when its pool changes; nobody writes to and fro."""
    world = world_of(version, release, seed, static=True)
    for _ in range(STEPS):
        world.step()
        settle(world)
    pinned = {
        f"{pod.path}/{leaf}": pod.pinned
        for pod in world.pods.values()
        for leaf in pod.containers
        if pod.pinned and not pod.own
    }
    for _ in range(3):
        world.kubelet_restarts()
        assert settle(world) <= 2
        world.check()
        assert all(world.kernel.groups[path].cpus == cpus for path, cpus in pinned.items())
        written = world.kernel.writes
        assert settle(world) == 0
        assert world.kernel.writes == written


@every_kernel
def test_v2_needs_no_write_after_kubelets(version: int, release: tuple[int, int]) -> None:
    """What is above a container holds on v2, whatever kubelet writes into it."""
    world = world_of(version, release, 1, static=True)
    for kind in ("LS", "Burstable", "BE", "Guaranteed LS"):
        world.arrive(kind)
    world.arrive("LSE")
    settle(world)
    world.kubelet_restarts()
    assert settle(world) == (0 if version == 2 else 1)


@every_kernel
def test_a_cpu_that_goes_offline_ends_no_convergence(
    version: int, release: tuple[int, int]
) -> None:
    """The others keep what is left to them; on v1 the plan says whose CPU is missing."""
    world = world_of(version, release, 3, static=False)
    pod = world.arrive("LSR")
    assert pod is not None
    pod.own = frozenset({5, 6})
    world.arrive("LS")
    settle(world)
    world.kernel.offline(5)
    settle(world)
    for leaf in [*pod.containers, pod.sandbox]:
        assert world.kernel.effective(f"{pod.path}/{leaf}") == {6}
    told = [one.reason for one in plan(world.tree(), world.node()).unbound]
    assert told == ([UnboundReason.OUTSIDE] if version == 1 else [])
