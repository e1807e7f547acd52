"""What a node must be before its free resources count: one verdict per node, kept per need."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from ledger.domain.kube.shared_templates import kind_of_cards, matched_template
from ledger.domain.nodes import NodeFacts
from scheduler.decide.dialects.registry import OWN_FIELDS, chooser_of, node_own_of
from scheduler.decide.nodes.arrays import BoolArray, IntArray
from scheduler.decide.nodes.fleet import Fleet
from scheduler.decide.nodes.labels import (
    LabelIndex,
    first_untolerated,
    is_kept_off,
    is_owned,
    matches_rules,
)
from scheduler.decide.refusal import reasons
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.settings import SchedulingSettings
from scheduler.decide.shapes import StaticNeed

_KNOWN_MAX: Final = 1024

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticVerdict:
    """
    What is wrong with each node for one need; 0 = nothing.

    Attributes:
        before, after: index into `texts`, per node, of what is checked before the resource fit
            and after it (kube-scheduler reports the first stage that fails).
        reasons: entry 0 is not used.
        admits: nothing is wrong; None when that is so for every node.
    """

    before: IntArray
    after: IntArray
    reasons: tuple[Reason, ...]
    admits: BoolArray | None


class Predicates:
    """
    Judges nodes by what does not change from decision to decision.

    Rule: cli.md, Predicates and CPU sets; what a dialect says of nodes has the last word.

    Each distinct need is judged once over each distinct kind of node.
    """

    def __init__(self, fleet: Fleet, settings: SchedulingSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._labels = LabelIndex(fleet.nodes)
        self._fences = _kinds(fleet.nodes, lambda node: (node.unschedulable, node.taints))
        self._traits = _kinds(fleet.nodes, _traits)
        again = np.array(fleet.accounts, dtype=np.int64) != fleet.everything
        lost = np.array([node.lost for node in fleet.nodes], dtype=np.bool_)
        self._withheld = [
            (where, reason)
            for where, reason in ((again, reasons.REGISTERED_AGAIN), (lost, reasons.NODE_LOST))
            if where.any()
        ]
        self._verdicts: dict[StaticNeed, StaticVerdict] = {}

    def verdict(self, need: StaticNeed) -> StaticVerdict:
        """Return the verdict over every node."""
        known = self._verdicts.get(need)
        if known is None:
            if len(self._verdicts) >= _KNOWN_MAX:
                self._verdicts.clear()
            known = self._judge(need)
            self._verdicts[need] = known
        return known

    def _judge(self, need: StaticNeed) -> StaticVerdict:
        texts: dict[Reason | None, int] = {None: 0}

        def code(reason: Reason | None) -> int:
            return texts.setdefault(reason, len(texts))

        before = self._fenced(need, code)
        for where, reason in self._withheld:
            before[where] = code(reason)
        allowed = matches_rules(self._labels, need.placement, len(self._fleet))
        before[(before == 0) & ~allowed] = code(reasons.AFFINITY)
        after = self._unsuitable(need, code)
        good = (before == 0) & (after == 0)
        found = tuple(reasons.UNEXPLAINED if reason is None else reason for reason in texts)
        return StaticVerdict(
            before=before, after=after, reasons=found, admits=None if good.all() else good
        )

    def _fenced(self, need: StaticNeed, code: Callable[[Reason | None], int]) -> IntArray:
        examples, kinds = self._fences
        tolerations = need.placement.tolerations
        codes = []
        for node in examples:
            taint = first_untolerated(node.taints, tolerations)
            if is_kept_off(node, tolerations):
                codes.append(code(reasons.UNSCHEDULABLE))
            else:
                codes.append(code(None if taint is None else reasons.untolerated(taint)))
        return _spread(codes, kinds)

    def _unsuitable(self, need: StaticNeed, code: Callable[[Reason | None], int]) -> IntArray:
        examples, kinds = self._traits
        return _spread([code(self._misfit(need, node)) for node in examples], kinds)

    def _misfit(self, need: StaticNeed, node: NodeFacts) -> Reason | None:
        granted = bool(need.device_types) or need.pinned
        if granted and self._settings.owned_nodes_only and not is_owned(node):
            return reasons.NODE_NOT_OWNED
        for device_type, models in zip(need.device_types, need.model_names, strict=True):
            found = {record.model for record in node.devices if record.device_type == device_type}
            if not found:
                return reasons.insufficient_devices(device_type)
            if models and found.isdisjoint(models):
                return reasons.model_mismatch(device_type)
        if need.shared and kind_of_cards(node.labels) in self._settings.devices.unshared_models:
            return reasons.UNSHARED_MODEL
        if need.dialect is not None:
            if node.dialects is not None and need.dialect not in node.dialects:
                return reasons.DIALECT_NOT_SERVED
            misfit = chooser_of(need.dialect).misfit
            if misfit is not None:
                own = dict(zip(OWN_FIELDS, need.own, strict=True))
                return misfit(own, node, self._settings, whole_cards=need.whole_cards)
        templates = self._settings.devices.shared_templates
        for amounts in need.template_amounts:
            if matched_template(amounts, node.labels, templates) is None:
                return reasons.NO_SHARED_TEMPLATE
        if need.partitioned and node.partitions is None:
            return reasons.NO_PARTITION_TABLE
        if need.pinned and not node.cpu_topology:
            return reasons.NO_CPU_TOPOLOGY
        return None


def _traits(node: NodeFacts) -> tuple[object, ...]:
    models = frozenset((record.device_type, record.model) for record in node.devices)
    return (
        models,
        node.dialects,
        node_own_of(node),
        node.partitions is None,
        kind_of_cards(node.labels),
        bool(node.cpu_topology),
        is_owned(node),
    )


def _kinds(
    nodes: Iterable[NodeFacts], key: Callable[[NodeFacts], Hashable]
) -> tuple[Sequence[NodeFacts], IntArray]:
    """Return one example of each distinct kind of node, and every node's kind."""
    numbers: dict[Hashable, int] = {}
    examples: list[NodeFacts] = []
    kinds = []
    for node in nodes:
        number = numbers.setdefault(key(node), len(examples))
        if number == len(examples):
            examples.append(node)
        kinds.append(number)
    return examples, np.array(kinds, dtype=np.int64)


def _spread(codes: Sequence[int], kinds: IntArray) -> IntArray:
    answer: IntArray = np.array(codes, dtype=np.int64)[kinds]
    return answer
