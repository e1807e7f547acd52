"""
Which CPUs an allocation of the driver of CPUs is to be stored with, or why with none.

Rule: docs/adr/0032, docs/contracts/dra.md, 8. What is written out already is held against the
ledger; what is not is chosen here. Either way every CPU is held whole, by one claim alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec import structs

from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import CpuSet, union
from ledger.domain.dialects.dra.cpus import CPU, CPU_DRIVER, cpu_config, cpus_asked
from ledger.domain.errors import InputError
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import Holding, NodeState
from ledger.domain.request.requests import PodSnapshot
from scheduler.gate.claims import Allocated
from scheduler.gate.exchange import Results
from scheduler.gate.room import NoRoom, held_by

CPUS_UNTOLD: Final = "CpusUntold"
"""Which CPUs these would be can't be told, or not in words that their driver takes."""
CPUS_MISCOUNTED: Final = "CpusMiscounted"
"""Other CPUs are written out than as many as the claim consumes, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusBarred:
    """Why an allocation can't be stored with CPUs, by a word and in words."""

    reason: str
    message: str


class ClaimCpus(Protocol):
    """The machines' CPUs, as their driver, their topologies and the ledger have them."""

    def offered(self, node: NodeState, result: ClaimResult) -> CpuSet | CpusBarred:
        """Return all CPUs of which a result's device is some, held or not."""

    def choose(self, node: NodeState, count: int, closed: CpuSet) -> CpuSet | str:
        """Return so many CPUs of a node that are not closed; or in words why there are none."""


def with_cpus(
    allocated: Allocated, node: NodeState, cpus: ClaimCpus | None
) -> Results | CpusBarred | NoRoom:
    """
    Return what an allocation is to be stored as: each result of CPUs with its own.

    Those that are written out come first, then the others in their order.

    Args:
        node: with what is on its way, and without what the claim itself has.
    """
    of_cpus = [one for one in allocated.results if is_of_cpus(one)]
    if not of_cpus:
        return allocated.results
    if cpus is None:
        return CpusBarred(reason=CPUS_UNTOLD, message="nobody gives CPUs here")
    if allocated.cpus_fault:
        return CpusBarred(reason=CPUS_UNTOLD, message=allocated.cpus_fault)
    if len({one.request for one in of_cpus}) < len(of_cpus):
        fact = "a request has several results: its driver is told one CPU set for each request"
        return CpusBarred(reason=CPUS_UNTOLD, message=fact)
    unnamed = [one for one in node.everyone() if CPU in one.unknown_types]
    if unnamed:
        fact = f"nobody knows which CPUs of node {node.name} are {held_by(unnamed)}"
        return NoRoom(message=fact, taken=True)
    if node.lost:
        return NoRoom(message=f"node {node.name} is lost")
    given: dict[str, CpuSet] = {}
    for one in sorted(of_cpus, key=lambda one: not one.cpus):
        found = _given(one, node, cpus, union(given.values()))
        if not isinstance(found, CpuSet):
            return found
        given[one.request] = found
    return tuple(
        structs.replace(one, cpus=given[one.request]) if is_of_cpus(one) else one
        for one in allocated.results
    )


def _given(
    result: ClaimResult, node: NodeState, cpus: ClaimCpus, own: CpuSet
) -> CpuSet | CpusBarred | NoRoom:
    """Return the CPUs of one result, given those that the claim has by others."""
    try:
        asked = cpus_asked(result.consumed)
    except InputError as error:
        return CpusBarred(reason=CPUS_UNTOLD, message=f"request {result.request}: {error}")
    offered = cpus.offered(node, result)
    if isinstance(offered, CpusBarred):
        return offered
    held = union(one.cpuset for one in node.everyone())
    if not result.cpus:
        chosen = cpus.choose(node, asked, held | own)
        return chosen if isinstance(chosen, CpuSet) else _too_few(node, chosen, offered)
    written = f"request {result.request} names CPUs {result.cpus} of node {node.name}"
    if len(result.cpus) != asked or result.cpus & own:
        fact = f"{written}, {len(result.cpus)} of the {asked} that it consumes"
        if result.cpus & own:
            fact = f"{written}, of which another request has {result.cpus & own}"
        return CpusBarred(reason=CPUS_MISCOUNTED, message=fact)
    if not result.cpus <= offered:
        fact = f"{written}, of which {result.cpus - offered} are none that it gives"
        return CpusBarred(reason=CPUS_UNTOLD, message=fact)
    taken = result.cpus & held
    if taken:
        there = [one for one in node.everyone() if one.cpuset & taken]
        return NoRoom(message=f"{written}, of which {taken} {_are(there)}", taken=True)
    return result.cpus


def _too_few(node: NodeState, words: str, offered: CpuSet) -> NoRoom:
    there = [one for one in node.everyone() if one.cpuset & offered]
    if not there:
        return NoRoom(message=f"node {node.name}: {words}")
    return NoRoom(message=f"node {node.name}: {words}; CPUs {_are(there)}", taken=True)


def _are(there: Iterable[Holding]) -> str:
    return f"are {held_by(list(there))}"


def is_of_cpus(result: ClaimResult) -> bool:
    """Tell whether a result is of CPUs that it holds."""
    return result.driver == CPU_DRIVER and not result.admin


def cpus_of(results: Iterable[ClaimResult]) -> CpuSet:
    """Return all CPUs that results are told."""
    return union(one.cpus for one in results if is_of_cpus(one))


def with_class(snapshot: PodSnapshot, results: Iterable[ClaimResult]) -> PodSnapshot:
    """Return what is kept of a claim: with CPUs it shares them with nobody, as LSE Pods do."""
    return structs.replace(snapshot, qos=str(QosClass.LSE)) if cpus_of(results) else snapshot


def patch_of(
    claim: Mapping[str, Any], written: Results, stored: Results, drivers: Container[str]
) -> list[dict[str, Any]]:
    """
    Return what changes of a claim as it was written: devices, and CPUs beside what is there.

    Args:
        written, stored: its results of these drivers, in their order.
    """
    devices, path = claim["status"]["allocation"]["devices"], "/status/allocation/devices"
    every = enumerate(devices["results"])
    places = [place for place, one in every if one["driver"] in drivers]
    both = list(zip(places, written, stored, strict=True))
    patch: list[dict[str, Any]] = [
        {"op": "replace", "path": f"{path}/results/{place}/device", "value": now.device}
        for place, before, now in both
        if now.device != before.device
    ]
    told = [cpu_config(now.request, now.cpus) for _, before, now in both if now.cpus != before.cpus]
    if told and not devices.get("config"):
        patch.append({"op": "add", "path": f"{path}/config", "value": []})
    return patch + [{"op": "add", "path": f"{path}/config/-", "value": one} for one in told]
