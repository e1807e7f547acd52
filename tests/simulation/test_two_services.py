from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.domain.log.state import NodeState
from scheduler.service import ending
from scheduler.service.binding import Binder
from scheduler.service.ending import SILENT, NodeWord
from tests.support import fake_api
from tests.support.binder_mutants import MUTANTS
from tests.support.campaign import print_figures
from tests.support.examples import seeds
from tests.support.loops import run_in_virtual_time
from tests.support.preempted import HALF, WHOLE, make_room, preempt
from tests.support.two_services import CARDS, NODES, OTHERWISE, Word, World

SAMPLE = 3
CAMPAIGN = 40
FAULTS = 1_000
SEEDS_MAX = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of Pods are bound in here, and nobody reads the line of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(world: World) -> list[str]:
    """Run a world to its end; return what must not be."""
    run_in_virtual_time(world.run())
    return world.broken


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_no_card_is_given_twice_and_nothing_leaks(seed: int, tmp_path: Path) -> None:
    """Whatever fails: by the ledger and by bound Pods' annotations, once all goes well again."""
    assert play(World(seed, tmp_path)) == []


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_no_gang_is_begun_with_too_few_and_no_plan_keeps_cards_for_nobody(
    seed: int, tmp_path: Path
) -> None:
    """Groups and gangs among the Pods, and all that can fail around them."""
    assert play(World(seed, tmp_path, groups=True)) == []


@pytest.mark.parametrize("seed", seeds(2, 40))
def test_what_was_decided_while_nodes_changed_is_decided_again_the_same(
    seed: int, tmp_path: Path
) -> None:
    """Cards and labels change, answers are lost, and watches tell late; so by the ledger alone."""
    world = World(seed, tmp_path, groups=True, inventory=True)
    play(world)
    assert not [words for words in world.broken if words.startswith(OTHERWISE)]


def test_who_was_reserved_for_on_a_node_that_was_cleared_is_bound_after_a_restart(
    tmp_path: Path,
) -> None:
    """A start is told what is held and what was voided: the first number was used, too."""
    world = World(3, tmp_path, rate=0)

    async def live() -> None:
        world.start()
        agents = [asyncio.ensure_future(each.report()) for each in world.machines.values()]
        await asyncio.sleep(2.5)
        asking = asyncio.ensure_future(world.kube_scheduler())
        leader = world.leader
        assert leader is not None
        leader.api.fate = lambda verb: fake_api.DROPPED if verb == "create" else fake_api.ANSWERED
        world.put_pod("p0")
        await asyncio.sleep(1.0)
        (on,) = [name for name in NODES if "p0-1/1" in world.held_on(name)]
        uid = world.uids[on][-1]
        world.server.delete("/api/v1/namespaces/ml/pods/older")
        world.server.delete(f"/api/v1/nodes/{on}")
        world.put_node(on)
        await asyncio.sleep(5.0)
        leader.crash()
        world.clear(uid, on)
        world.start()
        await asyncio.sleep(20.0)
        pod = world.server.read("/api/v1/namespaces/ml/pods/p0")
        assert pod is not None
        (now,) = [name for name in NODES if "p0-1/2" in world.held_on(name)]
        assert pod["spec"]["nodeName"] == now
        for task in (asking, *agents):
            task.cancel()
        world.end()

    run_in_virtual_time(live())


@pytest.mark.parametrize("seed", seeds(6, 200))
def test_a_preemption_ends_the_least_number_of_pods(seed: int, tmp_path: Path) -> None:
    """Watches tell late, twice and in another order, agents too, and a service starts meanwhile."""
    world = World(seed, tmp_path, rate=300, only="watch")
    percent = (HALF, WHOLE, CARDS * WHOLE)[seed % 3]
    ended, node = run_in_virtual_time(preempt(world, percent))
    assert (len(ended), bool(node)) == (percent // HALF, True)


@pytest.mark.parametrize("seed", seeds(4, 1_000))
def test_never_two_sets_end_for_a_pod_beside_both_preemptors(seed: int, tmp_path: Path) -> None:
    """Ours, where sums have room, and kube-scheduler's, where they have not; a service is ended."""
    world = World(seed, tmp_path, rate=300, only="watch", preemption="on")
    sets, ended, node = run_in_virtual_time(make_room(world))
    assert (sets, bool(ended), bool(node)) == (1, True, True)


@pytest.mark.slow
def test_a_thousand_faults_change_nothing(tmp_path: Path) -> None:
    """Answers that are lost or late, crashes, deposed leaders, Pods and nodes under old names."""
    counts: Counter[str] = Counter()
    for seed in range(SAMPLE, SAMPLE + CAMPAIGN):
        world = World(seed, tmp_path, groups=seed % 2 == 1)
        assert play(world) == [], seed
        counts += world.faults.counts

    faults = counts.total() - counts["act"]
    print_figures("two services", {"worlds": CAMPAIGN, "acts": counts["act"], "faults": faults})
    assert faults >= FAULTS
    assert {word.partition(" ")[0] for word in counts} >= {
        *("act", "answer", "api", "append", "crash", "deposed", "ledger", "watch"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_broken_binder_is_found(mutant: type[Binder], tmp_path: Path) -> None:
    """Some world shows what comes of it."""
    assert any(play(World(seed, tmp_path, binder=mutant)) for seed in range(SEEDS_MAX))


def _deaf(_: Word) -> Word:
    """Release without asking any node."""
    return lambda _: SILENT


def _hasty(word: Word) -> Word:
    """Take kubelet's word at once, though the agent is there."""

    def hastily(state: NodeState) -> NodeWord:
        return replace(word(state), agent_ready=False, kubelet_ready=True)

    return hastily


def test_who_releases_without_the_nodes_word_lets_two_run_on_one_card(tmp_path: Path) -> None:
    """Containers end after their Pod's object; some world shows what comes of it."""
    assert _two_run(tmp_path, _deaf)


def test_who_takes_no_word_of_kubelet_for_its_word_lets_two_run_on_one_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Pod without a status of any container may be about to start one."""
    monkeypatch.setattr(ending, "_terminated", lambda *_, **__: True)
    assert _two_run(tmp_path, _hasty)


def _two_run(folder: Path, word: Callable[[Word], Word]) -> bool:
    found = (play(World(seed, folder, word=word)) for seed in range(SEEDS_MAX))
    return any("two run on one card" in words for broken in found for words in broken)
