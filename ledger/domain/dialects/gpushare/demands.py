"""Aliyun GPU share: memory of exactly one card for the whole Pod."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ledger.domain.dialects.gpushare.words import (
    GPUSHARE_CORE,
    GPUSHARE_COUNT,
    GPUSHARE_MEMORY,
    GPUSHARE_NAMES,
)
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import PodSpec, pod_total
from ledger.domain.request.asked import NOTHING, TypeRequest, asking
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import invalid, of_rule, required, undecided, under, unsupported
from ledger.domain.resources import TYPE_GPU

UNIT_BYTES: Final = {"MiB": 2**20, "GiB": 2**30, "": 2**30}  # not known: the larger
CARD_MEMORY_MAX_BYTES: Final = 2**40
"""1 TiB: no card has more, so a larger request has the wrong unit (GPU-sharing contract A.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShareAsked:
    """The demand, and the request in the node daemon's unit."""

    asked: TypeRequest
    units: int = 0


def gpushare_demands(spec: PodSpec) -> GpuShareAsked:
    """
    Return the demand of a Pod in GPU share's keys: one card for all its containers.

    Rule: GPU-sharing contract B.1, B.3, ours: max(sum of app containers, max of init containers);
    design section 3.
    """
    unit = spec.vocabulary.gpushare_unit
    asks = asking(spec, GPUSHARE_NAMES)
    if not any(any(amounts.values()) for _, amounts in asks):
        return GpuShareAsked(asked=NOTHING)
    memory = [
        (container, {GPUSHARE_MEMORY: amounts[GPUSHARE_MEMORY]})
        for container, amounts in asks
        if amounts.get(GPUSHARE_MEMORY)
    ]
    units = pod_total((container.kind, amounts) for container, amounts in memory).get(
        GPUSHARE_MEMORY, 0
    )
    errors = (*_check_keys(spec), *_check_memory(spec, units, unit))
    if errors:
        return GpuShareAsked(asked=TypeRequest(errors=errors))
    counts = {container.index: 1 for container, _ in memory}
    demand = DeviceDemand(
        device_type=TYPE_GPU,
        count=1,
        memory_bytes=units * UNIT_BYTES[unit],
        containers=tuple(counts),
    )
    return GpuShareAsked(asked=TypeRequest(demands=(demand,), counts=counts), units=units)


@of_rule(Rule.GPUSHARE_CARD)
def _check_keys(spec: PodSpec) -> Iterator[FieldError]:
    for container, amounts in asking(spec, GPUSHARE_NAMES):
        if amounts.get(GPUSHARE_COUNT, 0) > 1:
            fact = "a GPU share is on one card; nearest legal value 1"
            yield invalid(container.field(GPUSHARE_COUNT), amounts[GPUSHARE_COUNT], fact)
        if amounts.get(GPUSHARE_CORE):
            yield unsupported(container.field(GPUSHARE_CORE), "compute percent of a GPU share")


@of_rule(Rule.GPUSHARE_CARD)
def _check_memory(spec: PodSpec, units: int, unit: str) -> Iterator[FieldError]:
    container, amounts = asking(spec, GPUSHARE_NAMES)[0]
    if not units:
        yield required(
            container.field(GPUSHARE_MEMORY), f"{min(amounts)} needs {GPUSHARE_MEMORY} beside it"
        )
    elif not unit:
        yield undecided(container.field(GPUSHARE_MEMORY), "nodes count it in MiB and in GiB")
    elif units * UNIT_BYTES[unit] > CARD_MEMORY_MAX_BYTES:
        most = CARD_MEMORY_MAX_BYTES // UNIT_BYTES[unit]
        fact = f"the pod asks for {units} {unit} of one card, more than {most}; a number of {unit}"
        yield from under(
            Rule.GPUSHARE_UNIT, [invalid(container.field(GPUSHARE_MEMORY), units, fact)]
        )
