"""The dialects that are decided in, and what all of them together read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Final

from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.dialects.gpushare import CHOOSER as GPUSHARE
from scheduler.decide.dialects.hami import CHOOSER as HAMI
from scheduler.decide.dialects.mgpu.chooser import CHOOSER as MGPU
from scheduler.decide.dialects.protocol import DialectChooser

NVIDIA: Final = DialectChooser(
    dialect=Dialect.NVIDIA, choose=choose_plain, by_share=True, has_topology=True
)
KOORDINATOR: Final = replace(NVIDIA, dialect=Dialect.KOORDINATOR, whole_or_share=True)
UNNAMED: Final = DialectChooser(dialect=None, choose=choose_plain, by_share=True)
"""Requests for GPUs that came in no words: shares, as a trace has them."""

CHOOSERS: Final[tuple[DialectChooser, ...]] = (NVIDIA, KOORDINATOR, MGPU, GPUSHARE, HAMI, UNNAMED)

_BY_DIALECT: Final[Mapping[Any, DialectChooser]] = {each.dialect: each for each in CHOOSERS}

OWN_FIELDS: Final = tuple(
    field.name
    for field in fields(PodRequest)
    if any(field.name in each.request_fields for each in CHOOSERS)
)
"""The fields of a request that only single dialects read of it to tell whether a node will do."""

NODE_FIELDS: Final = tuple(sorted({name for each in CHOOSERS for name in each.node_fields}))

NOTHING_OWN: Final = tuple(
    field.default for field in fields(PodRequest) if field.name in OWN_FIELDS
)
"""The values of `OWN_FIELDS` that say nothing."""

own_of: Final[Callable[[PodRequest], tuple[Hashable, ...]]] = attrgetter(*OWN_FIELDS)
"""Return the values of `OWN_FIELDS`."""

node_own_of: Final[Callable[[NodeFacts], Hashable]] = attrgetter(*NODE_FIELDS)
"""Return all that single dialects read of a node to tell whether it will do."""


def chooser_of(dialect: Dialect | None) -> DialectChooser:
    """Return the object of a dialect, and of requests in none."""
    return _BY_DIALECT[dialect]


def counts_containers(dialect: str | None) -> bool:
    """Tell whether a Pod's containers count against a limit; an unknown dialect's do not."""
    found = _BY_DIALECT.get(dialect)
    return found is not None and found.limit is not None
