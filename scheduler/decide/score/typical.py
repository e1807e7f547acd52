"""The Pods that a cluster usually sees, as far as fragmentation asks about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ledger.domain.devices import GPU
from ledger.domain.log.workload import TypicalPod, Workload
from ledger.domain.request.requests import PodRequest

COVERAGE_PERCENT: Final = 95
"""The share of all Pods that the typical ones make up together (FGD paper's simulator)."""


def workload_of(requests: Iterable[PodRequest]) -> Workload:
    """
    Return the most frequent requests until they make up `COVERAGE_PERCENT` of all.

    Rule: FGD paper, "typical Pods"; Pods without GPUs count too. Of equally frequent requests the
    one that was seen first comes first.
    """
    found = Counter(_typical(request) for request in requests)
    covered, chosen = 0, []
    for pod, count in found.most_common():
        if covered * 100 >= COVERAGE_PERCENT * found.total():
            break
        covered += count
        chosen.append((pod, count))
    return Workload(
        version=Workload.newest_version,
        pods=tuple(pod for pod, _ in chosen),
        counts=tuple(count for _, count in chosen),
    )


def _typical(request: PodRequest) -> TypicalPod:
    demands = [demand for demand in request.devices if demand.device_type == GPU]
    return TypicalPod(
        cpu_milli=request.cpu_milli,
        gpu_percent=max(
            (max(demand.core_percent, demand.memory_ratio_percent) for demand in demands),
            default=0,
        ),
        gpu_memory_bytes=max((demand.memory_bytes for demand in demands), default=0),
        gpu_count=sum(demand.count for demand in demands),
        model_names=demands[0].model_names if demands else (),
        placement=request.placement,
    )
