"""
Cards of device plugins, which Nodes offer by a number alone: NVIDIA's, and any other vendor's.

Rule: docs/contracts/device-plugins.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from ledger.domain.annotations import kai
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.registry import reader_of
from ledger.domain.log.events import PodObserved
from ledger.domain.request import card_names, extended
from ledger.domain.resources import GPU_NAMES, NVIDIA_GPU, TYPE_GPU
from ledger.domain.systems import UNHEALTHY, DeviceSystems
from scheduler.usage import picture
from scheduler.usage.claims import is_of_register, named_by_registers

NVIDIA: Final = "nvidia"
_OURS: Final = GPU_NAMES - extended.PLAIN_CARDS - {NVIDIA_GPU}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """
    What a node's device plugins say of it.

    Attributes:
        offers, capacity: resource name -> how many are healthy, and how many there are.
        is_alone: nothing but plugins tells of NVIDIA's cards there.
    """

    is_open: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    offers: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    pods: Sequence[PodObserved] = ()
    is_alone: bool = True

    def there(self, name: str) -> int:
        """Return how many there are of a resource, ill ones too."""
        return max(self.capacity.get(name, 0), self.offers.get(name, 0))

    @property
    def names(self) -> AbstractSet[str]:
        """Return the resources that it has, or offers."""
        return self.capacity.keys() | self.offers.keys()


def plugged(
    systems: DeviceSystems,
    labels: Mapping[str, str],
    dialects: Collection[Dialect],
    *,
    is_open: bool = False,
    pods: Sequence[PodObserved] = (),
) -> Plugged:
    """Return what a node's plugins say, of NVIDIA's cards where nothing else lists them."""
    is_alone = all(reader_of(each).by_plugin for each in dialects)
    registers = named_by_registers(systems)
    is_alone = is_alone and not is_of_register(NVIDIA_GPU, registers)
    there = {
        name: number
        for name, number in systems.there().items()
        if name not in _OURS and not is_of_register(name, registers)
        if is_alone or not name.startswith(f"{card_names.NVIDIA_DOMAIN}/")
    }
    offers = {name: number for name, number in systems.offers if name in there}
    return Plugged(
        is_open=is_open, labels=labels, offers=offers, capacity=there, pods=pods, is_alone=is_alone
    )


def is_cut(node: Plugged) -> bool:
    """Tell whether cards are not units of NVIDIA's: parts, others' cards, or not offered at all."""
    found = [
        name for name in node.names if node.there(name) and card_names.cut_of(name, node.labels)
    ]
    parts = found != [NVIDIA_GPU] or card_names.are_parts(node.labels, node.offers)
    return parts if found else node.is_alone and any(not_offered(node.labels))


def plugin_groups(
    node: Plugged, domain: str, whole: Sequence[picture.CardGroup] = ()
) -> tuple[tuple[picture.CardGroup, ...], list[str]]:
    """
    Return the cards of one vendor's plugin, whole ones first, and where its words differ.

    Rule: docs/contracts/device-plugins.md 2.

    Args:
        whole: NVIDIA's cards if one unit is one card.
    """
    cuts = {
        name: cut
        for name in sorted(node.names)
        if name.startswith(f"{domain}/") and (node.there(name) or _asked(node, name))
        if (cut := card_names.cut_of(name, node.labels, node.there(name)))
    }
    label, count = card_names.count_in(node.labels, domain)
    plain = [name for name, cut in cuts.items() if cut == card_names.WHOLE_CARD]
    parts = [name for name in cuts if name not in plain]
    chips = [name for name in plain if name.startswith(card_names.NEURON) and node.there(name)]
    if chips:
        plain, parts = [max(chips, key=node.there)], []
    wholes, told = sum(map(node.there, plain)), []
    units = [(cuts[name], node.there(name)) for name in parts]
    least, most = card_names.cards_of(units)
    against = f"{label} is {count}, offered are " + ", ".join(
        f"{node.there(name)} {name}" for name in cuts
    )
    is_by_model = any(name.partition("/")[2] in {TYPE_GPU, "gpu.shared"} for name in parts)
    if count and parts and not (is_by_model and count == sum(number for _, number in units)):
        rest = max(0, count - wholes)
        if least <= rest <= most and count >= wholes:
            least = most = rest
        else:
            told.append(against)
            if all(not cut.size for cut, _ in units):
                least, most = min(least, rest), max(most, rest)
            wholes = min(wholes, max(0, count - least))
            most = min(most, max(least, count - wholes)) if any(c.size for c, _ in units) else most
    elif count and count != wholes and plain:
        told.append(against)
    is_sound = wholes == sum(map(node.there, plain)) and not is_by_model
    if label and not count:
        told.append(f"{label} is no number: {node.labels[label]}")
    groups = [*_whole(node, domain, plain, wholes, whole if is_sound else ())]
    if chips:
        groups = [_of_chips(node, groups[0], cuts)]
    if parts:
        group = _in_parts(node, cuts, parts, picture.Many(least=least, most=most))
        shut, known = () if is_sound else whole, {pod.uid for pod in group.unplaced}
        unplaced = [pod for each in shut for pod in each.unplaced if pod.uid not in known]
        groups.append(replace(group, unplaced=(*group.unplaced, *unplaced)))
    return tuple(groups), told


def not_offered(labels: Mapping[str, str]) -> Iterator[picture.CardGroup]:
    """Yield the cards that labels tell of on a node whose plugin offers nothing."""
    count = card_names.count_in(labels, card_names.NVIDIA_DOMAIN)[1]
    if not count and labels.get(f"{NVIDIA_GPU}.present") != "true":
        return
    card = picture.DeviceNow(id="", minor=None, closed="not offered")
    group = picture.group_of(
        system=NVIDIA,
        model=card_names.product_of(labels),
        memory_mib=card_names.number_in(labels, card_names.MEMORY_LABEL) or None,
        devices=[card] * (count or 1),
        is_open=False,
        is_inventoried=False,
    )
    yield replace(
        group, cards=picture.Many(least=count or 1, most=count or None), free=picture.NONE
    )


def _whole(
    node: Plugged, domain: str, names: Sequence[str], cards: int, known: Sequence[picture.CardGroup]
) -> Iterator[picture.CardGroup]:
    """Yield the cards of which one unit is one; fewer where others of the vendor need some."""
    if known:
        model = card_names.product_of(node.labels, cards)
        memory = (model and card_names.number_in(node.labels, card_names.MEMORY_LABEL)) or None
        for each in known:
            yield replace(
                each,
                model=each.model or model,
                memory_mib=each.memory_mib or memory,
                units=each.units or {name: _units(node, name) for name in names},
            )
        return
    for name in names:
        yield picture.group_of(
            system=vendor_of(domain),
            model=_model(node, name),
            devices=[
                picture.DeviceNow(
                    id="",
                    minor=minor,
                    healthy=minor < node.offers.get(name, 0),
                    closed=None if minor < node.offers.get(name, 0) else UNHEALTHY,
                )
                for minor in range(min(cards, node.there(name)))
            ],
            is_open=node.is_open,
            units={name: _units(node, name)},
            unplaced=[*_holders(node, {name: None})],
            is_inventoried=False,
        )


def _of_chips(node: Plugged, group: picture.CardGroup, names: Iterable[str]) -> picture.CardGroup:
    """Return AWS's chips with the holders of every name: cores are on a chip, or on more."""
    there, cores = len(group.devices), node.there(card_names.NEURON_CORE)
    sizes = {
        name: Fraction(cores or there, there) if name == card_names.NEURON_CORE else None
        for name in names
    }
    asked = {name: _asked(node, name) for name in sizes}
    least = ceil(sum(asked[name] / (size or Fraction(1)) for name, size in sizes.items()))
    held = picture.Many(least=least, most=sum(asked.values())).cut(there)
    good = sum(device.healthy for device in group.devices)
    most = good - max(0, held.least - there + good)
    free = picture.Many(least=max(0, good - (held.most or 0)), most=most)
    return replace(
        group,
        units={name: _units(node, name) for name in names},
        unplaced=tuple(_holders(node, sizes)),
        held=held,
        free=free,
        gettable=free.cut(max(0, good - held.least)) if node.is_open else picture.NONE,
    )


def _model(node: Plugged, name: str) -> str:
    domain, _, what = name.partition("/")
    if domain == card_names.NVIDIA_DOMAIN:
        return card_names.product_of(node.labels)
    told = (f"{domain}/gpu.product-name", f"{name}.product-name", f"{domain}/product")
    model = next(filter(None, map(node.labels.get, told)), "")
    return model or ("" if what == TYPE_GPU else what)


def vendor_of(domain: str) -> str:
    """Return the vendor's name out of a resource's domain: `gpu.intel.com` is `intel`."""
    parts = domain.split(".")
    return parts[-2] if len(parts) > 1 else domain


def _in_parts(
    node: Plugged, cuts: Mapping[str, card_names.Cut], names: Sequence[str], cards: picture.Many
) -> picture.CardGroup:
    """Return cards of which nobody gets one whole; one with a part that is held is not free."""
    most = cards.most or 0
    asked = [(cuts[name], _asked(node, name)) for name in names]
    held = picture.Many(
        least=min(card_names.cards_of(asked)[0], most),
        most=min(sum(units for _, units in asked), most),
    )
    is_ill = any(node.there(name) > node.offers.get(name, 0) for name in names)
    in_a_card = {
        name: 1 / cut.size if cut.size else Fraction(cut.most or max(1, node.there(name)))
        for name, cut in cuts.items()
        if name in names
    }
    memory = card_names.number_in(node.labels, card_names.MEMORY_LABEL) or None
    is_single = any(cuts[name].size and name == NVIDIA_GPU for name in names)
    domain = names[0].partition("/")[0]
    return picture.CardGroup(
        device_type=TYPE_GPU,
        system=vendor_of(domain),
        model=_model(node, names[0]),
        memory_mib=memory if domain == card_names.NVIDIA_DOMAIN and not is_single else None,
        mode="slices" if any(cuts[name].mode == "slices" for name in names) else "replicas",
        cards=cards,
        free=picture.Many(
            least=0 if is_ill else max(0, cards.least - (held.most or 0)), most=most - held.least
        ),
        gettable=picture.NONE,
        units={name: _units(node, name) for name in names},
        unplaced=tuple(_holders(node, in_a_card)),
        held=held,
        is_inventoried=False,
    )


def _units(node: Plugged, name: str) -> picture.Units:
    return picture.Units(allocatable=node.offers.get(name, 0), held=_asked(node, name))


def _asked(node: Plugged, name: str) -> int:
    return sum(extended.held(pod.snapshot).get(name, 0) for pod in node.pods)


def _holders(node: Plugged, in_a_card: Mapping[str, Fraction | None]) -> Iterator[picture.Unplaced]:
    """Yield who holds such units; parts, of which a card has so many, are a part of one."""
    for pod in node.pods:
        is_on_none = pod.source == kai.SOURCE and not (pod.shares or pod.unknown_types)
        counts = {} if is_on_none else extended.held(pod.snapshot)
        for name, whole in in_a_card.items():
            if counts.get(name):
                cards = counts[name] / (whole or Fraction(1))
                yield picture.Unplaced(
                    namespace=pod.namespace,
                    name=pod.pod_name,
                    uid=pod.pod_uid,
                    amount=counts[name],
                    unit=name,
                    cards=ceil(cards),
                    percent=ceil(cards * WHOLE_PERCENT) if whole else None,
                )
