"""What the names of one dialect are, as data: all that is read where only names are known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectWords:
    """
    The names of one dialect. What is left out is not there.

    Attributes:
        name: as `Dialect` has it, and as events and options say it.
        resources: every resource by which a Pod asks for GPUs in it.
        borrowed: resources of other dialects that a Pod says beside its own; alone they are those
            dialects'.
        claims: annotations with which a Pod that says nothing but borrowed resources speaks this
            dialect; blank ones count as absent.
        zeros_ask: the resources of which 0 is a request, one that breaks a rule.
        card_numbers, card_percents: resources whose amount is a number of cards or of shares of
            them, and those whose amount is 100 for each whole card (quotas).
        card_memories: resources whose amount is memory of cards (quotas).
        resource_prefixes, annotation_prefixes: how what is nearly one of its names begins;
            whatever does reaches admission.
        allocation_annotations, allocation_prefixes: annotations that say who holds what, which
            nobody but us may write.
        node_annotations: of those, what a node's daemon changes once a Pod starts there.
        schedulers: whoever places Pods in it beside us; a Pod that names one is not ours.
        given_annotations: by these another scheduler has said where a Pod goes; it is not taken
            over.
        given_node: the one of them that names the node, from when it is chosen and not only bound.
        request_annotations: annotations that a Pod is placed by; they stay once it has a node.
    """

    name: str
    resources: frozenset[str]
    borrowed: frozenset[str] = frozenset()
    claims: frozenset[str] = frozenset()
    zeros_ask: frozenset[str] = frozenset()
    card_numbers: frozenset[str] = frozenset()
    card_percents: frozenset[str] = frozenset()
    card_memories: frozenset[str] = frozenset()
    resource_prefixes: tuple[str, ...] = ()
    annotation_prefixes: tuple[str, ...] = ()
    allocation_annotations: frozenset[str] = frozenset()
    allocation_prefixes: tuple[str, ...] = ()
    node_annotations: frozenset[str] = frozenset()
    schedulers: frozenset[str] = frozenset()
    given_annotations: frozenset[str] = frozenset()
    given_node: str = ""
    request_annotations: tuple[str, ...] = ()
