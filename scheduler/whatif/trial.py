"""What a search for moves stands on: trials that can be taken back, and what moves together."""

from __future__ import annotations

from collections import Counter

from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.outcome import Placement
from scheduler.whatif.what_if import WhatIf

Unit = tuple[Holder, ...]
"""What moves together: one Pod, or all members of a group."""


class Trial:
    """The what-if cluster with a record of what is lifted and placed, so that it can be undone."""

    def __init__(self, what_if: WhatIf) -> None:
        self._what_if = what_if
        self._lifted: dict[str, Holder] = {}
        self._placed: dict[str, Placement] = {}

    def lift(self, unit: Unit) -> None:
        """Take the Pods of a unit away."""
        for holder in unit:
            self._what_if.lift(holder)
            self._lifted[holder.uid] = holder

    def place(
        self, request: PodRequest, node: int, minors: frozenset[int] | None = None
    ) -> Placement | None:
        """Reserve a Pod on a node; None changes nothing."""
        placement = self._what_if.place(request, node, minors)
        if placement is not None:
            self._placed[request.uid] = placement
        return placement

    def place_as(self, goal: Placement) -> Placement | None:
        """Reserve a Pod as it was planned: its GPUs and CPUs; None where that is not free."""
        placed = self.place(goal.request, goal.node, gpus_of(goal))
        if placed is None or placed.cpuset == goal.cpuset:
            return placed
        self.undo(placed)
        if not self._may_be_held(goal):
            return None
        planned = structs.replace(placed, cpuset=goal.cpuset)
        self.reserve(planned)
        return planned

    def _may_be_held(self, goal: Placement) -> bool:
        """Tell whether one more Pod may hold these CPUs; those of LSE Pods nobody may."""
        view, asked = self._what_if.view(goal.node), goal.request.cpuset
        most = 1 if asked is not None and asked.alone else view.facts.cpu_ref_count_max
        if goal.cpuset.mask & view.cpus_alone:
            return False
        return all(view.cpu_refs.get(cpu, 0) < most for cpu in goal.cpuset)

    def reserve(self, placement: Placement) -> None:
        """Reserve exactly this."""
        self._what_if.reserve(placement)
        self._placed[placement.request.uid] = placement

    def undo(self, placement: Placement) -> None:
        """Take back what was reserved."""
        del self._placed[placement.request.uid]
        self._what_if.undo(placement)

    def rewind(self) -> None:
        """Take back everything."""
        for placement in list(self._placed.values()):
            self.undo(placement)
        for holder in self._lifted.values():
            self._what_if.put_back(holder)
        self._lifted.clear()


def lacking_in_all(request: PodRequest, what_if: WhatIf) -> str:
    """Return what all nodes together have too little of, empty for nothing; moves change no sum."""
    asked: Counter[tuple[str, str]] = Counter()
    left: Counter[tuple[str, str]] = Counter()
    for demand in request.devices:
        if demand.hint is None:
            asked[demand.device_type, "% core"] += demand.count * demand.core_percent
            asked[demand.device_type, "bytes"] += demand.count * demand.memory_bytes
    for node in range(len(what_if.nodes)):
        for card in what_if.view(node).cards:
            if not card.closed:
                left[card.record.device_type, "% core"] += card.core_free
                left[card.record.device_type, "bytes"] += card.memory_free
    for (device_type, unit), amount in asked.items():
        free = left[device_type, unit]
        if amount > free:
            return f"asks {amount} {unit} of {device_type}, all nodes have {free} left"
    return ""


def units_of(what_if: WhatIf) -> list[Unit]:
    """Return what may be moved: Pods with a request that are not fixed, groups as a whole."""
    groups: dict[str, list[Holder]] = {}
    for holder in what_if.holders.values():
        groups.setdefault(holder.group or f"pod {holder.uid}", []).append(holder)
    units = [
        tuple(unit)
        for unit in groups.values()
        if all(holder.request is not None and not holder.fixed for holder in unit)
    ]
    return sorted(units, key=lambda unit: (size_of(unit), unit[0].path))


def size_of(unit: Unit) -> tuple[int, ...]:
    """Return how much a unit holds, devices before CPUs."""
    return tuple(map(sum, zip(*(holder.size for holder in unit), strict=True)))


def gpus_of(placement: Placement) -> frozenset[int] | None:
    """Return the GPUs of a placement, None without any."""
    minors = frozenset(share.minor for share in placement.shares if share.device_type == GPU)
    return minors or None
