"""Requests for GPUs that came in no words: shares, as a trace has them."""

from __future__ import annotations

from typing import Final

from scheduler.decide.cards.plain import choose_by_share
from scheduler.decide.dialects.protocol import DialectChooser

CHOOSER: Final = DialectChooser(dialect=None, choose=choose_by_share, by_share=True)
