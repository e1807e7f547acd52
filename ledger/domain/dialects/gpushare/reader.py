"""GPU share, as Pods and Nodes are read in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ledger.domain.dialects.gpushare.adopted import from_gpushare, unread_words, with_containers
from ledger.domain.dialects.gpushare.demands import UNIT_BYTES, gpushare_demands
from ledger.domain.dialects.gpushare.words import GPUSHARE_COUNT, GPUSHARE_MEMORY, WORDS
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Adverts, CardLeft, DialectReader, GpuAsked, Uncounted
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.vocabulary import Vocabulary

_MIB: Final = "MiB"


def _demands(spec: PodSpec) -> GpuAsked:
    share = gpushare_demands(spec)
    own = {"gpushare_units": share.units}
    return GpuAsked(dialect=Dialect.GPUSHARE, asked=share.asked, own=own)


def _adverts(units: Callable[[str], int], vocabulary: Vocabulary) -> Adverts | None:
    count = units(GPUSHARE_COUNT)
    each = units(GPUSHARE_MEMORY) // max(1, count)
    unit_bytes = UNIT_BYTES[vocabulary.gpushare_unit]
    return Adverts(name=GPUSHARE_COUNT, count=count, memory_bytes=each * unit_bytes)


def _offers(card: CardLeft, vocabulary: Vocabulary) -> Mapping[str, int]:
    """Return MiB and the card; GiB are a device plugin's, an id for each (contract B.5, ours)."""
    count = {GPUSHARE_COUNT: int(card.is_open)}
    if vocabulary.gpushare_unit != _MIB:
        return count
    return {**count, GPUSHARE_MEMORY: card.memory_bytes // UNIT_BYTES[_MIB]}


def _unit_bytes(resource: str, vocabulary: Vocabulary) -> int:
    """Return the memory behind one id of the daemon's (GPU-sharing contract B.5)."""
    return UNIT_BYTES[vocabulary.gpushare_unit] if resource == GPUSHARE_MEMORY else 0


READER: Final = DialectReader(
    dialect=Dialect.GPUSHARE,
    words=WORDS,
    demands=_demands,
    takes_wishes=False,
    adopted=from_gpushare,
    unread=unread_words,
    with_containers=with_containers,
    unit_bytes=_unit_bytes,
    adverts=_adverts,
    offers=_offers,
    uncounted=(Uncounted(memory=GPUSHARE_MEMORY, cards=GPUSHARE_COUNT, least=1),),
)
