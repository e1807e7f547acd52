"""Which node a Pod of several GPUs gets: links before the node policy, where they were measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.annotations.device_hints import (
    DeviceHint,
    JointAllocation,
    JointScope,
    PartitionSpec,
)
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from ledger.domain.topology import LinkMatrix
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.score.link_lead import lead
from scheduler.decide.settings import POLICIES, SchedulingSettings
from tests.oracles.links import node_order
from tests.support.clusters import gpu_node, held, nic, pod, running, share
from tests.support.links import DGX_A100, SIXTEEN_TWO_ISLANDS
from tests.support.topologies import EIGHT_GPU_NVLINK

SLOW, FAST = (1, 4), (4, 7)
"""GPUs of the proposal's machine: 4.64 and 96.25 GB/s."""


def measured(
    name: str, links: LinkMatrix | None = EIGHT_GPU_NVLINK, *, cpu_milli: int = 16_000
) -> NodeFacts:
    """Return a node that reports its links, the proposal's machine by default."""
    gpus = 8 if links is None else len(links)
    return replace(gpu_node(name, gpus, cpu_milli=cpu_milli), links=links)


def cluster(
    *nodes: tuple[NodeFacts, tuple[int, ...]],
    policy: str = "binpack",
    bottleneck_first: bool = True,
) -> Engine:
    """Return an engine over nodes of which only these GPUs are free."""
    settings = SchedulingSettings(node_policy=policy, bottleneck_first=bottleneck_first)
    engine = Engine([facts for facts, _ in nodes], settings)
    for number, (facts, free) in enumerate(nodes):
        used = [card.minor for card in facts.devices if card.minor not in free]
        for minor in used:
            engine.adopt(number, running(f"r{number}-{minor}", held(minor, 100), cpu_milli=0))
    return engine


def chosen(engine: Engine, request: PodRequest, ordinal: int = 0) -> tuple[str, tuple[int, ...]]:
    """Return the node and the GPUs that a Pod gets."""
    answer = engine.decide(request, ordinal=ordinal)
    assert isinstance(answer, Placement), answer
    gpus = tuple(part.minor for part in answer.shares if part.device_type == "gpu")
    return answer.node_name, gpus


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_of_two_gpus_gets_the_node_with_the_best_bottleneck(policy: str) -> None:
    """GPU-topology proposal, Goal 1 and Story 1: the combination with the large bottleneck."""
    engine = cluster((measured("n1"), SLOW), (measured("n2"), FAST), policy=policy)

    assert {chosen(engine, pod("p", share(100, 2)), turn) for turn in range(8)} == {("n2", FAST)}


def test_the_filter_of_the_extender_and_plans_rank_nodes_alike() -> None:
    """All ways lead to the same node: all nodes that pass, the best rated first."""
    engine = cluster((measured("n1"), SLOW), (measured("n2"), FAST))
    filtered = engine.filter(pod("p", share(100, 2)), [0, 1])

    assert filtered.best is not None
    assert filtered.best.node_name == "n2"
    assert filtered.ratings[1] > filtered.ratings[0]
    assert engine.candidates(pod("p", share(100, 2))) == [1, 0]


def test_the_node_policy_decides_first_when_set_so() -> None:
    """Turned round the bottleneck decides among nodes that the policy rates alike."""
    roomier = measured("n2", cpu_milli=64_000)
    asked = pod("p", share(100, 2))
    alike = cluster((measured("n1"), SLOW), (measured("n2"), FAST), bottleneck_first=False)

    assert chosen(cluster((measured("n1"), SLOW), (roomier, FAST)), asked) == ("n2", FAST)
    engine = cluster((measured("n1"), SLOW), (roomier, FAST), bottleneck_first=False)
    assert chosen(engine, asked) == ("n1", SLOW)
    assert chosen(alike, asked) == ("n2", FAST)


def test_links_within_ten_percent_are_alike() -> None:
    """Noise of a measurement leaves the choice to the node policy: binpack takes the smaller."""
    slower = LinkMatrix(rows=tuple(tuple(x * 0.92 for x in row) for row in EIGHT_GPU_NVLINK.rows))
    slowest = LinkMatrix(rows=tuple(tuple(x * 0.89 for x in row) for row in EIGHT_GPU_NVLINK.rows))
    big = measured("big", cpu_milli=64_000)
    asked = pod("p", share(100, 2))

    assert chosen(cluster((big, FAST), (measured("n", slower), FAST)), asked)[0] == "n"
    assert chosen(cluster((big, FAST), (measured("n", slowest), FAST)), asked)[0] == "big"


def test_a_node_without_a_matrix_keeps_its_place() -> None:
    """Nothing is known of its links: only the node policy compares it with others."""
    unknown, fast = measured("u", None, cpu_milli=12_000), measured("n2", cpu_milli=64_000)
    asked = pod("p", share(100, 2))

    engine = cluster((measured("n1"), SLOW), (unknown, FAST), (fast, FAST))
    assert chosen(engine, asked)[0] == "u"
    big = measured("u", None, cpu_milli=32_000)
    engine = cluster((measured("n1"), SLOW), (big, FAST), (fast, FAST))
    assert chosen(engine, asked)[0] == "n2"


OTHERS = {
    "one GPU has no link": pod("p", share(100)),
    "parts of two GPUs": pod("p", share(50, 2)),
    "a hint decides which GPUs": pod("p", replace(share(100, 2), hint=DeviceHint())),
    "the partition table decides": replace(pod("p", share(100, 2)), partition=PartitionSpec()),
    "the same PCIe root decides": replace(
        pod("p", share(100, 2), nic(1)),
        joint=JointAllocation(device_types=("gpu", "rdma"), required_scope=JointScope.SAME_PCIE),
    ),
}


@pytest.mark.parametrize("request_", OTHERS.values(), ids=OTHERS)
def test_other_pods_go_by_the_node_policy(request_: PodRequest) -> None:
    """What decides about their GPUs is not the links between those that are free."""
    engine = cluster((measured("n1"), SLOW), (measured("n2"), FAST))

    assert not engine._lead.applies(request_)


def test_a_node_with_more_gpus_than_a_stack_holds_is_looked_at_by_its_table() -> None:
    """Sixteen GPUs in two islands: the pair inside one is faster."""
    engine = cluster(
        (measured("n1", SIXTEEN_TWO_ISLANDS), (7, 8)), (measured("n2", SIXTEEN_TWO_ISLANDS), (8, 9))
    )

    assert chosen(engine, pod("p", share(100, 2))) == ("n2", (8, 9))


def test_what_is_taken_and_given_back_is_seen() -> None:
    """Speeds are kept from Pod to Pod and brought up to date on nodes that changed."""
    engine = cluster((measured("n1"), (1, 2, 4)), (measured("n2", DGX_A100), (0, 1)))
    first = engine.decide(pod("a", share(100, 2)))
    assert isinstance(first, Placement)
    engine.reserve(first)

    assert first.node_name == "n2"
    assert chosen(engine, pod("b", share(100, 2))) == ("n1", (1, 2))
    engine.release("a")
    assert chosen(engine, pod("b", share(100, 2))) == ("n2", (0, 1))


@given(
    nodes=st.lists(
        st.tuples(
            st.integers(0, 3), st.none() | st.sampled_from([0.0, 4.64, 15.5, 16.9, 48.3, 48.4])
        ),
        max_size=8,
    ),
    bottleneck_first=st.booleans(),
)
def test_the_order_of_nodes_is_what_the_words_say(
    nodes: list[tuple[int, float | None]], *, bottleneck_first: bool
) -> None:
    """Measured nodes change places among themselves alone, classes before the policy's number."""
    ratings, speeds = [rating for rating, _ in nodes], [speed for _, speed in nodes]
    order = lead(
        np.array(ratings, dtype=np.int32),
        np.array([-1.0 if speed is None else speed for speed in speeds]),
        bottleneck_first=bottleneck_first,
    )

    expected = node_order(ratings, speeds, bottleneck_first=bottleneck_first)
    assert sorted(range(len(nodes)), key=lambda node: -order[node]) == expected
