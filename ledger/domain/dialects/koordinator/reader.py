"""Koordinator's keys, as Pods and Nodes are read in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.koordinator.demands import inject, koordinator_demands
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Adverts, CardLeft, DialectReader, GpuAsked
from ledger.domain.dialects.words import DialectWords
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.resources import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    KOORDINATOR_GPU_NAMES,
)
from ledger.domain.vocabulary import Vocabulary


def _demands(spec: PodSpec) -> GpuAsked:
    return GpuAsked(dialect=Dialect.KOORDINATOR, asked=koordinator_demands(spec))


def _adverts(units: Callable[[str], int], _vocabulary: Vocabulary) -> Adverts | None:
    count = units(GPU_CORE) // WHOLE_PERCENT
    return Adverts(name=GPU_CORE, count=count, memory_bytes=units(GPU_MEMORY) // max(1, count))


def _offers(card: CardLeft, _vocabulary: Vocabulary) -> Mapping[str, int]:
    """Return what the released agent sums up of healthy cards (contract 1.2)."""
    ratio = card.memory_bytes * WHOLE_PERCENT // max(1, card.total_bytes)
    return {
        GPU: min(card.core_percent, ratio),
        GPU_CORE: card.core_percent,
        GPU_MEMORY: card.memory_bytes,
        GPU_MEMORY_RATIO: ratio,
        GPU_SHARED: WHOLE_PERCENT if card.is_open else 0,
    }


READER: Final = DialectReader(
    dialect=Dialect.KOORDINATOR,
    words=DialectWords(
        name=str(Dialect.KOORDINATOR),
        resources=KOORDINATOR_GPU_NAMES,
        card_numbers=frozenset({GPU_SHARED}),
        card_percents=frozenset({GPU, GPU_CORE, GPU_MEMORY_RATIO}),
        card_memories=frozenset({GPU_MEMORY, GPU_MEMORY_RATIO}),
    ),
    demands=_demands,
    rewritten=inject,
    adverts=_adverts,
    offers=_offers,
)
