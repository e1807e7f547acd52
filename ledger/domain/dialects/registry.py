"""The dialects that are read, and which one a set of names is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.dialects.gpushare.reader import READER as GPUSHARE
from ledger.domain.dialects.hami.reader import READER as HAMI
from ledger.domain.dialects.koordinator.reader import READER as KOORDINATOR
from ledger.domain.dialects.mgpu.reader import READER as MGPU
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.nvidia.reader import READER as NVIDIA
from ledger.domain.dialects.protocol import DialectReader
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.card_names import are_parts
from ledger.domain.resources import ALIASES, NVIDIA_GPU

READERS: Final[tuple[DialectReader, ...]] = (MGPU, GPUSHARE, HAMI, KOORDINATOR, NVIDIA)
"""
In the order in which their annotations and quantities are asked (cli.md, Running Pods); who borrows
words is before who owns them.
"""

_BY_DIALECT: Final[Mapping[Dialect, DialectReader]] = {each.dialect: each for each in READERS}


_DIALECT_BY_NAME: Final[Mapping[str, Dialect]] = {
    name: each.dialect for each in READERS for name in each.words.resources
}
_DIALECT_BY_SPELLING: Final[Mapping[str, Dialect]] = {
    **_DIALECT_BY_NAME,
    **{
        alias: _DIALECT_BY_NAME[name] for alias, name in ALIASES.items() if name in _DIALECT_BY_NAME
    },
}


def gpu_dialect_of(name: str) -> Dialect | None:
    """
    Return the GPU dialect a resource is a word of, under any of its spellings, else None.

    RDMA and FPGA mix with every dialect (Koordinator contract 4.2) and have none.
    """
    return _DIALECT_BY_SPELLING.get(name)


def reader_of(dialect: Dialect) -> DialectReader:
    """Return the object of a dialect."""
    return _BY_DIALECT[dialect]


def gives_by_number(node: NodeFacts) -> bool:
    """Tell whether a device plugin alone offers a node's cards, and picks them (docs/adr/0033)."""
    return bool(node.dialects) and all(_BY_DIALECT[one].by_plugin for one in node.dialects or ())


def parts_of(node: NodeFacts) -> int:
    """Return how many units a node gives by number that are parts of cards; 0 = none are."""
    if not gives_by_number(node):
        return 0
    offers = dict(node.systems.offers)
    return offers.get(NVIDIA_GPU, 0) if are_parts(node.labels, offers) else 0


def takes_wishes(dialect: Dialect | None) -> bool:
    """Tell whether a Pod in this dialect, or in none, can wish for scopes and partitions."""
    return dialect is None or _BY_DIALECT[dialect].takes_wishes


def may_be_cut(dialect: str) -> bool:
    """Tell whether the search for a Pod's cards may end before it has seen all ways to choose."""
    return any(each.dialect == dialect and each.bounded_search for each in READERS)


def rewritten(amounts: Mapping[str, int]) -> dict[str, int]:
    """
    Return one container's amounts as admission writes them: cores, memory and number of cards.

    Rule: Koordinator contract 5.1, ours. Amounts come under released names and without zeros; words
    that a dialect has borrowed are that dialect's, so it is asked before the one that owns them.
    """
    for each in READERS:
        if each.rewritten is not None and not each.words.resources.isdisjoint(amounts):
            return each.rewritten(amounts)
    return dict(amounts)
