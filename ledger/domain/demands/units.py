"""RDMA, FPGA and whatever else counts in percent of a device: the type is data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
)
from ledger.domain.demands.asked import Asked, asking
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.pod_spec import PodSpec, pod_total
from ledger.domain.requests import DeviceDemand
from ledger.domain.resources import TYPE_GPU, device_type_of
from ledger.domain.rules import check_percent

NO_HINT = DeviceHint()


def unit_demands(spec: PodSpec, hints: Mapping[str, DeviceHint]) -> Iterator[tuple[str, Asked]]:
    """
    Yield (device type, demand) for every type but gpu that the Pod asks for, by type.

    Rule: Koordinator contract 4.2 (percent rule on the Pod's aggregate) and 8.3.
    """
    types = {
        name: device_type
        for container in spec.containers
        for name, quantity in container.requests.items()
        if quantity and (device_type := device_type_of(name)) not in {None, TYPE_GPU}
    }
    for name, device_type in sorted(types.items(), key=lambda item: item[1]):
        yield device_type, _demand(spec, name, device_type, hints.get(device_type, NO_HINT))


def devices_of(percent: int, hint: DeviceHint) -> tuple[int, int]:
    """
    Return how many devices a percentage means, and how much of each.

    Rule: Koordinator contract 8.3: 300 is 3 whole ones; 5 with RequestsAsCount is 5 with 1 each,
    or 5 whole ones with DeviceLevel; anything else up to 100 is a part of one.
    """
    if percent > WHOLE_PERCENT:
        return percent // WHOLE_PERCENT, WHOLE_PERCENT
    if hint.allocate_strategy is AllocateStrategy.REQUESTS_AS_COUNT:
        alone = hint.exclusive_policy is DeviceExclusivePolicy.DEVICE_LEVEL
        return percent, WHOLE_PERCENT if alone else 1
    return 1, percent


def _demand(spec: PodSpec, name: str, device_type: str, hint: DeviceHint) -> Asked:
    asks = [(container, amounts) for container, amounts in asking(spec, (name,)) if amounts[name]]
    percent = pod_total((container.kind, amounts) for container, amounts in asks)[name]
    errors = tuple(check_percent(asks[0][0].field(name), name, percent))
    if errors:
        return Asked(errors=errors)
    count, each = devices_of(percent, hint)
    everywhere = hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL and count == 1
    counts = {container.place: devices_of(amounts[name], hint)[0] for container, amounts in asks}
    if everywhere:
        counts = {}  # how many devices that is differs from node to node: the whole Pod's
    demand = DeviceDemand(
        device_type=device_type,
        count=count,
        core_percent=each,
        exclusive=hint.exclusive_policy is DeviceExclusivePolicy.DEVICE_LEVEL,
        containers=tuple(counts),
    )
    return Asked(demands=(demand,), counts=counts)
