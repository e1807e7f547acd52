from __future__ import annotations

import random

import pytest

from agent.decide.pools import (
    NodeCpus,
    PodCpus,
    Pools,
    joined,
    left_for_best_effort,
    pools_of,
    suppressed_cpus,
)
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of, parse_cpuset
from tests.support.examples import seeds
from tests.support.topologies import MACHINE_X

LSE, LSR = QosClass.LSE, QosClass.LSR
EVERY = MACHINE_X.cpuset


def left_of(system: int) -> int:
    """Return what is left of 24 CPUs at 65 %, by what the system uses."""
    return left_for_best_effort(
        24_000, pods=7_600, system=system, reserved=2_000, threshold_percent=65
    )


def pools(lsr: str = "", lse: str = "", kubelet: str = "", reserved: str = "") -> Pools:
    """Return machine X's pools beside an LSR Pod, an LSE Pod and one that kubelet pinned."""
    node = NodeCpus(topology=MACHINE_X, kubelet_reserved=parse_cpuset(reserved))
    return pools_of(
        node,
        [
            PodCpus(cpus=parse_cpuset(lsr), qos=LSR),
            PodCpus(cpus=parse_cpuset(lse), qos=LSE),
            PodCpus(cpus=parse_cpuset(kubelet), by_kubelet=True),
        ],
    )


def test_the_worked_example() -> None:
    """Koordinator contract 9.5: 24 CPUs, threshold 65 %, so 6 CPUs are left."""
    left = left_of(system=1_000)

    assert left == 6_000
    assert len(suppressed_cpus(left, pools(), MACHINE_X, EVERY)) == 6


def test_more_than_is_reserved_counts_as_it_is() -> None:
    """Of what the system uses and what is reserved for it, the greater counts."""
    assert left_of(system=3_000) == 5_000


@pytest.mark.parametrize(
    ("left", "now", "count"),
    [
        pytest.param(6_001, EVERY, 7, id="a part of a CPU counts as one"),
        pytest.param(500, EVERY, 2, id="at least two"),
        pytest.param(-9_000, EVERY, 2, id="also where nothing is left"),
        pytest.param(20_000, parse_cpuset("0-3"), 7, id="a tenth of the node more, 3 of 24"),
        pytest.param(20_000, EMPTY, 3, id="from nothing likewise"),
    ],
)
def test_how_many_cpus_there_are(left: int, now: CpuSet, count: int) -> None:
    """It shrinks at once and grows slowly."""
    assert len(suppressed_cpus(left, pools(), MACHINE_X, now)) == count


def test_parts_of_shared_and_lsr_cpus_are_as_their_numbers_are() -> None:
    """Of 24 CPUs 8 are an LSR Pod's: of 6 CPUs 2 are."""
    found = suppressed_cpus(6_000, pools(lsr="2-5,14-17"), MACHINE_X, EVERY)

    assert str(found) == "0,2,6,12,14,18"


def test_a_busy_node_leaves_lsr_pods_alone() -> None:
    """Nothing is left below the threshold: best effort Pods keep to the shared pool."""
    lsr = "0-5,12-17"

    assert len(suppressed_cpus(1_500, pools(lsr=lsr), MACHINE_X, EVERY) & parse_cpuset(lsr)) == 1
    assert suppressed_cpus(0, pools(lsr=lsr), MACHINE_X, EVERY).isdisjoint(parse_cpuset(lsr))


def test_kubelets_reserved_cpus_come_first() -> None:
    """CPU proposal, "Take over", 2.1."""
    found = suppressed_cpus(2_000, pools(reserved="9,21"), MACHINE_X, EVERY)

    assert str(found) == "9,21"


def test_what_best_effort_has_stays() -> None:
    """It grows by what comes next in turn, and moves nobody."""
    assert str(suppressed_cpus(4_000, pools(), MACHINE_X, parse_cpuset("11,23"))) == "0,11-12,23"


@pytest.mark.parametrize("seed", seeds(20, 500))
def test_nobody_rides_on_lse_cpus_or_on_what_kubelet_gave(seed: int) -> None:
    """Whatever the load, who holds what, and what best effort had."""
    rng = random.Random(seed)
    cpus = rng.sample(range(24), 24)
    lsr, lse, kubelet = (str(cpuset_of(cpus[at : at + rng.randint(0, 8)])) for at in (0, 8, 16))
    of = pools(lsr, lse, kubelet)
    now = cpuset_of(rng.sample(range(24), rng.randint(0, 24)))
    found = suppressed_cpus(rng.randint(-30_000, 30_000), of, MACHINE_X, now)
    pool = joined(of.best_effort)

    assert found <= pool
    assert len(found) >= min(2, len(pool)) or found <= pool - of.exclusive
    assert found or not pool


def test_no_cpu_is_left_where_the_pool_is_empty() -> None:
    """All are LSE Pods': an empty set is written nowhere."""
    assert suppressed_cpus(6_000, pools(lse="0-23"), MACHINE_X, EVERY) == EMPTY
