"""
The answer of every dialect: demands on one device type, or what is wrong with them.

RDMA, FPGA and whatever else counts in percent of a device has no dialect: its type is data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
)
from ledger.domain.device_types import DeviceType, Unit
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.names import REFUSED_RESOURCES
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import INIT, PENDING, SIDECAR, ContainerSpec, PodSpec, pod_total
from ledger.domain.request import rules
from ledger.domain.request.requests import ContainerNeed, DeviceDemand
from ledger.domain.request.rule_names import Rule
from ledger.domain.resources import MIG_PREFIX, TYPE_GPU

NO_HINT = DeviceHint()


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRequest:
    """
    What a Pod asks of one device type.

    Attributes:
        demands: empty when there are errors.
        counts: container place -> number of devices it uses.
    """

    demands: tuple[DeviceDemand, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[FieldError, ...] = ()


NOTHING = TypeRequest()


def check_device_resources(spec: PodSpec) -> Iterator[FieldError]:
    """
    Yield what every dialect forbids: requests that differ from limits, devices as overhead.

    Rule: Koordinator contract 1.1, ours; the API server demands the same of extended resources.
    """
    devices = spec.vocabulary.device_names
    for container in spec.containers:
        for name in container.limits:
            if name in devices:
                yield from rules.under(
                    Rule.REQUESTS_EQUAL_LIMITS,
                    rules.check_equal_limits(
                        container.field(name),
                        container.written.get(name, name),
                        container.requests.get(name),
                        container.limits[name],
                    ),
                )
    yield from _check_overhead(spec)


@rules.of_rule(Rule.DEVICE_OVERHEAD)
def _check_overhead(spec: PodSpec) -> Iterator[FieldError]:
    for name in spec.overhead:
        if name in spec.vocabulary.device_names:
            yield rules.forbidden(f"spec.overhead[{name}]", "a device can't be overhead")


def check_known_words(spec: PodSpec, *, own_cpus: bool) -> Iterator[FieldError]:
    """
    Yield the words of dialects that are not built, in a Pod that asks for something of ours.

    Rule: ours (DIVERGENCES.md). HAMi's say what part of a card is meant: without them a share would
    become a whole card. A MIG instance would be hidden from its container, as cards are that the
    Pod does not hold. A Pod that has a node is what it is.
    """
    names = spec.vocabulary.device_names
    devices = own_cpus or any(
        quantity and name in names
        for container in spec.containers
        for name, quantity in container.requests.items()
    )
    for container in spec.containers if devices and spec.stage == PENDING else ():
        for name, quantity in container.requests.items():
            if quantity and name in REFUSED_RESOURCES:
                yield rules.unsupported(container.field(name), REFUSED_RESOURCES[name])
            elif quantity and name.startswith(MIG_PREFIX):
                what = "a MIG instance in a pod with devices or CPUs that we give"
                yield rules.unsupported(container.field(name), what)


def asking(spec: PodSpec, names: Iterable[str]) -> list[tuple[ContainerSpec, dict[str, int]]]:
    """Return containers that name any of these, in starting order, in whole units, zeros too."""
    wanted = frozenset(names)
    result = []
    for container in spec.containers:
        amounts = {
            name: quantity.ceil() for name, quantity in container.requests.items() if name in wanted
        }
        if amounts:
            result.append((container, amounts))
    return result


def first_fields(asks: Iterable[tuple[ContainerSpec, Mapping[str, int]]]) -> dict[str, str]:
    """Return released name -> field path in the first container that asks for it."""
    fields: dict[str, str] = {}
    for container, amounts in asks:
        for name in amounts:
            fields.setdefault(name, container.field(name))
    return fields


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
        broken += rules.check_percent(fields[kind.resource], kind.resource, units)
    yield from broken
    if memory and units and not broken:
        count, _ = devices_of(units, hint, kind.unit)
        yield from rules.check_memory_split(fields[kind.memory], memory, count)


def containers_on(
    needs: Sequence[ContainerNeed], device_type: str, count: int
) -> list[list[ContainerNeed]]:
    """
    Return which containers use the first, second, ... of the Pod's `count` devices.

    Rule: design section 3: app containers and sidecars take disjoint devices in spec order; an
    init container reuses the first ones that no sidecar started before it holds.

    Where the containers' numbers don't add up to devices of their own (two that ask for parts of
    one NIC) nobody is named: the whole Pod shares.
    """
    users: list[list[ContainerNeed]] = [[] for _ in range(count)]
    asked = [(need, dict(need.device_counts).get(device_type, 0)) for need in needs]
    if sum(number for need, number in asked if need.kind != INIT) > count:
        return users
    place, kept = 0, set[int]()
    for need, number in asked:
        if need.kind == INIT:
            free = [position for position in range(count) if position not in kept]
            taken: Sequence[int] = free[:number]
        else:
            taken, place = range(place, place + number), place + number
            if need.kind == SIDECAR:
                kept.update(taken)
        for position in taken:
            users[position].append(need)
    return users
