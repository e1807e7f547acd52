"""Koordinator's keys: whole cards and shares of them."""

from __future__ import annotations

from typing import Final

from ledger.domain.dialects.names import Dialect
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.dialects.protocol import DialectChooser

CHOOSER: Final = DialectChooser(
    dialect=Dialect.KOORDINATOR,
    choose=choose_plain,
    by_share=True,
    whole_or_share=True,
    has_topology=True,
)
