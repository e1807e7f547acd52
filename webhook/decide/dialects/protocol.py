"""
What a dialect brings to admission, as one object.

A hook that a dialect leaves out is one that it has nothing to say to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.validating.entries import RuleEntry
from webhook.decide.validating.findings import Said


def never_hopeless(_request: PodRequest) -> Iterator[Said]:
    """Know of no legal Pod that waits for ever."""
    yield from ()


def no_units(_container: ContainerSpec, _vocabulary: Vocabulary) -> Iterator[Said]:
    """Know of no amount that is hardly meant."""
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectAdmission:
    """
    One dialect as admission keeps its rules.

    Attributes:
        rules: the lines of the list of rules that are about the dialect alone.
        node_labels: label of Nodes -> the values that mean something.
        hopeless: says of a legal Pod in the dialect that no node can ever take it.
        units: says of one container's amounts that they look like another unit.
    """

    dialect: Dialect
    rules: tuple[RuleEntry, ...] = ()
    node_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hopeless: Callable[[PodRequest], Iterator[Said]] = never_hopeless
    units: Callable[[ContainerSpec, Vocabulary], Iterator[Said]] = no_units
