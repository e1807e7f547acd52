"""Resources that are counted by their name alone: no type of ours, no cards."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from ledger.domain import resources as res
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import APP, PodSpec, pod_total
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.quantity import Quantity, parse_quantity
from ledger.domain.request.requests import PlacementRules, PodRequest, PodSnapshot
from ledger.domain.vocabulary import Vocabulary

Counts = Mapping[str, int]


def is_counted(name: str, vocabulary: Vocabulary) -> bool:
    """
    Tell whether a resource is one that only its node's number says something of.

    Rule: cli.md, Inventory without a Device object: any other extended resource is counted by its
    name, without cards.
    """
    if name.startswith(res.CLAIMED_BY_CLASS):
        return True
    return res.is_extended(name) and name != res.SLOT and name not in vocabulary.device_names


_NO_DEVICE_NAMES: Final = frozenset(
    {res.BATCH_CPU, res.BATCH_MEMORY, res.MID_CPU, res.MID_MEMORY, res.SLOT}
)


def is_device(name: str, vocabulary: Vocabulary) -> bool:
    """Tell whether a resource may stand for devices."""
    return (res.is_extended(name) or name in vocabulary.device_names) and (
        vocabulary.canonical(name) not in _NO_DEVICE_NAMES
    )


PLAIN_CARDS: Final = frozenset({res.AMD_GPU, res.DCU_GPU})
"""Whole cards of vendors that a device plugin counts; with a Device object they are cards."""


def offered(
    quantities: Mapping[str, Quantity], vocabulary: Vocabulary, *, plain: bool
) -> dict[str, int]:
    """Return how many of each such resource a node offers; `plain`: it has no Device object."""
    return {
        name: max(0, quantity.ceil())
        for name, quantity in sorted(quantities.items())
        if is_counted(name, vocabulary) or (plain and name in PLAIN_CARDS)
    }


def whatever_the_vendor(rules: PlacementRules) -> PlacementRules | None:
    """Return the rules without what they say of the GPUs' vendor; None where they say nothing."""
    terms = [
        tuple(each for each in term if each.key != res.LABEL_GPU_VENDOR)
        for term in rules.affinity_terms or ()
    ]
    if not terms or terms == list(rules.affinity_terms or ()):
        return None
    asked = [bool(term) for term in rules.affinity_terms or ()]
    if any(was and not term for was, term in zip(asked, terms, strict=True)):
        return replace(rules, affinity_terms=None)
    return replace(rules, affinity_terms=tuple(terms))


def by_number(request: PodRequest, offers: Container[str]) -> PodRequest:
    """
    Return a request for a vendor's whole cards as one for so many of its resource.

    Rule: docs/DIVERGENCES.md, Cards of other vendors' device plugins. Only where nodes offer the
    cards so (`offers`), and where nothing is said of which they are.
    """
    counts = held(request.snapshot)
    named = [(name, counts[name]) for name in PLAIN_CARDS if counts.get(name) and name in offers]
    if not named or request.joint is not None or request.partition is not None:
        return request
    return _without_cards(request, (*request.extended, *named))


def without(request: PodRequest, names: Collection[str]) -> PodRequest:
    """Return a request without resources that claims give."""
    left = tuple(each for each in request.extended if each[0] not in names)
    if res.WHOLE_CARD_NAMES.isdisjoint(names):
        return replace(request, extended=left)
    return _without_cards(request, left)


def _without_cards(request: PodRequest, named: Iterable[tuple[str, int]]) -> PodRequest:
    needs = [
        replace(need, device_counts=tuple(c for c in need.device_counts if c[0] != res.TYPE_GPU))
        for need in request.containers
    ]
    return replace(
        request,
        dialect=None,
        devices=tuple(each for each in request.devices if each.device_type != res.TYPE_GPU),
        containers=tuple(need for need in needs if need.device_counts),
        placement=whatever_the_vendor(request.placement) or request.placement,
        extended=tuple(sorted(named)),
    )


def asked(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """Return how many of each such resource a Pod asks for, by name."""
    vocabulary = spec.vocabulary
    names = {
        name
        for container in spec.containers
        for name in container.requests
        if "/" in name and is_counted(name, vocabulary)
    }
    if not names:
        return ()
    total = pod_total(
        (
            container.kind,
            {name: container.units(name) for name in names & container.requests.keys()},
        )
        for container in spec.containers
    )
    return tuple((name, min(n, INTEGER_MAX)) for name, n in sorted(total.items()) if n)


def held(snapshot: PodSnapshot) -> Counts:
    """Return how much of each extended resource, ours too, a Pod holds by its event's request."""
    if not snapshot.original:
        return _NOTHING
    by_container: dict[str, dict[str, int]] = dict.fromkeys(snapshot.kinds, _NOTHING)
    for key, amount in snapshot.original.items():
        container, _, name = key.partition(".")
        is_one = res.is_extended(name) or name.startswith(res.CLAIMED_BY_CLASS)
        units = _units(amount) if is_one else 0
        if units:
            by_container[container] = {**by_container.get(container, _NOTHING), name: units}
    if not any(by_container.values()):
        return _NOTHING
    kinds = snapshot.kinds
    return pod_total((kinds.get(name, APP), counts) for name, counts in by_container.items())


_NOTHING: dict[str, int] = {}


@lru_cache(maxsize=4096)
def _units(amount: str) -> int:
    try:
        return min(INTEGER_MAX, max(0, parse_quantity(amount).ceil()))
    except InputError:
        return 0
