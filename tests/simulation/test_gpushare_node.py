"""GPU share on a node: whatever ends in between, nobody runs with a card that is not his."""

from __future__ import annotations

import asyncio
import random

import pytest

from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from tests.support.machines_found import card
from tests.support.shares import ShareNode, share_pod

CARDS = 3


class Life:
    """A node on which Pods of few amounts come, go, and are interrupted."""

    def __init__(self, seed: int, *, stale: bool) -> None:
        self.rng = random.Random(seed)
        self.stale = stale
        cards = tuple(card(minor, gib=41) for minor in range(CARDS))
        self.node = ShareNode(cards=cards, rng=self.rng)
        self.made = 0

    async def run(self, steps: int = 80) -> None:
        """Let it happen, then bring everything to its end."""
        for _ in range(steps):
            await self.step()
            self.check()
        while self.node.bound:
            await self.node.start(await self.node.admit())
        await self.node.mark()
        self.check()

    async def step(self) -> None:
        """Let one thing happen."""
        node, draw = self.node, self.rng.random()
        if draw < 0.35:
            self.come()
        elif draw < 0.7 and node.bound:
            uid = await node.admit(
                dies_after=self.rng.choice((0, 1)) if self.rng.random() < 0.15 else -1,
                stays_stale=self.stale and self.rng.random() < 0.2,
            )
            await node.start(uid)
        elif draw < 0.8:
            node.restart_agent()
        elif draw < 0.85:
            node.restart_kubelet()
        elif draw < 0.92 and node.pods:
            node.delete(self.rng.choice(sorted(node.pods)))
        else:
            await node.mark()

    def come(self) -> None:
        """Let some Pods be bound at once, often of one amount and on different cards."""
        amounts = [self.rng.choice((1, 1, 2)) for _ in range(self.rng.choice((1, 1, 2)))]
        for _ in range(self.rng.choice((1, 2, 3))):
            self.made += 1
            if self.asked() > CARDS * 40 - 10:
                return
            init = [self.rng.choice(amounts)] if self.rng.random() < 0.2 else []
            pod = share_pod(
                f"p{self.made}",
                *amounts,
                init=init,
                card=self.rng.randrange(CARDS),
                after_ns=self.rng.choice((0, self.made)),
            )
            self.node.bind(pod)
        self.rng.shuffle(self.node.bound)  # kubelet's order is not that of the Bindings

    def asked(self) -> int:
        """Return how many ids all Pods of the node may take: the scheduler binds no more."""
        pods = [*self.node.pods.values(), *self.node.bound]
        containers = [
            container
            for pod in pods
            for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
        ]
        return sum(int(one["resources"]["limits"][GPUSHARE_MEMORY]) for one in containers)

    def check(self) -> None:
        """Say what must be so at any time."""
        node = self.node
        for (uid, container), told in node.started.items():
            if uid in node.held:
                assert told == node.held[uid], (uid, container)
        for uid, pod in node.pods.items():
            if pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true":
                assert any(key[0] == uid for key in node.record), uid
        if not self.stale:
            assert not node.failed, node.failed
            assert not node.refused


@pytest.mark.parametrize("seeds", [5, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stale", [False, True], ids=["plain", "with rejected pods left"])
def test_no_container_runs_with_the_card_of_another_pod(*, stale: bool, seeds: int) -> None:
    """
    And where kubelet rejects nobody before it asks, every Pod starts, whatever ends in between.

    A rejected Pod that still waits by kubelet's Pods may be taken for the one that is asked for:
    the container's start is refused then.
    """
    started = refused = 0
    for seed in range(seeds):
        life = Life(seed, stale=stale)
        asyncio.run(life.run())
        alive = [uid for uid in life.node.pods if uid not in life.node.failed]
        started += len(life.node.started)
        refused += len(life.node.refused)
        if not stale:
            for uid in alive:
                assert any(key[0] == uid for key in life.node.started), (seed, uid)
                marks = life.node.pods[uid]["metadata"]["annotations"]
                assert marks["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true", (seed, uid)

    assert started > 10 * seeds
    assert bool(refused) is stale
