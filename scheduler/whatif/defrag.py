"""
The fewest moves that make room for a request: a plan as data, never an act.

Rule: design section 4 (decisions are pure); fine-grained CPU orchestration proposal, story 6;
Koordinator contract 10 (a group moves whole).

A move ends a Pod and starts it again elsewhere, decided with its own request, also on its own node
on other devices or CPUs. Every step is feasible in the state that the steps before it left. Pods
that are held by others, fixed, or whose request is not known never move; the members of a group or
gang move together, as one step of so many moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Final

from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.cards.fit import fits
from scheduler.decide.outcome import Placement
from scheduler.whatif.releases import minimal_set
from scheduler.whatif.trial import (
    NEVER,
    Trial,
    Unit,
    gpus_of,
    has_one_choice,
    kind_of,
    lacking_in_all,
    least_of,
    picks,
    sets_of,
    size_of,
    units_of,
)
from scheduler.whatif.what_if import WhatIf

EXACT_MOVES: Final = 5
"""Plans of so many moves are searched for exactly, as long as the decisions last."""

DECISIONS_MAX: Final = 20_000
"""Decisions of the exact search; the greedy one before it has as many again."""

_OPTIONS_MAX: Final = 64
"""Sets of GPUs that are tried for one Pod on one node."""

_ORDERS_MAX: Final = 5
"""So many steps are tried in every order; more in the order they were found and its reverse."""

_ENGINE_PICKS: Final = "devices beside one set of GPUs, and CPUs: as the engine picks them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """
    One Pod from where it is to where it goes.

    Attributes:
        step: from 1; members of a group share one.
        holder: the Pod with what it holds before this move; a Pod may move twice.
        room_first: the new place is free while the old one is still held.
    """

    step: int
    holder: Holder
    to: Placement
    room_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragPlan:
    """
    Moves in their order, and the place they make.

    Attributes:
        exact: no plan has fewer moves.
        cut: the bounds that ended a search, in words.
    """

    moves: tuple[Move, ...]
    place: Placement
    exact: bool
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """
    No plan was found.

    Attributes:
        proved: there is none; otherwise none within the bounds of `cut`.
    """

    why: str
    proved: bool
    cut: tuple[str, ...] = ()


_Step = tuple[Unit, tuple[Placement, ...]]
_Steps = tuple[_Step, ...]


class _SpentError(Exception):
    """The search met its bound."""


@dataclass(slots=True)
class _Found:
    """The request's place, and where lifted units go, in the order in which they got there."""

    place: Placement
    units: list[_Step] = field(default_factory=list)


def plan_moves(
    request: PodRequest,
    what_if: WhatIf,
    *,
    decisions_max: int = DECISIONS_MAX,
    exact_moves: int = EXACT_MOVES,
) -> DefragPlan | NoPlan:
    """
    Return the fewest moves that make room for the request; the cluster is left as it was found.

    A greedy plan first: of the nodes, one whose Pods in the way all find other places. Then every
    smaller number of moves up to `exact_moves`, exactly: all nodes, all sets of Pods on them, all
    places for these, and again whoever is in the way there. Ties: the node that has to lose fewest,
    then node order, then Pods by size.

    In these plans a Pod moves once. Where such moves make room but can be taken in no order, as of
    two Pods that change places, one may have to move twice: then for each number above theirs every
    sequence of moves is tried too, as far as the same bounds allow.

    The devices of a place are what the engine picks, with every other set of GPUs that is not
    alike. CPUs, other devices, several demands for GPUs and groups that move are looked at as the
    engine picks them first, and a plan with more than one move is then not called exact.
    """
    answer = what_if.decide(request)
    if isinstance(answer, Placement):
        return DefragPlan(moves=(), place=answer, exact=True)
    return _Search(request, what_if, decisions_max).run(exact_moves)


class _Search:
    """One search for a plan. What stands on the cluster at any moment is known, and taken back."""

    def __init__(self, request: PodRequest, what_if: WhatIf, decisions_max: int) -> None:
        self.request = request
        self.trial = Trial(what_if)
        self.what_if = what_if
        self.decisions_max = decisions_max
        self.end = what_if.decisions + decisions_max
        self.cut: set[str] = set()
        self.failed: set[object] = set()  # where the exact search has been, in vain
        self.searched = 0  # no plan has so many moves, or fewer
        self.blocked = NEVER  # fewest moves that make room, but can be taken in no order
        self.level = 0  # so many moves lead to the states that `standing` leads to
        self.standing: list[_Steps] = [()]
        self.ways: dict[int, dict[object, _Steps]] = {}  # longer ones, by the number of moves
        self.seen: set[object] = {frozenset()}
        self.units = units_of(what_if)
        self.movable = frozenset(holder.uid for unit in self.units for holder in unit)
        self.by_node: dict[int, list[Unit]] = {}
        for unit in self.units:
            for node in dict.fromkeys(holder.node for holder in unit):
                self.by_node.setdefault(node, []).append(unit)

    def run(self, exact_moves: int) -> DefragPlan | NoPlan:
        lacking = lacking_in_all(self.request, self.what_if)
        if lacking:
            return NoPlan(why=f"moving Pods frees nothing in all: {lacking}", proved=True)
        roots = self._roots()
        if not roots and not self.cut:
            return self._hopeless()
        best = self._greedy(roots)
        self.end = self.what_if.decisions + self.decisions_max
        try:
            while self.searched < min(exact_moves, self._enough(best)):
                count = self.searched + 1
                plan = self._once_each(roots, count) or self._one_by_one(roots, count)
                if plan is None:
                    self.searched = max(self.searched, count)
                else:
                    best = plan
        except _SpentError:
            self.trial.rewind()
            self.cut.add(f"exact search: after {self.decisions_max} decisions")
        enough = self._enough(best)
        exact = enough == 0 or (not self.cut and self.searched >= enough)
        if self.searched < enough:
            self.cut.add(f"exact search: up to {self.searched} moves")
        cut = () if exact else tuple(sorted(self.cut))
        if best is not None:
            return replace(best, exact=exact, cut=cut)
        why = f"moving up to {self.searched} Pods makes no room"
        if not exact:
            why = (
                f"up to {self.searched} moves make no room, "
                "and the greedy search found no way with more"
            )
        return NoPlan(why=why, proved=exact, cut=cut)

    def _enough(self, best: DefragPlan | None) -> int:
        """Return how many moves must be searched in vain to prove that there is nothing better."""
        if best is not None:
            return len(best.moves) - 1
        return len(self.movable) if self.blocked == NEVER else NEVER

    def _hopeless(self) -> NoPlan:
        fixed = len(self.what_if.holders) - len(self.movable)
        pods = "1 Pod" if fixed == 1 else f"{fixed} Pods"
        kept = f"; {pods} may not be moved" if fixed else ""
        why = f"no node takes it even without all Pods that may be moved{kept}"
        return NoPlan(why=why, proved=True)

    def _roots(self) -> list[int]:
        """Return the nodes that could take the request, those that lose fewest Pods first."""
        sizes: dict[int, int] = {}
        for node in range(len(self.what_if.nodes)):
            if self.what_if.decisions >= self.end:
                self.cut.add(f"nodes looked at: {node} of {len(self.what_if.nodes)}")
                break
            needed = self._in_the_way(node)
            if needed is not None:
                sizes[node] = len(needed)
        return sorted(sizes, key=lambda node: (sizes[node], node))

    def _in_the_way(self, node: int) -> list[Holder] | None:
        return minimal_set(
            self.request, self.what_if, node, lambda holder: holder.uid in self.movable
        )

    # --- greedy -------------------------------------------------------------------------------

    def _greedy(self, roots: Sequence[int]) -> DefragPlan | None:
        best: DefragPlan | None = None
        try:
            for node in roots:
                self._check()
                needed = {holder.uid for holder in self._in_the_way(node) or ()}
                units = [
                    unit
                    for unit in self.by_node.get(node, ())
                    if any(holder.uid in needed for holder in unit)
                ]
                if best is not None and sum(map(len, units)) >= len(best.moves):
                    continue
                found = self._clear(node, units)
                self.trial.rewind()
                plan = None if found is None else self._in_order(found)
                if plan is not None and (best is None or len(plan.moves) < len(best.moves)):
                    best = plan
        except _SpentError:
            self.trial.rewind()
            self.cut.add(f"greedy search: after {self.decisions_max} decisions")
        return best

    def _clear(self, node: int, units: Sequence[Unit]) -> _Found | None:
        for unit in units:
            self.trial.lift(unit)
        place = self.trial.place(self.request, node)
        if place is None:
            return None
        found = _Found(place)
        for unit in sorted(units, key=size_of, reverse=True):
            placed = next(self._places(unit), None)
            if placed is None:
                return None
            found.units.append((unit, placed))
        return found

    # --- exact, a Pod moves once --------------------------------------------------------------

    def _once_each(self, roots: Sequence[int], count: int) -> DefragPlan | None:
        """Return a plan of at most so many moves, each of another Pod."""
        if count > len(self.movable):
            return None
        plan = None
        for place, lifted in self._rooms(self.request, roots, count, frozenset()):
            left = count - sum(map(len, lifted))
            plan = self._settle(_Found(place), lifted, left, frozenset(lifted))
            if plan is not None:
                break
        self.trial.rewind()
        return plan

    def _rooms(
        self, request: PodRequest, nodes: Iterable[int], budget: int, gone: frozenset[Unit]
    ) -> Iterator[tuple[Placement, tuple[Unit, ...]]]:
        """
        Yield each way to place the request by lifting units of its node; undone when resumed.

        A place that is there with fewer lifted is not given again: who else must go is lifted when
        someone needs that place.
        """
        for node in nodes:
            seen: list[tuple[object, frozenset[Unit]]] = []
            there = [unit for unit in self.by_node.get(node, ()) if unit not in gone]
            if self._least(request, node, there) > budget:
                continue
            for some in sets_of(there, budget):
                lifted = frozenset(some)
                for unit in some:
                    self.trial.lift(unit)
                for place in self._on_node(request, node):
                    key = _key(place)
                    if any(key == known and less <= lifted for known, less in seen):
                        continue
                    seen.append((key, lifted))
                    yield place, some
                for unit in some:
                    self.trial.put_back(unit)

    def _least(self, request: PodRequest, node: int, there: Sequence[Unit]) -> int:
        """Return a number of Pods; with fewer of them lifted the node has too little, by sums."""
        facts = self.what_if.nodes[node]
        held = [holder for unit in there for holder in unit if holder.node == node]
        most = 0
        for demand in request.devices:
            kind, cards = demand.device_type, self.what_if.view(node).cards
            fitting = sum(card.record.device_type == kind and fits(card, demand) for card in cards)
            touched = (sum(s.device_type == kind for s in holder.held.shares) for holder in held)
            if demand.hint is None:
                most = max(most, least_of(touched, demand.count - fitting))
        cpu_used, memory_used = self.trial.used(node)
        if facts.cpu_milli is not None and request.cpu_milli:
            lacking = request.cpu_milli + cpu_used - facts.cpu_milli
            costs = (facts.cpu_cost_milli(h.held.cpu_milli, len(h.held.cpuset)) for h in held)
            most = max(most, least_of(costs, lacking))
        if facts.memory_bytes is not None and request.memory_bytes:
            lacking = request.memory_bytes + memory_used - facts.memory_bytes
            most = max(most, least_of((holder.held.memory_bytes for holder in held), lacking))
        return most

    def _settle(
        self, found: _Found, pending: tuple[Unit, ...], budget: int, gone: frozenset[Unit]
    ) -> DefragPlan | None:
        """Give every lifted unit a place, lifting others while the budget lasts."""
        state = _state(found, pending, budget)
        if state in self.failed:
            return None
        plan = self._settle_new(found, pending, budget, gone)
        if plan is None:
            self.failed.add(state)
        return plan

    def _settle_new(
        self, found: _Found, pending: tuple[Unit, ...], budget: int, gone: frozenset[Unit]
    ) -> DefragPlan | None:
        if not pending:
            standing = self.trial.rewind()
            plan = self._in_order(found)
            if plan is None:
                self.trial.restore(standing)
            return plan
        if budget == 0 and len(pending) > 1 and not all(map(self._has_place, pending)):
            return None
        unit, rest = pending[0], pending[1:]
        for placed in self._places(unit):
            found.units.append((unit, placed))
            plan = self._settle(found, rest, budget, gone)
            found.units.pop()
            if plan is not None:
                return plan
        if len(unit) > 1:
            return None
        request = unit[0].request
        assert request is not None, unit
        nodes = range(len(self.what_if.nodes)) if budget else ()
        for place, lifted in self._rooms(request, nodes, budget, gone):
            if not lifted:
                continue
            found.units.append((unit, (place,)))
            left = budget - sum(map(len, lifted))
            plan = self._settle(found, (*rest, *lifted), left, gone | frozenset(lifted))
            found.units.pop()
            if plan is not None:
                return plan
        return None

    # --- exact, one move after the other ------------------------------------------------------

    def _one_by_one(self, roots: Sequence[int], most: int) -> DefragPlan | None:
        """
        Return a plan of at most so many moves, whoever moves however often.

        Breadth first over the states that moves lead to, each reached by its first shortest way.
        It goes on where it ended with fewer moves.
        """
        if self.blocked >= most:
            return None
        while self.level < most:
            for way in self.standing:
                for step in self._next_steps(way):
                    after = (*way, step)
                    longer = self.ways.setdefault(self.level + len(step[0]), {})
                    longer.setdefault(_state_after(after), after)
            self.level += 1
            self.standing = []
            for state, way in self.ways.pop(self.level, {}).items():
                if state in self.seen:
                    continue
                self.seen.add(state)
                self.standing.append(way)
                plan = self._there(way, roots)
                if plan is not None:
                    return plan
        if not self.ways and not self.standing:
            self.searched = max(most, len(self.movable))
            self.blocked = NEVER  # what it leads to can't be reached
        return None

    def _there(self, way: _Steps, roots: Sequence[int]) -> DefragPlan | None:
        """Return these steps as a plan if they make room."""
        self._stand(way)
        place = self._first_place(roots)
        self.trial.rewind()
        return None if place is None else self._done(way, place)

    def _stand(self, way: _Steps) -> None:
        for unit, placements in dict(way).items():
            self.trial.lift(unit)
            for placement in placements:
                self.trial.reserve(placement)

    def _first_place(self, roots: Sequence[int]) -> Placement | None:
        for node in roots:
            for place in self._on_node(self.request, node):
                self.trial.undo(place)
                return place
        return None

    def _next_steps(self, way: _Steps) -> Iterator[_Step]:
        for unit in self.units:
            self._stand(way)
            self.trial.lift(unit)
            for placements in self._places(unit):
                yield unit, placements
            self.trial.rewind()

    # --- places -------------------------------------------------------------------------------

    def _has_place(self, unit: Unit) -> bool:
        placed = next(self._places(unit), None)
        for placement in placed or ():
            self.trial.undo(placement)
        return placed is not None

    def _places(self, unit: Unit) -> Iterator[tuple[Placement, ...]]:
        """Yield the places that a lifted unit can have now, reserved; undone when resumed."""
        requests = [holder.request for holder in unit if holder.request is not None]
        if len(requests) > 1:
            self.cut.add("groups that move: one plan each")
            yield from self._together(requests)
            return
        for node in self.what_if.candidates(requests[0]):
            for placement in self._on_node(requests[0], node):
                yield (placement,)

    def _together(self, requests: Sequence[PodRequest]) -> Iterator[tuple[Placement, ...]]:
        planned = self.what_if.plan_together(requests)
        if any(placement is None for placement in planned):
            return
        placed = tuple(placement for placement in planned if placement is not None)
        for placement in placed:
            self.trial.reserve(placement)
        yield placed
        for placement in placed:
            self.trial.undo(placement)

    def _on_node(self, request: PodRequest, node: int) -> Iterator[Placement]:
        """Yield the different ways to place a Pod on a node; the engine's own first."""
        self._check()
        if not has_one_choice(request):
            self.cut.add(_ENGINE_PICKS)
        first = self.trial.place(request, node)
        if first is None:
            return
        yield first
        self.trial.undo(first)
        for minors in self._choices(request, node, gpus_of(first)):
            self._check()
            placement = self.trial.place(request, node, minors)
            if placement is not None:
                yield placement
                self.trial.undo(placement)

    def _choices(
        self, request: PodRequest, node: int, own: frozenset[int] | None
    ) -> Iterator[frozenset[int]]:
        """Yield sets of GPUs that are not alike, where the Pod has one demand for GPUs."""
        demands = [demand for demand in request.devices if demand.device_type == GPU]
        if len(demands) != 1:
            return
        facts = self.what_if.nodes[node]
        by_kind: dict[object, list[int]] = {}
        for card in self.what_if.view(node).cards:
            if card.record.device_type == GPU and fits(card, demands[0]):
                by_kind.setdefault(kind_of(card, facts), []).append(card.record.minor)
        for number, minors in enumerate(picks(list(by_kind.values()), demands[0].count)):
            if number >= _OPTIONS_MAX:
                self.cut.add(f"sets of GPUs on one node: {_OPTIONS_MAX}")
                return
            if frozenset(minors) != own:
                yield frozenset(minors)

    def _check(self) -> None:
        if self.what_if.decisions >= self.end:
            raise _SpentError

    # --- the order ----------------------------------------------------------------------------

    def _in_order(self, found: _Found) -> DefragPlan | None:
        """Return the plan in an order in which every step is feasible; nothing stands before it."""
        steps = [step for step in found.units if not all(map(_stays, *step))]
        if len(steps) > _ORDERS_MAX:
            self.cut.add(f"orders of more than {_ORDERS_MAX} steps: two of them")
        orders = (
            permutations(steps) if len(steps) <= _ORDERS_MAX else (steps, list(reversed(steps)))
        )
        for order in orders:
            plan = self._done(order, found.place)
            if plan is not None:
                return plan
        self.blocked = min(self.blocked, sum(len(unit) for unit, _ in steps))
        return None

    def _done(self, steps: Sequence[_Step], goal: Placement) -> DefragPlan | None:
        moves = self._walk(steps)
        place = None
        if moves is not None:
            place = self.trial.place(self.request, goal.node, gpus_of(goal))
        self.trial.rewind()
        return (
            None
            if moves is None or place is None
            else DefragPlan(moves=moves, place=place, exact=False)
        )

    def _walk(self, steps: Sequence[_Step]) -> tuple[Move, ...] | None:
        moves: list[Move] = []
        standing: dict[str, Holder] = {}
        for number, (unit, planned) in enumerate(steps, 1):
            first = len(unit) == 1 and self._has_room_first(planned[0])
            self.trial.lift(unit)
            for holder, goal in zip(unit, planned, strict=True):
                placed = self.trial.place_as(goal)
                if placed is None:
                    return None
                before = standing.get(holder.uid, holder)
                moves.append(Move(step=number, holder=before, to=placed, room_first=first))
                standing[holder.uid] = _moved(before, placed)
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


def _moved(holder: Holder, to: Placement) -> Holder:
    held = structs.replace(holder.held, node_name=to.node_name, shares=to.shares, cpuset=to.cpuset)
    return replace(holder, node=to.node, held=held)


def _key(placement: Placement) -> object:
    return (tuple(share.key for share in placement.shares), placement.cpuset)


def _state(found: _Found, pending: Sequence[Unit], budget: int) -> object:
    """Return what tells two moments of the search apart, whatever led there."""
    placed = [(found.place.node, _key(found.place)), *_places_of(found.units)]
    return placed[0], frozenset(placed[1:]), frozenset(pending), budget


def _state_after(way: _Steps) -> object:
    """Return what tells two states apart that steps lead to."""
    moved = [
        (unit, places) for unit, places in dict(way).items() if not all(map(_stays, unit, places))
    ]
    return frozenset(_places_of(moved))


def _places_of(steps: Iterable[_Step]) -> Iterator[tuple[object, object]]:
    for unit, placements in steps:
        yield unit, tuple((placement.node, _key(placement)) for placement in placements)
