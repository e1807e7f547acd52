"""
What a dialect brings to the vocabulary: how it is read, as one object of functions.

A hook that a dialect leaves out is one that it has nothing to say to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledger.domain.adopted.cards import Asker, Found
from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.words import DialectWords
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.nodes import NodeFacts
from ledger.domain.quantity import Quantity
from ledger.domain.request.asked import NOTHING, TypeRequest
from ledger.domain.request.requests import MatchExpression, PodRequest
from ledger.domain.systems import NO_SYSTEMS, DeviceSystems, SystemPart
from ledger.domain.vocabulary import Vocabulary

Labels = Mapping[str, str]
Quantities = Mapping[str, Quantity]
"""What a Node offers, by released name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAsked:
    """
    What a Pod asks of GPUs, in whichever dialect.

    Attributes:
        own: fields of `PodRequest` that only this dialect sets, with their values.
        vendors: required node affinity that the cards' vendor adds, terms ORed.
        isolation: the provider of isolation that its words promise limits by; empty = none.
    """

    dialect: Dialect | None = None
    asked: TypeRequest = NOTHING
    own: Mapping[str, Any] = field(default_factory=dict)
    vendors: tuple[tuple[MatchExpression, ...], ...] = ()
    isolation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adverts:
    """
    What one dialect's quantities say of a node: how many cards, how much memory on each.

    Attributes:
        name: the resource that says how many, for people.
        memory_bytes: on each card, rounded down; 0 = not said.
    """

    name: str
    count: int
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLeft:
    """
    What a card has left for Pods that come.

    Attributes:
        is_open: it takes any; a closed one has nothing left.
        total_bytes: of the whole card, whatever is left of it.
    """

    core_percent: int
    memory_bytes: int
    total_bytes: int
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """
    The GPUs of a Node as one of its annotations lists them; with a Device object that counts.

    Attributes:
        name: the annotation, for people.
        cards: by minor; none where the annotation can't be read, which a warning then says.
        serves: the dialects in which they can be asked for.
        instead_of: resources whose quantity says nothing of cards beside the annotation.
        scheduler: who gives them beside us, and counts none of our Pods; empty = nobody.
        scaled, closed, unread: as `DeviceSystems` has them.
    """

    name: str
    cards: tuple[DeviceRecord, ...]
    serves: frozenset[Dialect]
    instead_of: frozenset[str]
    scheduler: str = ""
    scaled: tuple[tuple[str, int, int], ...] = ()
    closed: tuple[tuple[str, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """Memory that nobody can share out where a node does not offer `least` of `cards` beside it."""

    memory: str
    cards: str
    least: int


def no_offers(_card: CardLeft, _vocabulary: Vocabulary) -> Mapping[str, int]:
    """Leave what a Node offers to others."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectReader:
    """
    One dialect as Pods and Nodes are read in it.

    Attributes:
        demands: what a Pod that speaks the dialect asks for, or every rule that it breaks.
        rewritten: one container's amounts as admission writes them, under released names and
            without zeros; None = as their user did. Amounts of other words are kept.
        sums: what a unit of a word is in a resource that `rewritten` writes in its place, whatever
            stands beside it (quotas).
        takes_wishes: scopes, exclusive parts and partitions can be wished for.
        bounded_search: the search for cards may be cut short, of which the Pod then tells.
        by_plugin: a device plugin chooses the cards of whoever runs, and nobody tells which.
        adopted: what a running Pod holds by the dialect's annotations; None without one.
        unread: what annotations say although they name no card, where no source names any.
        with_containers: a Pod's holding, found elsewhere, with who of its containers is on each
            card. Only for Pods that speak the dialect.
        unit_bytes: the bytes that one id of a resource stands for in kubelet's file; 0 = an id is a
            card or a replica of one.
        adverts: the cards that a Node's quantities mean; the function gives whole units by name, 0
            where there are none.
        fitted: the vocabulary with what the nodes of files tell of it by what they offer.
        offers: what a card's rest adds to the quantities of its Node, where an agent of ours writes
            them; no device plugin may advertise the same names.
        listed: the cards that a Node's annotations list, given its labels and what it offers.
        registered: cards of other vendors that a Node's annotations list, or can't be read.
        given: the parts of such cards that a Pod's annotations name.
        beside_device: the ids of the cards that a Node's annotations close beside its Device
            object, each with the reason, and what is to be said of them.
        uncounted: memory that is offered in vain without a number of cards.
        on_node: a Node with what only this dialect reads of its labels.
        node_warnings: what is wrong with a Node in this dialect, by its labels, its quantities and
            the devices of its Device object (None without one).
        unclaimable: which wishes of the dialect's own no claim can say (docs/adr/0031).
    """

    dialect: Dialect
    words: DialectWords
    demands: Callable[[PodSpec], GpuAsked]
    rewritten: Callable[[Mapping[str, int]], dict[str, int]] | None = None
    sums: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    takes_wishes: bool = True
    bounded_search: bool = False
    by_plugin: bool = False
    adopted: Callable[[Asker], Found | None] = lambda _: None
    unread: Callable[[Asker], Sequence[str]] = lambda _: ()
    with_containers: Callable[[Found, Asker], Found] = lambda found, _: found
    unit_bytes: Callable[[str, Vocabulary], int] = lambda *_: 0
    adverts: Callable[[Callable[[str], int], Vocabulary], Adverts | None] = lambda *_: None
    fitted: Callable[[Vocabulary, Iterable[Mapping[str, int]]], Vocabulary] = lambda known, _: known
    offers: Callable[[CardLeft, Vocabulary], Mapping[str, int]] = no_offers
    listed: Callable[[Mapping[str, str], Labels, Quantities], Listed | None] = lambda *_: None
    beside_device: Callable[
        [Mapping[str, str], Sequence[DeviceRecord]], tuple[Mapping[str, str], Sequence[str]]
    ] = lambda *_: ({}, ())
    registered: Callable[[Mapping[str, str]], DeviceSystems] = lambda _: NO_SYSTEMS
    given: Callable[[Mapping[str, str], DeviceSystems], Sequence[SystemPart]] = lambda *_: ()
    uncounted: tuple[Uncounted, ...] = ()
    on_node: Callable[[NodeFacts], NodeFacts] = lambda node: node
    node_warnings: Callable[[Labels, Quantities, Sequence[DeviceRecord] | None], Iterable[str]] = (
        lambda *_: ()
    )
    unclaimable: Callable[[PodRequest], Iterable[FieldError]] = lambda _: ()
