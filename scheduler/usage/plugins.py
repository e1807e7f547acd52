"""
Cards of device plugins, which Nodes offer by a number alone: NVIDIA's, and any other vendor's.

Rule: docs/contracts/device-plugins.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.log.events import PodObserved
from ledger.domain.request import extended
from ledger.domain.request.card_names import (
    CARD,
    PRODUCT,
    SHARED,
    SLICE,
    SLICED_PRODUCT,
    are_parts,
    number_in,
    product_of,
    stands_for_cards,
)
from ledger.domain.resources import NVIDIA_GPU, TYPE_GPU
from ledger.domain.systems import UNHEALTHY
from scheduler.usage.picture import (
    NONE,
    CardGroup,
    DeviceNow,
    Many,
    Mode,
    Units,
    Unplaced,
    exactly,
    group_of,
)

NVIDIA: Final = "nvidia"

_PARTS_OF_A_CARD: Final = 7
_MOST_ON_A_CARD: Final = {1: 7, 2: 3, 3: 2, 4: 1, 7: 1}
"""Slices' parts of a card -> how many such slices one card has at most."""
NO_PARTS: Final[Mapping[str, Fraction]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """
    What a node's device plugins say of it.

    Attributes:
        offers, capacity: resource name -> how many are healthy, and how many there are.
    """

    is_open: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    offers: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    pods: Sequence[PodObserved] = ()

    def there(self, name: str) -> int:
        """Return how many there are of a resource, ill ones too."""
        return max(self.capacity.get(name, 0), self.offers.get(name, 0))

    def number(self, label: str) -> int:
        """Return a label of GPU feature discovery as a number, 0 where it is none."""
        return number_in(self.labels, label)


def is_cut(node: Plugged) -> bool:
    """Tell whether units are not NVIDIA's whole cards: parts of them, or cards of others."""
    names = node.capacity.keys() | node.offers.keys()
    others = any(name != NVIDIA_GPU and stands_for_cards(name) for name in names)
    return others or are_parts(node.labels, 0)


def nvidia_groups(node: Plugged, whole: Sequence[CardGroup]) -> tuple[CardGroup, ...]:
    """
    Return the cards of NVIDIA's plugin by what GPU feature discovery tells of replicas and slices.

    Args:
        whole: the groups of cards that are there if one unit is one card.
    """
    sliced = SLICED_PRODUCT.search(node.labels.get(PRODUCT, ""))
    model = product_of(node.labels)
    memory = None if sliced else node.number(f"{NVIDIA_GPU}.memory") or None
    replicas = max(1, node.number(f"{NVIDIA_GPU}.replicas"))
    names = [name for name in (NVIDIA_GPU, SHARED) if node.there(name) or _asked(node, name)]
    in_parts = are_parts(node.labels, 0)
    if sliced and names:
        return (_single(node, names, int(sliced[1]), replicas, model),)
    if names and (in_parts or SHARED in names):
        return (_replicated(node, names, replicas, model, memory),)
    told = [
        replace(
            each,
            model=each.model or model,
            memory_mib=each.memory_mib or memory,
            units=each.units or {name: _units(node, name) for name in names},
        )
        for each in whole
    ]
    slices = {
        name: int(found[1])
        for name in sorted({*node.offers, *node.capacity})
        if (found := SLICE.fullmatch(name)) and (node.there(name) or _asked(node, name))
    }
    if slices:
        told.append(_mixed(node, slices, model, memory))
    return tuple(told)


def vendor_groups(node: Plugged, names: Sequence[str]) -> Iterator[CardGroup]:
    """Yield the cards of any other vendor's plugin: one unit is one card."""
    for name in names:
        domain, _, what = name.partition("/")
        if not CARD.fullmatch(what) or not (node.there(name) or _asked(node, name)):
            continue
        healthy, there = node.offers.get(name, 0), node.there(name)
        labels = node.labels
        yield group_of(
            system=vendor_of(domain),
            model=labels.get(f"{name}.product-name", "")
            or labels.get(f"{domain}/product", "")
            or ("" if what == TYPE_GPU else what),
            devices=[
                DeviceNow(
                    id="",
                    minor=minor,
                    healthy=minor < healthy,
                    closed=None if minor < healthy else UNHEALTHY,
                )
                for minor in range(there)
            ],
            is_open=node.is_open,
            units={name: _units(node, name)},
            unplaced=[*_holders(node, [name])],
            is_inventoried=False,
        )


def vendor_of(domain: str) -> str:
    """Return the vendor's name out of a resource's domain: `gpu.intel.com` is `intel`."""
    parts = domain.split(".")
    return parts[-2] if len(parts) > 1 else domain


def _single(
    node: Plugged, names: Sequence[str], parts: int, replicas: int, model: str
) -> CardGroup:
    """
    Return cards that are all cut alike, and offered as if their slices were cards.

    Their number is not told: a card has a slice at least, and so many at most.
    """
    slices = sum(node.there(name) for name in names) // replicas
    most = _MOST_ON_A_CARD.get(parts, 1)
    cards = Many(least=-(-slices // most), most=slices)
    held = sum(_asked(node, name) for name in names)
    return _shared_out(
        node,
        names,
        cards=cards,
        held=_on_cards(-(-held // replicas), held, most, slices),
        mode="slices",
        model=model,
        parts=dict.fromkeys(names, Fraction(_PARTS_OF_A_CARD, parts) * replicas),
    )


def _replicated(
    node: Plugged, names: Sequence[str], replicas: int, model: str, memory_mib: int | None
) -> CardGroup:
    units = sum(node.there(name) for name in names)
    told = node.number(f"{NVIDIA_GPU}.count")
    by_units = units // replicas
    least, most = min(told or by_units, by_units), max(told, by_units)
    if replicas == 1:  # nobody says how many one card is
        least, most, replicas = told or min(1, units), told or units, max(1, units)
    cards = Many(least=least, most=most)
    held = sum(_asked(node, name) for name in names)
    return _shared_out(
        node,
        names,
        cards=cards,
        held=_on_cards(held, held, replicas, cards.most or 0),
        mode="replicas",
        model=model,
        memory_mib=memory_mib,
        parts=dict.fromkeys(names, Fraction(replicas)),
    )


def _mixed(
    node: Plugged, slices: Mapping[str, int], model: str, memory_mib: int | None
) -> CardGroup:
    """Return the cards that are cut in slices, beside those that are offered whole."""
    there = sum(node.there(name) // _replicas(node, name) for name in slices)
    parts = sum(node.there(name) // _replicas(node, name) * size for name, size in slices.items())
    least = -(-parts // _PARTS_OF_A_CARD)
    counted = node.number(f"{NVIDIA_GPU}.count") - node.there(NVIDIA_GPU)
    known = least <= counted <= there
    cards = exactly(counted) if known else Many(least=least, most=there)
    used = {name: -(-_asked(node, name) // _replicas(node, name)) for name in slices}
    fewest = max(
        -(-sum(used[name] * size for name, size in slices.items()) // _PARTS_OF_A_CARD),
        *(-(-used[name] // _MOST_ON_A_CARD.get(size, 1)) for name, size in slices.items()),
    )
    asked = sum(_asked(node, name) for name in slices)
    return _shared_out(
        node,
        list(slices),
        cards=cards,
        held=Many(least=fewest, most=min(asked, cards.most or 0)),
        mode="slices",
        model=model,
        memory_mib=memory_mib,
        parts={
            name: Fraction(_PARTS_OF_A_CARD, size) * _replicas(node, name)
            for name, size in slices.items()
        },
    )


def _replicas(node: Plugged, name: str) -> int:
    return max(1, node.number(f"{name}.replicas"))


def _on_cards(fewest: int, most: int, to_a_card: int, cards: int) -> Many:
    return Many(least=-(-fewest // to_a_card), most=min(most, cards))


def _shared_out(
    node: Plugged,
    names: Sequence[str],
    *,
    cards: Many,
    held: Many,
    mode: Mode,
    model: str,
    memory_mib: int | None = None,
    parts: Mapping[str, Fraction],
) -> CardGroup:
    """
    Return cards of which nobody gets one whole; one with a part that is held is not free.

    Args:
        parts: how many units of each resource are one card.
    """
    is_ill = any(node.there(name) > node.offers.get(name, 0) for name in names)
    least = max(0, cards.least - min(held.most or 0, cards.least))
    return CardGroup(
        device_type=TYPE_GPU,
        system=NVIDIA,
        model=model,
        memory_mib=memory_mib,
        mode=mode,
        cards=cards,
        free=Many(least=0 if is_ill else least, most=max(0, (cards.most or 0) - held.least)),
        gettable=NONE,
        units={name: _units(node, name) for name in names},
        unplaced=tuple(_holders(node, names, parts)),
        held=Many(least=min(held.least, cards.most or 0), most=held.most),
        is_inventoried=False,
    )


def _units(node: Plugged, name: str) -> Units:
    return Units(allocatable=node.offers.get(name, 0), held=_asked(node, name))


def _asked(node: Plugged, name: str) -> int:
    return sum(extended.held(pod.snapshot).get(name, 0) for pod in node.pods)


def _holders(
    node: Plugged, names: Sequence[str], parts_of_a_card: Mapping[str, Fraction] = NO_PARTS
) -> Iterator[Unplaced]:
    """Yield who holds such units; parts are as many cards as they need at least."""
    for pod in node.pods:
        counts = extended.held(pod.snapshot)
        for name in names:
            if counts.get(name):
                cards = counts[name] / parts_of_a_card.get(name, Fraction(1))
                yield Unplaced(
                    namespace=pod.namespace,
                    name=pod.pod_name,
                    uid=pod.pod_uid,
                    amount=counts[name],
                    unit=name,
                    cards=ceil(cards),
                    percent=ceil(cards * WHOLE_PERCENT) if name in parts_of_a_card else None,
                )
