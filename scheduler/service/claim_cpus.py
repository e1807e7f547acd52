"""The CPUs that claims are given, over slices, topologies and the ledger."""

from __future__ import annotations

from typing import Final

from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.dialects.dra.cpus import AMOUNT, MACHINE
from ledger.domain.dialects.dra.shares import UNLISTED
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import NodeState
from ledger.domain.resources import ANNOTATION_NODE_RESERVATION
from scheduler.decide.claim_cpus import choose_claim_cpus
from scheduler.gate.cpus import CPUS_UNTOLD, CpusBarred
from scheduler.gate.exchange import device_of
from scheduler.service.slices import SliceBook
from scheduler.service.view import ClusterView

NO_TOPOLOGY: Final = "the ledger knows no CPU of it: its NodeResourceTopology tells them"


class LiveCpus:
    """The machines' CPUs, as slices, the nodes' own objects and the ledger tell of them."""

    def __init__(self, slices: SliceBook, view: ClusterView) -> None:
        self._slices = slices
        self._view = view

    def offered(self, node: NodeState, result: ClaimResult) -> CpuSet | CpusBarred:
        """Return all CPUs of which a result's device is some, held or not."""
        key = device_of(result)
        device, name = self._slices.device(key), "/".join(key)
        if device is None or device.node != node.name or not self._slices.is_whole(*key[:2]):
            fact = f"{name} is in no whole pool of node {node.name}"
            return CpusBarred(reason=UNLISTED, message=fact)
        if device.name != MACHINE or not device.is_shared or AMOUNT not in device.capacity:
            fact = f"{name}: its driver chooses the CPUs by itself, unless it groups by machine"
            return CpusBarred(reason=CPUS_UNTOLD, message=fact)
        facts = self._view.facts(node.name)
        if facts is None or not node.cpus:
            return CpusBarred(reason=CPUS_UNTOLD, message=f"node {node.name}: {NO_TOPOLOGY}")
        offered = cpuset_of(cpu.id for cpu in node.cpus) - facts.reserved_cpus
        gives = device.capacity[AMOUNT]
        if gives < len(offered):
            fact = f"its driver gives {gives} of CPUs {offered} and does not tell which it keeps"
            fact += f": node {node.name} is to name them in {ANNOTATION_NODE_RESERVATION}"
            return CpusBarred(reason=CPUS_UNTOLD, message=fact)
        return offered

    def choose(self, node: NodeState, count: int, closed: CpuSet) -> CpuSet | str:
        """Return so many CPUs, if it can be none that somebody is about to get."""
        facts, number = self._view.facts(node.name), self._view.number(node.name)
        assert facts is not None, "it offers CPUs"
        assert number is not None, "it is decided on"
        settings = self._view.settings
        coming = self._view.engine.held_cpus(number)
        found = choose_claim_cpus(count, closed | coming, facts, settings)
        if isinstance(found, CpuSet):
            return found
        return choose_claim_cpus(count, closed, facts, settings)
