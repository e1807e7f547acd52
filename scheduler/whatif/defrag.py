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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

from msgspec import structs

from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.outcome import Placement
from scheduler.whatif.releases import minimal_set
from scheduler.whatif.trial import Trial, Unit, gpus_of, lacking_in_all, size_of, units_of
from scheduler.whatif.what_if import WhatIf

DECISIONS_MAX: Final = 20_000
"""Decisions of one search."""

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


_Step = tuple[Unit, tuple[Placement, ...]]


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
    """One search for a plan. What stands on the cluster at any moment is known, and taken back."""

    def __init__(self, request: PodRequest, what_if: WhatIf, decisions_max: int) -> None:
        self.request = request
        self.trial = Trial(what_if)
        self.what_if = what_if
        self.decisions_max = decisions_max
        self.end = what_if.decisions + decisions_max
        self.cut: list[str] = []
        self.units = units_of(what_if)
        self.movable = frozenset(holder.uid for unit in self.units for holder in unit)

    def run(self) -> DefragPlan | NoPlan:
        lacking = lacking_in_all(self.request, self.what_if)
        if lacking:
            return NoPlan(why=f"moving Pods frees nothing in all: {lacking}", proved=True)
        in_the_way = self._in_the_way()
        if not in_the_way and not self.cut:
            return self._hopeless()
        best = self._best(in_the_way)
        if best is not None:
            return replace(best, cut=tuple(self.cut))
        why = "on no node do all Pods in the way find another place"
        return NoPlan(why=why, proved=False, cut=tuple(self.cut))

    def _hopeless(self) -> NoPlan:
        fixed = len(self.what_if.holders) - len(self.movable)
        pods = "1 Pod" if fixed == 1 else f"{fixed} Pods"
        kept = f"; {pods} may not be moved" if fixed else ""
        why = f"no node takes it even without all Pods that may be moved{kept}"
        return NoPlan(why=why, proved=True)

    def _in_the_way(self) -> dict[int, list[Unit]]:
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

    def _best(self, in_the_way: dict[int, list[Unit]]) -> DefragPlan | None:
        best: DefragPlan | None = None
        try:
            for node, units in in_the_way.items():
                if best is None or sum(map(len, units)) < len(best.moves):
                    plan = self._clear(node, units)
                    if plan is not None and (best is None or len(plan.moves) < len(best.moves)):
                        best = plan
        except _SpentError:
            self.cut.append(f"search for moves: after {self.decisions_max} decisions")
        finally:
            self.trial.rewind()
        return best

    def _clear(self, node: int, units: Sequence[Unit]) -> DefragPlan | None:
        """Return a plan in which these units leave the node to the request."""
        for unit in units:
            self.trial.lift(unit)
        place = self._place(self.request, node)
        steps: list[_Step] = []
        for unit in sorted(units, key=size_of, reverse=True) if place is not None else ():
            placed = self._settle(unit)
            if placed is None:
                break
            steps.append((unit, placed))
        self.trial.rewind()
        return self._in_order(steps, place) if place and len(steps) == len(units) else None

    def _settle(self, unit: Unit) -> tuple[Placement, ...] | None:
        """Reserve the best place that a lifted unit can have now; None where it has none."""
        requests = [holder.request for holder in unit if holder.request is not None]
        if len(requests) == 1:
            for node in self.what_if.candidates(requests[0]):
                placement = self._place(requests[0], node)
                if placement is not None:
                    return (placement,)
            return None
        planned = self.what_if.plan_together(requests)
        placed = tuple(placement for placement in planned if placement is not None)
        if len(placed) < len(planned):
            return None
        for placement in placed:
            self.trial.reserve(placement)
        return placed

    def _place(self, request: PodRequest, node: int) -> Placement | None:
        if self.what_if.decisions >= self.end:
            raise _SpentError
        return self.trial.place(request, node)

    # --- the order ----------------------------------------------------------------------------

    def _in_order(self, found: Sequence[_Step], goal: Placement) -> DefragPlan | None:
        """Return the plan in an order in which every step is feasible; nothing stands before it."""
        steps = [step for step in found if not all(map(_stays, *step))]
        orders = (
            permutations(steps) if len(steps) <= _ORDERS_MAX else (steps, list(reversed(steps)))
        )
        for order in orders:
            moves = self._walk(order)
            place = None
            if moves is not None:
                place = self.trial.place(self.request, goal.node, gpus_of(goal))
            self.trial.rewind()
            if moves is not None and place is not None:
                return DefragPlan(moves=moves, place=place)
        return None

    def _walk(self, steps: Sequence[_Step]) -> tuple[Move, ...] | None:
        moves: list[Move] = []
        for number, (unit, planned) in enumerate(steps, 1):
            first = len(unit) == 1 and self._has_room_first(planned[0])
            self.trial.lift(unit)
            for holder, goal in zip(unit, planned, strict=True):
                placed = self.trial.place_as(goal)
                if placed is None:
                    return None
                moves.append(Move(step=number, holder=holder, to=placed, room_first=first))
        return tuple(moves)

    def _has_room_first(self, goal: Placement) -> bool:
        twin = structs.replace(goal, request=replace(goal.request, uid=f"{goal.request.uid}/again"))
        placed = self.trial.place_as(twin)
        if placed is not None:
            self.trial.undo(placed)
        return placed is not None


def _stays(holder: Holder, placement: Placement) -> bool:
    held = holder.held
    return (
        holder.node == placement.node
        and [share.key for share in held.shares] == [share.key for share in placement.shares]
        and held.cpuset == placement.cpuset
    )
