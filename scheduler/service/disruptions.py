"""The cluster's PodDisruptionBudgets, and which Pods break them by going."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from certs.ports import Object
from ledger.domain.annotations.device_hints import LabelSelector, read_selector
from ledger.domain.errors import InputError
from scheduler.service.kept import PodSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruptable:
    """
    As much of a PodDisruptionBudget as says whom it lets go.

    Attributes:
        allowed: how many may go now.
        disrupted: names of the Pods whose going the API server has counted already.
    """

    namespace: str
    selector: LabelSelector
    allowed: int
    disrupted: frozenset[str]


class Disruptions:
    """A sink of PodDisruptionBudgets."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, Disruptable]] = {}
        self._known: dict[str, str] = {}  # UID -> namespace

    def put(self, uid: str, item: Object) -> None:
        """Take a budget that came or changed; one that matches nobody is none."""
        self.drop(uid)
        budget = _budget(item)
        if budget is not None:
            self._namespaces.setdefault(budget.namespace, {})[uid] = budget
            self._known[uid] = budget.namespace

    def drop(self, uid: str) -> None:
        """Forget a budget that is gone."""
        namespace = self._known.pop(uid, None)
        if namespace is None:
            return
        there = self._namespaces[namespace]
        del there[uid]
        if not there:
            del self._namespaces[namespace]

    def broken(self, before: Sequence[PodSeen], more: Sequence[PodSeen]) -> int:
        """
        Return how many of further Pods go beyond a budget, once those before them have gone.

        Rule: kube-scheduler 1.36, `filterPodsWithPDBViolation`: a budget lets `disruptionsAllowed`
        of the Pods go that it selects, in order; those in `disruptedPods` are counted already.
        """
        spent: Counter[tuple[str, str]] = Counter()
        for pod in before:
            self._goes(pod, spent)
        return sum(self._goes(pod, spent) for pod in more)

    def _goes(self, pod: PodSeen, spent: Counter[tuple[str, str]]) -> bool:
        """Take a Pod's going from the budgets that select it; tell whether one is broken."""
        budgets = self._namespaces.get(pod.namespace)
        if not budgets or not pod.labels:
            return False
        labels = json.loads(pod.labels)
        breaks = False
        for uid, budget in budgets.items():
            if pod.name not in budget.disrupted and budget.selector.matches(labels):
                spent[pod.namespace, uid] += 1
                breaks |= spent[pod.namespace, uid] > budget.allowed
        return breaks


def _budget(item: Object) -> Disruptable | None:
    """
    Return what is kept of a budget, None of one that selects nobody.

    Rule: as above: neither a selector that is empty nor one that can't be read selects anybody.
    """
    status = item.get("status") or {}
    try:
        selector = read_selector((item.get("spec") or {}).get("selector"), "spec.selector")
    except InputError:
        return None
    if selector is None or selector == LabelSelector():
        return None
    return Disruptable(
        namespace=str(item["metadata"].get("namespace") or ""),
        selector=selector,
        allowed=int(status.get("disruptionsAllowed") or 0),
        disrupted=frozenset(status.get("disruptedPods") or ()),
    )
