"""GPU share in admission."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ledger.domain.dialects.gpushare.demands import UNIT_BYTES
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.dialects.protocol import DialectAdmission
from webhook.decide.validating.findings import Advice, Said, say

_GIB_AT_MOST: Final = 96
_MIB_AT_LEAST: Final = 512


def _units(container: ContainerSpec, vocabulary: Vocabulary) -> Iterator[Said]:
    unit, shares = vocabulary.gpushare_unit, container.units(GPUSHARE_MEMORY)
    field = container.field(GPUSHARE_MEMORY)
    if unit == "MiB" and 0 < shares <= _GIB_AT_MOST:
        more = shares * UNIT_BYTES["GiB"] // UNIT_BYTES["MiB"]
        text = f"{field}: counts MiB here, so {shares} is {shares} MiB"
        yield say(Advice.SUSPICIOUS_UNIT, f"{text}; for {shares} GiB write {more}")
    elif unit == "GiB" and shares >= _MIB_AT_LEAST:
        less = -(-shares * UNIT_BYTES["MiB"] // UNIT_BYTES["GiB"])
        text = f"{field}: counts GiB here, so {shares} is {shares} GiB"
        yield say(Advice.SUSPICIOUS_UNIT, f"{text}; for {shares} MiB write {less}")


ADMISSION: Final = DialectAdmission(dialect=Dialect.GPUSHARE, units=_units)
