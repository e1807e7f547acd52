from __future__ import annotations

from collections.abc import Mapping

import pytest

from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cpusets.choose import choose_cpus
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.outcome import Unfit
from tests.support.topologies import MACHINE_X, MACHINE_Y

FULL = "FullPCPUs"
SPREAD = "SpreadByPCPUs"

NO_SMT = cpu_topology_of(Cpu(id=i, core=i, socket=0, numa=i // 4) for i in range(8))
HYBRID = cpu_topology_of(
    [Cpu(id=i, core=i // 2, socket=0, numa=0) for i in range(4)]
    + [Cpu(id=i, core=i, socket=0, numa=0) for i in range(4, 6)]
)


def demand(cpus: int, policy: str = FULL, *, required: bool = False) -> CpuSetDemand:
    """Return a demand without an exclusive policy."""
    return CpuSetDemand(cpus=cpus, bind_policy=policy, required=required, exclusive_policy="None")


def pick(
    asked: CpuSetDemand,
    *,
    taken: str = "",
    reserved: str = "",
    machine: CpuTopology | None = MACHINE_X,
    refs: Mapping[int, int] | None = None,
    max_refs: int = 1,
    node_policy: str = "",
    strategy: str = "",
) -> CpuSet | Unfit:
    """Pick CPUs on machine X with the CPUs `taken` held once."""
    node = NodeFacts(
        uid="n-0",
        name="n-0",
        cpu_topology=machine,
        reserved_cpus=parse_cpuset(reserved),
        cpu_ref_count_max=max_refs,
        cpu_bind_policy=node_policy,
        numa_strategy=strategy,
    )
    held = dict.fromkeys(parse_cpuset(taken), 1) if refs is None else refs
    holdings = [CpuHolding(cpus=1 << cpu) for cpu, count in held.items() for _ in range(count)]
    return choose_cpus(asked, node, pinned_of(node, holdings))


@pytest.mark.parametrize(
    ("asked", "taken", "expected"),
    [
        pytest.param(demand(4), "", "0-1,12-13", id="pick 1: two whole cores of node 0"),
        pytest.param(demand(5), "", "0-2,12-13", id="pick 4: preferred, the last core is split"),
        pytest.param(
            demand(16), "", "0-7,12-19", id="pick 5: no NUMA node holds it, the socket does"
        ),
        pytest.param(demand(4, SPREAD), "", "0-3", id="pick 6: one thread per core"),
        pytest.param(demand(8, SPREAD), "", "0-5,12-13", id="pick 7: doubles up inside the node"),
        pytest.param(demand(6, SPREAD), "0-1,12-13", "6-11", id="pick 8: node 1 has six cores"),
        pytest.param(
            demand(6), "0,2,4,6,8,10", "1,3,5,13,15,17", id="pick 13: the clean cores of node 0"
        ),
        pytest.param(
            demand(8), "0,2,4,6,8,10", "1,3,5,7,13,15,17,19", id="pick 14: clean cores, both nodes"
        ),
        pytest.param(
            demand(4, required=True), "0-1,12", "6-7,18-19", id="pick 2 required: a core in use"
        ),
        pytest.param(
            demand(12, SPREAD, required=True), "0-5", "6-17", id="one per core, second threads too"
        ),
        pytest.param(demand(3), "0-10", "11-12,23", id="a whole core, then an odd CPU"),
    ],
)
def test_picks_on_machine_x(asked: CpuSetDemand, taken: str, expected: str) -> None:
    """Koordinator contract 6.5, the picks that first-fit shares with the release, and more."""
    assert str(pick(asked, taken=taken)) == expected


def test_a_request_over_sockets_takes_the_lowest_cores() -> None:
    """Machine Y: neither socket has ten CPUs left."""
    assert str(pick(demand(10), machine=MACHINE_Y, taken="0,8,4,12")) == "1-3,5-6,9-11,13-14"


def test_one_numa_node_is_preferred_to_two() -> None:
    """The second node holds all four, the first only two."""
    assert str(pick(demand(4), taken="0-4,12-16")) == "6-7,18-19"


def test_reserved_and_held_cpus_are_not_available() -> None:
    """Contract 6.3: reserved CPUs and those at the reference limit are out."""
    answer = pick(
        demand(4, SPREAD),
        reserved="0-1",
        refs={2: 2, 3: 1},
        max_refs=2,
        strategy="MostAllocated",
    )

    assert str(answer) == "4-5,12-13"  # one CPU of each core, fewest holders first, then by id


def test_shared_cpus_are_available_below_the_limit() -> None:
    """With two holders allowed a CPU held once is still available."""
    free = "2-11,14-23"

    assert str(pick(demand(4), refs={0: 1, 12: 1}, reserved=free, max_refs=2)) == "0-1,12-13"


def test_a_node_without_topology_can_not_be_helped() -> None:
    """cli.md, CPU sets."""
    expected = Unfit(reason="node(s) invalid CPU Topology", preemptible=False)

    assert pick(demand(2), machine=None) == expected
    assert pick(demand(2), machine=cpu_topology_of(())) == expected


def test_required_full_cores_need_a_whole_number_of_them() -> None:
    """Contract 6.2."""
    answer = pick(demand(5, required=True))

    assert isinstance(answer, Unfit)
    assert answer.reason == "node(s) requested cpus not multiple cpus per core"
    assert not answer.preemptible


@pytest.mark.parametrize(
    ("asked", "taken", "available", "preemptible"),
    [
        pytest.param(demand(13), "0-11", 12, True, id="pick 18: twelve of thirteen"),
        pytest.param(demand(2, required=True), "0-11", 12, True, id="no whole core left"),
        pytest.param(
            demand(13, SPREAD, required=True), "", 24, True, id="more than the machine has cores"
        ),
        pytest.param(demand(25), "", 24, False, id="more than the machine has CPUs"),
    ],
)
def test_too_few_cpus(
    asked: CpuSetDemand,
    taken: str,
    available: int,
    preemptible: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Contract 6.4, stage 0 and the required policies."""
    answer = pick(asked, taken=taken)

    assert answer == Unfit(
        reason="not enough cpus available to satisfy request",
        requested=asked.cpus,
        available=available,
        unit="cpus",
        preemptible=preemptible,
    )


CONFLICT = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
NOT_WHOLE = "node(s) requested cpus not multiple cpus per core"


@pytest.mark.parametrize(
    ("asked", "node_policy", "reason"),
    [
        pytest.param(demand(4, SPREAD, required=True), FULL, CONFLICT, id="spread on whole cores"),
        pytest.param(demand(4, required=True), SPREAD, CONFLICT, id="whole cores on spread"),
        pytest.param(demand(5), FULL, NOT_WHOLE, id="an odd number on whole cores"),
        pytest.param(demand(3, SPREAD), FULL, NOT_WHOLE, id="odd, and only preferred otherwise"),
    ],
)
def test_a_nodes_policy_refuses(asked: CpuSetDemand, node_policy: str, reason: str) -> None:
    """Contract 6.2: the node's policy must hold; no preemption helps against it."""
    answer = pick(asked, node_policy=node_policy)

    assert isinstance(answer, Unfit)
    assert (answer.reason, answer.preemptible) == (reason, False)


def test_a_preferred_policy_gives_way_to_the_nodes() -> None:
    """Contract 6.2: it never conflicts; the CPUs follow the node."""
    whole = pick(demand(4, SPREAD), node_policy=FULL)
    spread = pick(demand(4), node_policy=SPREAD)

    assert (str(whole), str(spread)) == ("0-1,12-13", "0-3")


def test_without_smt_both_policies_take_cpus() -> None:
    """A core of one thread is whole and spread at once."""
    for policy in (FULL, SPREAD):
        assert str(pick(demand(3, policy, required=True), machine=NO_SMT)) == "0-2"


def test_cores_of_different_size_add_up_exactly() -> None:
    """Three CPUs in whole cores: one of two threads and one of one."""
    assert str(pick(demand(3, required=True), machine=HYBRID)) == "0-1,4"


def test_nothing_asked_is_the_empty_set() -> None:
    """Zero CPUs need no place."""
    assert pick(demand(0)) == EMPTY
