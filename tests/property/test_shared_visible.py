"""Cards that containers of groups see, counted by hand beside the engine, in any history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.annotations.tenure import encode_shown
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import GroupRef, PodRequest, group_name
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from tests.support.examples import examples
from tests.support.runs import gpu_node, gpu_pod

SETTINGS: Final = SchedulingSettings(node_policy="binpack", share_visible=True)
GROUPS: Final = (None, GroupRef(name="g", replica=2), GroupRef(name="h", replica=2))
KINDS: Final = ("arrive", "arrive", "arrive", "leave", "leave", "sick", "label", "restart")


@dataclass
class World:
    """An engine, and what it was told."""

    nodes: list[NodeFacts]
    held: dict[str, Placement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = Engine(self.nodes, SETTINGS)

    def restart(self) -> None:
        """Go on with an engine that is told what the ledger says."""
        self.engine = Engine(self.nodes, SETTINGS)
        for uid, placed in self.held.items():
            observed = PodObserved(
                pod_uid=uid,
                attempt=1,
                namespace="ml",
                pod_name=placed.request.name,
                node_uid=placed.node_uid,
                node_name=placed.node_name,
                source="granted",
                shares=placed.shares,
                annotations=encode_shown(placed.shown),
                group=group_name(placed.request),
            )
            self.engine.take(placed.node, observed)

    def free(self, node: int, request: PodRequest) -> set[int]:
        """Return the cards that a Pod may be given on a node."""
        there = [each for each in self.held.values() if each.node == node]
        taken = {share.minor for each in there for share in each.shares}
        others = [each for each in there if group_name(each.request) != group_name(request)]
        seen = {card for each in others for card in each.shown}
        return {
            card.minor
            for card in self.nodes[node].devices
            if card.healthy and card.minor not in taken and card.device_id not in seen
        }

    def step(self, kind: str, rng: Random, number: int) -> None:
        """Let one thing happen."""
        node = rng.randrange(len(self.nodes))
        match kind:
            case "arrive":
                request = replace(
                    gpu_pod(f"p{number}", rng.choice((1, 1, 2))), group=rng.choice(GROUPS)
                )
                placed = self.engine.try_place(request, node)
                if placed is not None:
                    self.engine.undo(placed)
                    minors = range(len(self.nodes[node].devices))
                    shown = self.engine.shown(placed, minors) or placed
                    self.engine.reserve(shown)
                    self.held[request.uid] = shown
            case "leave" if self.held:
                uid = rng.choice(sorted(self.held))
                self.engine.release(uid)
                del self.held[uid]
            case "sick":
                card = rng.choice(self.nodes[node].devices)
                self.put(
                    node, self.nodes[node].with_health("gpu", card.minor, healthy=not card.healthy)
                )
            case "label":
                self.put(node, replace(self.nodes[node], labels={"round": str(number)}))
            case "restart":
                self.restart()
            case _:
                pass

    def put(self, node: int, facts: NodeFacts) -> None:
        """Let a node be another than it was."""
        self.nodes[node] = facts
        self.engine.put_node(facts)


def check(world: World, rng: Random) -> int:
    """Ask for every group on every node, in any order; return how many cards were in sight."""
    count = 0
    asked = [(group, node) for group in GROUPS for node in range(len(world.nodes))]
    for group, node in rng.sample(asked, len(asked)):
        request = replace(gpu_pod("asks"), group=group)
        free = world.free(node, request)
        placed = world.engine.try_place(request, node)
        assert (placed is not None) == bool(free)
        if placed is not None:
            assert placed.shares[0].minor in free
            world.engine.undo(placed)
        judged = world.engine.filter(request, [node])
        assert (judged.best is not None) == bool(free)
        owned = {
            card.record.minor
            for card in world.engine.view(node, group_name(request)).cards
            if not card.closed and not card.tenants
        }
        assert owned == free
        count += len(world.free(node, replace(request, group=GroupRef(name="x", replica=1))) ^ free)
    for each in world.held.values():
        own = {share.device_id for share in each.shares}
        assert not each.shown or own <= {*each.shown}
    return count


HISTORIES: Final = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32)), min_size=8, max_size=30
)


@settings(max_examples=examples(200), deadline=None)
@given(steps=HISTORIES)
def test_a_card_in_sight_of_another_group_is_never_given(steps: list[tuple[str, int]]) -> None:
    """What is free for whom is what a count by hand says, after every step and restart."""
    world = World([gpu_node("a", 3), gpu_node("b", 4)])
    for number, (kind, seed) in enumerate(steps):
        rng = Random(seed)
        world.step(kind, rng, number)
        check(world, rng)


def test_histories_have_cards_in_sight() -> None:
    """Else the count by hand would show nothing."""
    found = 0
    for seed in range(20):
        rng = Random(seed)
        world = World([gpu_node("a", 3), gpu_node("b", 4)])
        for number in range(25):
            world.step(rng.choice(KINDS), rng, number)
            found += check(world, rng)
    assert found > 20
