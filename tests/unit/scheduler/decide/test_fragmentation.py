from __future__ import annotations

import math

import pytest

from ledger.domain.request.requests import PodRequest
from scheduler.decide.score.gradient import score_steps
from scheduler.decide.score.typical import workload_of
from tests.support.clusters import (
    GIB,
    engine,
    gpu_bytes,
    gpu_node,
    placed,
    pod,
    selector,
    share,
)


def _many(**counts: int) -> list[PodRequest]:
    kinds = {
        "half": pod("half", share(50)),
        "whole": pod("whole", share(100)),
        "pair": pod("pair", share(100, 2)),
        "cpu": pod("cpu"),
        "tiny": pod("tiny", share(5)),
    }
    return [kinds[kind] for kind, count in counts.items() for _ in range(count)]


def test_typical_pods_cover_95_percent() -> None:
    """The most frequent shapes are taken until they make up 95 % of all Pods."""
    workload = workload_of(_many(tiny=4, half=60, whole=35, pair=1))

    assert [pod.gpu_percent for pod in workload.pods] == [50, 100]
    assert workload.counts == (60, 35)


def test_typical_pods_without_gpus_count() -> None:
    """They can use no idle GPU, so all of it is lost on them."""
    cluster = engine(gpu_node("n", 2), typical=_many(half=1, cpu=3))

    assert cluster.fragmentation_percent() == 75.0


@pytest.mark.parametrize(
    ("kinds", "held", "percent"),
    [
        pytest.param({"half": 1}, (), 0.0, id="idle cards are of use"),
        pytest.param({"half": 1}, (60,), 20.0, id="a rest that is too small is lost"),
        pytest.param({"half": 1}, (50,), 0.0, id="a rest that just fits is of use"),
        pytest.param({"half": 1, "whole": 1}, (60,), 20.0, id="lost on both kinds"),
        pytest.param({"half": 1, "whole": 1}, (50,), 12.5, id="lost on half of the Pods"),
        pytest.param({"pair": 1}, (), 0.0, id="two whole cards for a pair"),
        pytest.param({"pair": 1}, (1,), 99.5, id="one whole card is of no use to a pair"),
        pytest.param({"whole": 1}, (100, 100), 0.0, id="nothing idle, nothing lost"),
    ],
)
def test_fragmentation_of_a_cluster(
    kinds: dict[str, int], held: tuple[int, ...], percent: float
) -> None:
    """Idle GPU that typical Pods can't use, weighted by how often they come, of all GPU."""
    cluster = engine(gpu_node("n", 2), typical=_many(**kinds))
    for number, part in enumerate(held):
        placed(cluster, pod(f"p{number}", share(part), cpu_milli=0))

    assert cluster.fragmentation_percent() == percent


def test_gpu_without_cpu_is_lost() -> None:
    """A typical Pod that finds no cpu can't use a single card of the node."""
    cluster = engine(gpu_node("n", 2, cpu_milli=1999), typical=_many(half=1))
    placed(cluster, pod("p", share(50)))

    assert cluster.fragmentation_percent() == 75.0


def test_gpu_of_a_model_that_nobody_wants_is_lost() -> None:
    """Predicates and models decide who can use a node."""
    nodes = (gpu_node("t4", 2), gpu_node("a10", 2, model="A10", labels={"a": "x"}))
    wants_t4 = pod("t4", share(50, models=("T4",)))
    wants_x = pod("x", share(50), placement=selector(a="x"))

    assert engine(*nodes, typical=[wants_t4]).fragmentation_percent() == 50.0
    assert engine(*nodes, typical=[wants_t4, wants_x, wants_x]).fragmentation_percent() == 50.0
    assert engine(*nodes, typical=[]).fragmentation_percent() == 0.0


def test_closed_cards_are_not_idle() -> None:
    """Nobody can use them, and nobody lost them to fragments."""
    cluster = engine(gpu_node("n", 2, closed=frozenset({1})), typical=_many(whole=1))

    assert cluster.fragmentation_percent() == 0.0


def test_typical_pods_in_bytes_ask_percent_of_the_cards_at_hand() -> None:
    """8 GiB is half a card of 16 GiB and all of one with 8."""
    nodes = (gpu_node("large", 1), gpu_node("small", 1, card_bytes=8 * GIB))
    cluster = engine(*nodes, policy="spread", typical=[pod("t", gpu_bytes(8 * GIB))])
    placed(cluster, pod("a", share(50), placement=None))
    placed(cluster, pod("b", share(50)))

    assert cluster.fragmentation_percent() == 25.0


def test_typical_pods_for_parts_of_several_cards() -> None:
    """All cards with enough left are of use if there are enough of them, else none."""
    cluster = engine(gpu_node("n", 3), typical=[pod("t", share(50, 2))])

    placed(cluster, pod("a", share(60)))
    assert cluster.fragmentation_percent() == pytest.approx(100 * 40 / 300)
    placed(cluster, pod("b", share(100)))
    assert cluster.fragmentation_percent() == pytest.approx(100 * 140 / 300)


def test_score_steps_are_the_integer_part_of_the_sigmoid() -> None:
    """For gains far from a step, the search among bounds is 100 x sigmoid rounded down."""
    weight = 7766
    steps = score_steps(weight)
    for gain in range(-400 * weight, 400 * weight, 12_345):
        exact = 100 / (1 + math.exp(-gain / (100 * weight)))
        if abs(exact - round(exact)) > 1e-9:
            assert steps.searchsorted(gain, side="right") - 1 == math.floor(exact), gain


def test_an_unchanged_fragmentation_scores_exactly_50() -> None:
    """No float decides: one unit less is 49."""
    steps = score_steps(1000)

    assert [int(steps.searchsorted(gain, side="right")) - 1 for gain in (-1, 0, 1)] == [49, 50, 50]


def test_fgd_fills_fragments_first() -> None:
    """A share goes where only fragments are used up, on the card that is one."""
    cluster = engine(
        gpu_node("empty", 2),
        gpu_node("used", 2, labels={"a": "x"}),
        policy="fgd",
        typical=_many(half=3, whole=1),
    )
    placed(cluster, pod("a", share(80), placement=selector(a="x")))
    answer = placed(cluster, pod("b", share(20)))

    assert (answer.node_name, [part.minor for part in answer.shares]) == ("used", [0])


def test_fgd_chooses_the_card_for_bytes_too() -> None:
    """A request in bytes is tried on every card, like a share."""
    cluster = engine(gpu_node("n", 3), policy="fgd", typical=_many(half=3, whole=1))
    placed(cluster, pod("a", share(50)))
    placed(cluster, pod("b", share(80)))
    answer = placed(cluster, pod("c", gpu_bytes(3 * GIB)))

    assert [part.minor for part in answer.shares] == [1]
