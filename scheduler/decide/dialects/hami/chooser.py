"""HAMi, as its Pods are placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CardFilter, PodRequest
from scheduler.decide.dialects.hami.choose import NO_SUCH_CARD, choose_hami
from scheduler.decide.dialects.protocol import DialectChooser

_WISHES: Final = (
    ("models", "use-gputype"),
    ("not_models", "nouse-gputype"),
    ("ids", "use-gpuuuid"),
    ("not_ids", "nouse-gpuuuid"),
)


def _alternatives(
    request: PodRequest, _nodes: Sequence[NodeFacts]
) -> Iterator[tuple[str, Callable[[PodRequest], PodRequest]]]:
    """Yield the request without each list of cards."""
    for field, name in _WISHES:
        if request.card_filter is not None and getattr(request.card_filter, field):
            yield f"drop nvidia.com/{name}", partial(_without, field)


def _without(field: str, request: PodRequest) -> PodRequest:
    assert request.card_filter is not None, request.uid
    left: CardFilter = replace(request.card_filter, **{field: ()})
    return replace(request, card_filter=None if left == CardFilter() else left)


CHOOSER: Final = DialectChooser(
    dialect=Dialect.HAMI,
    choose=choose_hami,
    by_links=False,
    whole_or_share=True,
    has_topology=True,
    request_fields=("card_filter",),
    search_reasons=(NO_SUCH_CARD,),
    alternatives=_alternatives,
)
