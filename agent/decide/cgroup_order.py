"""
In which order lists of CPUs or memory nodes are written into a tree of cgroups.

What a write does to those below is worked out on the way as the kernel does it: on v1 a cgroup has
to have all that those below it have; on v2 it has what it asks for of what the one above has, and
all of that if that is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.domain.cpuset import CpuSet, union


@dataclass(slots=True, eq=False)
class Cell:
    """
    One cgroup on the way from what it has to what it is to have.

    Attributes:
        asked: what its file says.
        now: what its tasks may use.
        goal: None = as it is.
        owner: of CPUs of its own: its turn comes when others have left them.
        parted: a partition: what is above it changes nothing.
    """

    path: str
    above: Cell | None
    asked: CpuSet
    now: CpuSet
    goal: CpuSet | None = None
    owner: bool = False
    parted: bool = False
    below: list[Cell] = field(default_factory=list)
    end: CpuSet = field(init=False)
    depth: int = 0

    def __post_init__(self) -> None:
        if self.above is not None:
            self.above.below.append(self)
            self.depth = self.above.depth + 1


def granted(asked: CpuSet, above: CpuSet) -> CpuSet:
    """Return what the kernel gives to a cgroup of v2."""
    return asked & above or above


def orderly(cells: Sequence[Cell], top: CpuSet, *, v1: bool) -> list[tuple[str, CpuSet]]:
    """
    Return what to write where, in order; the cells have it then.

    No write adds anything but what the goal of a cgroup has, for it and for those below. First
    everybody gives up what is not his, then gets what he lacks, owners last, and what had to go on
    meanwhile is given up. On v1 giving up begins below and getting above, on v2 the other way.

    Args:
        cells: each after the one above it; the first is kubepods' own and without a goal.
        top: what that one has, partitions below it included.
    """
    order = _Order(v1)
    for cell in cells:
        above = top if cell.above is None else cell.above.end
        as_it_is = cell.asked if v1 else granted(cell.asked, above)
        cell.end = as_it_is if cell.goal is None else cell.goal
    due = [cell for cell in cells if not order.stands(cell)]
    up = sorted(due, key=lambda cell: -cell.depth)
    # what a partition gives up is had at once by all that ask for nothing: it comes last
    down = sorted(due, key=lambda cell: (cell.parted, cell.depth))
    giving, getting = (up, down) if v1 else (down, up)
    for cell in giving:
        order.give_up(cell)
    for cell in sorted(getting, key=lambda cell: (cell.depth if v1 else -cell.depth, cell.owner)):
        order.take(cell, last=False)
    for cell in giving:
        order.take(cell, last=True)
    return order.writes


class _Order:
    def __init__(self, v1: bool) -> None:  # noqa: FBT001 - private, and both callers name it
        self.v1 = v1
        self.writes: list[tuple[str, CpuSet]] = []

    def stands(self, cell: Cell) -> bool:
        if cell.goal is None or cell.above is None:
            return True
        asked = cell.asked if self.v1 else granted(cell.asked, cell.above.end)
        return asked == cell.goal

    def give_up(self, cell: Cell) -> None:
        """Leave what is not the goal's, as far as something is left to each that is below."""
        if cell.goal is None or self.stands(cell) or not (left := cell.now & cell.goal):
            return
        for one in cell.below:
            if self.v1 or (one.goal is not None and not left <= one.goal and not one.asked & left):
                left |= one.now
        if left != cell.now and left <= cell.now:
            self._write(cell, left)

    def take(self, cell: Cell, *, last: bool) -> None:
        """Take the goal, beside what can't be given up yet: v2, in the first turn; below, on v1."""
        if cell.goal is None or self.stands(cell):
            return
        keeps = [one.now for one in cell.below] if self.v1 else [] if last else [cell.now]
        self._write(cell, cell.goal | union(keeps))

    def _write(self, cell: Cell, value: CpuSet) -> None:
        assert cell.above is not None, cell.path
        if value == cell.asked or (self.v1 and not value <= cell.above.now):
            return
        self.writes.append((cell.path, value))
        cell.asked = value
        self._settle(cell)

    def _settle(self, cell: Cell) -> None:
        if self.v1:
            cell.now = cell.asked
        elif not cell.parted and cell.above is not None:
            cell.now = granted(cell.asked, cell.above.now)
            for one in cell.below:
                self._settle(one)
