"""
Who gives a node's devices: the extender where it is ours, claims where a driver has its cards.

Rule: docs/adr/0029. A node has one mode; one that is of both gives nothing new in either.

    a listed driver's pool    taint tenure.sh/owned    new grants by
    no                        either                   the extender
    yes                       no                       claims
    yes                       yes                      nobody: `TwoModes`
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from ledger.domain.log.drift import TWO_MODES
from ledger.domain.nodes import Taint
from ledger.domain.resources import TAINT_TENURE_OWNED

GIVES_BY_CLAIMS: Final = "NodeGivesByClaims"
"""Why the extender gives nothing of a node."""


class Mode(StrEnum):
    """Who gives a node's devices."""

    EXTENDER = "extender"
    CLAIMS = "claims"
    BOTH = "both"


def mode_of(taints: Iterable[Taint], *, has_pool: bool) -> Mode:
    """Return the mode of a node. `has_pool`: a listed driver's newest pool has a device of it."""
    if not has_pool:
        return Mode.EXTENDER
    owned = any(taint.key == TAINT_TENURE_OWNED for taint in taints)
    return Mode.BOTH if owned else Mode.CLAIMS


def closed_to_pods(mode: Mode) -> str:
    """Return why the extender gives nothing new of a node, empty where it may."""
    return {Mode.CLAIMS: GIVES_BY_CLAIMS, Mode.BOTH: TWO_MODES}.get(mode, "")
