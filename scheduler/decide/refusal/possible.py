"""Whether a node would take a request once nobody else is on it, so that freeing helps at all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, is_member
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.filter.equivalence import decides_more, kind_of
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.shapes import Shape, wishes_of

Takes = Callable[[PodRequest, NodeFacts], bool]
"""Tells whether a node that is alone and empty takes a request."""

_KNOWN_MAX: Final = 512
FREEING: Final = ("release ", "end ", "free ")
"""How remedies begin that take something from others."""
_OPENING: Final = "open "


@dataclass(slots=True)
class _Known:
    """What was found for one kind of request; its shape is kept, for it is known by identity."""

    shape: Shape
    nodes: dict[Hashable, tuple[NodeFacts, bool]] = field(default_factory=dict)
    kinds: dict[Hashable, bool] = field(default_factory=dict)


class Possible:
    """
    Says which remedies could ever help, by deciding on a node of its own.

    What is found is remembered per kind of request and of node: it depends on nothing that is held.
    """

    def __init__(self, arrays: NodeArrays, takes: Takes) -> None:
        self._arrays = arrays
        self._takes = takes
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()

    def would_help(self, request: PodRequest, shape: Shape, row: int, remedy: str) -> bool:
        """Tell whether what a remedy frees or opens on a node could do; true of any other."""
        opened = remedy.startswith(_OPENING)
        if not opened and not remedy.startswith(FREEING):
            return True
        facts, known = self._arrays.nodes[row], self._of(request, shape)
        own = (opened, facts.uid)
        found = known.nodes.get(own)
        if found is not None and found[0] is facts:
            return found[1]
        kind = (opened, self._kind(request, facts, row))
        helps = known.kinds.get(kind)
        if helps is None:
            helps = self._takes(request, opened_up(facts) if opened else facts)
            if kind != own:
                known.kinds[kind] = helps
        known.nodes[own] = (facts, helps)
        return helps

    def forget(self) -> None:
        """Drop all that is remembered."""
        self._known.clear()

    def _of(self, request: PodRequest, shape: Shape) -> _Known:
        key = (id(shape), wishes_of(request), is_member(request), request.memory_bytes)
        known = self._known.setdefault(key, _Known(shape))
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return known

    def _kind(self, request: PodRequest, facts: NodeFacts, row: int) -> Hashable:
        """Return what nodes have in common that answer alike; the UID of one that is alone."""
        own = request.cpuset or request.numa or request.burst_milli or request.card_filter
        if own or decides_more(facts) or not chooser_of(request.dialect).by_share:
            return facts.uid
        arrays = self._arrays
        return (
            kind_of(facts),
            tuple([device.healthy for device in facts.devices]),
            arrays.cpu_cap.item(row),
            arrays.memory_cap.item(row),
            facts.pods_max,
            tuple([arrays.extended.cap(row, name) for name, _ in request.extended]),
        )


def opened_up(facts: NodeFacts) -> NodeFacts:
    """Return the node with all its devices healthy."""
    return replace(
        facts, devices=tuple([replace(device, healthy=True) for device in facts.devices])
    )
