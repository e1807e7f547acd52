"""Whole cards of a vendor's device plugin: `nvidia.com/gpu: 2`."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.kube.pod_spec import PodSpec, pod_total
from ledger.domain.request.asked import NOTHING, Asked, asking, first_fields
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.request.rules import check_gpu_combination
from ledger.domain.resources import (
    GPU_CORE,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    NVIDIA_GPU,
    TYPE_GPU,
    WHOLE_CARD_NAMES,
)


def whole_card_demands(spec: PodSpec) -> Asked:
    """
    Return the demand of a Pod for whole cards: n cards, each of them alone.

    Rule: Koordinator contract 4.3 (n cards are core 100 n and ratio 100 n); cards of two vendors
    in one Pod are no request (4.2).
    """
    asks = [
        (container, {name: n for name, n in amounts.items() if n})
        for container, amounts in asking(spec, WHOLE_CARD_NAMES)
    ]
    total = pod_total((container.kind, amounts) for container, amounts in asks)
    if not total:
        return NOTHING
    errors = tuple(check_gpu_combination(first_fields(asks), total, "spec.containers"))
    if errors:
        return Asked(errors=errors)
    counts = {container.place: sum(amounts.values()) for container, amounts in asks if amounts}
    demand = DeviceDemand(
        device_type=TYPE_GPU,
        count=sum(total.values()),
        core_percent=WHOLE_PERCENT,
        memory_ratio_percent=WHOLE_PERCENT,
        exclusive=True,
        containers=tuple(counts),
    )
    return Asked(demands=(demand,), counts=counts)


def rewritten(amounts: Mapping[str, int]) -> dict[str, int]:
    """
    Return one container's amounts as admission writes them: `nvidia.com/gpu` n on n cards.

    Rule: Koordinator contract 5.1, ours: n becomes core and ratio 100 n. Other amounts are kept.
    """
    result = dict(amounts)
    if NVIDIA_GPU not in result:
        return result
    cards = result.pop(NVIDIA_GPU)
    percent = WHOLE_PERCENT * cards
    return {**result, GPU_CORE: percent, GPU_MEMORY_RATIO: percent, GPU_SHARED: cards}
