"""
What a dialect brings to deciding, as one object of functions.

A hook that a dialect leaves out is one that it has nothing to say to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Placement, Unfit
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.settings import SchedulingSettings

Own: TypeAlias = Mapping[str, Any]
"""Fields that only single dialects read, by name."""

ChooseBeside: TypeAlias = Callable[
    [PodRequest, Sequence[DeviceDemand], Sequence[CardView], NodeView, SchedulingSettings],
    Choice | Unfit,
]
Answer: TypeAlias = Callable[
    [Placement, tuple[DeviceShare, ...], NodeFacts, int, SchedulingSettings], dict[str, str]
]


class Choose(Protocol):
    """
    Picks the GPUs of one node for one Pod.

    The cards are those that its hints, the node's partitions and its tree leave to choose from;
    `preferred_card` is the minor of the one that a node policy would like.
    """

    def __call__(
        self,
        request: PodRequest,
        demands: Sequence[DeviceDemand],
        cards: Sequence[CardView],
        node: NodeView,
        settings: SchedulingSettings,
        /,
        *,
        preferred_card: int | None,
    ) -> Choice | Unfit:
        """Return the shares, or why the node can't serve the Pod."""


class Misfit(Protocol):
    """Says why a node will not do for a Pod, whatever the node holds."""

    def __call__(
        self, own: Own, node: NodeFacts, settings: SchedulingSettings, /, *, whole_cards: bool
    ) -> Reason | None:
        """Return the reason, None if it will; `whole_cards`: the Pod asks for no part of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLimit:
    """
    How many containers of the dialects that have a limit may be on one card.

    Attributes:
        what: they are, for people.
        setting: that says how many.
    """

    most: Callable[[SchedulingSettings], int]
    what: str
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectChooser:
    """
    One dialect as Pods that speak it are placed.

    Attributes:
        dialect: None = a request for GPUs that came in no words, as a trace has it.
        choose: which GPUs of a node a Pod gets.
        by_share: cards are given by share alone: partitions, tree and links narrow them, one array
            of card shares can say all, and nodes alike are judged once.
        by_links: links alone may decide which whole GPUs a Pod gets.
        whole_or_share: a whole card can be asked for as a part of one in the same words.
        has_topology: the GPU-topology annotation says all about whole cards.
        packs: parts that are on one card each are packed exactly, several containers at once.
        limit: of containers on one card; None = the dialect's are not counted.
        choose_beside: for whole cards and parts together, on a node that hands out whole cards by
            its table only; None = as any other Pod.
        request_fields, node_fields: fields of `PodRequest` and `NodeFacts` that only this dialect
            sets, and by which `misfit` tells whether a node will do.
        misfit: why a node will not do, given the request's fields; it has the last word on the
            node. None = any will.
        limits: whether the dialect's own device plugin keeps parts of a card to their size.
        answer: the annotations of the Binding in the dialect's own words, given the Pod's GPUs, the
            node and the Unix time in nanoseconds.
        node_reasons: its reasons against nodes and settings.
        search_reasons: its reasons that a closer look at the cards of a node gives, when every
            container fits alone.
        abouts: text of a node reason -> what Pod and node say, where that is not in a ledger.
        alternatives: what to do as an order, and the request with that wish of the dialect's
            changed.
    """

    dialect: Dialect | None
    choose: Choose
    by_share: bool = False
    by_links: bool = True
    whole_or_share: bool = False
    has_topology: bool = False
    packs: bool = False
    limit: CardLimit | None = None
    choose_beside: ChooseBeside | None = None
    request_fields: tuple[str, ...] = ()
    node_fields: tuple[str, ...] = ()
    misfit: Misfit | None = None
    limits: Callable[[DeviceRecord], bool] | None = None
    answer: Answer = lambda *_: {}
    node_reasons: tuple[Reason, ...] = ()
    search_reasons: tuple[Reason, ...] = ()
    abouts: Mapping[str, Callable[[PodRequest, NodeFacts], str]] = field(default_factory=dict)
    alternatives: Callable[[PodRequest, Sequence[NodeFacts]], Iterable[tuple[str, PodRequest]]] = (
        lambda *_: ()
    )
