"""What a node must be before its free resources count: one verdict per node, kept per need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ledger.domain.dialects.registry import gives_by_number, parts_of
from ledger.domain.kube.shared_templates import kind_of_cards, matched_template
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.card_names import product_of
from ledger.domain.request.extended import whatever_the_vendor
from ledger.domain.request.isolation import whatever_isolates
from ledger.domain.request.requests import PlacementRules, Toleration
from ledger.domain.resources import CLAIMED_BY_CLASS, LABEL_TENURE_CPU_MANAGED, NVIDIA_GPU, TYPE_GPU
from scheduler.decide.dialects.registry import OWN_FIELDS, chooser_of, node_own_of
from scheduler.decide.nodes import labels
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows
from scheduler.decide.nodes.node_arrays import ABSENT, NodeArrays
from scheduler.decide.refusal import reasons
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.settings import SchedulingSettings
from scheduler.decide.shapes import StaticNeed

_KNOWN_MAX: Final = 1024

_ANEW_MAX: Final = 64
"""So many nodes are judged one by one; more are by their kinds."""

_REASONS_MAX: Final = 256
"""So many reasons are kept for nodes that were otherwise once; then all are found anew."""


@dataclass(slots=True, kw_only=True)
class StaticVerdict:
    """
    What is wrong with each node for one need; 0 = nothing. Who keeps it asks for it `as_of_now`.

    Attributes:
        before, after: index into `reasons`, per node, of what is checked before the resource fit
            and after it (kube-scheduler reports the first stage that fails).
        reasons: entry 0 is not used; there may be more than some node gives.
        admits: nothing is wrong; None when that is so for every node.
        seen: the position in the log of facts that it stands for.
    """

    need: StaticNeed
    before: IntArray
    after: IntArray
    reasons: tuple[Reason, ...]
    admits: BoolArray | None
    seen: int


class Predicates:
    """
    Judges nodes by what does not change from decision to decision.

    Rule: cli.md, Predicates and CPU sets; what a dialect says of nodes has the last word.

    Each distinct need is judged once over each distinct kind of node, and again on the nodes that
    were put anew since.

    Args:
        grants: what is placed is granted; else it goes as whoever gives cards there places it.
    """

    def __init__(
        self, arrays: NodeArrays, settings: SchedulingSettings, *, grants: bool = True
    ) -> None:
        self._arrays = arrays
        self._grants = grants
        self._settings = settings
        self._labels = labels.LabelIndex(arrays.nodes)
        self._fences = labels.Kinds(arrays.nodes, lambda node: (node.unschedulable, node.taints))
        self._traits = labels.Kinds(arrays.nodes, _traits)
        self._verdicts: dict[StaticNeed, StaticVerdict] = {}
        self._withheld: dict[int, Reason] = {}
        for node in range(len(arrays)):
            self._withhold(node)

    def put(self, node: int) -> None:
        """Take a node as it is now."""
        self._withhold(node)
        self._labels.put(node)
        self._fences.put(node)
        self._traits.put(node)

    def decide_by(self, settings: SchedulingSettings) -> None:
        """Judge nodes that are put from now on by these settings."""
        self._settings = settings

    def verdict(self, need: StaticNeed) -> StaticVerdict:
        """Return the verdict over every node."""
        known = self._verdicts.get(need)
        if known is None:
            if len(self._verdicts) >= _KNOWN_MAX:
                self._verdicts.clear()
            known = self._verdicts[need] = self._judge(need)
        return self.as_of_now(known)

    def as_of_now(self, verdict: StaticVerdict) -> StaticVerdict:
        """Bring a verdict up to date, in place, on the nodes that were put anew since."""
        log = self._arrays.facts
        if verdict.seen == log.position:
            return verdict
        nodes = log.since(verdict.seen)
        if nodes is None or len(nodes) > _ANEW_MAX or len(verdict.reasons) > _REASONS_MAX:
            anew = self._judge(verdict.need)
            verdict.before, verdict.after = anew.before, anew.after
            verdict.reasons, verdict.admits = anew.reasons, anew.admits
        else:
            self._judge_again(verdict, dict.fromkeys(nodes.tolist()))
        verdict.seen = log.position
        return verdict

    def reason(self, need: StaticNeed, node: int) -> Reason | None:
        """Return what is wrong with one node as it is now."""
        return self._before(need, node) or self._misfit(need, self._arrays.nodes[node])

    def _judge(self, need: StaticNeed) -> StaticVerdict:
        codes: dict[Reason | None, int] = {None: 0}

        def code(reason: Reason | None) -> int:
            return codes.setdefault(reason, len(codes))

        fences = self._fences
        found = [code(_fence(node, need.placement.tolerations)) for node in fences.examples]
        before = _spread(found, fences.of)
        for node, reason in self._withheld.items():
            before[node] = code(reason)
        allowed = labels.matches_rules(self._labels, need.placement, len(self._arrays))
        if not self._grants and chooser_of(need.dialect).limits is not None:
            for row in np.flatnonzero(~allowed).tolist():
                allowed[row] = self._allows(need, self._arrays.nodes[row])
        fails = (before == 0) & ~allowed
        before[fails] = code(reasons.AFFINITY)
        for loose, reason in _loosened(need.placement):
            if not fails.any():
                break
            freed = fails & labels.matches_rules(self._labels, loose, len(self._arrays))
            has_gpus = self._arrays.gpus.count > 0
            before[freed & has_gpus] = code(reason)
            before[freed & ~has_gpus] = code(reasons.insufficient_devices(TYPE_GPU))
            fails &= ~freed
        traits = self._traits
        after = _spread([code(self._misfit(need, node)) for node in traits.examples], traits.of)
        good = (before == 0) & (after == 0)
        return StaticVerdict(
            need=need,
            before=before,
            after=after,
            reasons=_texts(codes),
            admits=None if good.all() else good,
            seen=self._arrays.facts.position,
        )

    def _judge_again(self, verdict: StaticVerdict, nodes: Iterable[int]) -> None:
        codes: dict[Reason | None, int] = {None: 0}
        for number, reason in enumerate(verdict.reasons[1:], 1):
            codes.setdefault(reason, number)
        need, rows = verdict.need, len(self._arrays)
        verdict.before = with_rows(verdict.before, rows)
        verdict.after = with_rows(verdict.after, rows)
        if verdict.admits is not None:
            verdict.admits = with_rows(verdict.admits, rows)
        for node in nodes:
            before, after = self._before(need, node), self._misfit(need, self._arrays.nodes[node])
            verdict.before[node] = codes.setdefault(before, len(codes))
            verdict.after[node] = codes.setdefault(after, len(codes))
            good = before is None and after is None
            if verdict.admits is None and not good:
                verdict.admits = np.ones(rows, dtype=np.bool_)
            if verdict.admits is not None:
                verdict.admits[node] = good
        if len(codes) > len(verdict.reasons):
            verdict.reasons = _texts(codes)  # another tuple: who laid out codes by it sees that

    def _withhold(self, row: int) -> None:
        """Note whether a node takes nobody, whatever he asks for."""
        node = self._arrays.nodes[row]
        self._withheld.pop(row, None)
        if node is ABSENT:
            self._withheld[row] = reasons.NODE_ABSENT
        elif node.lost:
            self._withheld[row] = reasons.NODE_LOST
        elif self._arrays.accounts[row] != row:
            self._withheld[row] = reasons.REGISTERED_AGAIN

    def _before(self, need: StaticNeed, row: int) -> Reason | None:
        withheld = self._withheld.get(row)
        if withheld is not None:
            return withheld
        node = self._arrays.nodes[row]
        fence = _fence(node, need.placement.tolerations)
        if fence is not None or self._allows(need, node):
            return fence
        for loose, reason in _loosened(need.placement):
            if labels.allows(loose, node):
                has_gpus = self._arrays.gpus.count.item(row) > 0
                return reason if has_gpus else reasons.insufficient_devices(TYPE_GPU)
        return reasons.AFFINITY

    def _allows(self, need: StaticNeed, node: NodeFacts) -> bool:
        """Tell whether a node is one that the Pod asks for, its isolation included."""
        if labels.allows(need.placement, node):
            return True
        unlimited, limits = whatever_isolates(need.placement), chooser_of(need.dialect).limits
        if (
            self._grants
            or unlimited is None
            or limits is None
            or not labels.has_other_scheduler(node)
        ):
            return False
        is_shut = not any(device.healthy for device in node.devices)
        return (is_shut or any(map(limits, node.devices))) and labels.allows(unlimited, node)

    def _misfit(self, need: StaticNeed, node: NodeFacts) -> Reason | None:
        for name in need.resources:
            if name in node.by_claims or name.startswith(CLAIMED_BY_CLASS):
                return reasons.BY_CLAIMS
        granted = bool(need.device_types) or need.pinned
        if granted and self._settings.owned_nodes_only and not labels.is_owned(node):
            return reasons.NODE_NOT_OWNED
        if self._grants and TYPE_GPU in need.device_types and labels.has_other_scheduler(node):
            return reasons.NODE_OF_OTHER_SCHEDULER
        for device_type, models in zip(need.device_types, need.model_names, strict=True):
            found = {model for kind, model in _models(node) if kind == device_type}
            if not found:
                return reasons.insufficient_devices(device_type)
            if models and found.isdisjoint(models):
                return reasons.model_mismatch(device_type)
        absent = reasons.not_offered(need.stored, node)
        if absent is not None:
            return absent
        if need.shared and kind_of_cards(node.labels) in self._settings.devices.unshared_models:
            return reasons.UNSHARED_MODEL
        if need.dialect is not None:
            if node.dialects is not None and need.dialect not in node.dialects:
                return reasons.DIALECT_NOT_SERVED
            if need.by_plugin and not gives_by_number(node):
                return reasons.not_offered((NVIDIA_GPU,), node) or reasons.DIALECT_NOT_SERVED
            named = gives_by_number(node) and not (need.by_plugin or parts_of(node))
            if self._grants and named:
                return reasons.BY_NUMBER  # the plugin shows it another card than we would
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
        if need.pinned and self._settings.cpu.leaves_unbound(node):
            return reasons.CPUS_NOT_BOUND
        if need.pinned and not node.cpu_topology:
            return reasons.NO_CPU_TOPOLOGY
        return None


def _traits(node: NodeFacts) -> tuple[object, ...]:
    return (
        _models(node),
        node.dialects,
        node_own_of(node),
        node.partitions is None,
        kind_of_cards(node.labels),
        bool(node.cpu_topology),
        labels.is_owned(node),
        node.other_scheduler,
        node.labels.get(LABEL_TENURE_CPU_MANAGED),
        node.by_claims,
        node.advertised,
        parts_of(node) > 0,
    )


def _models(node: NodeFacts) -> frozenset[tuple[str, str]]:
    """Return the types of a node's devices with their models, of cards given in parts too."""
    listed = {(record.device_type, record.model) for record in node.devices}
    return frozenset(listed | ({(TYPE_GPU, product_of(node.labels))} if parts_of(node) else set()))


def _loosened(rules: PlacementRules) -> Iterator[tuple[PlacementRules, Reason]]:
    """Yield the rules without what its devices added to them, and the reason of whom that frees."""
    unlimited = whatever_isolates(rules)
    if unlimited is not None:
        yield unlimited, reasons.NOT_ISOLATED
    loose = whatever_the_vendor(unlimited or rules)
    if loose is not None:
        yield loose, reasons.GPU_VENDOR


def _fence(node: NodeFacts, tolerations: Sequence[Toleration]) -> Reason | None:
    """Return what keeps the Pod off: the cordon, or the first taint it does not tolerate."""
    if labels.is_kept_off(node, tolerations):
        return reasons.UNSCHEDULABLE
    taint = labels.first_untolerated(node.taints, tolerations)
    return None if taint is None else reasons.untolerated(taint)


def _texts(codes: Iterable[Reason | None]) -> tuple[Reason, ...]:
    return tuple([reasons.UNEXPLAINED if reason is None else reason for reason in codes])


def _spread(codes: Sequence[int], kinds: IntArray) -> IntArray:
    answer: IntArray = np.array(codes, dtype=np.int64)[kinds]
    return answer
