"""All nodes judged for one Pod at once: which pass, which is best, and why the others fail."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ledger.domain.request.requests import PodRequest, is_member
from scheduler.decide.allocator import Allocator
from scheduler.decide.filter.equivalence import REFUSALS_BEFORE, EquivalenceClasses
from scheduler.decide.filter.fitting import Fitting
from scheduler.decide.nodes.arrays import BoolArray, IntArray
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.outcome import NOT_RATED, Placement, Rated, Unfit
from scheduler.decide.refusal.refusals import Refusals
from scheduler.decide.score.link_lead import LinkLead
from scheduler.decide.score.rows import RatingRows, Ratings, runner_up
from scheduler.decide.shapes import Shape, wishes_of

_KNOWN_MAX: Final = 64
_NODES_MAX: Final = 1 << 18


@dataclass(slots=True)
class _Looks:
    """What closer looks at nodes answered to requests alike, as of `seen`."""

    shape: Shape  # kept alive: looks are found by its identity
    seen: int
    failed: dict[int, Unfit] = field(default_factory=dict)


class UnfitCache:
    """
    Remembers refusals of nodes that only a closer look can refuse.

    A node's answer depends on the request's shape, its wishes, whether it is a member of a group
    (whose cards have to be known) and the node alone, so it holds until the node changes. A Pod
    that waits is then not tried on every node again and again.
    """

    def __init__(self, arrays: NodeArrays) -> None:
        self._arrays = arrays
        self._known: OrderedDict[Hashable, _Looks] = OrderedDict()

    def failed(self, request: PodRequest, shape: Shape) -> dict[int, Unfit]:
        """Return row -> why not, for nodes as they are now; what is added is remembered."""
        log = self._arrays.log
        memory_bytes = request.memory_bytes if self._arrays.aligns else 0
        key = (id(shape), wishes_of(request), is_member(request), memory_bytes)
        looks = self._known.get(key)
        if looks is None:
            looks = self._known[key] = _Looks(shape, log.position)
            if len(self._known) * len(self._arrays) > _NODES_MAX or len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
            return looks.failed
        self._known.move_to_end(key)
        if looks.seen != log.position:
            changed = log.since(looks.seen)
            if changed is None:
                looks.failed.clear()
            elif looks.failed:
                for node in set(changed.tolist()):
                    looks.failed.pop(node, None)
            looks.seen = log.position
        return looks.failed

    def forget(self) -> None:
        """Drop every refusal that is remembered."""
        self._known.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """
    The answer for the nodes that were asked about, by their place in the question.

    Rule: design section 5.2; Koordinator contract 13.

    Attributes:
        best: what the Pod would get on the best node; None when no node takes it. Other nodes
            that pass were judged by their arrays: what a Pod gets there is decided when it binds.
        passing: ascending; `ratings` has a number for each, the larger the better: the node
            policy's, or the place in the order of links.
        failing: ascending; `codes` has the index into `reasons` for each.
        hopeless: which of the failing take the Pod not even with all other Pods gone.
    """

    best: Placement | None
    passing: IntArray
    ratings: IntArray
    failing: IntArray
    codes: IntArray
    hopeless: BoolArray
    reasons: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Filtering:
    """
    Judges nodes for an extender's filter.

    Tests over arrays decide for all nodes. The closer look, which chooses devices and CPUs, is
    made at the best node, and at the next best until one passes it: kube-scheduler binds to the
    best rated, and nodes that failed the look are failed.

    Attributes:
        order: what the node at each row is called outside.
        scores: ratings say which node is better; a policy that draws has none.
    """

    arrays: NodeArrays
    fitting: Fitting
    order: Sequence[int]
    rows: RatingRows
    allocator: Allocator
    refusals: Refusals
    unfit: UnfitCache
    classes: EquivalenceClasses
    lead: LinkLead
    scores: bool

    def judge(self, request: PodRequest, shape: Shape, rows: IntArray) -> Filtered:
        """Return the answer for the nodes at these rows."""
        ratings = self.rows.current(shape).take(rows)
        looked = self.unfit.failed(request, shape)
        failed = _where(rows, looked)
        if request.memory_bytes:
            lacking = self.arrays.memory_free.take(rows) < request.memory_bytes
            ratings[lacking] = -1
            # Memory is the first reason, whatever a Pod that asks for less was told by a look.
            failed = {row: number for row, number in failed.items() if not lacking[number]}
        if self.lead.applies(request):
            ratings = self.lead.order(shape, ratings, rows)
        by_arrays = ratings.copy() if self.scores else ratings
        ratings[list(failed.values())] = -1
        best, looks = None, 0
        alike, number_of = dict[int, list[int]](), dict[int, int]()
        while len(ratings) and best is None:
            number = int(ratings.argmax())
            if ratings.item(number) < 0:
                break
            row = rows.item(number)
            rated = self._rated(by_arrays, number, rows) if self.scores else NOT_RATED
            answer = self.allocator.allocate(request, shape, row, self.order[row], rated=rated)
            if isinstance(answer, Placement):
                best = answer
                continue
            looks += 1
            if looks == REFUSALS_BEFORE:
                passing = np.flatnonzero(ratings >= 0)
                left = rows.take(passing)
                alike = self.classes.groups(request, shape, left)
                number_of = dict(zip(left.tolist(), passing.tolist(), strict=True))
            for other in alike.get(row, (row,)):
                looked[other] = answer
                failed[other] = number_of.get(other, number)
                ratings[failed[other]] = -1
        passing = np.flatnonzero(ratings >= 0)
        failing = np.flatnonzero(ratings < 0)
        tried = {number: looked[row] for row, number in failed.items()}
        codes, hopeless, reasons = self._why(request, shape, rows, failing, tried)
        return Filtered(
            best=best,
            passing=passing,
            ratings=ratings.take(passing).astype(np.int64),
            failing=failing,
            codes=codes,
            hopeless=hopeless,
            reasons=reasons,
        )

    def _rated(self, ratings: Ratings, number: int, rows: IntArray) -> Rated:
        score, second = runner_up(ratings, number)
        if second < 0:
            return Rated(score)
        return Rated(score, self.arrays.nodes[rows.item(second)].name, ratings.item(second))

    def _why(
        self,
        request: PodRequest,
        shape: Shape,
        rows: IntArray,
        failing: IntArray,
        tried: dict[int, Unfit],
    ) -> tuple[IntArray, BoolArray, tuple[str, ...]]:
        where = rows.take(failing)
        if not len(where):
            return where, np.zeros(0, dtype=np.bool_), ()
        codes, static, listed = self.refusals.why(request, shape, where)
        hopeless = (codes < static) | self.fitting.hopeless(shape, request.memory_bytes, where)
        texts = [", ".join(reason.text for reason in reasons) for reasons in listed]
        if tried:
            known: dict[str, int] = {}
            told = [known.setdefault(unfit.reason, len(known)) for unfit in tried.values()]
            at = np.searchsorted(failing, np.array(list(tried), dtype=np.int64))
            codes[at] = np.array(told, dtype=np.int64) + len(texts)
            hopeless[at] = [not unfit.preemptible for unfit in tried.values()]
            texts += known
        return codes, hopeless, tuple(texts)


def _where(rows: IntArray, looked: Collection[int]) -> dict[int, int]:
    if not looked:
        return {}
    numbers = np.flatnonzero(np.isin(rows, list(looked)))
    return dict(zip(rows.take(numbers).tolist(), numbers.tolist(), strict=True))
