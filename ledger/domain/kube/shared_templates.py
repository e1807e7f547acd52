"""Templates of shares: the parts that cards of one vendor and model can be cut into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain import resources as res
from ledger.domain.annotations.wire import amounts, an_object
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import named
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

NVIDIA: Final = "nvidia"
"""The vendor of cards that name none (Koordinator contract 1.2)."""

Amounts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTemplate:
    """
    One way to cut a part out of a card.

    Attributes:
        cards: `<vendor>-<model>` of the cards it is for, as their labels say it.
        amounts: what the part has, by released resource name, without zeros.
    """

    cards: str
    name: str
    amounts: Amounts


# huawei-Ascend-310P3:
#   vir01: {huawei.com/npu-core: 1, huawei.com/npu-cpu: 1, koordinator.sh/gpu-memory: 3Gi}
#   vir02: {huawei.com/npu-core: 2, huawei.com/npu-cpu: 2, koordinator.sh/gpu-memory: 6Gi}


def read_shared_templates(value: object) -> tuple[SharedTemplate, ...]:
    """
    Read the templates of all cards, by cards and name (Koordinator contract 8.7).

    Raises:
        InputError: another shape, a bad or negative quantity; with its path inside the value.
    """
    found = [
        SharedTemplate(
            cards=cards,
            name=name,
            amounts=tuple(_whole(item, f"{cards}.{name}")),
        )
        for cards, templates in named(value, "").items()
        for name, item in named(templates, cards).items()
    ]
    return tuple(sorted(found, key=lambda template: (template.cards, template.name)))


def kind_of_cards(labels: Mapping[str, str]) -> str:
    """Return what templates call the cards of a node with these labels."""
    return f"{labels.get(res.LABEL_GPU_VENDOR) or NVIDIA}-{labels.get(res.LABEL_GPU_MODEL, '')}"


def template_amounts(demand: DeviceDemand) -> Amounts:
    """
    Return what a template has to be equal to, by name; nothing where no template is needed.

    Rule: Koordinator contract 8.7 and 4.4: a share (a ratio below 100, or memory in bytes) that
    asks for more than core percent and memory.
    """
    shared = demand.memory_ratio_percent < WHOLE_PERCENT
    if demand.device_type != res.TYPE_GPU or not demand.amounts or not shared:
        return ()
    own = {
        res.GPU_CORE: demand.core_percent,
        res.GPU_MEMORY: demand.memory_bytes,
        res.GPU_MEMORY_RATIO: demand.memory_ratio_percent,
    }
    asked = own | dict(demand.amounts)
    return tuple(sorted((name, amount) for name, amount in asked.items() if amount))


def matched_template(
    asked: Amounts, labels: Mapping[str, str], templates: Iterable[SharedTemplate]
) -> str | None:
    """Return such cards' template equal to what is asked, or None; two alike are none (8.7)."""
    cards = kind_of_cards(labels)
    names = [item.name for item in templates if item.cards == cards and item.amounts == asked]
    return names[0] if len(names) == 1 else None


def _whole(value: object, path: str) -> Iterator[tuple[str, int]]:
    an_object(value, path)
    for name, quantity in amounts(named(value, path), path, DEFAULT_VOCABULARY):
        units = quantity.ceil()
        if units > INTEGER_MAX:
            fact = f"beyond what can be counted exactly: value={quantity}"
            raise InputError(fact, field=f"{path}[{name}]")
        if units:
            yield name, units
