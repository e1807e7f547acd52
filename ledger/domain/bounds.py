"""
The bounds of every integer and of every name that is recorded, and the types of fields of one.

What is outside of them no machine has and no clock says. Inside of them every sum and product that
a view or a constraint makes fits 64 bits, and every reader of JSON and of dates keeps it exact.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from ledger.domain.cpuset import CPU_ID_MAX
from ledger.domain.proofs.canonical import INTEGER_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

Bounds = tuple[int, int]
"""The smallest and the largest value."""

TIME_MAX_US: Final = 253_402_300_799_999_999
"""The end of year 9999, the last that calendars write with four digits."""
WALL_MAX_US: Final = TIME_MAX_US - 86_400_000_000
"""A clock says no later: `at_us` goes on by 1 us an event from there, and stays inside the year."""
WALL: Final[Bounds] = (0, WALL_MAX_US)
AT: Final[Bounds] = (0, TIME_MAX_US)
POSITION: Final[Bounds] = (1, INTEGER_MAX)
NAME_MAX: Final = 253
"""Characters of a name: no name of Kubernetes is longer. Two of them are a key of any index: one of
Postgres has room for 2,704 bytes, and an entry that is larger fails the whole transaction."""
PRODUCT: Final[Bounds] = (0, 100_000_000)
"""An amount that views multiply with the microseconds of a day."""
SUM: Final[Bounds] = (0, 2**62 - 1)
"""What others hold of a device, added up: the next holder's part still fits 64 bits."""

ANY: Final[Bounds] = (-INTEGER_MAX, INTEGER_MAX)
_COUNT: Final[Bounds] = (0, INTEGER_MAX)
_AMOUNT: Final[Bounds] = (0, 8_000_000)  # percent and other units, containers
_INDEX: Final[Bounds] = (-1, 2**31 - 1)  # -1 is not known, or none

_CORE_SUM: Final[Bounds] = (0, 1_000_000_000)
_NUMBER: Final[Bounds] = (0, 2**31 - 1)
_PRIORITY: Final[Bounds] = (-(2**31), 2**31 - 1)
_SHIFT: Final[Bounds] = (-TIME_MAX_US // 1_000_000, TIME_MAX_US // 1_000_000)

Count = Annotated[int, Meta(ge=_COUNT[0], le=_COUNT[1])]
"""Bytes, microseconds since the epoch, positions, and whatever else is counted from 0."""
CoreSum = Annotated[int, Meta(ge=_CORE_SUM[0], le=_CORE_SUM[1])]
"""Core percent of all cards of a Pod."""
CpuId = Annotated[int, Meta(ge=0, le=CPU_ID_MAX)]
Exact = Annotated[int, Meta(ge=ANY[0], le=ANY[1])]
"""Any integer that JSON carries exactly."""
Index = Annotated[int, Meta(ge=_INDEX[0], le=_INDEX[1])]
Milli = Annotated[int, Meta(ge=PRODUCT[0], le=PRODUCT[1])]
"""Thousandths of a CPU."""
Name = Annotated[str, Meta(max_length=NAME_MAX)]
"""A name, a UID or an id: what is looked up by, so that it is a key of an index."""
Number = Annotated[int, Meta(ge=_NUMBER[0], le=_NUMBER[1])]
Position = Annotated[int, Meta(ge=POSITION[0], le=POSITION[1])]
Priority = Annotated[int, Meta(ge=_PRIORITY[0], le=_PRIORITY[1])]
Seconds = Annotated[int, Meta(ge=_SHIFT[0], le=_SHIFT[1])]
Units = Annotated[int, Meta(ge=_AMOUNT[0], le=_AMOUNT[1])]

_FIELDS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("epoch", "at_position", "first", "last", "began_at", "nodes", "size"), _COUNT
        ),
        **dict.fromkeys(("lost_from", "lost_to", "memory_bytes", "created_at_us"), _COUNT),
        **dict.fromkeys(("core_percent", "memory_ratio_percent", "instances"), _AMOUNT),
        **dict.fromkeys(("minor", "core", "socket", "numa", "numa_node"), _INDEX),
        "minors": _NUMBER,
        "whole": _NUMBER,
        "id": (0, CPU_ID_MAX),
        "attempt": _NUMBER,
        "priority": _PRIORITY,
        "cpu_ref_count_max": _AMOUNT,
        "cpu_milli": PRODUCT,
        "shift_seconds": _SHIFT,
        "gpu_core_percent": _CORE_SUM,
        **dict.fromkeys(("count", "counts", "device_counts", "amounts", "cpus"), _COUNT),
        **dict.fromkeys(("bound_cpus", "burst_milli", "gpushare_units", "pods_max"), _COUNT),
        **dict.fromkeys(("gpu_memory_bytes", "gpu_count", "number", "rank", "share_count"), _COUNT),
        **dict.fromkeys(("arrival", "counted", "extended", "running", "until_us"), _COUNT),
        **dict.fromkeys(("score", "runner_up_score"), _NUMBER),
        "gpu_percent": _AMOUNT,
        **dict.fromkeys(("memory_mib", "offers", "capacity", "others", "scaled"), _COUNT),
        "decided_on": POSITION,
    }
)


def bounds_of(field: str) -> Bounds:
    """Return the bounds of a field of an event, in whichever of its parts it stands."""
    return _FIELDS.get(field, ANY)
