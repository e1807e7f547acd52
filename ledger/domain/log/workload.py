"""The Pods that a cluster usually sees: what nodes are rated against, as a ledger keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from ledger.domain.bounds import Count, Milli, Units
from ledger.domain.request.requests import PlacementRules

_ANYWHERE: Final = PlacementRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalPod:
    """
    One of the most frequent requests. Several GPU demands of one Pod count as one, per GPU alike.

    Attributes:
        gpu_percent: the larger of core percent and memory ratio, per GPU.
        gpu_memory_bytes: per GPU, where the request is in bytes; turned into percent of the
            cards at hand.
        gpu_count: 0 for a Pod without GPUs.
    """

    cpu_milli: Milli
    gpu_percent: Units = 0
    gpu_memory_bytes: Count = 0
    gpu_count: Count = 0
    model_names: tuple[str, ...] = ()
    placement: PlacementRules = _ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    Typical Pods with the number of times each was seen.

    Rule: docs/adr/0011. `pods` and `counts` run in step, the most frequent first.
    """

    newest_version: ClassVar[int] = 1
    version: Annotated[int, Meta(ge=1, le=1)]
    pods: tuple[TypicalPod, ...] = ()
    counts: tuple[Count, ...] = ()


NO_WORKLOAD: Final = Workload(version=Workload.newest_version)
