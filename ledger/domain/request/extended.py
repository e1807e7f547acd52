"""Resources that are counted by their name alone: no type of ours, no cards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import APP, PodSpec, pod_total
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.quantity import Quantity, parse_quantity
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.resources import SLOT, is_extended
from ledger.domain.vocabulary import Vocabulary

Counts = Mapping[str, int]


def is_counted(name: str, vocabulary: Vocabulary) -> bool:
    """
    Tell whether a resource is one that only its node's number says something of.

    Rule: cli.md, Inventory without a Device object: any other extended resource is counted by its
    name, without cards.
    """
    return is_extended(name) and name != SLOT and name not in vocabulary.device_names


def offered(quantities: Mapping[str, Quantity], vocabulary: Vocabulary) -> dict[str, int]:
    """Return how many of each such resource a node offers, by name."""
    return {
        name: max(0, quantity.ceil())
        for name, quantity in sorted(quantities.items())
        if is_counted(name, vocabulary)
    }


def asked(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """Return how many of each such resource a Pod asks for, by name."""
    vocabulary = spec.vocabulary
    total = pod_total(
        (
            container.kind,
            {
                name: quantity.ceil()
                for name, quantity in container.requests.items()
                if is_counted(name, vocabulary)
            },
        )
        for container in spec.containers
    )
    return tuple((name, min(n, INTEGER_MAX)) for name, n in sorted(total.items()) if n)


def held(snapshot: PodSnapshot) -> Counts:
    """
    Return how many of each extended resource a Pod holds, by the request that its event keeps.

    Types of ours are among them: whoever counts knows which names its nodes offer.
    """
    by_container: dict[str, dict[str, int]] = dict.fromkeys(snapshot.kinds, _NOTHING)
    for key, amount in snapshot.original.items():
        container, _, name = key.partition(".")
        units = _units(amount) if is_extended(name) else 0
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
