"""Koordinator's keys, as Pods and Nodes are read in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.domain import resources
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Adverts, CardLeft, DialectReader, GpuAsked
from ledger.domain.dialects.words import DialectWords
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import INIT, ContainerSpec, PodSpec, pod_total
from ledger.domain.request import rules
from ledger.domain.request.asked import NOTHING, TypeRequest, asking, first_fields
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.request.rule_names import Rule
from ledger.domain.vocabulary import Vocabulary

_PLACE: Final = "spec.containers"

Asks = Sequence[tuple[ContainerSpec, Mapping[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardShare:
    """
    What is asked of each card: percent of compute, bytes or percent of memory, and what else.

    `amounts` has the other resources of a card by name (`CARD_AMOUNT_NAMES`).
    """

    core_percent: int
    memory_bytes: int
    memory_ratio_percent: int
    amounts: tuple[tuple[str, int], ...] = ()

    def fits_in(self, other: CardShare) -> bool:
        """Tell whether a holder of `other` has at least this much of each card."""
        return (
            self.core_percent <= other.core_percent
            and self.memory_bytes <= other.memory_bytes
            and self.memory_ratio_percent <= other.memory_ratio_percent
            and all(amount <= dict(other.amounts).get(name, 0) for name, amount in self.amounts)
        )

    def __str__(self) -> str:
        parts = (
            f"core {self.core_percent}" if self.core_percent else "",
            f"memory {self.memory_bytes} bytes" if self.memory_bytes else "",
            f"memory ratio {self.memory_ratio_percent}" if self.memory_ratio_percent else "",
            *(f"{name} {amount}" for name, amount in self.amounts),
        )
        return ", ".join(filter(None, parts))


def inject(amounts: Mapping[str, int]) -> dict[str, int]:
    """
    Return one container's amounts as the mutating webhook leaves them: no `gpu`, always `shared`.

    Rule: Koordinator contract 5.1, step 4, with init containers too (quirk Q7): `gpu` v becomes
    core and ratio v; the number of cards follows from the ratio, else from the core. AI cores by
    ratio stay as they are: with `shared` they would be no request at all (4.2).
    """
    result = dict(amounts)
    if resources.GPU in result:
        percent = result.pop(resources.GPU)
        result |= {resources.GPU_CORE: percent, resources.GPU_MEMORY_RATIO: percent}
    if resources.GPU_SHARED not in result and resources.HUAWEI_NPU_CORE not in result:
        result[resources.GPU_SHARED] = cards_of(result)
    return result


def cards_of(amounts: Mapping[str, int]) -> int:
    """Return over how many cards amounts go: as said, else by the ratio, else by the core."""
    if resources.GPU_SHARED in amounts:
        return amounts[resources.GPU_SHARED]
    percent = amounts.get(resources.GPU_MEMORY_RATIO, amounts.get(resources.GPU_CORE, 0))
    whole = percent > WHOLE_PERCENT and percent % WHOLE_PERCENT == 0
    return percent // WHOLE_PERCENT if whole else 1


def split(amounts: Mapping[str, int]) -> tuple[int, CardShare]:
    """Return how many cards give what each; beside a ratio no memory counts (contract 4.4)."""
    cards = cards_of(amounts)
    ratio = amounts.get(resources.GPU_MEMORY_RATIO, 0) // cards
    return cards, CardShare(
        core_percent=amounts.get(resources.GPU_CORE, 0) // cards,
        memory_bytes=0 if ratio else amounts.get(resources.GPU_MEMORY, 0) // cards,
        memory_ratio_percent=ratio,
        amounts=tuple(
            (name, amounts[name] // cards)
            for name in resources.CARD_AMOUNT_NAMES
            if name in amounts
        ),
    )


def koordinator_demands(spec: PodSpec) -> TypeRequest:
    """
    Return the demand of a Pod in Koordinator's keys: one for the whole Pod.

    Rule: Koordinator contract 4.1 to 4.4 and 5.1 step 4: each container as the webhook leaves it,
    then the Pod's aggregate, then the split over its cards.
    """
    asks = asking(spec, resources.KOORDINATOR_GPU_NAMES)
    if not asks:
        return NOTHING
    errors = [error for ask in asks for error in _check_container(*ask)]
    if errors:
        return TypeRequest(errors=tuple(errors))
    injected = [
        (container, inject(nonzero))
        for container, amounts in asks
        if (nonzero := _nonzero(amounts))
    ]
    if not injected:
        return NOTHING
    total = pod_total((container.kind, amounts) for container, amounts in injected)
    errors = list(_check_pod(injected, total))
    if errors:
        return TypeRequest(errors=tuple(errors))
    cards, share = split(total)
    counts = {container.index: cards_of(amounts) for container, amounts in injected}
    demand = DeviceDemand(
        device_type=resources.TYPE_GPU,
        count=cards,
        core_percent=share.core_percent,
        memory_bytes=share.memory_bytes,
        memory_ratio_percent=share.memory_ratio_percent,
        exclusive=share.memory_ratio_percent == WHOLE_PERCENT,
        containers=tuple(counts),
        amounts=share.amounts,
    )
    return TypeRequest(demands=(demand,), counts=counts)


def _nonzero(amounts: Mapping[str, int]) -> dict[str, int]:
    """Koordinator contract 4.1, item 1: zero entries are removed."""
    return {name: amount for name, amount in amounts.items() if amount}


def _check_container(container: ContainerSpec, amounts: Mapping[str, int]) -> Iterator[FieldError]:
    fields = {name: container.field(name) for name in amounts}
    broken = tuple(rules.check_gpu_keys(fields, amounts))
    yield from broken
    asked = _nonzero(amounts)
    if broken or not asked:
        return
    yield from rules.check_gpu_combination(fields, asked, container.path)
    yield from _check_amounts(fields, asked)
    if resources.GPU_SHARED in asked and resources.GPU_MEMORY in asked:
        yield from rules.check_memory_split(
            fields[resources.GPU_MEMORY], asked[resources.GPU_MEMORY], asked[resources.GPU_SHARED]
        )


@rules.of_rule(Rule.GPU_COMBINATION)
def _check_amounts(fields: Mapping[str, str], asked: Mapping[str, int]) -> Iterator[FieldError]:
    """Refuse what would be lost when it is divided over cards (contract 12, Q13, as "ours")."""
    cards = cards_of(asked)
    for name in resources.CARD_AMOUNT_NAMES:
        if name in asked and asked[name] % cards:
            yield rules.invalid(
                fields[name], asked[name], f"must be a multiple of the {cards} cards"
            )


@rules.of_rule(Rule.SAME_SHARES)
def _check_pod(asks: Asks, total: Mapping[str, int]) -> Iterator[FieldError]:
    """Check the aggregate, and that each container's own number survives it (contract 4.1)."""
    fields = first_fields(asks)
    shares = [(container, split(amounts)[1]) for container, amounts in asks]
    running = [(container, share) for container, share in shares if container.kind != INIT]
    for container, share in running[1:]:
        first, expected = running[0]
        if share != expected:
            yield rules.forbidden(
                f"{container.path}.resources.requests",
                f"containers of a pod ask for different shared amounts: {share} of each card here, "
                f"{expected} in container {first.name}",
            )
            return
    broken = [*rules.check_gpu_combination(fields, total, _PLACE)]
    if resources.GPU_MEMORY in total and not broken:
        field = fields.get(resources.GPU_MEMORY, _PLACE)
        broken += rules.check_memory_split(field, total[resources.GPU_MEMORY], cards_of(total))
    if not broken:
        broken += _check_amounts({name: fields.get(name, _PLACE) for name in total}, total)
    yield from broken
    if broken:
        return
    pod_share = split(total)[1]
    for container, share in shares:
        if not share.fits_in(pod_share):
            yield rules.forbidden(
                f"{container.path}.resources.requests",
                f"containers of a pod ask for different shared amounts: {share} of each card here, "
                f"{pod_share} of each card in the pod's aggregate",
            )


def _adverts(units: Callable[[str], int], _vocabulary: Vocabulary) -> Adverts | None:
    count = units(resources.GPU_CORE) // WHOLE_PERCENT
    return Adverts(
        name=resources.GPU_CORE,
        count=count,
        memory_bytes=units(resources.GPU_MEMORY) // max(1, count),
    )


def _offers(card: CardLeft, _vocabulary: Vocabulary) -> Mapping[str, int]:
    """Return what the released agent sums up of healthy cards (contract 1.2)."""
    ratio = card.memory_bytes * WHOLE_PERCENT // max(1, card.total_bytes)
    return {
        resources.GPU: min(card.core_percent, ratio),
        resources.GPU_CORE: card.core_percent,
        resources.GPU_MEMORY: card.memory_bytes,
        resources.GPU_MEMORY_RATIO: ratio,
        resources.GPU_SHARED: WHOLE_PERCENT if card.is_open else 0,
    }


READER: Final = DialectReader(
    dialect=Dialect.KOORDINATOR,
    words=DialectWords(
        name=str(Dialect.KOORDINATOR),
        resources=resources.KOORDINATOR_GPU_NAMES,
        card_numbers=frozenset({resources.GPU_SHARED}),
        card_percents=frozenset({resources.GPU, resources.GPU_CORE, resources.GPU_MEMORY_RATIO}),
        card_memories=frozenset({resources.GPU_MEMORY, resources.GPU_MEMORY_RATIO}),
    ),
    demands=lambda spec: GpuAsked(dialect=Dialect.KOORDINATOR, asked=koordinator_demands(spec)),
    rewritten=inject,
    adverts=_adverts,
    offers=_offers,
)
