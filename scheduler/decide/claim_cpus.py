"""Which CPUs of a node a claim gets: chosen as for a Pod that shares its CPUs with nobody."""

from __future__ import annotations

from ledger.domain.annotations.cpu import CpuBindPolicy, CpuExclusivePolicy
from ledger.domain.cpuset import CpuSet
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand
from scheduler.decide.cpusets.choose import choose_cpus
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.outcome import Unfit
from scheduler.decide.settings import SchedulingSettings


def choose_claim_cpus(
    count: int, closed: CpuSet, facts: NodeFacts, settings: SchedulingSettings
) -> CpuSet | str:
    """
    Return so many CPUs that are not closed, or in words why the node has none.

    Rule: docs/adr/0032. A claim names no bind policy: the node's own holds, else the settings' is
    preferred, whole cores where that is none.
    """
    preferred = settings.vocabulary.default_bind_policy
    spreads = preferred == CpuBindPolicy.SPREAD_BY_PCPUS
    demand = CpuSetDemand(
        cpus=count,
        bind_policy=preferred if spreads else CpuBindPolicy.FULL_PCPUS,
        required=False,
        exclusive_policy=CpuExclusivePolicy.NONE,
        alone=True,
    )
    pinned = pinned_of(facts, [CpuHolding(cpus=closed.mask, alone=True)])
    found = choose_cpus(demand, facts, pinned, settings.cpu)
    if not isinstance(found, Unfit):
        return found
    left = f", {found.available} left" if found.available >= 0 else ""
    return f"{found.reason}: {count} asked{left}"
