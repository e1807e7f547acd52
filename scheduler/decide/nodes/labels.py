"""Node labels and taints, indexed so that one look at each distinct value judges every node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

import numpy as np

from ledger.domain import resources as res
from ledger.domain.annotations.wire import TRUE
from ledger.domain.devices import GPU
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.card_names import MIG_STATE, PRODUCT
from ledger.domain.request.requests import MatchExpression, PlacementRules, Toleration
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows

Kind = TypeVar("Kind", bound=Hashable)

_SPARE_KINDS: Final = 64
_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
_TELLING: Final = tuple(f"{res.NVIDIA_GPU}.{each}" for each in ("count", "present"))
_NAMED: Final = (MIG_STATE, res.LABEL_MIG_STRATEGY, PRODUCT, *_TELLING)
_NAME_FIELD: Final = "metadata.name"


class Kinds(Generic[Kind]):
    """
    The nodes by what they are alike in: a number for each kind, and every node's kind.

    A kind keeps its number while no more kinds are known than twice the nodes.

    Args:
        nodes: read again when a node is put anew.

    Attributes:
        of: at [node], the number of its kind.
        distinct, examples: the kinds by number, and a node of each; some may be none's any more.
        renewals: how often all numbers were given anew.
    """

    def __init__(self, nodes: Sequence[NodeFacts], kind_of: Callable[[NodeFacts], Kind]) -> None:
        self._nodes = nodes
        self._kind_of = kind_of
        self.of: IntArray = np.zeros(0, dtype=np.int64)
        self.renewals = -1
        self._renew()

    def put(self, node: int) -> None:
        """Take a node as it is now."""
        if len(self.distinct) > 2 * len(self._nodes) + _SPARE_KINDS:
            self._renew()
            return
        self.of = with_rows(self.of, len(self._nodes))
        self.of[node] = self._number(self._nodes[node])

    def _renew(self) -> None:
        self.renewals += 1
        self._numbers: dict[Kind, int] = {}
        self.distinct: list[Kind] = []
        self.examples: list[NodeFacts] = []
        self.of = np.array([*map(self._number, self._nodes)], dtype=np.int64)

    def _number(self, node: NodeFacts) -> int:
        kind = self._kind_of(node)
        number = self._numbers.setdefault(kind, len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(kind)
            self.examples.append(node)
        return number


def offers_kind(node: NodeFacts) -> Hashable:
    """Return all by which a refusal tells what a node offers, will offer, or has of it."""
    systems, named = node.systems, tuple(map(node.labels.get, _NAMED))
    cards = bool(systems.cards), any(card.device_type == GPU for card in node.devices)
    own = node.other_scheduler, node.dialects, node.by_claims, tuple(node.extended.items())
    return systems.offers, systems.capacity, cards, named, own


class LabelIndex:
    """For each label key that was ever asked for: which distinct value each node has."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._nodes = nodes
        self._columns: dict[tuple[str, bool], Kinds[str | None]] = {}

    def put(self, node: int) -> None:
        """Take a node as it is now."""
        for column in self._columns.values():
            column.put(node)

    def where(
        self, key: str, accepts: Callable[[str | None], bool], *, is_field: bool = False
    ) -> BoolArray:
        """Return which nodes have an accepted value under `key`; None = they lack the key."""
        column = self._column(key, is_field=is_field)
        accepted = np.array([accepts(value) for value in column.distinct], dtype=np.bool_)
        answer: BoolArray = accepted[column.of]
        return answer

    def _column(self, key: str, *, is_field: bool) -> Kinds[str | None]:
        column = self._columns.get((key, is_field))
        if column is None:
            column = Kinds(self._nodes, partial(_value, key=key, is_field=is_field))
            self._columns[key, is_field] = column
        return column


def _value(node: NodeFacts, *, key: str, is_field: bool) -> str | None:
    if is_field:
        return node.name if key == _NAME_FIELD else None
    return node.labels.get(key)


def matches_rules(index: LabelIndex, rules: PlacementRules, count: int) -> BoolArray:
    """
    Return which of `count` nodes the node selector and the required node affinity allow.

    Rule: cli.md, Predicates. Terms are alternatives, expressions inside one all hold; a term
    without expressions matches nothing.
    """
    allowed: BoolArray = np.ones(count, dtype=np.bool_)
    for key, wanted in rules.node_selector:
        pair = MatchExpression(key=key, operator="In", values=(wanted,))
        allowed &= index.where(key, partial(accepts, pair))
    if rules.affinity_terms is None:
        return allowed
    any_term: BoolArray = np.zeros(count, dtype=np.bool_)
    for term in rules.affinity_terms:
        if not term:
            continue
        every: BoolArray = np.ones(count, dtype=np.bool_)
        for each in term:
            every &= index.where(each.key, partial(accepts, each), is_field=each.is_field)
        any_term |= every
    return allowed & any_term


def allows(rules: PlacementRules, node: NodeFacts) -> bool:
    """Tell whether the node selector and the required node affinity allow one node."""
    selected = all(node.labels.get(key) == wanted for key, wanted in rules.node_selector)
    if rules.affinity_terms is None or not selected:
        return selected
    return any(
        all(accepts(each, _value(node, key=each.key, is_field=each.is_field)) for each in term)
        for term in rules.affinity_terms
        if term
    )


def accepts(expression: MatchExpression, value: str | None) -> bool:
    """
    Tell whether a label value (None = no such label) satisfies one expression.

    Rule: Kubernetes NodeSelectorRequirement. NotIn and DoesNotExist hold for a missing label;
    Gt and Lt compare whole numbers and fail on anything else.
    """
    match expression.operator:
        case "In":
            return value is not None and value in expression.values
        case "NotIn":
            return value is None or value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            mine, bound = _whole(value), _whole(expression.values[0] if expression.values else None)
            if mine is None or bound is None:
                return False
            return mine > bound if expression.operator == "Gt" else mine < bound
        case _:
            return False


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def is_kept_off(node: NodeFacts, tolerations: Sequence[Toleration]) -> bool:
    """Tell whether the node is cordoned and the Pod does not tolerate that."""
    cordon = Taint(key=res.TAINT_UNSCHEDULABLE, value="", effect="NoSchedule")
    return node.unschedulable and not tolerated(cordon, tolerations)


def is_owned(node: NodeFacts) -> bool:
    """
    Tell whether the node's devices are ours to grant.

    Rule: design section 8, Ownership of the metal. The taint keeps off who does not tolerate it,
    the label whoever tolerates everything.
    """
    fenced = any(
        taint.key == res.TAINT_TENURE_OWNED and taint.effect in _BLOCKING for taint in node.taints
    )
    return fenced and node.labels.get(res.LABEL_TENURE_OWNED) == TRUE


def has_other_scheduler(node: NodeFacts) -> bool:
    """Tell whether somebody gives a node's cards who counts none of our Pods."""
    return bool(node.other_scheduler) and not is_owned(node)


def first_untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that keeps the Pod off (NoSchedule, NoExecute), in node order."""
    return next(
        (
            taint
            for taint in taints
            if taint.effect in _BLOCKING and not tolerated(taint, tolerations)
        ),
        None,
    )


def tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """
    Tell whether one of the tolerations covers the taint.

    Rule: Kubernetes Toleration. An empty effect covers all effects, an empty key with Exists all
    keys, an empty operator means Equal.
    """
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return (
        toleration.operator in {"", "Equal"}
        and bool(toleration.key)
        and toleration.value == taint.value
    )
