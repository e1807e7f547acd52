"""
What a dialect brings to admission, as one object.

A hook that a dialect leaves out is one that it has nothing to say to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rule_names import Rule
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.facts import NamespaceFacts
from webhook.decide.validating.findings import Said


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectAdmission:
    """
    One dialect as admission keeps its rules.

    Attributes:
        everywhere: those of its rules that hold in every namespace, opted in or not.
        placing_rules: those of its rules that are about placing: no business of ours where another
            scheduler places the Pod.
        node_labels: label of Nodes -> the values that mean something.
        hopeless: says of a legal Pod in the dialect that no node can ever take it.
        violations: what is wrong with a Pod in the dialect that we place, by its labels and its
            namespace; its amounts are looked at elsewhere.
        units: says of one container's amounts that they look like another unit.
    """

    dialect: Dialect
    everywhere: frozenset[Rule] = frozenset()
    placing_rules: frozenset[Rule] = frozenset()
    node_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hopeless: Callable[[PodRequest], Iterable[Said]] = lambda _: ()
    units: Callable[[ContainerSpec, Vocabulary], Iterable[Said]] = lambda *_: ()
    violations: Callable[[PodRequest, Mapping[str, str], NamespaceFacts], Iterable[FieldError]] = (
        lambda *_: ()
    )
