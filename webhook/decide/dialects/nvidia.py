"""Whole cards in admission: they keep the rules of every request."""

from __future__ import annotations

from typing import Final

from ledger.domain.dialects.names import Dialect
from webhook.decide.dialects.protocol import DialectAdmission

ADMISSION: Final = DialectAdmission(dialect=Dialect.NVIDIA)
