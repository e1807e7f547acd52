"""The largest smaller request that fits: one dimension at a time, every answer decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

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
_COUNTED: Final = frozenset({"devices", "cpus"})
_Fields = Callable[[int], dict[str, int]]


class Dimension(NamedTuple):
    """One number of a request that could be smaller; `apply` takes from 1 to `asked` - 1."""

    name: str
    unit: str
    asked: int
    apply: Callable[[int], PodRequest]

    @property
    def counted(self) -> bool:
        """It is a number of things, each of which may fit or not whatever more would do."""
        return self.unit in _COUNTED


class Smaller(NamedTuple):
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
        return Smaller(*dimension[:3], value, answer.node)

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
    kinds = [demand.device_type for demand in request.devices]
    for place, demand in enumerate(request.devices):
        kind = demand.device_type
        of = f" of container {','.join(demand.containers)}" if kinds.count(kind) > 1 else ""
        for name, unit, asked, fields in _numbers_of(demand, request):

            def fewer(value: int, place: int = place, fields: _Fields = fields) -> PodRequest:
                return _with_demand(request, place, fields(value))

            yield Dimension(f"{kind}{of} {name}", unit, asked, fewer)
    cpuset = request.cpuset
    if cpuset is not None:
        whole, milli = cpuset, request.cpu_milli - cpuset.cpus * _MILLI

        def fewer_cpus(value: int) -> PodRequest:
            cpu_milli = max(0, milli + value * _MILLI)
            return replace(request, cpuset=replace(whole, cpus=value), cpu_milli=cpu_milli)

        yield Dimension("cpus", "cpus", cpuset.cpus, fewer_cpus)
    elif request.cpu_milli:
        asked = request.cpu_milli
        yield Dimension("cpu", "milli", asked, lambda value: replace(request, cpu_milli=value))
    if request.memory_bytes:
        asked = -(-request.memory_bytes // _MIB)
        fewer_bytes = lambda value: replace(request, memory_bytes=value * _MIB)  # noqa: E731
        yield Dimension("memory", "MiB", asked, fewer_bytes)


def _numbers_of(
    demand: DeviceDemand, request: PodRequest
) -> Iterator[tuple[str, str, int, _Fields]]:
    """Yield the numbers of a demand: name, unit, what is asked, and the fields for a value."""
    core, ratio = demand.core_percent, demand.memory_ratio_percent
    is_gpu = demand.device_type == GPU
    alone = demand.exclusive and core < WHOLE_PERCENT  # it still wants its card for itself

    def part(percent: int) -> dict[str, int]:
        return {"core_percent": percent, "memory_ratio_percent": percent, "exclusive": alone}

    if demand.count > 1:
        yield "count", "devices", demand.count, lambda value: {"count": value}
    if demand.exclusive and core >= WHOLE_PERCENT:
        if demand.count == 1 and is_gpu and chooser_of(request.dialect).whole_or_share:
            yield "share", "percent", WHOLE_PERCENT, part
        return
    if core and core == ratio:
        yield "share", "percent", core, part
        return
    if core > 1:
        name, unit = ("core", "percent") if is_gpu else ("units", "units")
        yield name, unit, core, lambda value: {"core_percent": value}
    if ratio > 1:
        yield "memory", "percent", ratio, lambda value: {"memory_ratio_percent": value}
    if (size := demand.memory_bytes) > _MIB:
        yield "memory", "MiB", -(-size // _MIB), lambda value: {"memory_bytes": value * _MIB}


def _with_demand(request: PodRequest, place: int, fields: dict[str, Any]) -> PodRequest:
    demand = replace(request.devices[place], **fields)
    devices = (*request.devices[:place], demand, *request.devices[place + 1 :])
    return replace(
        request, devices=devices, containers=() if "count" in fields else request.containers
    )
