"""RDMA, FPGA and whatever else counts in percent of a device: the type is data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
)
from ledger.domain.device_types import DeviceType, Unit
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import PodSpec, pod_total
from ledger.domain.request.asked import TypeRequest, asking, first_fields
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.request.rules import check_memory_split, check_percent
from ledger.domain.resources import TYPE_GPU

NO_HINT = DeviceHint()


def unit_demands(
    spec: PodSpec, hints: Mapping[str, DeviceHint]
) -> Iterator[tuple[str, TypeRequest]]:
    """
    Yield (device type, demand) for every type but gpu that the Pod asks for, by type.

    Rule: Koordinator contract 4.2 (percent rule on the Pod's aggregate) and 8.3; docs, Device
    types.
    """
    type_of = spec.vocabulary.device_type_of
    types = {
        found
        for container in spec.containers
        for name, quantity in container.requests.items()
        if quantity and (found := type_of(name)) is not None and found != TYPE_GPU
    }
    for name in sorted(types):
        yield name, _demand(spec, spec.vocabulary.type_named(name), hints.get(name, NO_HINT))


def devices_of(units: int, hint: DeviceHint, unit: Unit = Unit.PERCENT) -> tuple[int, int]:
    """
    Return how many devices an amount means, and how much of each, in percent.

    Rule: Koordinator contract 8.3: 300 is 3 whole ones; 5 with RequestsAsCount is 5 with 1 each,
    or 5 whole ones with DeviceLevel; anything else up to 100 is a part of one. A type that counts
    devices gives so many whole ones.
    """
    if unit is Unit.COUNT:
        return units, WHOLE_PERCENT
    if units > WHOLE_PERCENT:
        return units // WHOLE_PERCENT, WHOLE_PERCENT
    if hint.allocate_strategy is AllocateStrategy.REQUESTS_AS_COUNT:
        alone = hint.exclusive_policy is DeviceExclusivePolicy.DEVICE_LEVEL
        return units, WHOLE_PERCENT if alone else 1
    return 1, units


def _demand(spec: PodSpec, kind: DeviceType, hint: DeviceHint) -> TypeRequest:
    asks = [
        (container, {name: amount for name, amount in amounts.items() if amount})
        for container, amounts in asking(spec, kind.resources)
    ]
    asks = [(container, amounts) for container, amounts in asks if amounts]
    total = pod_total((container.kind, amounts) for container, amounts in asks)
    errors = tuple(_check(kind, first_fields(asks), total, hint))
    if errors:
        return TypeRequest(errors=errors)
    units, memory = total.get(kind.resource, 0), total.get(kind.memory, 0)
    count, each = devices_of(units, hint, kind.unit) if units else (1, 0)
    everywhere = hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL and count == 1
    counts = {
        container.index: _count(amounts.get(kind.resource, 0), hint, kind)
        for container, amounts in asks
    }
    if everywhere:
        counts = {}  # how many devices that is differs from node to node: the whole Pod's
    demand = DeviceDemand(
        device_type=kind.name,
        count=count,
        core_percent=each,
        memory_bytes=memory // count,
        memory_ratio_percent=each if kind.memory and not memory else 0,
        exclusive=kind.unit is Unit.COUNT
        or hint.exclusive_policy is DeviceExclusivePolicy.DEVICE_LEVEL,
        containers=tuple(counts),
    )
    return TypeRequest(demands=(demand,), counts=counts)


def _count(units: int, hint: DeviceHint, kind: DeviceType) -> int:
    return devices_of(units, hint, kind.unit)[0] if units else 1


def _check(
    kind: DeviceType, fields: Mapping[str, str], total: Mapping[str, int], hint: DeviceHint
) -> Iterator[FieldError]:
    units, memory = total.get(kind.resource, 0), total.get(kind.memory, 0)
    broken: list[FieldError] = []
    if units and kind.unit is Unit.PERCENT:
        broken += check_percent(fields[kind.resource], kind.resource, units)
    yield from broken
    if memory and units and not broken:
        count, _ = devices_of(units, hint, kind.unit)
        yield from check_memory_split(fields[kind.memory], memory, count)
