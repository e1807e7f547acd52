from __future__ import annotations

from collections import Counter

import pytest

from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.score.policies import draw
from tests.support.clusters import GIB, engine, gpu_node, nic, placed, pod, share


def _choice(cluster: Engine, request: PodRequest) -> str:
    answer = cluster.decide(request)
    assert isinstance(answer, Placement), answer
    return answer.node_name


def test_binpack_takes_the_node_that_will_be_fullest() -> None:
    """Mean used share after placement: over cpu, memory and the requested device units."""
    cluster = engine(gpu_node("large", 4, cpu_milli=32_000), gpu_node("small", 1))

    assert _choice(cluster, pod("p", share(50))) == "small"


def test_spread_takes_the_node_that_will_be_emptiest() -> None:
    """The same mean, the lowest."""
    cluster = engine(gpu_node("small", 1), gpu_node("large", 4, cpu_milli=32_000), policy="spread")

    assert _choice(cluster, pod("p", share(50))) == "large"


def test_only_requested_devices_count() -> None:
    """A node full of GPUs is no fuller for a Pod that asks for a NIC."""
    cluster = engine(
        gpu_node("idle", 2, nics=1), gpu_node("busy", 2, nics=1), gpu_node("other", 2, nics=1)
    )
    placed(cluster, pod("gpus", share(100, 2), cpu_milli=0, memory_bytes=0))

    assert _choice(cluster, pod("p", nic(50), cpu_milli=0, memory_bytes=0)) == "idle"
    assert _choice(cluster, pod("q", share(50), cpu_milli=0, memory_bytes=0)) == "busy"


def test_a_resource_without_a_limit_counts_as_unused() -> None:
    """A node without limits is always the emptier one."""
    cluster = engine(
        gpu_node("unlimited", 1, cpu_milli=None, memory_bytes=None), gpu_node("limited", 1)
    )

    assert _choice(cluster, pod("p", share(50))) == "limited"


@pytest.mark.parametrize("policy", ["binpack", "spread", "bestfit", "fgd", "scarcity"])
def test_pods_without_devices_prefer_nodes_without_devices(policy: str) -> None:
    """Among equals; a better node with devices still wins (cli.md, CPU sets)."""
    cluster = engine(gpu_node("gpus", 2), gpu_node("bare", 0), policy=policy)

    assert _choice(cluster, pod("p")) == "bare"


def test_a_better_node_with_devices_wins() -> None:
    """The preference for bare nodes breaks ties only."""
    cluster = engine(gpu_node("gpus", 2, cpu_milli=2000), gpu_node("bare", 0))

    assert _choice(cluster, pod("p")) == "gpus"


def test_bestfit_leaves_the_least_room() -> None:
    """Half cpu, half GPU, each as a part of the largest node."""
    cluster = engine(
        gpu_node("eight", 8, cpu_milli=96_000),
        gpu_node("two", 2, cpu_milli=16_000),
        policy="bestfit",
    )

    assert _choice(cluster, pod("p", share(50))) == "two"


def test_bestfit_rounds_as_the_published_simulator() -> None:
    """Scores are whole numbers of 100: two nodes within one point are equal, the first wins."""
    nodes = (gpu_node("first", 8, cpu_milli=96_000), gpu_node("second", 8, cpu_milli=95_900))

    assert _choice(engine(*nodes, policy="bestfit"), pod("p", share(50))) == "first"


def test_bestfit_takes_the_card_with_the_least_left_that_fits() -> None:
    """Ties go to the lowest minor."""
    cluster = engine(gpu_node("n", 4), policy="bestfit")
    taken = []
    for uid, percent in (("a", 40), ("b", 70), ("c", 30), ("d", 50), ("e", 30)):
        (part,) = placed(cluster, pod(uid, share(percent))).shares
        taken.append(part.minor)

    assert taken == [0, 1, 1, 0, 2]


def test_random_draws_from_the_nodes_that_fit() -> None:
    """Every node that fits is drawn at times, no other ever, and the same seed draws the same."""
    nodes = (gpu_node("a"), gpu_node("none", 0), gpu_node("b"), gpu_node("little", memory_bytes=1))
    cluster = engine(*nodes, policy="random", seed=7)
    again = engine(*nodes, policy="random", seed=7)
    request = pod("p", share(50), memory_bytes=GIB)
    names = []
    for ordinal in range(64):
        answers = [each.decide(request, ordinal=ordinal) for each in (cluster, again)]
        assert answers[0] == answers[1]
        assert isinstance(answers[0], Placement)
        names.append(answers[0].node_name)

    assert set(names) == {"a", "b"}


def test_draws_are_even() -> None:
    """Each of ten numbers comes about as often as the others."""
    counts = Counter(draw(42, ordinal, 10) for ordinal in range(10_000))

    assert set(counts) == set(range(10))
    assert max(counts.values()) < 1200
