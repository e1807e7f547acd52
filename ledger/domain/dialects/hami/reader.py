"""HAMi, as Pods and Nodes are read in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.hami.adopted import SOURCE, from_hami, with_containers
from ledger.domain.dialects.hami.demands import MIB, card_filter, hami_demands, part_of
from ledger.domain.dialects.hami.nodes import registered
from ledger.domain.dialects.hami.words import CARDS, CORES, MEMORY, MEMORY_PERCENT, WORDS
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import DialectReader, GpuAsked
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.requests import MatchExpression
from ledger.domain.resources import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    LABEL_GPU_VENDOR,
)
from ledger.domain.vocabulary import Vocabulary

_NVIDIA_CARDS: Final = (
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="DoesNotExist", values=()),),
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="In", values=("", "nvidia")),),
)
"""What a node's labels must say (Koordinator contract 1.2), as for `nvidia.com/gpu` alone."""


def _demands(spec: PodSpec) -> GpuAsked:
    asked = hami_demands(spec)
    vendors = _NVIDIA_CARDS if asked.demands else ()
    own = {"card_filter": card_filter(spec.annotations)}
    return GpuAsked(dialect=Dialect.HAMI, asked=asked, own=own, vendors=vendors)


def _rewritten(amounts: Mapping[str, int]) -> dict[str, int]:
    """
    Return what is asked of each card as a sum over the cards, as Koordinator counts.

    Rule: docs/contracts/hami.md 1, fact 1; Koordinator contract 4.4.
    """
    cards, part = amounts.get(CARDS, 1), part_of(amounts)
    each = {
        GPU_CORE: part.core_percent,
        GPU_MEMORY: part.memory_bytes,
        GPU_MEMORY_RATIO: part.memory_ratio_percent,
    }
    kept = {name: amount for name, amount in amounts.items() if name not in _WORDS}
    sums = {name: amount * cards for name, amount in each.items() if amount}
    return {**kept, **sums, GPU_SHARED: cards}


_WORDS: Final = WORDS.resources | WORDS.borrowed


def _amounts(percent: int | None, size: int | None, _vocabulary: Vocabulary) -> Mapping[str, str]:
    if percent is not None and percent > WHOLE_PERCENT and percent % WHOLE_PERCENT:
        raise InputError("several cards give alike: a multiple of 100", field="--gpus")
    cards = max(1, (percent or 0) // WHOLE_PERCENT)
    amounts = {CARDS: str(cards)}
    if percent is not None:
        amounts[CORES] = str(percent // cards)
    if size is not None:
        amounts[MEMORY] = str(-(-size // (MIB * cards)))
    elif percent is not None:
        amounts[MEMORY_PERCENT] = str(percent // cards)
    return amounts


READER: Final = DialectReader(
    dialect=Dialect.HAMI,
    words=WORDS,
    demands=_demands,
    amounts=_amounts,
    rewritten=_rewritten,
    takes_wishes=False,
    sources=(SOURCE,),
    adopted=from_hami,
    with_containers=with_containers,
    listed=registered,
)
