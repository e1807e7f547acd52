"""Nodes that passed every test over arrays and failed the closer look, until they change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.request.requests import PodRequest
from scheduler.decide.nodes.fleet import Fleet
from scheduler.decide.outcome import Unfit
from scheduler.decide.shapes import Shape, wishes_of

_KNOWN_MAX: Final = 64
_NODES_MAX: Final = 1 << 18


@dataclass(slots=True)
class _Looks:
    """What closer looks at nodes answered to requests alike, as of `seen`."""

    shape: Shape  # kept alive: looks are found by its identity
    seen: int
    failed: dict[int, Unfit] = field(default_factory=dict)


class CloserLooks:
    """
    Remembers refusals of nodes that only a closer look can refuse.

    A node's answer depends on the request's shape, its wishes and the node alone, so it holds
    until the node changes. A Pod that waits is then not tried on every node again and again.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: OrderedDict[Hashable, _Looks] = OrderedDict()

    def failed(self, request: PodRequest, shape: Shape) -> dict[int, Unfit]:
        """Return place -> why not, for nodes as they are now; what is added is remembered."""
        log = self._fleet.log
        memory_bytes = request.memory_bytes if self._fleet.aligns else 0
        key = (id(shape), wishes_of(request), memory_bytes)
        looks = self._known.get(key)
        if looks is None:
            looks = self._known[key] = _Looks(shape, log.position)
            if len(self._known) * len(self._fleet) > _NODES_MAX or len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
            return looks.failed
        self._known.move_to_end(key)
        if looks.seen != log.position:
            changed = log.since(looks.seen)
            if changed is None:
                looks.failed.clear()
            elif looks.failed:
                for node in set(changed.tolist()):
                    looks.failed.pop(node, None)
            looks.seen = log.position
        return looks.failed

    def forget(self) -> None:
        """Drop every refusal that is remembered."""
        self._known.clear()
