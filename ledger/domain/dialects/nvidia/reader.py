"""Whole cards, as Pods and Nodes are read for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain import resources
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Adverts, DialectReader, GpuAsked
from ledger.domain.dialects.words import DialectWords
from ledger.domain.kube.pod_spec import PodSpec, pod_total
from ledger.domain.request.asked import NOTHING, TypeRequest, asking, first_fields
from ledger.domain.request.card_names import NVIDIA_CARDS
from ledger.domain.request.requests import DeviceDemand, MatchExpression
from ledger.domain.request.rules import check_gpu_combination

_FOREIGN_CARDS: Final = frozenset({resources.AMD_GPU, resources.DCU_GPU})
_VENDORS: Final = ("baidu", "cambricon", "huawei", "metax", "nvidia")
"""Vendor labels of Koordinator contract 1.2; cards of amd.com and dcu.com carry none of them."""
_OTHER_VENDOR: Final = (
    (
        MatchExpression(key=resources.LABEL_GPU_VENDOR, operator="Exists", values=()),
        MatchExpression(key=resources.LABEL_GPU_VENDOR, operator="NotIn", values=("", *_VENDORS)),
    ),
)
"""What a node's labels must say for the cards of other vendors."""


def whole_card_demands(spec: PodSpec) -> TypeRequest:
    """
    Return the demand of a Pod for whole cards: n cards, each of them alone.

    Rule: Koordinator contract 4.3 (n cards are core 100 n and ratio 100 n); cards of two vendors
    in one Pod are no request (4.2).
    """
    asks = [
        (container, {name: n for name, n in amounts.items() if n})
        for container, amounts in asking(spec, resources.WHOLE_CARD_NAMES)
    ]
    total = pod_total((container.kind, amounts) for container, amounts in asks)
    if not total:
        return NOTHING
    errors = tuple(check_gpu_combination(first_fields(asks), total, "spec.containers"))
    if errors:
        return TypeRequest(errors=errors)
    counts = {container.index: sum(amounts.values()) for container, amounts in asks if amounts}
    demand = DeviceDemand(
        device_type=resources.TYPE_GPU,
        count=sum(total.values()),
        core_percent=WHOLE_PERCENT,
        memory_ratio_percent=WHOLE_PERCENT,
        exclusive=True,
        containers=tuple(counts),
    )
    return TypeRequest(demands=(demand,), counts=counts)


def rewritten(amounts: Mapping[str, int]) -> dict[str, int]:
    """
    Return one container's amounts as admission writes them: `nvidia.com/gpu` n on n cards.

    Rule: Koordinator contract 5.1, ours: n becomes core and ratio 100 n. Other amounts are kept.
    """
    result = dict(amounts)
    if resources.NVIDIA_GPU not in result:
        return result
    cards = result.pop(resources.NVIDIA_GPU)
    percent = WHOLE_PERCENT * cards
    return {
        **result,
        resources.GPU_CORE: percent,
        resources.GPU_MEMORY_RATIO: percent,
        resources.GPU_SHARED: cards,
    }


def _demands(spec: PodSpec) -> GpuAsked:
    """
    Return what a Pod asks for in whole cards of any vendor.

    Rule: Koordinator contract 1.2: no label and an empty one are NVIDIA's; no card is known to be
    AMD's or Hygon's, but many not to be. Those are Koordinator's names for cards of other vendors.
    """
    said = [
        (name, quantity)
        for container in spec.containers
        for name, quantity in container.requests.items()
        if name in resources.WHOLE_CARD_NAMES
    ]
    names = {name for name, quantity in said if quantity} or {name for name, _ in said}
    foreign = bool(names & _FOREIGN_CARDS)
    asked = whole_card_demands(spec)
    vendors: tuple[tuple[MatchExpression, ...], ...] = ()
    if foreign:
        vendors = _OTHER_VENDOR
    elif asked.demands:
        vendors = NVIDIA_CARDS
    dialect = Dialect.KOORDINATOR if foreign else Dialect.NVIDIA
    return GpuAsked(dialect=dialect, asked=asked, vendors=vendors)


READER: Final = DialectReader(
    dialect=Dialect.NVIDIA,
    by_plugin=True,
    words=DialectWords(
        name=str(Dialect.NVIDIA),
        resources=resources.WHOLE_CARD_NAMES,
        card_numbers=frozenset({resources.NVIDIA_GPU}),
    ),
    demands=_demands,
    rewritten=rewritten,
    adverts=lambda units, _: Adverts(name=resources.NVIDIA_GPU, count=units(resources.NVIDIA_GPU)),
)
