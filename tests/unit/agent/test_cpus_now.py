"""The map of CPUs where a ledger does not tell all: nothing is guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from agent.decide.cpus_now import cpus_of_states
from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.log.events import PodReserved
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.state import Holding, NodeState
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.topology import Cpu

CPUS = tuple(Cpu(id=number, core=number // 2, socket=0, numa=0) for number in range(8))
OWN = cpuset_of([2, 3])
TOLD = {"uid-x": RecordedNode(version=1, reserved_cpus=CpuSet(mask=1))}
OPENED = {
    7: PodReserved(
        pod_uid="uid-p",
        attempt=1,
        namespace="ml",
        pod_name="p",
        node_uid="uid-x",
        node_name="x",
        cpu_milli=2_000,
        memory_bytes=0,
        cpuset=OWN,
        snapshot=PodSnapshot(qos="LSE"),
    )
}


def held() -> NodeState:
    """Return a node with one holder, whose event is at position 7."""
    holding = Holding(
        pod_uid="uid-p",
        attempt=1,
        namespace="ml",
        pod_name="p",
        kind="granted",
        phase="reserved",
        opened_position=7,
        shares=(),
        cpuset=OWN,
    )
    return NodeState(uid="uid-x", name="x", cpus=CPUS, holdings={holding.key: holding})


def test_a_node_and_its_holders_that_are_told_have_pools() -> None:
    """The class of who holds is in the event that opened the holding."""
    (node,) = cpus_of_states([held()], TOLD, OPENED)

    assert node.pools is not None
    assert [pool.cpus for pool in node.pools.best_effort] == [cpuset_of([0, 1, 4, 5, 6, 7])]
    assert node.pools.best_effort_first == cpuset_of([0])


def test_a_claims_cpus_are_its_own_alone() -> None:
    """Whoever opened them, and though its event may be in an archive."""
    (holding,) = held().holdings.values()
    claim = structs.replace(holding, holder="claim")
    (node,) = cpus_of_states([replace(held(), holdings={}, claims={claim.key: claim})], TOLD)

    assert [(each.pod, each.cpus) for each in node.holders] == [("claim ml/p", OWN)]
    assert node.pools is not None
    assert [pool.cpus for pool in node.pools.best_effort] == [cpuset_of([0, 1, 4, 5, 6, 7])]


@pytest.mark.parametrize(
    ("described", "opened"),
    [
        pytest.param({}, OPENED, id="what the node keeps back"),
        pytest.param(TOLD, {}, id="with whom a holder shares, its event is in an archive"),
    ],
)
def test_what_nobody_told_leaves_the_pools_unknown(
    described: dict[str, RecordedNode], opened: dict[int, PodReserved]
) -> None:
    """Who holds what is told all the same."""
    (node,) = cpus_of_states([held()], described, opened)

    assert (node.held, node.pools) == (OWN, None)
