"""
A Pod's request in any dialect as one claim: its devices' requests, and who uses which of them.

Rule: docs/adr/0031, docs/contracts/dra.md, 7.

Worked example. Container `a` asks for half of a card's cores and 8 GiB of it, `b` for two whole
cards, by nvidia.com/gpu in a dialect that has both:

    request   count   of each                       used by
    g0        1       cores 50, memory 8589934592   a
    g1        2       all of it                     b

beside `distinctAttribute <driver>/uuid`, since parts of one claim may be of one card.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Final

import msgspec

from ledger.domain import resources
from ledger.domain.annotations.wire import annotation_path, label_path
from ledger.domain.devices import GPU, WHOLE_PERCENT, ratio_to_bytes
from ledger.domain.dialects.dra.objects import CORES, MEMORY
from ledger.domain.dialects.registry import reader_of
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import items_in
from ledger.domain.quantity import parse_quantity
from ledger.domain.request.asked import containers_on
from ledger.domain.request.requests import CardFilter, DeviceDemand, PodRequest
from ledger.domain.request.rules import unsupported

CLAIM: Final = "tenure"
"""What a Pod calls its claim of ours in `spec.resourceClaims`."""
TEMPLATE_PREFIX: Final = "tenure-"
UUID: Final = "uuid"
MODEL: Final = "productName"
SIZES_MAX: Final = 8
"""Alternatives of one request, by the API server."""
CARDS_MAX: Final = 32
"""Results of one claim, by the API server."""
FILTER_MAX: Final = 64
"""Models and ids that a Pod may name: an expression has 10 KiB at most."""

_CONTAINERS: Final = "spec.containers"
_FOREIGN: Final = frozenset({resources.AMD_GPU, resources.DCU_GPU, *resources.CARD_AMOUNT_NAMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsAsked:
    """
    One request of a claim: so many cards that give alike.

    Attributes:
        core_percent, memory_bytes, memory_ratio_percent: of each; memory by one of the two.
        exclusive: no one else is on the card.
    """

    name: str
    count: int
    core_percent: int
    memory_bytes: int
    memory_ratio_percent: int
    exclusive: bool

    @property
    def is_whole(self) -> bool:
        """Tell whether it is for all of each card."""
        return self.exclusive and self.core_percent == WHOLE_PERCENT and self.all_memory

    @property
    def all_memory(self) -> bool:
        """Tell whether all memory of a card is asked for, however much that is."""
        return self.memory_ratio_percent == WHOLE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """
    What a Pod asks of cards, as a claim says it.

    Attributes:
        requests: in the order in which containers take cards.
        cards: which cards will do; None = all.
        users: place of a container (`0`, `init-1`) -> names of the requests that it uses.
    """

    requests: tuple[CardsAsked, ...]
    cards: CardFilter | None = None
    users: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Giver:
    """
    Whose cards serve such claims.

    Attributes:
        driver: of the devices; its attributes and capacities are in its own domain.
        device_class: the DeviceClass of its cards.
        sizes: bytes of memory of its cards that are given in parts.
        has_cores: they say how many cores they have.
    """

    driver: str
    device_class: str
    sizes: tuple[int, ...] = ()
    has_cores: bool = True


def asking_of(request: PodRequest) -> Asking | tuple[FieldError, ...]:
    """Return what a legal request is as a claim, or all that no claim of ours can say."""
    errors = tuple(_unclaimable(request))
    if errors:
        return errors
    each = [demand for demand in request.devices for _ in range(demand.count)]
    users = containers_on(request.containers, GPU, len(each))
    turns = [
        (demand, tuple(need.index for need in needs))
        for demand, needs in zip(each, users, strict=True)
    ]
    requests: list[CardsAsked] = []
    used: dict[str, list[str]] = {}
    everyone = tuple(need.index for need in request.containers if dict(need.device_counts).get(GPU))
    for (demand, places), run in groupby(turns):
        one = _asked(demand, f"g{len(requests)}", len(list(run)))
        requests.append(one)
        for place in places or everyone:
            used.setdefault(place, []).append(one.name)
    return Asking(
        requests=tuple(requests),
        cards=request.card_filter,
        users={place: tuple(names) for place, names in used.items()},
    )


def _asked(demand: DeviceDemand, name: str, count: int) -> CardsAsked:
    whole = demand.exclusive and not demand.memory_bytes
    ratio = demand.memory_ratio_percent or (WHOLE_PERCENT if whole else 0)
    return CardsAsked(
        name=name,
        count=count,
        core_percent=demand.core_percent,
        memory_bytes=0 if ratio else demand.memory_bytes,
        memory_ratio_percent=ratio,
        exclusive=demand.exclusive,
    )


def _unclaimable(request: PodRequest) -> Iterator[FieldError]:
    """Yield every wish of a Pod that a claim of ours can't say; it is refused, not forgotten."""
    if request.cpuset is not None:
        yield unsupported(label_path(resources.LABEL_QOS_CLASS), "CPUs of its own by a claim")
    for demand in request.devices:
        if demand.device_type != GPU:
            yield unsupported(_CONTAINERS, f"devices of type {demand.device_type} by a claim")
        if demand.hint is not None:
            yield unsupported(
                annotation_path(resources.ANNOTATION_DEVICE_ALLOCATE_HINT), "hints by a claim"
            )
    written = {key.partition(".")[2] for key in request.snapshot.original}
    if written & _FOREIGN or any(demand.amounts for demand in request.devices):
        yield unsupported(_CONTAINERS, "cards of other vendors by a claim")
    wishes = {
        resources.ANNOTATION_DEVICE_JOINT_ALLOCATE: request.joint,
        resources.ANNOTATION_GPU_PARTITION_SPEC: request.partition,
        resources.ANNOTATION_NUMA_TOPOLOGY_SPEC: request.numa,
    }
    for key, wish in wishes.items():
        if wish is not None:
            yield unsupported(annotation_path(key), "this wish by a claim")
    if request.node_policy or request.card_scoring:
        yield unsupported("metadata.annotations", "policies of a pod's own by a claim")
    if request.dialect is not None:
        yield from reader_of(request.dialect).unclaimable(request)
    if request.group is not None or request.gang is not None:
        yield unsupported(label_path(resources.LABEL_GPU_GROUP_NAME), "groups and gangs by claims")
    if sum(demand.count for demand in request.devices) > CARDS_MAX:
        yield unsupported(_CONTAINERS, f"more than {CARDS_MAX} cards by a claim")
    cards = request.card_filter
    if (
        cards is not None
        and sum(map(len, (cards.models, cards.not_models, cards.ids, cards.not_ids))) > FILTER_MAX
    ):
        yield unsupported("metadata.annotations", f"more than {FILTER_MAX} models and ids")


def template_name(asking: Asking) -> str:
    """Return the name of the template for this request: the same for the same, in any Pod."""
    said = msgspec.json.encode((asking.requests, asking.cards), order="deterministic")
    return f"{TEMPLATE_PREFIX}{sha256(said).hexdigest()[:32]}"


def claim_spec(asking: Asking, giver: Giver) -> dict[str, object] | None:
    """
    Return the spec of the claim; None while no card is known that could give a ratio.

    A part goes to devices alone that are given in parts: of others it would be the whole card.
    """
    if any(_is_by_size(one) for one in asking.requests) and not giver.sizes:
        return None
    devices: dict[str, object] = {
        "requests": [_request(one, asking.cards, giver) for one in asking.requests]
    }
    count = sum(one.count for one in asking.requests)
    if count > 1 and not all(one.is_whole for one in asking.requests):
        devices["constraints"] = [{"distinctAttribute": f"{giver.driver}/{UUID}"}]
    return {"devices": devices}


def sizes_in(spec: Mapping[str, object]) -> tuple[int, ...]:
    """Return the sizes of cards that the alternatives of a claim's spec are for, as named."""
    found = set()
    for one in items_in(spec, "devices", "requests"):
        for other in items_in(one, "firstAvailable"):
            name = str(other.get("name", ""))
            if name[:1] == "m" and name.isascii() and name[1:].isdigit():
                found.add(int(name[1:]))
    return tuple(sorted(found, reverse=True))


def says_the_same(stored: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """Tell whether a stored spec says the same, beside what the API server fills in."""
    return _without_defaults(stored) == _without_defaults(wanted)


def _without_defaults(value: object, key: str = "") -> object:
    if isinstance(value, Mapping):
        left = {name: _without_defaults(item, name) for name, item in value.items()}
        if left.get("allocationMode") == "ExactCount":
            del left["allocationMode"]
        return left
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if key in {MEMORY, CORES} and isinstance(value, str):
        return _units(value)
    return value


def _units(text: str) -> object:
    try:
        return parse_quantity(text).nanos
    except InputError:
        return text


def _is_by_size(one: CardsAsked) -> bool:
    return 0 < one.memory_ratio_percent < WHOLE_PERCENT


def _request(one: CardsAsked, cards: CardFilter | None, giver: Giver) -> dict[str, object]:
    if not _is_by_size(one):
        return {"name": one.name, "exactly": _exactly(one, cards, giver)}
    sizes = sorted(giver.sizes, reverse=True)[:SIZES_MAX]
    return {
        "name": one.name,
        "firstAvailable": [
            {"name": f"m{size}", **_exactly(_on(one, size), cards, giver, size=size)}
            for size in sizes
        ],
    }


def _on(one: CardsAsked, size: int) -> CardsAsked:
    return replace(
        one, memory_ratio_percent=0, memory_bytes=ratio_to_bytes(one.memory_ratio_percent, size)
    )


def _exactly(
    one: CardsAsked, cards: CardFilter | None, giver: Giver, *, size: int = 0
) -> dict[str, object]:
    expressions = [*_filters(cards, giver.driver)]
    found: dict[str, object] = {"deviceClassName": giver.device_class, "count": one.count}
    if not one.is_whole:
        expressions.insert(0, "device.allowMultipleAllocations")
        amounts = {} if one.all_memory else {MEMORY: str(one.memory_bytes)}
        if giver.has_cores:
            amounts[CORES] = str(one.core_percent)
        found["capacity"] = {"requests": amounts}
    if size:
        memory = f"device.capacity[{_text(giver.driver)}]"
        same = f'{memory}.memory.compareTo(quantity("{size}")) == 0'
        expressions.append(f'"{MEMORY}" in {memory} && {same}')
    if expressions:
        found["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    return found


def _filters(cards: CardFilter | None, driver: str) -> Iterator[str]:
    """Yield which cards will do, as CEL; a card that does not say its id or model will not."""
    if cards is None:
        return
    said = f"device.attributes[{_text(driver)}]"
    model = f"{said}.{MODEL}.upperAscii()"
    if cards.ids or cards.not_ids:
        yield f'"{UUID}" in {said}'
    if cards.ids:
        yield f"{said}.{UUID} in {_texts(cards.ids)}"
    if cards.not_ids:
        yield f"!({said}.{UUID} in {_texts(cards.not_ids)})"
    if cards.models or cards.not_models:
        yield f'"{MODEL}" in {said}'
    if cards.models:
        yield f"{_upper(cards.models)}.exists(m, {model}.contains(m))"
    if cards.not_models:
        yield f"!{_upper(cards.not_models)}.exists(m, {model}.contains(m))"


def _upper(texts: Iterable[str]) -> str:
    return _texts(text.upper() for text in texts)


def _texts(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


def _text(text: str) -> str:
    return msgspec.json.encode(text).decode()
