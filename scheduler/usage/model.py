"""What was held, as plain values: of cards at a moment, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ledger.domain.devices import level_percent

WHOLE: Final = 100
"""Percent of one whole card."""

Axis = Literal["time", "position"]
"""
What a history runs along: microseconds since the epoch, or positions in the ledger.

A run without a clock records every decision at one moment; there the order is all there is.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """One device of the inventory. Its place in `History.cards` is its index everywhere else."""

    node: int
    device_type: str
    minor: int
    model: str = ""
    core_capacity_percent: int = WHOLE
    memory_capacity_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node of the inventory; `cards` are indexes into `History.cards`, ascending."""

    name: str
    cards: range = range(0)


@dataclass(frozen=True, slots=True)
class Hold:
    """
    One Pod's part of one device over [opened, closed) of the axis; `closed` None while it lasts.

    There are hundreds of thousands of them, so the fields go by place too.

    Attributes:
        card, pod, share, ending: indexes into the lists of `History`.
        position: of the event that opened it.
    """

    card: int
    pod: int
    opened: int
    closed: int | None
    position: int
    share: int
    ending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a hold takes of its card. A run has few different ones."""

    core_percent: int
    memory_bytes: int
    memory_ratio_percent: int
    exclusive: bool = False
    observed: bool = False

    @property
    def percent(self) -> int:
        """Return what it counts as: core percent, or the memory ratio where no core is asked."""
        return level_percent(self.core_percent, self.memory_ratio_percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEnd:
    """Why a hold is there and why it ended; empty text while it is held."""

    policy: str = ""
    end_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A card was closed over [opened, closed) of the axis; `closed` None = still is."""

    card: int
    opened: int
    closed: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """
    Everything that was held, from `start` to `end` of the axis.

    Attributes:
        pods: (namespace, name).
        holds: ordered by (opened, position, card).
    """

    axis: Axis
    start: int
    end: int
    nodes: Sequence[NodeInfo]
    cards: Sequence[CardInfo]
    pods: Sequence[tuple[str, str]] = ()
    shares: Sequence[Share] = ()
    endings: Sequence[HoldEnd] = ()
    holds: Sequence[Hold] = ()
    outages: Sequence[Outage] = ()


@dataclass(frozen=True, slots=True)
class CapacityPoint:
    """
    What becomes of the GPUs at one moment, in percent of a card; the parts add up to the capacity.

    Rule: docs/audit.md, "What became of a card".
    """

    at: int
    allocated: int
    stranded: int
    idle: int
    closed: int
    unknown: int = 0

    @property
    def capacity(self) -> int:
        """Return what the GPUs have together."""
        return self.allocated + self.stranded + self.idle + self.closed + self.unknown
