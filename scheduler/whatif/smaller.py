"""The largest smaller request that fits: one dimension at a time, every answer decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.outcome import Placement
from scheduler.whatif.what_if import WhatIf

_MIB: Final = 1 << 20
_MILLI: Final = 1000
_LINEAR_MAX: Final = 128
"""Numbers of devices and CPUs are tried one by one up to here: a table of partitions may take 4 and
not 3. Above, and for shares and sizes, the range is halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """
    One number of a request that could be smaller.

    Attributes:
        name: such as `cpu`, `memory`, `gpu count`, `gpu memory`, `cpus`.
        asked: in `unit`s, as all values of the dimension.
        apply: the request with another value from 1 to `asked` - 1.
    """

    name: str
    unit: str
    asked: int
    counted: bool = False
    apply: Callable[[int], PodRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """With `fits` instead of `asked` the request goes to the node at index `node`."""

    name: str
    unit: str
    asked: int
    fits: int
    node: int


def smaller_requests(
    request: PodRequest, what_if: WhatIf, *, decisions_max: int
) -> tuple[list[Smaller], bool]:
    """Return each dimension that helps alone with its largest value, and if a bound cut it."""
    end = what_if.decisions + decisions_max
    found: list[Smaller] = []
    for dimension in dimensions(request):
        if what_if.decisions >= end:
            return found, True
        answer = _largest(dimension, what_if)
        if answer is not None:
            found.append(answer)
    return found, False


def _largest(dimension: Dimension, what_if: WhatIf) -> Smaller | None:
    def try_value(value: int) -> Smaller | None:
        answer = what_if.decide(dimension.apply(value))
        if not isinstance(answer, Placement):
            return None
        return Smaller(
            name=dimension.name,
            unit=dimension.unit,
            asked=dimension.asked,
            fits=value,
            node=answer.node,
        )

    if dimension.counted and dimension.asked <= _LINEAR_MAX:
        tried = (try_value(value) for value in range(dimension.asked - 1, 0, -1))
        return next((answer for answer in tried if answer), None)
    best = try_value(1) if dimension.asked > 1 else None
    low, high = 1, dimension.asked - 1
    while best is not None and low < high:
        middle = (low + high + 1) // 2
        answer = try_value(middle)
        if answer is None:
            high = middle - 1
        else:
            low, best = middle, answer
    return best


def dimensions(request: PodRequest) -> Iterator[Dimension]:
    """Yield what could be smaller: devices in the request's order, CPUs, then cpu and memory."""
    for place in range(len(request.devices)):
        yield from _of_demand(request, place)
    cpuset = request.cpuset
    if cpuset is not None:

        def fewer_cpus(value: int) -> PodRequest:
            saved = (cpuset.cpus - value) * _MILLI
            return replace(
                request,
                cpuset=replace(cpuset, cpus=value),
                cpu_milli=max(0, request.cpu_milli - saved),
            )

        yield Dimension(name="cpus", unit="cpus", asked=cpuset.cpus, counted=True, apply=fewer_cpus)
    elif request.cpu_milli:
        yield Dimension(
            name="cpu",
            unit="milli",
            asked=request.cpu_milli,
            apply=lambda value: replace(request, cpu_milli=value),
        )
    if request.memory_bytes:
        yield Dimension(
            name="memory",
            unit="MiB",
            asked=-(-request.memory_bytes // _MIB),
            apply=lambda value: replace(request, memory_bytes=value * _MIB),
        )


def _of_demand(request: PodRequest, place: int) -> Iterator[Dimension]:
    demand = request.devices[place]
    kind = demand.device_type
    many = sum(item.device_type == kind for item in request.devices) > 1
    of = f"{kind} of container {','.join(demand.containers)} " if many else f"{kind} "

    def dimension(
        name: str, unit: str, asked: int, change: Callable[[int], DeviceDemand]
    ) -> Dimension:
        return Dimension(
            name=of + name,
            unit=unit,
            asked=asked,
            counted=unit == "devices",
            apply=lambda value: _with_demand(request, place, change(value)),
        )

    if demand.count > 1:
        yield dimension(
            "count",
            "devices",
            demand.count,
            lambda value: replace(demand, count=value),
        )
    core, ratio = demand.core_percent, demand.memory_ratio_percent
    if demand.exclusive and core >= WHOLE_PERCENT:
        if demand.count == 1 and kind == GPU and chooser_of(request.dialect).whole_or_share:
            yield dimension("share", "percent", WHOLE_PERCENT, lambda value: _part(demand, value))
        return
    if core and core == ratio:
        yield dimension("share", "percent", core, lambda value: _part(demand, value))
        return
    if core > 1:
        yield dimension(
            "core" if kind == GPU else "units",
            "percent" if kind == GPU else "units",
            core,
            lambda value: replace(demand, core_percent=value),
        )
    if ratio > 1:
        yield dimension(
            "memory",
            "percent",
            ratio,
            lambda value: replace(demand, memory_ratio_percent=value),
        )
    if demand.memory_bytes > _MIB:
        yield dimension(
            "memory",
            "MiB",
            -(-demand.memory_bytes // _MIB),
            lambda value: replace(demand, memory_bytes=value * _MIB),
        )


def _part(demand: DeviceDemand, percent: int) -> DeviceDemand:
    """Return a smaller part of the device; one that wants the device alone still does."""
    alone = demand.exclusive and demand.core_percent < WHOLE_PERCENT
    return replace(demand, core_percent=percent, memory_ratio_percent=percent, exclusive=alone)


def _with_demand(request: PodRequest, place: int, demand: DeviceDemand) -> PodRequest:
    devices = (*request.devices[:place], demand, *request.devices[place + 1 :])
    same = demand.count == request.devices[place].count
    return replace(request, devices=devices, containers=request.containers if same else ())
