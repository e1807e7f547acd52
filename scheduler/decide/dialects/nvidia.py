"""Whole cards of a vendor's device plugin."""

from __future__ import annotations

from typing import Final

from ledger.domain.dialects.names import Dialect
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.dialects.protocol import DialectChooser

CHOOSER: Final = DialectChooser(
    dialect=Dialect.NVIDIA, choose=choose_plain, by_share=True, has_topology=True
)
