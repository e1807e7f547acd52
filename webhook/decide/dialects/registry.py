"""The dialects that admission knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.dialects.names import Dialect
from webhook.decide.dialects.gpushare import ADMISSION as GPUSHARE
from webhook.decide.dialects.hami import ADMISSION as HAMI
from webhook.decide.dialects.koordinator import ADMISSION as KOORDINATOR
from webhook.decide.dialects.mgpu import ADMISSION as MGPU
from webhook.decide.dialects.protocol import DialectAdmission

NVIDIA: Final = DialectAdmission(dialect=Dialect.NVIDIA)
ADMISSIONS: Final[tuple[DialectAdmission, ...]] = (KOORDINATOR, NVIDIA, MGPU, GPUSHARE, HAMI)
"""In the order of the list of rules."""

_BY_DIALECT: Final[Mapping[Dialect, DialectAdmission]] = {each.dialect: each for each in ADMISSIONS}


def admission_of(dialect: Dialect) -> DialectAdmission:
    """Return the object of a dialect."""
    return _BY_DIALECT[dialect]
