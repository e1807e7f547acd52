"""Whole cards placed where it is known how many are free and not which, against plain counting."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.annotations.device_hints import JointAllocation
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, GangRef, GroupRef, PodRequest
from ledger.domain.topology import Cpu, cpu_topology_of
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import POLICIES, SchedulingSettings

GIB = 2**30
UNKNOWN = "node(s) have a Pod on an unknown card"


def node(number: int, cards: int, *, sick: frozenset[int] = frozenset()) -> NodeFacts:
    """Return a node of so many cards, some of them unhealthy."""
    return NodeFacts(
        uid=f"n{number}",
        name=f"n{number}",
        devices=tuple(
            DeviceRecord(
                device_type="gpu",
                minor=minor,
                device_id=f"GPU-{number}-{minor}",
                model="A10",
                memory_bytes=24 * GIB,
                healthy=minor not in sick,
            )
            for minor in range(cards)
        ),
    )


def wholes(count: int, uid: str = "p", dialect: Dialect = Dialect.NVIDIA) -> PodRequest:
    """Return a Pod that asks for whole cards."""
    return parts(count, 100, uid, dialect)


def parts(count: int, percent: int, uid: str, dialect: Dialect) -> PodRequest:
    """Return a Pod that asks for so much of so many cards."""
    demand = DeviceDemand(
        device_type="gpu",
        count=count,
        core_percent=percent,
        memory_ratio_percent=percent,
        exclusive=percent == 100,
    )
    return PodRequest(
        uid=uid,
        namespace="ml",
        name=uid,
        cpu_milli=0,
        memory_bytes=0,
        devices=(demand,),
        dialect=dialect,
    )


def seen(uid: str, number: int, *minors: int, counted: int | None = None) -> PodObserved:
    """Return a Pod that runs: on these cards, on so many others, or (0) on some other."""
    return PodObserved(
        pod_uid=uid,
        attempt=1,
        namespace="ml",
        pod_name=uid,
        node_uid=f"n{number}",
        node_name=f"n{number}",
        source="",
        shares=tuple(
            DeviceShare(
                device_type="gpu",
                minor=minor,
                device_id=f"GPU-{number}-{minor}",
                core_percent=100,
                memory_bytes=24 * GIB,
                memory_ratio_percent=100,
                exclusive=True,
            )
            for minor in minors
        ),
        unknown_types=() if counted is None else ("gpu",),
        counted={"gpu": counted} if counted else {},
    )


@dataclass(slots=True)
class Counted:
    """What somebody who only counts knows of one node."""

    facts: NodeFacts
    named: dict[str, frozenset[int]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)

    @property
    def free(self) -> int:
        """Return how many healthy cards nobody holds for certain."""
        held = frozenset[int]().union(*self.named.values())
        idle = [card for card in self.facts.devices if card.healthy and card.minor not in held]
        return 0 if self.unclear else max(0, len(idle) - sum(self.counted.values()))

    @property
    def knows_cards(self) -> bool:
        """Tell whether everybody's cards are known."""
        return not self.counted and not self.unclear

    def forget(self, uid: str) -> None:
        """Let a Pod end."""
        self.named.pop(uid, None)
        self.counted.pop(uid, None)
        self.unclear.discard(uid)


def happen(engine: Engine, nodes: list[Counted], rng: Random, step: int) -> None:
    """Let one thing happen to the cluster, and count along."""
    number = rng.randrange(len(nodes))
    there, uid = nodes[number], f"s{step}"
    cards = len(there.facts.devices)
    holders = [*there.named, *there.counted, *there.unclear]
    match rng.choice(("named", "counted", "counted", "unclear", "ends", "ends", "health")):
        case "named" if cards:
            there.named[uid] = frozenset(rng.sample(range(cards), rng.randint(1, cards)))
            engine.adopt(number, seen(uid, number, *sorted(there.named[uid])))
        case "counted":
            there.counted[uid] = rng.randint(1, 3)
            engine.adopt(number, seen(uid, number, counted=there.counted[uid]))
        case "unclear" if rng.random() < 0.5:
            there.unclear.add(uid)
            engine.adopt(number, seen(uid, number, counted=0))
        case "ends" if holders:
            uid = rng.choice(holders)
            there.forget(uid)
            engine.release(uid)
        case "health" if cards:
            sick = frozenset(rng.sample(range(cards), rng.randint(0, cards)))
            there.facts = node(number, cards, sick=sick)
            assert engine.put_node(there.facts) == number
        case _:
            pass  # there is nothing that it could happen to


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(POLICIES))
def test_whole_cards_are_placed_exactly_where_counting_finds_them_free(
    seed: int, policy: str
) -> None:
    """Cards are named where everybody's are known, and counted where somebody's are not."""
    rng = Random(seed)
    nodes = [Counted(node(number, rng.choice((0, 1, 2, 4, 8)))) for number in range(3)]
    engine = Engine(
        [each.facts for each in nodes],
        SchedulingSettings(node_policy=policy),
        seed=1,
        by_count=True,
    )
    for step in range(rng.randint(1, 30)):
        happen(engine, nodes, rng, step)
        request = wholes(rng.randint(1, 4), uid=f"p{step}")
        count = request.devices[0].count
        answer = engine.decide(request, ordinal=step)
        assert isinstance(answer, Placement) == any(each.free >= count for each in nodes)
        shares = engine.decide(parts(1, 50, "half", Dialect.KOORDINATOR), ordinal=step)
        if isinstance(shares, Placement):
            assert nodes[shares.node].knows_cards
        if not isinstance(answer, Placement):
            continue
        there = nodes[answer.node]
        assert there.free >= count
        minors = frozenset(share.minor for share in answer.shares)
        assert (len(minors), answer.counted) == ((count, 0) if there.knows_cards else (0, count))
        if rng.random() < 0.6:
            engine.reserve(answer)
            if answer.counted:
                there.counted[request.uid] = count
            else:
                there.named[request.uid] = minors


def engine_of(*seen_here: PodObserved, by_count: bool = True, **facts: object) -> Engine:
    """Return an engine over one node of four cards on which these run."""
    engine = Engine([replace(node(0, 4), **facts)], SchedulingSettings(), by_count=by_count)  # type: ignore[arg-type]  # fields of a node
    for pod in seen_here:
        engine.adopt(0, pod)
    return engine


def why_not(engine: Engine, request: PodRequest) -> str:
    """Return why the only node does not take the Pod."""
    answer = engine.decide(request)
    assert isinstance(answer, Unplaced), answer
    (reason,) = answer.reasons
    return reason.reason


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(parts(1, 50, "p", Dialect.KOORDINATOR), id="a fraction"),
        pytest.param(wholes(1, dialect=Dialect.KOORDINATOR), id="cards by annotation"),
        pytest.param(wholes(1, dialect=Dialect.MGPU), id="mGPU"),
        pytest.param(
            replace(wholes(1), gang=GangRef(name="g", min_available=1, waiting_seconds=60)),
            id="a member of a gang",
        ),
        pytest.param(
            replace(wholes(1), joint=JointAllocation(device_types=("gpu", "rdma"))), id="joint"
        ),
        pytest.param(
            replace(wholes(1), group=GroupRef(name="g", replica=1)), id="a member of a group"
        ),
    ],
)
def test_who_has_to_know_his_cards_is_not_placed_by_count(request_: PodRequest) -> None:
    """One of four cards is held, and nobody knows which."""
    engine = engine_of(seen("s", 0, counted=1))
    assert why_not(engine, request_) == UNKNOWN
    assert engine.try_place(request_, 0) is None
    assert isinstance(engine.decide(wholes(3)), Placement)


def test_cards_of_one_numa_node_are_not_placed_by_count() -> None:
    """Kubelet aligns cards that nobody can name with CPUs that nobody can name."""
    engine = engine_of(seen("s", 0, counted=1), numa_policy=NumaPolicy.SINGLE_NUMA_NODE)
    assert why_not(engine, wholes(1)) == UNKNOWN


def test_a_service_that_grants_cards_counts_none() -> None:
    """A grant names its cards: there the node is closed, as it always was."""
    engine = engine_of(seen("s", 0, counted=1), by_count=False)
    assert why_not(engine, wholes(1)) == UNKNOWN


def test_of_more_than_are_left_none_is_free_and_the_reason_counts() -> None:
    """Three of four are held by number: two are too many, one is not."""
    engine = engine_of(seen("s", 0, counted=3))
    assert why_not(engine, wholes(2)) == "Insufficient gpu devices"
    answer = engine.decide(wholes(1))
    assert isinstance(answer, Placement)
    assert (answer.counted, answer.shares, answer.devices) == (1, (), ())
    assert engine.core_percent_allocated == 300


def test_who_is_counted_and_who_is_named_share_no_card() -> None:
    """A Pod whose card becomes known later moves whoever stood in for another."""
    engine = engine_of(seen("a", 0, counted=2), seen("b", 0, 0, 1))
    assert why_not(engine, wholes(1)) == "Insufficient gpu devices"
    engine.release("b")
    answer = engine.decide(wholes(2))
    assert isinstance(answer, Placement)
    assert answer.counted == 2
    engine.release("a")
    answer = engine.decide(wholes(4))
    assert isinstance(answer, Placement)
    assert [share.minor for share in answer.shares] == [0, 1, 2, 3]


def test_what_a_member_of_a_gang_was_told_is_no_answer_to_another_pod() -> None:
    """Both ask for one card, and one of the two has to know which."""
    engine = engine_of(seen("s", 0, counted=1))
    member = replace(wholes(1, "m"), gang=GangRef(name="g", min_available=1, waiting_seconds=60))
    assert why_not(engine, member) == UNKNOWN
    assert isinstance(engine.decide(wholes(1)), Placement)
    assert why_not(engine, member) == UNKNOWN


def test_who_gets_cpus_of_his_own_is_not_placed_by_count() -> None:
    """A node's policy gives a Guaranteed Pod whole cores; by count it would get none."""
    cpus = cpu_topology_of(Cpu(id=cpu, core=cpu // 2, socket=0, numa=0) for cpu in range(8))
    facts: dict[str, Any] = {
        "cpu_topology": cpus,
        "cpu_bind_policy": "FullPCPUs",
        "cpu_milli": 8000,
    }
    pinned = replace(wholes(1), bound_cpus=4, cpu_milli=4000)
    named = engine_of(**facts).decide(pinned)
    assert isinstance(named, Placement)
    assert named.cpuset
    assert why_not(engine_of(seen("s", 0, counted=1), **facts), pinned) == UNKNOWN


def test_a_node_that_gives_by_its_partition_table_gives_nothing_by_count() -> None:
    """Three cards are no partition there, whoever runs."""
    engine = engine_of(seen("s", 0, counted=1), honors_partitions=True)
    assert why_not(engine, wholes(3)) == UNKNOWN


@pytest.mark.parametrize("first", ["n0", "n1"])
def test_a_card_that_the_machine_does_not_list_is_unknown_beside_one_that_is_counted(
    first: str,
) -> None:
    """Of two cards that a Pod has through one Node, the other Node of the machine lists neither."""
    listed = replace(node(0, 4), machine_id="m", system_uuid="u")
    strange = replace(node(1, 4), machine_id="m", system_uuid="u")
    nodes = sorted((listed, strange), key=lambda each: each.uid != first)
    engine = Engine(nodes, SchedulingSettings(), by_count=True)
    engine.adopt(nodes.index(listed), seen("s", 0, 0, counted=1))

    for number in range(2):
        assert engine.try_place(wholes(3), number) is None


def test_no_more_is_allocated_than_there_is() -> None:
    """A Pod of four runs where the plugin offers three, and another of two beside it."""
    engine = Engine([node(0, 3)], SchedulingSettings(), by_count=True)
    engine.adopt(0, seen("s", 0, counted=4))
    assert engine.core_percent_allocated == 300
    engine.adopt(0, seen("t", 0, 0, counted=1))
    assert engine.core_percent_allocated == 300
    engine.release("s")
    assert engine.core_percent_allocated == 200
    engine.put_node(node(0, 1))
    assert engine.core_percent_allocated == 100
    engine.release("t")
    assert engine.core_percent_allocated == 0
