from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from certs.ports import Object
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.service.holds import (
    HOLD_SECONDS,
    HOLD_WITH_VOLUMES_SECONDS,
    Holds,
)
from scheduler.service.wakeups import Wakeups
from tests.support.clusters import fleets, requests_of_any_dialect

PODS = 4
SETTINGS = SchedulingSettings(node_policy="binpack")
WITH_CLAIM: Object = {"spec": {"volumes": [{"persistentVolumeClaim": {}}]}}
STEPS = st.tuples(
    st.sampled_from(
        ["ask", "ask", "score", "bind", "bind", "release", "delete", "follow", "wait", "drop"]
    ),
    st.integers(0, PODS - 1),
    st.integers(0, 5),
)


class World:
    """An engine, its holds, and what the ledger would say is held."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self.nodes = dict(enumerate(nodes))
        self.count = len(nodes)
        self.engine = Engine(nodes, SETTINGS)
        self.now = 0.0
        numbers = {node.name: number for number, node in self.nodes.items()}
        self.holds = Holds(self.engine, lambda: self.now, numbers.get, Wakeups(), most=3)
        self.held: dict[str, Placement] = {}
        self.found: dict[str, tuple[Placement, int]] = {}  # by filters, however long ago

    def do(self, act: str, request: PodRequest, node: int) -> None:
        """Do one thing that can happen; whatever has no sense now is not done."""
        uid = request.uid
        match act:
            case "ask" if uid not in self.held and self.nodes:
                self.holds.asked_again(uid)
                judged = self.engine.filter(request, sorted(self.nodes))
                if judged.best is not None:
                    self.found[uid] = judged.best, self.engine.position
                    if node % 3:
                        self.expect(uid, WITH_CLAIM if node == 1 else {})
            case "score" if uid not in self.held and uid in self.found:
                self.expect(uid, {})
            case "bind" if uid not in self.held and node in self.nodes:
                self.bind(request, node)
            case "release" if uid in self.held:
                self.engine.release(uid)
                del self.held[uid]
            case "delete":
                self.holds.drop(uid)
            case "follow" if node in self.nodes:
                nominated = {"nominatedNodeName": self.nodes[node].name}
                self.holds.put(uid, {"metadata": {}, "status": nominated})
            case "wait":
                self.now += HOLD_SECONDS if node else HOLD_WITH_VOLUMES_SECONDS
                self.holds.expire()
            case "drop" if node in self.nodes and node % 2:
                gone = self.engine.drop_node(self.nodes.pop(node).uid)
                self.holds.dropped(gone)
                for pod in gone:
                    self.held.pop(pod, None)
            case _:
                pass

    def expect(self, uid: str, pod: Object) -> None:
        """Hold what a filter found: as an engine would place it there that remembers nothing."""
        best, decided_at = self.found[uid]
        if best.node not in self.nodes:
            return
        self.holds.end(uid, "asked again")
        place = sorted(self.nodes).index(best.node)
        expected = self.anew().try_place(best.request, place)
        room = len(self.holds) < 3
        self.holds.expected(best, pod, decided_at)
        taken = {hold.request.uid: hold for hold in self.holds.placements()}.get(uid)
        assert (taken is not None) is (room and expected is not None)
        if taken is not None and expected is not None:
            assert (taken.shares, taken.cpuset) == (expected.shares, expected.cpuset)

    def bind(self, request: PodRequest, node: int) -> None:
        """Choose as binding does: what an engine would choose that knows the ledger alone."""
        place = sorted(self.nodes).index(node)
        expected = self.anew(holds=False).try_place(request, place)
        with self.holds.lifted(request.uid, self.nodes[node].name) as known:
            found = self.engine.try_place(request, node)
        if known is not None:
            assert found is not None, "it was chosen a moment before"
            assert structs.replace(known, rated=found.rated) == found
        assert (found is None) is (expected is None)
        if found is not None and expected is not None:
            assert (found.shares, found.cpuset) == (expected.shares, expected.cpuset)
            self.held[request.uid] = found
        assert self.holds.node_of(request.uid) == ""

    def anew(self, *, holds: bool = True) -> Engine:
        """Return an engine made anew from what the ledger holds and the holds that live."""
        numbers = sorted(self.nodes)
        engine = Engine([self.nodes[number] for number in numbers], SETTINGS)
        for placement in [*self.held.values(), *(self.holds.placements() if holds else ())]:
            engine.reserve(structs.replace(placement, node=numbers.index(placement.node)))
        return engine


@given(
    nodes=fleets(),
    pods=st.tuples(*(requests_of_any_dialect(uid=f"p{number}") for number in range(PODS))),
    steps=st.lists(STEPS, min_size=8, max_size=40),
)
def test_the_engine_is_what_the_ledger_and_the_holds_say(
    nodes: tuple[NodeFacts, ...], pods: tuple[PodRequest, ...], steps: list[tuple[str, int, int]]
) -> None:
    """After any history the engine equals one made anew, and what is bound ignores holds."""
    world = World(nodes)
    for act, pod, node in steps:
        world.do(act, pods[pod], node)
    fresh = world.anew()

    assert len(world.holds) <= 3
    for place, number in enumerate(sorted(world.nodes)):
        assert world.engine.view(number) == fresh.view(place)
    for request in pods:
        here = world.engine.filter(request, sorted(world.nodes))
        there = fresh.filter(request, range(len(world.nodes)))
        assert here.passing.tolist() == there.passing.tolist()
        assert here.ratings.tolist() == there.ratings.tolist()
        assert [here.reasons[code] for code in here.codes] == [
            there.reasons[code] for code in there.codes
        ]


@settings(max_examples=60)
@given(
    nodes=fleets(most=2),
    pods=st.tuples(*(requests_of_any_dialect(uid=f"p{number}") for number in range(3))),
    act=st.sampled_from(["bind", "bind", "release", "drop", "wait"]),
)
def test_what_was_found_before_a_change_is_held_only_where_it_is_chosen_again(
    nodes: tuple[NodeFacts, ...], pods: tuple[PodRequest, ...], act: str
) -> None:
    """Whoever takes, gives back or goes between a filter and what follows it."""
    asks, rival, there = pods
    world = World(nodes)
    found = world.engine.filter(asks, sorted(world.nodes)).best
    if found is None:
        return
    world.do("bind", there, found.node)
    best = world.engine.filter(asks, sorted(world.nodes)).best
    if best is None:
        return
    world.found[asks.uid] = best, world.engine.position
    world.do(act, there if act == "release" else rival, best.node)
    world.expect(asks.uid, {})
