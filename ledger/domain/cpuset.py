"""Sets of logical CPUs and their Linux list text, `0-3,8`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from ledger.domain.errors import InputError

CPU_ID_MAX: Final = 4096
_PART: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class CpuSet:
    """
    A set of logical CPU ids, kept as the bits of one integer; iterates in ascending order.

    Equal sets are equal and hash alike, whatever text they came from.
    """

    __slots__ = ("mask",)  # no dataclass: its text is what is recorded, not its fields

    def __init__(self, *, mask: int = 0) -> None:
        self.mask: Final = mask

    def __repr__(self) -> str:
        return f"CpuSet(mask={self.mask})"

    def __eq__(self, other: object) -> bool:
        return type(other) is CpuSet and other.mask == self.mask

    def __hash__(self) -> int:
        return hash(self.mask)

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __bool__(self) -> bool:
        return self.mask != 0

    def __iter__(self) -> Iterator[int]:
        mask = self.mask
        while mask:
            lowest = mask & -mask
            yield lowest.bit_length() - 1
            mask ^= lowest

    def __contains__(self, cpu_id: int) -> bool:
        return cpu_id >= 0 and bool(self.mask >> cpu_id & 1)

    def __or__(self, other: CpuSet) -> CpuSet:
        return CpuSet(mask=self.mask | other.mask)

    def __and__(self, other: CpuSet) -> CpuSet:
        return CpuSet(mask=self.mask & other.mask)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return CpuSet(mask=self.mask & ~other.mask)

    def __le__(self, other: CpuSet) -> bool:
        """Tell whether every CPU of this set is in the other."""
        return not self.mask & ~other.mask

    def __str__(self) -> str:
        return format_cpuset(self)

    def isdisjoint(self, other: CpuSet) -> bool:
        """Tell whether the two sets share no CPU."""
        return not self.mask & other.mask


EMPTY: Final = CpuSet()


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """Return the CPUs of several sets."""
    mask = 0
    for one in sets:
        mask |= one.mask
    return CpuSet(mask=mask)


def cpuset_of(cpu_ids: Iterable[int]) -> CpuSet:
    """Return the set of these ids. Raises InputError: an id below 0 or above 4096."""
    mask = 0
    for cpu_id in cpu_ids:
        if not 0 <= cpu_id <= CPU_ID_MAX:
            raise InputError(f"not a CPU id between 0 and {CPU_ID_MAX}: value={cpu_id}")
        mask |= 1 << cpu_id
    return CpuSet(mask=mask)


@lru_cache(maxsize=16384)
def parse_cpuset(text: str) -> CpuSet:
    """
    Read a Linux CPU list; the empty text is the empty set.

    Rule: Koordinator contract 6.7, "OURS". Parts may be unsorted and overlap (share pools do).

    Raises:
        InputError: blanks, empty parts (a trailing comma), negative numbers, `1-2-3`, an id above
            4096, a reversed range such as `5-3`. Upstream takes the reversed range as empty, does
            not bound an id that stands alone, and takes a plus sign.
    """
    if not text:
        return EMPTY
    mask = 0
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise InputError(f"not a CPU list: value={text!r}")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise InputError(f"a CPU range runs backwards: value={text!r}")
        if last > CPU_ID_MAX:
            raise InputError(f"a CPU id is above {CPU_ID_MAX}: value={text!r}")
        mask |= (1 << last + 1) - (1 << first)
    return CpuSet(mask=mask)


def format_cpuset(cpus: CpuSet) -> str:
    """Write the Linux list: ascending, ranges merged, two neighbours as `0-1`, no set as `""`."""
    mask = cpus.mask
    parts = []
    base = 0
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        length = (~mask & (mask + 1)).bit_length() - 1  # trailing ones: 0b0111 has three
        first, last = base + skipped, base + skipped + length - 1
        parts.append(str(first) if first == last else f"{first}-{last}")
        mask >>= length
        base = last + 1
    return ",".join(parts)
