"""One node as the card and CPU choices see it, and what a choice answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from ledger.domain.devices import DeviceShare
from ledger.domain.nodes import NodeFacts
from scheduler.decide.outcome import CardView, NumaPart


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """
    A node at one moment. Choosing reads it and changes nothing.

    Attributes:
        cards: every device of every type, ordered by (device_type, minor).
        cpu_refs: logical CPU -> how many Pods hold it; a CPU that nobody holds may be missing.
        cpus_alone: CPUs whose holder shares them with nobody, a mask.
        numa_parts: what Pods take of its NUMA nodes, in no order.
    """

    facts: NodeFacts
    cards: tuple[CardView, ...] = ()
    cpu_refs: Mapping[int, int] = field(default_factory=dict)
    cpus_alone: int = 0
    numa_parts: tuple[NumaPart, ...] = ()


class Choice(Struct, frozen=True, kw_only=True):
    """
    The shares a node would give one Pod.

    Attributes:
        shares: ordered by (device_type, minor), one per device; empty for a Pod without devices.
        search_cut: a bounded search stopped early; the shares fit but may not be the best.
    """

    shares: tuple[DeviceShare, ...] = ()
    search_cut: bool = False
