"""
Moves that make room for a request: a plan as data, never an act.

Rule: design section 4 (decisions are pure); fine-grained CPU orchestration proposal, story 6;
Koordinator contract 10 (a group moves whole).

A move ends a Pod and starts it again elsewhere, decided with its own request, also on its own node
on other devices or CPUs. Every step is feasible in the state that the steps before it left. Pods
that are held by others, fixed, or whose request is not known never move; the members of a group or
gang move together, as one step of so many moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations
from typing import Final

from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.outcome import Placement
from scheduler.whatif.releases import minimal_set
from scheduler.whatif.what_if import WhatIf

DECISIONS_MAX: Final = 20_000
"""Decisions of the survey of the nodes; as many again of the search for moves."""

_ORDERS_MAX: Final = 5
"""So many steps are tried in every order; more in the order they were found and its reverse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """
    One Pod from where it is to where it goes.

    Attributes:
        step: from 1; members of a group share one.
        holder: the Pod with what it holds before this move.
        room_first: the new place is free while the old one is still held.
    """

    step: int
    holder: Holder
    to: Placement
    room_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragPlan:
    """
    Moves in their order, and the place they make; a plan of fewer moves may exist.

    Attributes:
        cut: the bounds that ended the search, in words.
    """

    moves: tuple[Move, ...]
    place: Placement
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """
    No plan was found.

    Attributes:
        proved: none exists; otherwise the greedy search found none.
    """

    why: str
    proved: bool
    cut: tuple[str, ...] = ()


_Unit = tuple[Holder, ...]
"""What moves together: one Pod, or all members of a group."""
_Step = tuple[_Unit, tuple[Placement, ...]]


class _SpentError(Exception):
    """The search met its bound."""


def plan_moves(
    request: PodRequest, what_if: WhatIf, *, decisions_max: int = DECISIONS_MAX
) -> DefragPlan | NoPlan:
    """
    Return moves that make room for the request; the cluster is left as it was found.

    Per node a set of Pods none of which moves in vain, the largest first, each once to the best
    place that is left beside the request. Of these plans the one with the fewest moves. Ties: the
    node that loses fewest Pods, then node order.
    """
    answer = what_if.decide(request)
    if isinstance(answer, Placement):
        return DefragPlan(moves=(), place=answer)
    return _Search(request, what_if, decisions_max).run()


class _Search:
    def __init__(self, request: PodRequest, what_if: WhatIf, decisions_max: int) -> None:
        self.request = request
        self.what_if = what_if
        self.decisions_max = decisions_max
        self.end = what_if.decisions + decisions_max
        self.cut: list[str] = []
        self.units = _units_of(what_if)
        self.movable = frozenset(holder.uid for unit in self.units for holder in unit)

    def run(self) -> DefragPlan | NoPlan:
        lacking = _lacking_in_all(self.request, self.what_if)
        if lacking:
            return NoPlan(why=f"moving Pods frees nothing in all: {lacking}", proved=True)
        in_the_way = self._in_the_way()
        if not in_the_way and not self.cut:
            return self._hopeless()
        best = self._best(in_the_way)
        if best is not None:
            return replace(best, cut=tuple(self.cut))
        why = "on no node do all Pods in the way find another place"
        if self.cut:
            why = "the search ended before every node was tried"
        return NoPlan(why=why, proved=False, cut=tuple(self.cut))

    def _hopeless(self) -> NoPlan:
        fixed = len(self.what_if.holders) - len(self.movable)
        pods = "1 Pod" if fixed == 1 else f"{fixed} Pods"
        kept = f"; {pods} may not be moved" if fixed else ""
        why = f"no node takes it even without all Pods that may be moved{kept}"
        return NoPlan(why=why, proved=True)

    def _in_the_way(self) -> dict[int, list[_Unit]]:
        """Return who has to leave each node that could take the request, fewest Pods first."""
        needed: dict[int, set[str]] = {}
        for node in range(len(self.what_if.nodes)):
            if self.what_if.decisions >= self.end:
                self.cut.append(f"nodes looked at: {node} of {len(self.what_if.nodes)}")
                break
            holders = minimal_set(
                self.request, self.what_if, node, lambda holder: holder.uid in self.movable
            )
            if holders is not None:
                needed[node] = {holder.uid for holder in holders}
        return {
            node: [unit for unit in self.units if any(each.uid in needed[node] for each in unit)]
            for node in sorted(needed, key=lambda node: (len(needed[node]), node))
        }

    def _best(self, in_the_way: dict[int, list[_Unit]]) -> DefragPlan | None:
        best: DefragPlan | None = None
        self.end = self.what_if.decisions + self.decisions_max
        try:
            for node, units in in_the_way.items():
                if best is None or sum(map(len, units)) < len(best.moves):
                    plan = self._clear(node, units)
                    if plan is not None and (best is None or len(plan.moves) < len(best.moves)):
                        best = plan
        except _SpentError:
            self.cut.append(f"search for moves: after {self.decisions_max} decisions")
        finally:
            self.what_if.rewind()
        return best

    def _clear(self, node: int, units: Sequence[_Unit]) -> DefragPlan | None:
        """Return a plan in which these units leave the node to the request."""
        for holder in chain(*units):
            self.what_if.lift(holder)
        place = self._place(self.request, node)
        steps: list[_Step] = []
        for unit in sorted(units, key=_size_of, reverse=True) if place is not None else ():
            placed = self._settle(unit)
            if placed is None:
                break
            steps.append((unit, placed))
        self.what_if.rewind()
        return self._in_order(steps, place) if place and len(steps) == len(units) else None

    def _settle(self, unit: _Unit) -> tuple[Placement, ...] | None:
        """Reserve the best place that a lifted unit can have now; None where it has none."""
        requests = [holder.request for holder in unit if holder.request is not None]
        if len(requests) == 1:
            found = (self._place(requests[0], n) for n in self.what_if.candidates(requests[0]))
            placement = next(filter(None, found), None)
            return None if placement is None else (placement,)
        planned = self.what_if.plan_together(requests)
        placed = tuple(placement for placement in planned if placement is not None)
        if len(placed) < len(planned):
            return None
        for placement in placed:
            self.what_if.reserve(placement)
        return placed

    def _place(self, request: PodRequest, node: int) -> Placement | None:
        if self.what_if.decisions >= self.end:
            raise _SpentError
        return self.what_if.place(request, node)

    def _in_order(self, found: Sequence[_Step], goal: Placement) -> DefragPlan | None:
        """Return the plan in an order in which every step is feasible; nothing stands before it."""
        steps = [step for step in found if not all(map(_stays, *step))]
        orders = (
            permutations(steps) if len(steps) <= _ORDERS_MAX else (steps, list(reversed(steps)))
        )
        for order in orders:
            moves = _walk(order, self.what_if)
            place = None
            if moves is not None:
                place = self.what_if.place(self.request, goal.node, _gpus_of(goal))
            self.what_if.rewind()
            if moves is not None and place is not None:
                return DefragPlan(moves=moves, place=place)
        return None


def _walk(steps: Sequence[_Step], what_if: WhatIf) -> tuple[Move, ...] | None:
    """Take these steps one after the other; None where one is not feasible."""
    moves: list[Move] = []
    for number, (unit, planned) in enumerate(steps, 1):
        first = len(unit) == 1 and _has_room_first(planned[0], what_if)
        for holder in unit:
            what_if.lift(holder)
        for holder, goal in zip(unit, planned, strict=True):
            placed = _place_as(goal, what_if)
            if placed is None:
                return None
            moves.append(Move(step=number, holder=holder, to=placed, room_first=first))
    return tuple(moves)


def _has_room_first(goal: Placement, what_if: WhatIf) -> bool:
    twin = structs.replace(goal, request=replace(goal.request, uid=f"{goal.request.uid}/again"))
    placed = _place_as(twin, what_if)
    if placed is not None:
        what_if.undo(placed)
    return placed is not None


def _place_as(goal: Placement, what_if: WhatIf) -> Placement | None:
    """Reserve a Pod as it was planned: its GPUs and CPUs; None where that is not free."""
    placed = what_if.place(goal.request, goal.node, _gpus_of(goal))
    if placed is None or placed.cpuset == goal.cpuset:
        return placed
    what_if.undo(placed)
    view, asked = what_if.view(goal.node), goal.request.cpuset
    most = 1 if asked is not None and asked.alone else view.facts.cpu_ref_count_max
    if goal.cpuset.mask & view.cpus_alone or any(
        view.cpu_refs.get(cpu, 0) >= most for cpu in goal.cpuset
    ):
        return None
    planned = structs.replace(placed, cpuset=goal.cpuset)
    what_if.reserve(planned)
    return planned


def _stays(holder: Holder, placement: Placement) -> bool:
    held = holder.held
    return (
        holder.node == placement.node
        and [share.key for share in held.shares] == [share.key for share in placement.shares]
        and held.cpuset == placement.cpuset
    )


def _lacking_in_all(request: PodRequest, what_if: WhatIf) -> str:
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


def _units_of(what_if: WhatIf) -> list[_Unit]:
    """Return what may be moved: Pods with a request that are not fixed, groups as a whole."""
    groups: dict[str, list[Holder]] = {}
    for holder in what_if.holders.values():
        groups.setdefault(holder.group or f"pod {holder.uid}", []).append(holder)
    units = [
        tuple(unit)
        for unit in groups.values()
        if all(holder.request is not None and not holder.fixed for holder in unit)
    ]
    return sorted(units, key=lambda unit: (_size_of(unit), unit[0].path))


def _size_of(unit: _Unit) -> tuple[int, ...]:
    """Return how much a unit holds, devices before CPUs."""
    return tuple(map(sum, zip(*(holder.size for holder in unit), strict=True)))


def _gpus_of(placement: Placement) -> frozenset[int] | None:
    minors = frozenset(share.minor for share in placement.shares if share.device_type == GPU)
    return minors or None
