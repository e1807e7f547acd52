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
from scheduler.whatif.bench import Bench
from scheduler.whatif.releases import minimal_set
from scheduler.whatif.trial import (
    Trial,
    Unit,
    cost_of,
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
        room_first: the new place is free while the old one is still held.
    """

    step: int
    holder: Holder
    to: Placement
    room_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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
        why: in words.
    """

    why: str
    proved: bool
    cut: tuple[str, ...] = ()


class _SpentError(Exception):
    """The search met its bound."""


@dataclass(slots=True)
class _Found:
    """The request's place, and where lifted units go, in the order in which they got there."""

    place: Placement
    units: list[tuple[Unit, tuple[Placement, ...]]] = field(default_factory=list)


def plan_moves(
    request: PodRequest,
    bench: Bench,
    *,
    decisions_max: int = DECISIONS_MAX,
    exact_moves: int = EXACT_MOVES,
) -> Plan | NoPlan:
    """
    Return the fewest moves that make room for the request; the bench is left as it was found.

    A greedy plan first: of the nodes, one whose Pods in the way all find other places. Then every
    smaller number of moves up to `exact_moves`, exactly: all nodes, all sets of Pods on them, all
    places for these, and again whoever is in the way there. Ties: the node that has to lose fewest,
    then node order, then Pods by size.

    The devices of a place are what the engine picks, with every other set of GPUs that is not
    alike. CPUs, other devices, several demands for GPUs and groups that move are looked at as the
    engine picks them first, and a plan with more than one move is then not called exact.
    """
    answer = bench.decide(request)
    if isinstance(answer, Placement):
        return Plan(moves=(), place=answer, exact=True)
    return _Search(request, bench, decisions_max).run(exact_moves)


class _Search:
    """One search for a plan. What stands on the bench at any moment is known, and taken back."""

    def __init__(self, request: PodRequest, bench: Bench, decisions_max: int) -> None:
        self.request = request
        self.trial = Trial(bench)
        self.bench = bench
        self.decisions_max = decisions_max
        self.end = bench.decisions + decisions_max
        self.cut: set[str] = set()
        self.failed: set[object] = set()  # where the exact search has been, in vain
        self.units = units_of(bench)
        self.movable = frozenset(holder.uid for unit in self.units for holder in unit)
        self.by_node: dict[int, list[Unit]] = {}
        for unit in self.units:
            for node in dict.fromkeys(holder.node for holder in unit):
                self.by_node.setdefault(node, []).append(unit)

    def run(self, exact_moves: int) -> Plan | NoPlan:
        lacking = lacking_in_all(self.request, self.bench)
        if lacking:
            return NoPlan(why=f"moving Pods frees nothing in all: {lacking}", proved=True)
        roots = self._roots()
        if not roots and not self.cut:
            return self._hopeless()
        best = self._greedy(roots)
        most = min(exact_moves, len(self.movable) if best is None else len(best.moves) - 1)
        self.end = self.bench.decisions + self.decisions_max
        searched = 0
        try:
            for count in range(1, most + 1):
                found = self._exact(roots, count)
                self.trial.reset()
                if found is not None:
                    best = found
                    break
                searched = count
        except _SpentError:
            self.trial.reset()
            self.cut.add(f"exact search: after {self.decisions_max} decisions")
        enough = len(self.movable) if best is None else len(best.moves) - 1
        exact = enough == 0 or (not self.cut and searched >= enough)
        if searched < enough:
            self.cut.add(f"exact search: up to {searched} moves")
        cut = () if exact else tuple(sorted(self.cut))
        if best is not None:
            return replace(best, exact=exact, cut=cut)
        more = "" if exact else ", and the greedy search found no way with more"
        return NoPlan(
            why=f"moving up to {searched} Pods makes no room{more}", proved=exact, cut=cut
        )

    def _hopeless(self) -> NoPlan:
        fixed = len(self.bench.holders) - len(self.movable)
        pods = "1 Pod" if fixed == 1 else f"{fixed} Pods"
        kept = f"; {pods} may not be moved" if fixed else ""
        why = f"no node takes it even without all Pods that may be moved{kept}"
        return NoPlan(why=why, proved=True)

    def _roots(self) -> list[int]:
        """Return the nodes that could take the request, those that lose fewest Pods first."""
        sizes: dict[int, int] = {}
        for node in range(len(self.bench.nodes)):
            if self.bench.decisions >= self.end:
                self.cut.add(f"nodes looked at: {node} of {len(self.bench.nodes)}")
                break
            needed = self._in_the_way(node)
            if needed is not None:
                sizes[node] = len(needed)
        return sorted(sizes, key=lambda node: (sizes[node], node))

    def _in_the_way(self, node: int) -> list[Holder] | None:
        return minimal_set(
            self.request, self.bench, node, lambda holder: holder.uid in self.movable
        )

    # --- greedy -------------------------------------------------------------------------------

    def _greedy(self, roots: Sequence[int]) -> Plan | None:
        best: Plan | None = None
        for node in roots:
            if self.bench.decisions >= self.end:
                self.cut.add(f"greedy search: after {self.decisions_max} decisions")
                break
            needed = {holder.uid for holder in self._in_the_way(node) or ()}
            units = [
                unit
                for unit in self.by_node.get(node, ())
                if any(holder.uid in needed for holder in unit)
            ]
            if best is not None and sum(map(len, units)) >= len(best.moves):
                continue
            found = self._clear(node, units)
            self.trial.reset()
            plan = None if found is None else self._sequence(found)
            if plan is not None and (best is None or len(plan.moves) < len(best.moves)):
                best = plan
        return best

    def _clear(self, node: int, units: Sequence[Unit]) -> _Found | None:
        """Move these units off, the largest first, each to the best place that is left."""
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

    # --- exact --------------------------------------------------------------------------------

    def _exact(self, roots: Sequence[int], budget: int) -> Plan | None:
        """Return a plan of at most so many moves; what stands then is left standing."""
        for place, lifted in self._rooms(self.request, roots, budget, frozenset()):
            left = budget - sum(map(len, lifted))
            plan = self._settle(_Found(place), lifted, left, frozenset(lifted))
            if plan is not None:
                return plan
        return None

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
        facts = self.bench.nodes[node]
        held = [holder for unit in there for holder in unit if holder.node == node]
        most = 0
        for demand in request.devices:
            kind, cards = demand.device_type, self.bench.view(node).cards
            fitting = sum(card.record.device_type == kind and fits(card, demand) for card in cards)
            touched = (sum(s.device_type == kind for s in holder.held.shares) for holder in held)
            if demand.hint is None:
                most = max(most, least_of(touched, demand.count - fitting))
        cpu_used, memory_used = self.trial.used(node)
        if facts.cpu_milli is not None and request.cpu_milli:
            lacking = request.cpu_milli + cpu_used - facts.cpu_milli
            costs = (cost_of(facts, h.held.cpu_milli, h.held.cpuset) for h in held)
            most = max(most, least_of(costs, lacking))
        if facts.memory_bytes is not None and request.memory_bytes:
            lacking = request.memory_bytes + memory_used - facts.memory_bytes
            most = max(most, least_of((holder.held.memory_bytes for holder in held), lacking))
        return most

    def _settle(
        self, found: _Found, pending: tuple[Unit, ...], budget: int, gone: frozenset[Unit]
    ) -> Plan | None:
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
    ) -> Plan | None:
        if not pending:
            standing = self.trial.rewind()
            plan = self._sequence(found)
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
        nodes = range(len(self.bench.nodes)) if budget else ()
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
        for node in self.bench.candidates(requests[0]):
            for placement in self._on_node(requests[0], node):
                yield (placement,)

    def _together(self, requests: Sequence[PodRequest]) -> Iterator[tuple[Placement, ...]]:
        planned = self.bench.plan_together(requests)
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
        facts = self.bench.nodes[node]
        by_kind: dict[object, list[int]] = {}
        for card in self.bench.view(node).cards:
            if card.record.device_type == GPU and fits(card, demands[0]):
                by_kind.setdefault(kind_of(card, facts), []).append(card.record.minor)
        for number, minors in enumerate(picks(list(by_kind.values()), demands[0].count)):
            if number >= _OPTIONS_MAX:
                self.cut.add(f"sets of GPUs on one node: {_OPTIONS_MAX}")
                return
            if frozenset(minors) != own:
                yield frozenset(minors)

    def _check(self) -> None:
        if self.bench.decisions >= self.end:
            raise _SpentError

    # --- the order ----------------------------------------------------------------------------

    def _sequence(self, found: _Found) -> Plan | None:
        """Return the plan in an order in which every step is feasible; nothing stands before it."""
        steps = [step for step in found.units if not all(map(_stays, *step))]
        if len(steps) > _ORDERS_MAX:
            self.cut.add(f"orders of more than {_ORDERS_MAX} steps: two of them")
        orders = (
            permutations(steps) if len(steps) <= _ORDERS_MAX else (steps, list(reversed(steps)))
        )
        for order in orders:
            moves = self._walk(order)
            place = None
            if moves is not None:
                place = self.trial.place(self.request, found.place.node, gpus_of(found.place))
            self.trial.reset()
            if moves is not None and place is not None:
                return Plan(moves=moves, place=place, exact=False)
        return None

    def _walk(self, order: Sequence[tuple[Unit, tuple[Placement, ...]]]) -> tuple[Move, ...] | None:
        """Do the steps one after the other; None where one is not feasible."""
        moves: list[Move] = []
        for number, (unit, planned) in enumerate(order, 1):
            first = len(unit) == 1 and self._has_room_first(planned[0])
            self.trial.lift(unit)
            for holder, goal in zip(unit, planned, strict=True):
                placed = self.trial.place_as(goal)
                if placed is None:
                    return None
                moves.append(Move(step=number, holder=holder, to=placed, room_first=first))
        return tuple(moves)

    def _has_room_first(self, goal: Placement) -> bool:
        """Tell whether the new place is free while the old one is still held."""
        twin = structs.replace(goal, request=replace(goal.request, uid=f"{goal.request.uid}/again"))
        placed = self.trial.place_as(twin)
        if placed is not None:
            self.trial.undo(placed)
        return placed is not None


def _stays(holder: Holder, placement: Placement) -> bool:
    """Tell whether the new place is the old one."""
    held = holder.held
    return (
        holder.node == placement.node
        and [share.key for share in held.shares] == [share.key for share in placement.shares]
        and held.cpuset == placement.cpuset
    )


def _key(placement: Placement) -> object:
    return (tuple(share.key for share in placement.shares), placement.cpuset)


def _state(found: _Found, pending: Sequence[Unit], budget: int) -> object:
    """Return what tells two moments of the search apart, whatever led there."""
    placed = [(found.place.node, _key(found.place)), *_places_of(found)]
    return placed[0], frozenset(placed[1:]), frozenset(pending), budget


def _places_of(found: _Found) -> Iterator[tuple[object, object]]:
    for unit, placements in found.units:
        yield unit, tuple((placement.node, _key(placement)) for placement in placements)
