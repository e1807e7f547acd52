from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

import pytest

from ledger.domain.devices import DeviceShare
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.outcome import Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.defrag import DefragPlan, NoPlan, plan_moves
from scheduler.whatif.what_if import WhatIf
from tests.support.clusters import MIB, gpu_node, held, pod, running, share
from tests.support.examples import examples

CARD_BYTES = 100 * MIB
PODS_MAX = 5

Spot = tuple[int, tuple[int, ...]]
"""A node and minors on it."""


@dataclass(frozen=True)
class Ask:
    """So many cards of so many percent each, and cpu."""

    percent: int
    count: int
    cpu_milli: int

    def request(self, uid: str) -> PodRequest:
        """Return it as the engine takes it."""
        return pod(uid, share(self.percent, self.count), cpu_milli=self.cpu_milli, memory_bytes=MIB)


@dataclass(frozen=True)
class World:
    """Cards and cpu per node, what Pods ask for, where they are, which may not be moved."""

    cards: tuple[int, ...]
    cpus: tuple[int, ...]
    asks: tuple[Ask, ...]
    spots: tuple[Spot, ...]
    fixed: frozenset[int]
    wanted: Ask

    def takes(self, spots: tuple[Spot | None, ...], ask: Ask, spot: Spot) -> bool:
        """Tell whether a spot is free for what is asked, by arithmetic alone."""
        node, minors = spot
        cpu = sum(self.asks[i].cpu_milli for i, s in enumerate(spots) if s and s[0] == node)
        if cpu + ask.cpu_milli > self.cpus[node]:
            return False
        for minor in minors:
            on_card = [
                self.asks[i].percent
                for i, s in enumerate(spots)
                if s and s[0] == node and minor in s[1]
            ]
            if on_card and ask.percent == 100:
                return False
            if sum(on_card) + ask.percent > 100:
                return False
        return True

    def spots_for(self, ask: Ask) -> Iterator[Spot]:
        """Yield every spot of the right size, free or not."""
        for node, cards in enumerate(self.cards):
            for minors in combinations(range(cards), ask.count):
                yield node, minors

    def fits(self, spots: tuple[Spot | None, ...]) -> bool:
        """Tell whether there is room for what is wanted."""
        return any(self.takes(spots, self.wanted, spot) for spot in self.spots_for(self.wanted))

    def fewest_moves(self) -> int | None:
        """Return the length of the shortest plan: breadth-first over every state there is."""
        seen, queue = {self.spots}, deque([(self.spots, 0)])
        while queue:
            spots, moves = queue.popleft()
            if self.fits(spots):
                return moves
            for i, ask in enumerate(self.asks):
                if i in self.fixed:
                    continue
                without = (*spots[:i], None, *spots[i + 1 :])
                for spot in self.spots_for(ask):
                    after = (*spots[:i], spot, *spots[i + 1 :])
                    if after not in seen and self.takes(without, ask, spot):
                        seen.add(after)
                        queue.append((after, moves + 1))
        return None

    def what_if(self) -> WhatIf:
        """Return the same cluster as the planner takes it."""
        nodes = tuple(
            gpu_node(f"n{node}", count, cpu_milli=self.cpus[node], card_bytes=CARD_BYTES)
            for node, count in enumerate(self.cards)
        )
        holders = [
            Holder(
                node=node,
                held=running(
                    f"p{i}",
                    *(held(minor, ask.percent, card_bytes=CARD_BYTES) for minor in minors),
                    cpu_milli=ask.cpu_milli,
                    memory_bytes=MIB,
                ),
                request=ask.request(f"p{i}"),
                fixed="fixed" if i in self.fixed else "",
            )
            for i, (ask, (node, minors)) in enumerate(zip(self.asks, self.spots, strict=True))
        ]
        return WhatIf(nodes, holders, SchedulingSettings())

    def check(self, plan: DefragPlan) -> None:
        """Every step fits where it goes when it goes there, and at the end so does the request."""
        spots: list[Spot | None] = list(self.spots)
        for move in plan.moves:
            i = int(move.holder.uid[1:])
            assert i not in self.fixed
            spots[i] = None
            spot = move.to.node, minors_of(move.to.shares)
            assert self.takes(tuple(spots), self.asks[i], spot), move
            spots[i] = spot
        place = plan.place.node, minors_of(plan.place.shares)
        assert self.takes(tuple(spots), self.wanted, place)


def minors_of(shares: tuple[DeviceShare, ...]) -> tuple[int, ...]:
    """Return the minors of GPU shares, ascending."""
    return tuple(sorted(item.minor for item in shares))


def draw_world(random: Random) -> World:
    """Draw a small cluster with enough left for what is wanted, but mostly in pieces."""
    for _ in range(40):
        world = draw_any(random)
        held = sum(ask.percent * ask.count for ask in world.asks)
        enough = 100 * sum(world.cards) >= held + world.wanted.percent * world.wanted.count
        if enough and not world.fits(world.spots):
            break
    return world


def draw_any(random: Random) -> World:
    """Draw a small cluster with Pods where they happen to fit."""
    cards = tuple(random.randint(1, 3) for _ in range(random.randint(1, 3)))
    cpus = tuple(random.choice((3000, 4000, 9000, 9000)) for _ in cards)
    world = World(cards, cpus, (), (), frozenset(), draw_ask(random))
    for _ in range(PODS_MAX):
        ask = draw_ask(random)
        free = [spot for spot in world.spots_for(ask) if world.takes(world.spots, ask, spot)]
        if free:
            world = replace(
                world, asks=(*world.asks, ask), spots=(*world.spots, random.choice(free))
            )
    fixed = {i for i in range(len(world.asks)) if random.random() < 0.08}
    return replace(world, fixed=frozenset(fixed))


def draw_ask(random: Random) -> Ask:
    """Draw what one Pod asks for."""
    percent = random.choice((100, 70, 60, 50, 40, 30, 20, 20))
    count = random.choice((1, 2)) if percent == 100 else 1
    return Ask(percent, count, random.choice((0, 0, 1000, 2000)))


def disagreements(seeds: range) -> list[str]:
    """Return the worlds whose answer is not what brute force says can be."""
    wrong: list[str] = []
    for seed in seeds:
        world = draw_world(Random(seed))
        what_if = world.what_if()
        answer = plan_moves(world.wanted.request("wanted"), what_if, decisions_max=10**7)
        fewest, found = world.fewest_moves(), None
        assert answer.cut == (), (seed, answer)
        if isinstance(answer, DefragPlan):
            found = len(answer.moves)
            world.check(answer)
        proved = isinstance(answer, NoPlan) and answer.proved
        enough = fewest is not None and found is not None and found >= fewest
        if (found == 0) != (fewest == 0) or (proved and fewest is not None):
            wrong.append(f"seed={seed}: found={found}, fewest={fewest}, proved={proved}")
        elif found is not None and not enough:
            wrong.append(f"seed={seed}: found={found}, fewest={fewest}")
        again = what_if.decide(world.wanted.request("wanted"))
        assert isinstance(again, Unplaced) == (found != 0), "the bench is as it was"
    return wrong


def test_a_plan_can_be_carried_out() -> None:
    """
    Breadth-first search over every state of a small cluster agrees with the planner.

    Every step of a plan fits when it is taken. No state has room where there is said to be none,
    and no plan has fewer moves than the shortest way, or moves where none is needed.
    """
    assert disagreements(range(examples(80))) == []


@pytest.mark.slow
def test_a_plan_can_be_carried_out_whole_campaign() -> None:
    """The same over many more clusters."""
    assert disagreements(range(1000, 3000)) == []
