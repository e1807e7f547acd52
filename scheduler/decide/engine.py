"""The engine: one decision over all nodes, and what it changes on the one node it lands on."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import GPU
from ledger.domain.log.events import PodObserved
from ledger.domain.log.workload import NO_WORKLOAD, Workload
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, group_name, is_member
from scheduler.decide.allocator import Allocator, has_gpus
from scheduler.decide.cards.view import NodeView
from scheduler.decide.filter.equivalence import REFUSALS_BEFORE, EquivalenceClasses
from scheduler.decide.filter.filtering import Filtered, Filtering, UnfitCache
from scheduler.decide.filter.fitting import Fitting
from scheduler.decide.filter.predicates import Predicates
from scheduler.decide.group.room import RoomCounter, Rooms
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.nodes.card_counts import CardCounts
from scheduler.decide.nodes.holdings import Holdings
from scheduler.decide.nodes.node_arrays import ABSENT, NodeArrays, NodeRows
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.outcome import NOT_RATED, Placement, Rated, Unfit, Unplaced
from scheduler.decide.refusal.reasons import NOT_OFFERED, rows_in_pieces
from scheduler.decide.refusal.refusals import Refusals
from scheduler.decide.score.fragmentation import Fragmentation
from scheduler.decide.score.gradient import ExpectedFill, Gradient
from scheduler.decide.score.link_lead import LinkLead
from scheduler.decide.score.policies import BestFit, NodePolicy, Random, UsedShare, draw
from scheduler.decide.score.pools import PoolPrices
from scheduler.decide.score.rows import RatingRows, Ratings, runner_up
from scheduler.decide.settings import POLICIES, SchedulingSettings
from scheduler.decide.shapes import Shape, ShapeIndex

_STEADY: Final = "binpack"
"""The node policy where one node is all there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What keeps a Pod from nodes beside what they are and hold.

    Attributes:
        closed: number of a node -> why it takes nobody.
        offered: numbers of the nodes that kube-scheduler leaves the Pod; None = all.
        otherwise: why nodes that would take the Pod alone take it not; empty: they do.
    """

    closed: Mapping[int, str] = field(default_factory=dict)
    offered: IntArray | None = None
    otherwise: str = ""


class Engine:
    """
    Decides where Pods go, from arrays that hold the whole cluster.

    Rule: cli.md, Policies and Predicates; design section 7.

    Nodes are named by their number throughout: the index in `nodes`, and what `put_node` gives.
    Deciding changes nothing; `reserve`, `release`, `adopt`, `put_node` and `drop_node` change one
    node each. Same calls, same answers: the only chance is `random`'s, drawn from `seed` and the
    ordinal. After any changes answers are those of an engine made anew from the nodes that are
    there, by number and with their ranks, which was given what is held in the same order.

    Attributes:
        card_counts: capacity and allocation per card, for reports; decisions do not read it.

    Args:
        nodes: the cluster, in the order that breaks ties unless `rank` does.
        workload: the usual requests that fragmentation and scarcity are measured against.
        rank: tie-break position of each node, 0 first.
        by_count: place plain requests for whole cards where it is known how many are free and not
            which, as kube-scheduler and a device plugin would. Never for grants of ours.
    """

    def __init__(
        self,
        nodes: Sequence[NodeFacts],
        settings: SchedulingSettings,
        *,
        workload: Workload = NO_WORKLOAD,
        seed: int = 0,
        rank: Sequence[int] | None = None,
        by_count: bool = False,
    ) -> None:
        assert settings.node_policy in POLICIES, settings.node_policy
        ranks = range(len(nodes)) if rank is None else rank
        assert sorted(ranks) == list(range(len(nodes))), "a rank for every node"
        self._settings, self._workload, self._seed = settings, workload, seed
        self._by_count = by_count
        self._lay_out(nodes, ranks)

    def _lay_out(self, nodes: Sequence[NodeFacts], ranks: Sequence[int]) -> None:
        """Make all arrays anew of these nodes; nothing is held on them."""
        settings, workload = self._settings, self._workload
        self._node_rows = NodeRows([node.uid for node in nodes], ranks)
        order = self._node_rows.numbers
        arrays = NodeArrays([nodes[number] for number in order], order)
        self._pins = pins = CpuPins(arrays.nodes)
        predicates = Predicates(arrays, settings, grants=not self._by_count)
        fitting = Fitting(arrays, pins, settings)
        self._arrays = arrays
        self.card_counts = CardCounts(arrays)
        self._predicates = predicates
        self._fitting = fitting
        self._fragmentation = Fragmentation(arrays, predicates, workload)
        self._measures = [self._fragmentation]
        self._draws = settings.node_policy == "random"
        policy = self._policy(settings.node_policy, workload)
        self._policy_of_nodes = policy
        self._shapes = ShapeIndex(
            with_memory=policy.reads_memory,
            mixed_models=arrays.mixed_models,
            extended=self._by_count,
        )
        wished = {name: self._policy(name, workload) for name in ("binpack", "spread")}
        self._rows = RatingRows(arrays, predicates, policy, wished)
        self._allocator = Allocator(arrays, pins, policy, settings)
        self._refusals = Refusals(
            arrays, predicates, fitting, pins, self._node_rows, takes=self._takes_alone
        )
        self._holdings = Holdings(
            arrays,
            pins,
            exclusive_policy=settings.vocabulary.default_exclusive_policy,
            by_count=self._by_count,
            by_environment=settings.share_visible and not settings.vocabulary.by_slots,
        )
        self._unfit = UnfitCache(arrays)
        self._classes = EquivalenceClasses(arrays, settings)
        self._room_counter = RoomCounter(arrays, fitting)
        self._lead = LinkLead(
            arrays, self._room_counter, bottleneck_first=settings.bottleneck_first
        )
        self._filtering = Filtering(
            arrays,
            fitting,
            order,
            rows=self._rows,
            allocator=self._allocator,
            refusals=self._refusals,
            unfit=self._unfit,
            classes=self._classes,
            lead=self._lead,
            scores=not self._draws,
        )

    @property
    def position(self) -> int:
        """Return a number that grows with every change of a node."""
        return self._arrays.log.position

    @property
    def core_percent_capacity(self) -> int:
        """Return the core percent of all GPUs, those of a machine once."""
        arrays = self._arrays
        own = np.array(arrays.accounts, dtype=np.int64) == arrays.everything
        return int(arrays.gpus.core_total[own & ~arrays.gpus.made_up].sum())

    @property
    def core_percent_allocated(self) -> int:
        """Return the core percent of GPUs that Pods hold, of each card at most all of it."""
        return self._holdings.gpu_core_percent - self._arrays.gpus.core_over

    def claimants(self) -> list[NodeFacts]:
        """Return the live nodes that claim what others claim too, in order of registration."""
        return self._arrays.claimants()

    def fragmentation_percent(self) -> float:
        """Return how much of all GPU is idle and of no use to typical Pods, in percent."""
        return self._fragmentation.percent()

    def decide(
        self, request: PodRequest, *, ordinal: int = 0, limits: Limits | None = None
    ) -> Placement | Unplaced:
        """
        Choose a node for the Pod, and its devices and CPUs there; change nothing.

        The best-rated node whose devices and CPUs really combine; ties go to the first. Without
        one, why not, node by node.

        Args:
            ordinal: the number of the arrival, read by `random`.
            limits: nodes that others keep the Pod from; None = nobody does.
        """
        self._ask(request)
        shape = self._shapes.shape_of(request)
        row = ratings = self._rows.current(shape)
        if led := self._lead.applies(request):
            ratings = self._by_links(request, shape, ratings)
        led = led or bool(shape.node_policy)
        # A draw is out of the nodes left, so that what is remembered must not change how many.
        looked = {} if self._draws else self._unfit.failed(request, shape)
        by_arrays = ratings
        known = looked if limits is None else self._limited(limits, ratings, looked)
        if known:
            ratings = ratings.copy()
            ratings[list(known)] = -1
        node, left = self._pick(ratings, request.memory_bytes, ordinal, led=led)
        if node < 0 and ratings is row and not (row >= 0).any():
            self._rows.note_full(shape)
        if ratings is by_arrays:
            by_arrays = left
        ratings = left
        refusals, alike = 0, dict[int, list[int]]()
        while node >= 0:
            rated = NOT_RATED
            if not self._draws:
                rated = self._rated(by_arrays, node, request.memory_bytes)
            answer = self._allocator.allocate(
                request, shape, node, self._node_rows.numbers[node], rated=rated
            )
            if isinstance(answer, Placement):
                return answer
            if ratings is by_arrays:
                ratings = ratings.copy()
            refusals += 1
            if refusals == REFUSALS_BEFORE and not self._draws:
                others = np.flatnonzero(self._takes(ratings, request.memory_bytes))
                alike = self._classes.groups(request, shape, others)
            for other in alike.get(node, (node,)):
                looked[other] = known[other] = answer
                ratings[other] = -1
            node, ratings = self._pick(ratings, request.memory_bytes, ordinal, led=led)
        closed = frozenset() if limits is None else frozenset(limits.closed.values())
        tried = {
            node: unfit
            for node, unfit in known.items()
            if self._has_memory(node, request.memory_bytes) or unfit.reason in closed
        }
        return self._refusals.explain(request, shape, tried)

    def in_pieces(self, request: PodRequest, offered: IntArray) -> list[int]:
        """Return which nodes refuse a Pod for fragmentation alone; none if one takes it."""
        answer = self.decide(request, limits=Limits(offered=offered))
        if isinstance(answer, Placement):
            return []
        asked, numbers = frozenset(offered.tolist()), self._node_rows.numbers
        return [numbers[row] for row in rows_in_pieces(answer) if numbers[row] in asked]

    def _limited(
        self, limits: Limits, ratings: Ratings, known: Mapping[int, Unfit]
    ) -> dict[int, Unfit]:
        """Return why not of the nodes that only a closer look refuses, and of those kept away."""
        kept = dict(known)
        takes = ratings >= 0
        if limits.offered is not None:
            not_offered = takes.copy()
            not_offered[self._node_rows.of.take(limits.offered)] = False
            for row in np.flatnonzero(not_offered).tolist():
                kept.setdefault(row, Unfit(reason=NOT_OFFERED.text))
        if limits.otherwise:
            for row in np.flatnonzero(takes).tolist():
                kept.setdefault(row, Unfit(reason=limits.otherwise))
        for number, reason in limits.closed.items():
            kept[int(self._node_rows.of[number])] = Unfit(reason=reason)
        return kept

    def _takes_alone(self, request: PodRequest, facts: NodeFacts) -> bool:
        steady = replace(self._settings, node_policy=_STEADY)
        alone = Engine((facts,), steady, by_count=self._by_count)
        return alone.try_place(request, 0) is not None

    def filter(self, request: PodRequest, nodes: Sequence[int] | IntArray) -> Filtered:
        """
        Judge these nodes for the Pod, all of them, and choose among them; change nothing.

        Rule: design section 5.2. `random` has no draw here: the first of the nodes that pass.
        """
        self._ask(request)
        rows = self._node_rows.of.take(np.asarray(nodes, dtype=np.int64))
        return self._filtering.judge(request, self._shapes.shape_of(request), rows)

    def decide_by(self, settings: SchedulingSettings) -> None:
        """
        Decide by settings that have other templates of shares, and are else the same.

        Nodes with cards of a kind whose templates are others have to be put again.
        """
        same = replace(settings.devices, shared_templates=self._settings.devices.shared_templates)
        assert replace(settings, devices=same) == self._settings, "only templates change"
        self._settings = settings
        self._predicates.decide_by(settings)

    def forget(self) -> None:
        """Drop all that is remembered of earlier requests; answers stay, their time does not."""
        self._rows.forget()
        self._refusals.forget()
        self._unfit.forget()
        self._lead.forget()

    def candidates(self, request: PodRequest) -> Sequence[int]:
        """Return the nodes that pass every test over arrays, best first by links and policy."""
        self._ask(request)
        shape = self._shapes.shape_of(request)
        ratings = self._rows.current(shape)
        if self._lead.applies(request):
            ratings = self._by_links(request, shape, ratings)
        fitting = np.flatnonzero(self._takes(ratings, request.memory_bytes))
        ranked = fitting[np.argsort(-ratings[fitting], kind="stable")]
        return [self._node_rows.numbers[node] for node in ranked.tolist()]

    def rooms(
        self,
        requests: Sequence[PodRequest],
        most: Sequence[int],
        among: Container[int] | None = None,
    ) -> Rooms:
        """Return what nodes have free for so many Pods like these; no node has too little."""
        for request in requests[:1]:  # of one group
            self._ask(request)
        shapes = [self._shapes.shape_of(request) for request in requests]
        takes, ranked = [], dict[int, None]()
        for request, shape in zip(requests, shapes, strict=True):
            ratings = self._rows.current(shape)
            takes.append(self._takes(ratings, request.memory_bytes) & self._named(request))
            fitting = np.flatnonzero(takes[-1])
            best = fitting[np.argsort(-ratings[fitting], kind="stable")]
            ranked |= dict.fromkeys(best.tolist())
        if among is not None:
            numbers = self._node_rows.numbers
            ranked = {row: None for row in ranked if numbers[row] in among}
        rows = np.array(list(ranked), dtype=np.int64)
        nodes = [self._node_rows.numbers[row] for row in ranked]
        return self._room_counter.count(shapes, rows, takes, most, nodes)

    def has_room(self, request: PodRequest, nodes: Sequence[int]) -> bool:
        """Tell whether one of these nodes passes every test over arrays; nothing is rated."""
        self._ask(request)
        shape = self._shapes.shape_of(request)
        rows = self._node_rows.of.take(np.array(nodes, dtype=np.int64))
        admits = self._predicates.verdict(shape.static).admits
        if admits is not None:
            rows = rows[admits.take(rows)]
        if not len(rows):
            return False
        fits = self._fitting.feasible(shape, rows)
        if is_member(request):
            fits &= self._named(request).take(rows)
        if request.memory_bytes:
            fits &= self._arrays.memory_free.take(rows) >= request.memory_bytes
        if self._arrays.limits_pods:
            fits &= self._arrays.pods_free.take(rows) >= 1
        return bool(fits.any())

    def try_place(
        self, request: PodRequest, node: int, only_minors: frozenset[int] | None = None
    ) -> Placement | None:
        """Reserve the Pod on this node, on these GPUs if given; None changes nothing."""
        self._ask(request)
        shape, row = self._shapes.shape_of(request), int(self._node_rows.of[node])
        fits = self._rows.current(shape)[row] >= 0
        if not fits or not self._has_memory(row, request.memory_bytes):
            return None
        answer = self._allocator.allocate(request, shape, row, node, only_minors=only_minors)
        if not isinstance(answer, Placement):
            return None
        self.reserve(answer)
        return answer

    def place(self, placement: Placement, decided_at: int) -> Placement | None:
        """
        Reserve what was decided at that position, chosen anew where its node changed since.

        None changes nothing: there is no room for it any more.
        """
        if not self.is_unchanged(placement.node, decided_at):
            return self.try_place(placement.request, placement.node)
        self.reserve(placement)
        return placement

    def is_unchanged(self, node: int, since: int) -> bool:
        """Tell whether nothing has changed on a node since that position, as far as is known."""
        changed, row = self._arrays.log.since(since), int(self._node_rows.of[node])
        rows = {row, self._arrays.accounts[row]}
        return changed is not None and rows.isdisjoint(changed.tolist())

    def undo(self, placement: Placement) -> None:
        """Take back what `try_place` reserved."""
        self.release(placement.request.uid)

    def reserve(self, placement: Placement) -> None:
        """Take what was decided from the node it is on."""
        self._holdings.reserve(placement, int(self._node_rows.of[placement.node]))

    def release(self, pod_uid: str) -> None:
        """Give back all that a Pod holds, reserved or adopted."""
        self._holdings.release(pod_uid)

    def adopt(self, node: int, pod: PodObserved) -> list[str]:
        """
        Take what a running Pod holds, outside the constraint; return what contradicts itself.

        Rule: cli.md, Running Pods. It is counted on the Node that grants what the machine has.
        """
        return self._holdings.adopt(pod, int(self._node_rows.of[node]))

    def take(self, node: int, pod: PodObserved) -> None:
        """Take what a running Pod holds, as `adopt` does, where nobody asks what contradicts."""
        self._holdings.take(pod, int(self._node_rows.of[node]))

    def held_cpus(self, node: int) -> CpuSet:
        """Return the CPUs of a node that somebody has to himself, or is about to get."""
        row = int(self._node_rows.of[node])
        return CpuSet(mask=self._pins.pinned(self._arrays.accounts[row]).any)

    def seeing(self, node: int) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        """Return who sees cards of a node's machine, or is about to: `Holdings.seeing`."""
        return self._holdings.seeing(int(self._node_rows.of[node]))

    def put_node(self, facts: NodeFacts, *, rank: int | None = None) -> int:
        """
        Let a Node come, or be what these facts say; return its number.

        Rule: docs/adr/0014. A Node is known by its UID. What is held through it stays held: what
        has no room on it any more closes what it must, as Pods that are adopted do.

        Args:
            rank: tie-break position of a Node that comes, one that is free or the next one; None =
                the lowest of these. A Node that is there keeps its own.
        """
        number = self._node_rows.number_of(facts.uid)
        assert number is None or rank is None, f"the Node is there already: uid={facts.uid}"
        if number is None:
            number = self._node_rows.take(facts.uid, rank)
        self._change(number, facts)
        return number

    def put_nodes(self, nodes: Sequence[NodeFacts]) -> list[int]:
        """
        Let Nodes come, or be what these facts say, in order; return their numbers.

        The first that an engine has are laid out together, which takes a fraction of the time.
        """
        if len(self._arrays):
            return [self.put_node(facts) for facts in nodes]
        self._lay_out(nodes, range(len(nodes)))
        return list(range(len(nodes)))

    def drop_node(self, uid: str) -> tuple[str, ...]:
        """
        Let a Node go; return the UIDs of the Pods whose holdings are given back.

        Rule: docs/adr/0014; docs/adr/0010. Where its machine has another Node, that one's account
        keeps what is held, and nothing is given back.
        """
        number = self._node_rows.number_of(uid)
        assert number is not None, f"no such Node: uid={uid}"
        given_back = self._change(number, ABSENT)
        self._node_rows.free(uid)
        return given_back

    def _change(self, number: int, facts: NodeFacts) -> tuple[str, ...]:
        """Lay a row out anew, and those of other Nodes of its machine; all else stays."""
        arrays, own = self._arrays, int(self._node_rows.of[number])
        had_mixed_models = arrays.mixed_models
        shared = set(arrays.ids.repeated)
        rows = sorted(arrays.put(own, facts, number))
        lifted = self._holdings.lift(rows)
        for row in rows:
            arrays.lay(row)
        given_back = self._holdings.put_back(lifted, rows)
        arrays.bar(rows, shared | arrays.ids.repeated)
        for row in rows:
            arrays.facts.append(row, gave_back=True)
            arrays.log.append(row, gave_back=True)
            self._take_anew(row)
        if arrays.mixed_models != had_mixed_models:
            self._shapes = self._shapes.with_mixed_models(arrays.mixed_models)
            self.forget()
        return given_back

    def _take_anew(self, row: int) -> None:
        """Bring what follows from a node's facts up to date, one row in each array."""
        self._predicates.put(row)
        self._fitting.put(row)
        for measure in self._measures:
            measure.put(row)
        self._policy_of_nodes.put(row)
        self._rows.put()
        self._allocator.put(row)
        self._classes.put(row)
        self._room_counter.put(row)
        self._lead.put(row)

    def shown(self, placement: Placement, minors: Collection[int]) -> Placement | None:
        """
        Return the placement as its containers are shown its group's cards; None = by no setting.

        Rule: docs/adr/0046. Who has parts of cards, or cards without an id, sees its own alone.

        Args:
            minors: the GPUs that the group has on the node; of them those that it has whole.
        """
        if not self._settings.share_visible or placement.request.group is None:
            return None
        row, gpus = int(self._node_rows.of[placement.node]), self._arrays.gpus
        given = [share for share in placement.shares if share.device_type == GPU]
        own = {share.minor for share in given}
        whole = self._holdings.whole_gpus(row, group_name(placement.request)).intersection(minors)
        seen = sorted(own | whole)
        ids = {each.minor: each.device_id for each in gpus.records[row]}
        if own and all(share.exclusive for share in given) and all(map(ids.get, seen)):
            shown = tuple(ids[minor] for minor in seen)
            return structs.replace(placement, visible_minors=tuple(seen), shown=shown)
        return structs.replace(placement, visible_minors=tuple(sorted(own)))

    def _ask(self, request: PodRequest) -> None:
        """Let cards be closed by whom they are shown to for everybody but the group of a Pod."""
        self._ask_for("" if request.group is None else group_name(request))

    def _ask_for(self, group: str) -> None:
        for row in self._arrays.gpus.ask(group):
            self._arrays.log.append(row, gave_back=True)

    def view(self, node: int, group: str | None = None) -> NodeView:
        """Return what is left of one node, card by card, for a group; None = who asked last."""
        if group is not None:
            self._ask_for(group)
        return self._allocator.view(int(self._node_rows.of[node]))

    def _by_links(self, request: PodRequest, shape: Shape, ratings: Ratings) -> Ratings:
        """Return ratings of the nodes that take the Pod, in the order of links; a new array."""
        taking = np.where(self._takes(ratings, request.memory_bytes), ratings, np.int32(-1))
        put = self._lead.draw if self._draws else self._lead.order
        return put(shape, taking)

    def _pick(
        self, ratings: Ratings, memory_bytes: int, ordinal: int, *, led: bool
    ) -> tuple[int, Ratings]:
        """
        Return the row of the best node, -1 for none, and the ratings that it is the best of.

        `led`: a draw is among the best alone. Where the best lacks the memory the ratings are
        others, without every node that does.
        """
        if not len(ratings):
            return -1, ratings
        if self._draws:
            fitting = np.flatnonzero(self._takes(ratings, memory_bytes))
            if led:
                fitting = fitting[ratings[fitting] == ratings.max()]
            if not len(fitting):
                return -1, ratings
            return int(fitting[draw(self._seed, ordinal, len(fitting))]), ratings
        node = int(ratings.argmax())
        if ratings.item(node) >= 0 and not self._has_memory(node, memory_bytes):
            ratings = self._with_memory(ratings, memory_bytes)
            node = int(ratings.argmax())
        return node if ratings.item(node) >= 0 else -1, ratings

    def _rated(self, ratings: Ratings, row: int, memory_bytes: int) -> Rated:
        """Return the rating of a node, and the next best that has the memory."""
        score, second = runner_up(ratings, row)
        if second >= 0 and not self._has_memory(second, memory_bytes):
            _, second = runner_up(self._with_memory(ratings, memory_bytes), row)
        if second < 0:
            return Rated(score)
        return Rated(score, self._arrays.nodes[second].name, ratings.item(second))

    def _with_memory(self, ratings: Ratings, memory_bytes: int) -> Ratings:
        """Return a copy of the ratings with -1, all bits set, where the memory is not free."""
        free = self._arrays.memory_free >= memory_bytes
        left: Ratings = np.subtract(free, 1, dtype=np.int32)  # half the time of `np.where`
        left |= ratings
        return left

    def _takes(self, ratings: Ratings, memory_bytes: int) -> npt.NDArray[np.bool_]:
        takes: npt.NDArray[np.bool_] = ratings >= 0
        if memory_bytes:
            takes &= self._arrays.memory_free >= memory_bytes
        return takes

    def _named(self, request: PodRequest) -> npt.NDArray[np.bool_]:
        """Return on which nodes the Pod could be told its cards, as a group's plan does."""
        named = self._arrays.gpus.knows(np.arange(len(self._arrays)))
        return named if has_gpus(request) else np.ones_like(named)

    def _has_memory(self, row: int, memory_bytes: int) -> bool:
        return not memory_bytes or self._arrays.memory_free.item(row) >= memory_bytes

    def _policy(self, name: str, workload: Workload) -> NodePolicy:
        arrays, fitting = self._arrays, self._fitting
        match name:
            case "bestfit":
                return BestFit(arrays, fitting)
            case "fgd":
                return Gradient(arrays, fitting, self._fragmentation)
            case "scarcity":
                measure = ExpectedFill(
                    arrays, self._predicates, workload, self._fragmentation.asked
                )
                self._measures.append(measure)
                pool_prices = PoolPrices(arrays, self._predicates, measure, workload)
                return Gradient(arrays, fitting, measure, pool_prices)
            case "random":
                return Random(fitting)
            case "binpack" | "spread":
                return UsedShare(arrays, fitting, most=name == "binpack")
            case _:
                raise AssertionError(f"no such node policy: {name}")
