"""What a plan needs of a node, and what keeps one from being made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from agent.decide.node_cpus import FoundCpus, KubeletManagers, MachineCpus
from agent.decide.node_holdings import NodeHoldings
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tenure.serving.cpus import Known
from tests.support.cgroup_trees import uid_of
from tests.support.cpus_world import holding, pod
from tests.support.proofs import believing, word
from tests.support.topologies import MACHINE_Y

if TYPE_CHECKING:
    from agent.cpus.switch import Switch
    from tenure.serving.agent_cpus import CpuReader
    from tenure.serving.agent_words import Told


class Node:
    """Everything that is read of one node with an LSR Pod, played."""

    def __init__(self) -> None:
        self.holdings: NodeHoldings | None = word(100, holding(1, "2-3"))
        self.is_heard, self.problem = True, ""
        self.allowed, self.annotations = True, dict[str, str]()
        self.pods: list[Mapping[str, Any]] = [pod(1, qos="LSR", cpus="2-3", milli=2000)]
        self.link, self.believing = self, believing()

    async def read(self) -> tuple[FoundCpus, tuple[()]]:
        """Return the machine."""
        machine = MachineCpus(topology=MACHINE_Y, numa=())
        managers = KubeletManagers()
        return FoundCpus(machine=machine, managers=managers, pinned={}, memory={}, pods=()), ()


def test_nothing_is_planned_while_the_ledger_is_not_known() -> None:
    """A node made anew is refused by the service first, and its Pods run: nobody is widened."""
    node = Node()
    told = type("T", (), {"link": node, "pods": node, "believing": node.believing})
    reader, switch = cast("CpuReader", node), cast("Switch", node)
    known = Known(cast("Told", told), switch, reader, frozenset)
    planned = asyncio.run(known.node())
    assert planned.held[uid_of(1)].cpus == parse_cpuset("2-3")
    node.holdings = None
    with pytest.raises(InputError, match="who has which"):
        asyncio.run(known.node())
