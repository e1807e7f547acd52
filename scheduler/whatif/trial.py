"""What a search for moves stands on: trials that can be taken back, and what moves together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.outcome import CardView, Placement
from scheduler.whatif.what_if import WhatIf

NEVER: Final = 1 << 30
"""More Pods and moves than there ever are."""

Unit = tuple[Holder, ...]
"""What moves together: one Pod, or all members of a group."""


class Trial:
    """The what-if cluster with a record of what is lifted and placed, so that it can be undone."""

    def __init__(self, what_if: WhatIf) -> None:
        self._what_if = what_if
        self._lifted: dict[str, Holder] = {}
        self._placed: dict[str, Placement] = {}

    def lift(self, unit: Unit) -> None:
        """Take the Pods of a unit away, from where they stand now."""
        for holder in unit:
            placed = self._placed.get(holder.uid)
            if placed is not None:
                self.undo(placed)
                continue
            self._what_if.lift(holder)
            self._lifted[holder.uid] = holder

    def put_back(self, unit: Unit) -> None:
        """Give them back what they held."""
        for holder in unit:
            del self._lifted[holder.uid]
            self._what_if.put_back(holder)

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

    def used(self, node: int) -> tuple[int, int]:
        """Return cpu in thousandths and memory that are held on a node now."""
        facts = self._what_if.nodes[node]
        cpu_milli = memory_bytes = 0
        for holder in self._what_if.on(node):
            if holder.uid not in self._lifted:
                cpu_milli += facts.cpu_cost_milli(holder.held.cpu_milli, len(holder.held.cpuset))
                memory_bytes += holder.held.memory_bytes
        for placement in self._placed.values():
            if placement.node == node:
                own = len(placement.cpuset)
                cpu_milli += facts.cpu_cost_milli(placement.request.cpu_milli, own)
                memory_bytes += placement.request.memory_bytes
        return cpu_milli, memory_bytes

    def rewind(self) -> tuple[list[Holder], list[Placement]]:
        """Take back everything, and return it."""
        standing = list(self._lifted.values()), list(self._placed.values())
        for placement in standing[1]:
            self.undo(placement)
        for holder in standing[0]:
            self.put_back((holder,))
        return standing

    def restore(self, standing: tuple[list[Holder], list[Placement]]) -> None:
        """Do again what `rewind` took back."""
        for holder in standing[0]:
            self.lift((holder,))
        for placement in standing[1]:
            self.reserve(placement)


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


def least_of(amounts: Iterable[int], lacking: int) -> int:
    """Return how many of the amounts it takes at least to make up for what is lacking."""
    taken = 0
    for amount in sorted(amounts, reverse=True):
        if lacking <= 0:
            break
        lacking -= amount
        taken += 1
    return taken if lacking <= 0 else NEVER


def has_one_choice(request: PodRequest) -> bool:
    """Tell whether a set of GPUs, or nothing, is all that is to be chosen on a node."""
    types = [demand.device_type for demand in request.devices]
    return request.cpuset is None and types in ([], [GPU])


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


def sets_of(units: Sequence[Unit], budget: int) -> Iterator[tuple[Unit, ...]]:
    """Yield the sets of units with at most so many Pods, small sets first."""
    for count in range(min(len(units), budget) + 1):
        for some in combinations(units, count):
            if sum(map(len, some)) <= budget:
                yield some


def picks(kinds: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Yield so many minors out of kinds whose members are alike, the first of each kind."""
    if not kinds:
        if count == 0:
            yield ()
        return
    for taken in range(min(count, len(kinds[0])), -1, -1):
        for rest in picks(kinds[1:], count - taken):
            yield (*kinds[0][:taken], *rest)


def kind_of(card: CardView, facts: NodeFacts) -> object:
    """Return what makes cards alike: untouched ones of a node without links and partitions."""
    record, place = card.record, card.record.topology
    if card.tenants or facts.links or facts.partitions or facts.derived_links:
        return record.minor
    return (
        record.model,
        record.memory_bytes,
        place and (place.numa_node, place.pcie_id),
        tuple(sorted(record.labels.items())),
    )


def gpus_of(placement: Placement) -> frozenset[int] | None:
    """Return the GPUs of a placement, None without any."""
    minors = frozenset(share.minor for share in placement.shares if share.device_type == GPU)
    return minors or None
