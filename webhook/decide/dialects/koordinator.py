"""Koordinator's keys in admission."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.resources import GPU_MEMORY
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.dialects.protocol import DialectAdmission
from webhook.decide.validating.findings import Advice, Said, say

_PLAIN_BYTES_MAX: Final = 2**20
_GIB_AT_MOST: Final = 96


def _units(container: ContainerSpec, _vocabulary: Vocabulary) -> Iterator[Said]:
    amount = container.units(GPU_MEMORY)
    if 0 < amount < _PLAIN_BYTES_MAX:
        suffix = "Gi" if amount <= _GIB_AT_MOST else "Mi"
        text = f"{container.field(GPU_MEMORY)}: {amount} is {amount} bytes"
        yield say(Advice.SUSPICIOUS_UNIT, f"{text}; write {amount}{suffix} for {suffix}B")


ADMISSION: Final = DialectAdmission(dialect=Dialect.KOORDINATOR, units=_units)
