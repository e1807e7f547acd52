"""Koordinator's keys in admission."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.request.rule_names import Rule
from ledger.domain.resources import GPU_MEMORY
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.dialects.protocol import DialectAdmission
from webhook.decide.validating.findings import Advice, Said, rule_entry, say

_PLAIN_BYTES_MAX: Final = 2**20
_GIB_AT_MOST: Final = 96


def _units(container: ContainerSpec, _vocabulary: Vocabulary) -> Iterator[Said]:
    amount = container.units(GPU_MEMORY)
    if 0 < amount < _PLAIN_BYTES_MAX:
        suffix = "Gi" if amount <= _GIB_AT_MOST else "Mi"
        text = f"{container.field(GPU_MEMORY)}: {amount} is {amount} bytes"
        yield say(Advice.SUSPICIOUS_UNIT, f"{text}; write {amount}{suffix} for {suffix}B")


_RULES: Final = (
    rule_entry(
        Rule.GPU_KEYS,
        "`gpu` beside `gpu.shared`, `gpu` or `gpu.shared` of 0, `gpu.shared` without or with two "
        "memory units",
        "Koordinator contract 5.2",
    ),
    rule_entry(
        Rule.GPU_COMBINATION,
        "a set of GPU keys that is not in the table (core alone, memory with ratio, two vendors)",
        "Koordinator contract 4.2",
    ),
    rule_entry(
        Rule.DEVICE_PERCENT,
        "a percentage above 100 that is no multiple of 100, of GPU, RDMA or FPGA",
        "Koordinator contract 4.2, percent rule",
    ),
    rule_entry(
        Rule.SHARE_DIVIDES,
        "core, ratio or memory that does not divide over `gpu.shared` cards, or more than 100 "
        "percent on each",
        "Koordinator contract 4.2, share rule; 12, Q13",
    ),
    rule_entry(
        Rule.SAME_SHARES,
        "containers of one Pod that ask for different shares of a card",
        "Koordinator contract 4.1",
    ),
)

ADMISSION: Final = DialectAdmission(dialect=Dialect.KOORDINATOR, rules=_RULES, units=_units)
