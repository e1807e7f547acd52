from __future__ import annotations

import numpy as np
import pytest

from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.score.gradient import expected_fill
from scheduler.decide.score.pools import Asks, Market, PoolPrices, Prices
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import POLICIES, DeviceSettings, SchedulingSettings
from tests.support.clusters import (
    GIB,
    engine,
    gpu_bytes,
    gpu_node,
    held,
    placed,
    pod,
    rated_anew,
    running,
    selector,
    share,
)

HALF_OR_WHOLE = {50: np.array([[1]]), 100: np.array([[1]])}
"""Every second Pod asks for half of a card, every other one for a whole one."""


@pytest.mark.parametrize(
    ("arrivals", "left", "filled"),
    [
        pytest.param(1, 49, 0, id="no Pod fits"),
        pytest.param(1, 50, 50, id="one in two fits: 25 of each, twice for two Pods seen"),
        pytest.param(1, 99, 50, id="what is beyond the half is no use"),
        pytest.param(1, 100, 150, id="the half or the whole: 25 + 50"),
        pytest.param(2, 50, 75, id="25 now, and half of what is missing next time"),
        pytest.param(2, 100, 175, id="the half is left out: 50 + 25 then is no more than 75 now"),
        pytest.param(60, 50, 99, id="in the end somebody comes, rounded down"),
        pytest.param(60, 100, 199, id="and the whole card is filled"),
    ],
)
def test_the_fill_of_a_card_is_worked_out_by_hand(arrivals: int, left: int, filled: int) -> None:
    """V(1, 100) = 75, V(2, 50) = 37.5 and V(2, 100) = 75 + 0 + (100 - 75) / 2 = 87.5 percent."""
    table = expected_fill(HALF_OR_WHOLE, 2, (1, 1), arrivals=arrivals)

    assert table[0, 0, left] == filled


def test_a_rest_that_no_typical_pods_fill_is_worth_less_than_one_they_fill() -> None:
    """After a Pod of 40 %, 60 % can be filled by 30 + 30; after one of 50 %, 50 % can't be."""
    often = {30: np.array([[9]]), 40: np.array([[1]])}
    fill = expected_fill(often, 10, (1, 1))[0, 0]

    assert fill[60] > 590
    assert fill[50] < 410


def _asks(*rows: tuple[int, tuple[int, ...]]) -> Asks:
    """Return Pods by cpu and GPU percent per pool, which is negative where they may not run."""
    percents = np.array([row for _, row in rows], dtype=np.int64)
    return Asks(
        cpu_milli=[cpu for cpu, _ in rows],
        gpu_percent=np.maximum(percents, 0),
        allowed=percents >= 0,
    )


def test_nothing_costs_anything_where_everybody_may_go_everywhere() -> None:
    """As many Pods are expected as fit, and they spread over the pools as the idle GPUs do."""
    market = Market(_asks((1000, (100, 100)), (1000, (50, 50))), [1, 1])

    assert market.prices([200, 800], [64_000, 256_000]) == Prices(gpu=(0, 0), core=(0, 0))


def test_a_pool_that_more_pods_need_than_it_holds_is_dear() -> None:
    """
    Of ten whole cards half are wanted on the first pool, which has two of them.

    Nobody leaves it before the price is what the Pods would pay, so it goes to the limit of 1.5
    GPUs, 24 sixteenths; the others need five of eight cards, which are free of charge.
    """
    market = Market(_asks((1000, (100, -1)), (1000, (-1, 100))), [1, 1])

    assert market.prices([200, 800], [64_000, 64_000]).gpu == (24, 0)


def test_cores_have_a_price_where_cards_without_cpu_would_be_left() -> None:
    """Ten cards, each wanted with 10 cores: the first pool has 4 for a card, the second 16."""
    market = Market(_asks((10_000, (100, 100))), [1])

    first, second = market.prices([500, 500], [20_000, 80_000]).core
    assert first > second == 0


def test_a_cluster_without_idle_gpus_has_no_prices() -> None:
    """There is nothing to charge for."""
    assert Market(_asks((1000, (100,))), [1]).prices([0], [1000]) == Prices(gpu=(0,), core=(0,))


def _pool_prices(cluster: Engine) -> PoolPrices:
    pool_prices = cluster._rows.policy._pool_prices  # type: ignore[attr-defined]
    assert isinstance(pool_prices, PoolPrices)
    return pool_prices


def _tied(count: int) -> list[PodRequest]:
    return [pod("tied", share(50, models=("T4",)))] * count


@pytest.mark.parametrize(
    ("policy", "node"), [pytest.param("fgd", "t4", id="fgd"), ("scarcity", "other")]
)
def test_a_scarce_model_is_kept_for_those_tied_to_it(policy: str, node: str) -> None:
    """Six in ten Pods need the two T4 cards; one that does not goes elsewhere, though it fits."""
    typical = [*_tied(6), pod("half", share(50)), *[pod("whole", share(100))] * 3]
    cluster = engine(
        gpu_node("t4", 2), gpu_node("other", 6, model="X"), policy=policy, typical=typical
    )
    placed(cluster, pod("first", share(50, models=("T4",))))

    assert placed(cluster, pod("p", share(50))).node_name == node


def test_a_scarce_model_is_used_where_nothing_else_is_left() -> None:
    """A price never refuses a Pod that fits."""
    cluster = engine(
        gpu_node("t4", 2), gpu_node("other", 1, model="X"), policy="scarcity", typical=_tied(9)
    )
    nodes = [placed(cluster, pod(f"p{number}", share(100))).node_name for number in range(3)]

    assert nodes == ["other", "t4", "t4"]


def test_pods_in_bytes_pay_by_the_size_of_the_cards() -> None:
    """8 GiB are half of a 16 GiB card and a quarter of a 32 GiB one."""
    typical = [pod("t", gpu_bytes(8 * GIB), placement=selector(zone="a"))]
    cluster = engine(
        gpu_node("small", 2, labels={"zone": "a"}),
        gpu_node("large", 2, card_bytes=32 * GIB),
        policy="scarcity",
        typical=typical,
    )
    pool_prices = _pool_prices(cluster)
    shape = cluster._shapes.shape_of(pod("p", gpu_bytes(8 * GIB), cpu_milli=0))
    priced = dict(zip(pool_prices._card_bytes.tolist(), pool_prices.prices().gpu, strict=True))

    assert priced[16 * GIB] > 0
    assert pool_prices.toll(shape, np.arange(2)).tolist() == [  # type: ignore[union-attr]
        priced[16 * GIB] * 50 // 16,
        priced[32 * GIB] * 25 // 16,
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param((), id="no nodes"),
        pytest.param((gpu_node("a", 0), gpu_node("b", 0)), id="no GPUs"),
        pytest.param((gpu_node("a", 2), gpu_node("b", 2)), id="one kind of node"),
        pytest.param((gpu_node("a", 1, cpu_milli=None), gpu_node("b", 2)), id="no limit of cpu"),
        pytest.param(
            tuple(gpu_node(f"n{number}", 1, labels={"n": str(number)}) for number in range(70)),
            id="more kinds of nodes than have prices",
        ),
    ],
)
def test_any_cluster_is_served(nodes: tuple[object, ...]) -> None:
    """Typical Pods pinned to a node each make every node a kind of its own."""
    pinned = [
        pod(f"t{number}", share(50), placement=selector(n=str(number))) for number in range(70)
    ]
    cluster = engine(*nodes, policy="scarcity", typical=[*pinned, pod("cpu")])  # type: ignore[arg-type]

    answers = [cluster.decide(pod("p", share(50))), cluster.decide(pod("q"))]
    assert [isinstance(answer, Placement) for answer in answers] == [
        any(len(node.devices) for node in nodes),  # type: ignore[attr-defined]
        bool(nodes),
    ]


def test_another_price_rates_every_node_anew() -> None:
    """
    A row of ratings is of one version of the prices, not only of the nodes as they are.

    One in ten Pods needs a T4: fewer than the four cards at first, more than are left at last, and
    the node that nobody came to has become dear.
    """
    typical = [*_tied(1), *[pod("any", share(50))] * 9]
    others = [gpu_node(f"n{number}", 4, model="X") for number in range(7)]
    t4s = [gpu_node("a", 2), gpu_node("b", 2)]
    cluster = engine(*t4s, *others, policy="scarcity", typical=typical)
    shape = cluster._shapes.shape_of(pod("p", share(50)))
    before, version = cluster._rows.current(shape).tolist(), _pool_prices(cluster).version()
    for number in range(4):
        assert placed(cluster, pod(f"t{number}", share(50, models=("T4",)))).node_name == "a"

    assert _pool_prices(cluster).version() > version
    assert cluster._rows.current(shape).item(1) < before[1]
    assert cluster._rows.current(shape).tolist() == rated_anew(cluster._rows, shape).tolist()


HALF = pod("half", share(50))
HALF_OF_THE_MEMORY = pod("half", gpu_bytes(8 * GIB))
WHOLE = pod("whole", share(100))


HISTORIES = {
    "half and whole": [HALF, WHOLE],
    "mostly half": [HALF, HALF, HALF, WHOLE],
    "half alone": [HALF],
    "in bytes": [HALF_OF_THE_MEMORY, WHOLE],
    "whole alone": [WHOLE],
    "no history": [],
}


@pytest.mark.parametrize(
    ("policy", "history"),
    [
        (policy, history)
        for policy in POLICIES
        for history in HISTORIES
        if (policy, history) != ("fgd", "half alone")  # a tie, which the published run decides
    ],
)
@pytest.mark.parametrize("request_", [HALF, HALF_OF_THE_MEMORY], ids=["by percent", "in bytes"])
def test_an_untouched_card_is_not_broken_while_another_has_the_share_left(
    policy: str, history: str, request_: PodRequest
) -> None:
    """Koordinator contract 8.2 and 8.4: the fuller card comes before the lowest minor."""
    cluster = engine(gpu_node("n", 2), policy=policy, typical=HISTORIES[history])
    assert cluster.adopt(0, running("r", held(1, 50))) == []

    assert placed(cluster, request_).shares[0].minor == 1
    assert placed(cluster, WHOLE).shares[0].minor == 0


def test_ties_of_fgd_go_to_the_lowest_minor() -> None:
    """As in the published run, which its placements equal."""
    cluster = engine(gpu_node("n", 2), policy="fgd", typical=[HALF])
    cluster.adopt(0, running("r", held(1, 50)))

    assert placed(cluster, HALF).shares[0].minor == 0


def test_of_cards_worth_the_same_the_fuller_one_is_taken() -> None:
    """Both have room for one half, and nothing else typical fits the rest of either."""
    cluster = engine(gpu_node("n", 3), policy="scarcity", typical=[HALF, WHOLE])
    for minor, percent in ((1, 30), (2, 50)):
        cluster.adopt(0, running(f"r{minor}", held(minor, percent)))

    assert placed(cluster, HALF).shares[0].minor == 2


def test_who_asks_for_the_emptiest_card_gets_it_under_the_default_policy() -> None:
    """`devices.scoring: LeastAllocated` is a choice; the policy then names no card."""
    settings = SchedulingSettings(devices=DeviceSettings(scoring="LeastAllocated"))
    cluster = Engine([gpu_node("n", 2)], settings, workload=workload_of([HALF, WHOLE]))
    cluster.adopt(0, running("r", held(0, 50)))

    assert placed(cluster, HALF).shares[0].minor == 1
