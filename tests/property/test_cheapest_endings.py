"""The cheapest Pods that end for one that waits, beside all sets of them, tried one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations
from random import Random

import pytest
from msgspec import structs

from ledger.domain.request.requests import PodRequest, PodSnapshot
from scheduler.cluster.model import GONE, OTHERS, Holder
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.preemption import Search, cheapest_ending
from scheduler.whatif.what_if import WhatIf
from tests.support.clusters import MIB, gpu_node, pod, running, share
from tests.support.examples import seeds

CLUSTERS = 100
SETTINGS = SchedulingSettings()
Key = tuple[int, int, int, int]


class World:
    """A small cluster that Pods were placed on until one had no place, and budgets of theirs."""

    def __init__(self, random: Random) -> None:
        self.random = random
        nodes = [gpu_node(f"n{i}", random.choice((1, 2, 3))) for i in range(random.choice((1, 2)))]
        self.nodes = tuple(nodes)
        self.wanted = self.asks("wanted", random.choice((5, 9)))
        empty = WhatIf(self.nodes, (), SETTINGS)
        self.holders: list[Holder] = []
        for number in range(random.randrange(1, 7)):
            holder = self._placed(empty, number)
            if holder is not None:
                self.holders.append(holder)
        self.what_if = WhatIf(self.nodes, self.holders, SETTINGS)
        self.budget = frozenset(h.uid for h in self.holders if random.random() < 0.3)
        self.allowed = random.choice((0, 1, 9))

    def asks(self, name: str, priority: int) -> PodRequest:
        """Return what one Pod asks for."""
        random = self.random
        percent = random.choice((20, 40, 50, 60, 70, 100))
        cpu = random.choice((0, 1_000, 6_000))
        count = random.choice((1, 1, 1, 2))
        made = pod(name, share(percent, count), cpu_milli=cpu, memory_bytes=MIB)
        return replace(made, snapshot=PodSnapshot(priority=priority))

    def _placed(self, empty: WhatIf, number: int) -> Holder | None:
        random = self.random
        request = self.asks(f"p{number}", random.choice((0, 1, 1, 5, 7, -3)))
        answer = empty.decide(request)
        if not isinstance(answer, Placement):
            return None
        empty.reserve(answer)
        held = running(request.uid, *answer.shares, cpu_milli=request.cpu_milli, memory_bytes=MIB)
        return Holder(
            node=answer.node,
            held=structs.replace(held, snapshot=request.snapshot),
            request=request,
            fixed=random.choice(("", "", "", "", OTHERS, GONE)),
            group=random.choice(("", "", "", "", "", "gang")),
            since=random.choice((number, number, 3)),
        )

    def may_end(self, gone: Sequence[Holder]) -> bool:
        """Tell whether the budget allows these ends."""
        return len(self.budget.intersection(each.uid for each in gone)) <= self.allowed

    def fits(self, node: int, gone: Sequence[Holder]) -> bool:
        """Tell whether there is room on a node, by a cluster that never had these Pods."""
        left = [holder for holder in self.holders if holder not in gone]
        return WhatIf(self.nodes, left, SETTINGS).fits_on(self.wanted, node)

    def sets(self, node: int) -> Iterator[tuple[Holder, ...]]:
        """Yield all sets of Pods on a node that may end by the rules."""
        here = [holder for holder in self.holders if holder.node == node]
        for some in chain.from_iterable(combinations(here, n) for n in range(len(here) + 1)):
            gangs = {each.group for each in some} - {""}
            crew = {each for each in self.holders if each.group in gangs}
            is_lower = all(each.held.snapshot.priority < self.priority for each in some)
            is_ours = all(each.fixed not in {OTHERS, GONE} for each in some)
            if crew.issubset(some) and is_lower and is_ours and self.may_end(some):
                yield some

    @property
    def priority(self) -> int:
        """The priority of the Pod that waits."""
        return self.wanted.snapshot.priority


def worth(gone: Sequence[Holder]) -> Key:
    """Return what a set costs: by the highest, the sum, the number, and who came last."""
    highest = max((h.held.snapshot.priority for h in gone), default=-(2**31))
    total = sum(h.held.snapshot.priority + 2**31 for h in gone)
    first = min((h.since for h in gone if h.held.snapshot.priority == highest), default=0)
    return highest, total, len(gone), -first


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_the_least_set_ends_and_nobody_in_vain(seed: int) -> None:
    """Of all sets on all nodes; 100 clusters a seed, 20,000 in all."""
    random = Random(f"{seed} ends")
    found_some = 0
    for number in range(CLUSTERS):
        world = World(random)
        nodes = range(len(world.nodes))
        able = [
            (worth(some), node)
            for node in nodes
            for some in world.sets(node)
            if world.fits(node, some)
        ]

        found = cheapest_ending(world.wanted, world.what_if, nodes, may_end=world.may_end)

        case = f"seed={seed}, cluster={number}"
        if found is None:
            assert not able, case
            continue
        assert (worth(found.holders), found.node) == min(able), case
        assert world.fits(found.node, found.holders), case
        for spared in found.holders:
            crew = [
                e for e in found.holders if e is spared or (e.group and e.group == spared.group)
            ]
            fewer = [each for each in found.holders if each not in crew]
            assert not world.fits(found.node, fewer), f"{case}: {spared.path} ends in vain"
        found_some += bool(found.holders)
    assert found_some > CLUSTERS // 10, "the clusters are no test"


def test_nobody_ends_in_vain_where_a_bound_ends_the_search() -> None:
    """The first set that is found has nobody in it who can stay."""
    search = Search[int](5)

    is_found = search.look([(4,), (3,), (2,), (1,)], lambda gone: sum(gone) >= 5, _cost)

    assert is_found
    assert search.ends == (3, 2)


def _cost(gone: Sequence[int]) -> tuple[int, ...]:
    return (sum(gone),)
