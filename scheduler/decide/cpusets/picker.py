"""
The CPU picker: which logical CPUs of one machine a Pod gets.

Worked example: 12 CPUs, two sockets (each one NUMA node) of three cores with two threads.

    socket 0   core 0: 0,6   core 1: 1,7   core 2: 2,8
    socket 1   core 3: 3,9   core 4: 4,10  core 5: 5,11

>>> from ledger.domain.cpuset import CpuSet, format_cpuset, parse_cpuset
>>> from ledger.domain.topology import Cpu, cpu_topology_of
>>> from scheduler.decide.cpusets.layout import layout_of
>>> where = {c: c % 6 // 3 for c in range(12)}
>>> cpus = [Cpu(id=c, core=c % 6, socket=where[c], numa=where[c]) for c in where]
>>> machine = layout_of(cpu_topology_of(cpus))
>>> def picked(count, *, full_cores, held="", most_allocated=False):
...     request = PickRequest(
...         count=count, full_cores=full_cores, most_allocated=most_allocated
...     )
...     chosen = pick(machine, request, machine.cpus & ~parse_cpuset(held).mask)
...     return None if chosen is None else format_cpuset(CpuSet(mask=chosen))

FullPCPUs: whole cores of one NUMA node (stage 1a), a tie goes to the first. Where core 0 is held,
the emptier node is taken, with `most_allocated` the fuller one. More than a node has come from a
whole socket first, then core by core (1c, 1d).

>>> picked(4, full_cores=True)
'0-1,6-7'
>>> picked(4, full_cores=True, held="0,6")
'3-4,9-10'
>>> picked(2, full_cores=True, held="0,6", most_allocated=True)
'1,7'
>>> picked(8, full_cores=True)
'0-3,6-9'

SpreadByPCPUs: one thread of each core, of one NUMA node as long as it has enough CPUs; the second
threads come after that (stages 2a and 3). One CPU too many is no answer.

>>> picked(3, full_cores=False)
'0-2'
>>> picked(4, full_cores=False)
'0-2,6'
>>> picked(12, full_cores=True, held="0") is None
True
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from scheduler.decide.cpusets.layout import CpuLayout, Numa, around, bits, lowest

_NOBODY: Final[Mapping[int, int]] = MappingProxyType({})
_FILTERED_FIRST: Final = (True, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickRequest:
    """
    What one pick asks for.

    Rule: Koordinator contract 6.4, inputs.

    Attributes:
        count: logical CPUs.
        full_cores: FullPCPUs; else SpreadByPCPUs.
        most_allocated: fill the NUMA node or socket first that has the least left.
        avoid_cores: PCPULevel. CPUs of cores with such an allocation are avoided.
        avoid_numas: NUMANodeLevel. The same for NUMA nodes.
    """

    count: int
    full_cores: bool
    most_allocated: bool = False
    avoid_cores: bool = False
    avoid_numas: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusHeld:
    """
    What the picker must know of CPUs that others hold.

    Attributes:
        refs: CPU -> holders; read only where a CPU may have several, else leave it empty.
        exclusive_cores: CPUs of cores that hold a PCPULevel allocation.
        exclusive_numas: CPUs of NUMA nodes that hold a NUMANodeLevel allocation.
    """

    refs: Mapping[int, int] = field(default_factory=lambda: _NOBODY)
    exclusive_cores: int = 0
    exclusive_numas: int = 0


NOTHING_HELD: Final = CpusHeld()


def pick(
    layout: CpuLayout,
    request: PickRequest,
    available: int,
    held: CpusHeld = NOTHING_HELD,
    *,
    preferred: int = 0,
) -> int | None:
    """
    Pick exactly `request.count` of the available CPUs; None when there are not that many.

    Rule: Koordinator contract 6.4, stages 0 to 3 and the preferred set. The same CPUs as the
    released allocator's, in every case.

    Args:
        available: mask of the CPUs that one more holder may have.
        preferred: mask of CPUs to take first, from a reservation for instance.
    """
    assert not available & ~layout.cpus, "available CPUs are the machine's"
    if request.count <= 0:
        return 0
    if request.count > available.bit_count():
        return None
    wanted = preferred & available
    if not wanted:
        return _Pick(layout, request, available, held, request.count).run()
    first = min(request.count, wanted.bit_count())
    chosen = _Pick(layout, request, wanted, held, first).run()
    if first == request.count:
        return chosen
    rest = _Pick(layout, request, available & ~wanted, held, request.count - first).run()
    return chosen | rest


class _Pick:
    """One pick in the making: what is still needed, still available, and taken."""

    __slots__ = ("available", "avoided", "held", "layout", "needed", "request", "taken")

    def __init__(
        self, layout: CpuLayout, request: PickRequest, available: int, held: CpusHeld, needed: int
    ) -> None:
        self.layout = layout
        self.request = request
        self.available = available
        self.held = held
        self.needed = needed
        self.taken = 0
        self.avoided = 0
        if request.avoid_cores:
            self.avoided = held.exclusive_cores
        elif request.avoid_numas:
            self.avoided = held.exclusive_numas

    def run(self) -> int:
        if self.request.full_cores or self.layout.threads_per_core == 1:
            if self._whole_cores_of_one_numa() or self._whole_cores_of_one_socket():
                return self.taken
            self._whole_sockets()
            self._cores_of_small_sockets()
        spreads = self.needed > 0 and not self.request.full_cores
        if spreads and (self._spread_in_one_numa() or self._spread_in_one_socket()):
            return self.taken
        for filtered in _FILTERED_FIRST:
            if self.needed:
                self._take_near(filtered=filtered)
        assert not self.needed, self.needed
        return self.taken

    # Stage 1: whole cores

    def _whole_cores_of_one_numa(self) -> bool:
        """Stage 1a. Only NUMANodeLevel is avoided here."""
        if self.needed > self.layout.cpus_per_numa:
            return False
        for filtered in _FILTERED_FIRST if self.request.avoid_numas else (False,):
            cpus = self.available & ~self.avoided if filtered else self.available
            firsts = _first_cpus_of_free_cores(self.layout, cpus)
            numa = self._best_numa(
                cpus,
                (
                    (numa, size, size)
                    for numa in self.layout.numas
                    if (size := self._whole_size(firsts & numa.cpus))
                ),
            )
            if numa is not None:
                self._take(self._first_of_cores(firsts & numa.cpus, cpus, self.needed))
                return True
        return False

    def _whole_cores_of_one_socket(self) -> bool:
        """Stage 1b."""
        if self.needed > self.layout.cpus_per_socket:
            return False
        firsts = _first_cpus_of_free_cores(self.layout, self.available)
        sizes = [self._whole_size(firsts & socket) for socket in self.layout.sockets]
        fitting = [size for size in sizes if size >= self.needed]
        if not fitting:
            return False
        best = min(fitting) if self.request.most_allocated else max(fitting)
        socket = self.layout.sockets[sizes.index(best)]
        self._take(self._first_of_cores(firsts & socket, self.available, self.needed))
        return True

    def _whole_sockets(self) -> None:
        """Stage 1c: all free cores of a socket, most first, as long as they are needed whole."""
        for socket in self._sockets_by_free_cores(most_first=True):
            whole = self._whole_size(socket)
            if self.needed >= whole:
                self._take(self._first_of_cores(socket, self.available, whole))

    def _cores_of_small_sockets(self) -> None:
        """Stage 1d: core after core from the sockets with the fewest, until less than one."""
        threads = self.layout.threads_per_core
        for socket in self._sockets_by_free_cores(most_first=False):
            whole = min(self._whole_size(socket), self.needed - self.needed % threads)
            if whole:
                self._take(self._first_of_cores(socket, self.available, whole))

    def _sockets_by_free_cores(self, *, most_first: bool) -> list[int]:
        """
        Return the first CPUs of each socket's free cores.

        Among equals the lowest id is first, in stage 1c and 1d alike and for every strategy.
        """
        firsts = _first_cpus_of_free_cores(self.layout, self.available)
        found = [firsts & socket for socket in self.layout.sockets]
        return sorted(filter(None, found), key=int.bit_count, reverse=most_first)

    def _whole_size(self, firsts: int) -> int:
        return firsts.bit_count() * self.layout.threads_per_core

    def _first_of_cores(self, firsts: int, cpus: int, count: int) -> int:
        """Return the first `count` CPUs of free cores: core after core, CPUs ascending."""
        layout = self.layout
        threads = layout.threads_per_core
        if self.held.refs or not layout.in_id_order:
            return self._first_of_ordered_cores(firsts, cpus, count)
        whole, odd = divmod(count, threads)
        chosen = lowest(firsts, whole)
        taken = _cpus_of_cores(layout, chosen)
        if odd:
            rest = firsts & ~chosen
            taken |= lowest(layout.core_cpus[(rest & -rest).bit_length() - 1], odd)
        return taken

    def _first_of_ordered_cores(self, firsts: int, cpus: int, count: int) -> int:
        """Return the same by the cores' order: fewest holders first, then core id."""
        cores = [core.cpus & cpus for core in self.layout.cores if core.cpus & firsts]
        if self.held.refs:
            cores.sort(key=self._holders)
        taken = 0
        for core in cores:
            if count <= 0:
                break
            taken |= lowest(core, count)
            count -= core.bit_count()
        return taken

    # Stage 2: one CPU of each core, then the next

    def _spread_in_one_numa(self) -> bool:
        """Stage 2a."""
        if self.needed > self.layout.cpus_per_numa:
            return False
        for filtered in _FILTERED_FIRST:
            cpus = self.available & ~self.avoided if filtered else self.available
            each = one_of_each_core(self.layout, cpus) if filtered else cpus
            numa = self._best_numa(
                cpus,
                (
                    (numa, size, (each & numa.cpus).bit_count())
                    for numa in self.layout.numas
                    if (size := (cpus & numa.cpus).bit_count())
                ),
            )
            if numa is not None:
                self._take_spread(cpus & numa.cpus, one_each=filtered)
                return True
        return False

    def _spread_in_one_socket(self) -> bool:
        """Stage 2b. Only PCPULevel is avoided here; sockets count one CPU per core at first."""
        if self.needed > self.layout.cpus_per_socket:
            return False
        for filtered in _FILTERED_FIRST:
            cpus = self.available
            if filtered and self.request.avoid_cores:
                cpus &= ~self.avoided
            each = one_of_each_core(self.layout, cpus) if filtered else cpus
            sizes = [(each & socket).bit_count() for socket in self.layout.sockets]
            fitting = [size for size in sizes if size >= self.needed]
            if fitting:
                best = min(fitting) if self.request.most_allocated else max(fitting)
                socket = self.layout.sockets[sizes.index(best)]
                self._take_spread(cpus & socket, one_each=filtered)
                return True
        return False

    def _take_spread(self, cpus: int, *, one_each: bool) -> None:
        """
        Take what is needed in spread order: by id, one CPU of every core a round.

        Args:
            one_each: one round is enough, and a list too short to be spread is spread all the same.
        """
        layout = self.layout
        if self.held.refs:
            by_refs = sorted(bits(cpus), key=self._refs_of)
            order = _rounds(layout, by_refs) if one_each else _spread(layout, by_refs)
            self._take(_mask_of(order[: self.needed]))
            return
        if not one_each and cpus.bit_count() <= layout.threads_per_core:
            self._take(lowest(cpus, self.needed))
            return
        while self.needed:
            each = one_of_each_core(layout, cpus)
            self._take(lowest(each, self.needed))
            cpus &= ~each

    # Stage 3: whatever is left, near what was taken

    def _take_near(self, *, filtered: bool) -> None:
        """Stage 3, one pass."""
        layout = self.layout
        cpus = self.available & ~self.avoided if filtered else self.available
        if layout.in_id_order and not self.held.refs and cpus.bit_count() > layout.threads_per_core:
            self._take_near_by_masks(cpus)
            return
        near = _spread(self.layout, list(self._cpus_near(cpus)))
        self._take(_mask_of(near[: self.needed]))

    def _take_near_by_masks(self, cpus: int) -> None:
        """Take the same as from the list, from whole groups of cores at once."""
        layout = self.layout
        groups = [
            firsts
            for part in self._parts_near(cpus)
            for firsts in _cores_by_free_cpus(layout, part)
            if firsts
        ]
        while self.needed and cpus:
            each = one_of_each_core(layout, cpus)
            for firsts in groups:
                mine = each & _cpus_of_cores(layout, firsts)
                if mine.bit_count() <= self.needed:
                    self._take(mine)
                    continue
                for first in bits(firsts):  # in the order of cores, not of the CPUs left on them
                    if self.needed:
                        self._take(each & layout.core_cpus[first])
            cpus &= ~each

    def _parts_near(self, cpus: int) -> list[int]:
        """Return the CPUs of NUMA nodes that are alike, in the order of `_cpus_near`."""
        layout, sign = self.layout, 1 if self.request.most_allocated else -1
        parts: dict[tuple[int, int, int], int] = {}
        for socket in layout.sockets:
            free = cpus & socket
            if not free:
                continue
            near = (-(self.taken & socket).bit_count(), sign * free.bit_count())
            for numa in layout.numas:
                own = free & numa.cpus
                if own:
                    key = (*near, sign * (cpus & numa.cpus).bit_count())
                    parts[key] = parts.get(key, 0) | own
        return [parts[key] for key in sorted(parts)]

    def _cpus_near(self, cpus: int) -> Iterator[int]:
        """
        Yield CPUs core after core.

        Sockets that hold more of the result come first, then by strategy the fuller or emptier
        socket and NUMA node, then cores with fewer CPUs left.
        """
        layout, sign = self.layout, 1 if self.request.most_allocated else -1
        colocated = [-(self.taken & socket).bit_count() for socket in layout.sockets]
        in_socket = [sign * (cpus & socket).bit_count() for socket in layout.sockets]
        in_numa = [sign * (cpus & numa.cpus).bit_count() for numa in layout.numas]
        cores = []
        for place, core in enumerate(layout.cores):
            free = core.cpus & cpus
            if free:
                key = (
                    colocated[core.socket],
                    in_socket[core.socket],
                    in_numa[core.numa],
                    free.bit_count(),
                    core.socket,
                    self._holders(free),
                    place,
                )
                cores.append((key, free))
        for _, free in sorted(cores):
            yield from sorted(bits(free), key=self._refs_of) if self.held.refs else bits(free)

    # Orders

    def _best_numa(self, cpus: int, found: Iterable[tuple[Numa, int, int]]) -> Numa | None:
        """
        Return the first NUMA node, in the strategy's order, whose list is long enough.

        Args:
            cpus: what counts as free on a socket, which breaks ties.
            found: NUMA node, CPUs that order it, length of its list.
        """
        sign = 1 if self.request.most_allocated else -1
        best, best_key = None, (0, 0)
        for numa, size, length in found:
            if length >= self.needed and (best is None or sign * size <= best_key[0]):
                socket = self.layout.sockets[numa.sockets[0]]
                key = (sign * size, sign * (cpus & socket).bit_count())
                if best is None or key < best_key:
                    best, best_key = numa, key
        return best

    def _holders(self, cpus: int) -> int:
        refs = self.held.refs
        return sum(refs.get(cpu, 0) for cpu in bits(cpus)) if refs else 0

    def _refs_of(self, cpu: int) -> int:
        return self.held.refs.get(cpu, 0)

    def _take(self, cpus: int) -> None:
        self.taken |= cpus
        self.available &= ~cpus
        self.needed -= cpus.bit_count()
        if self.request.avoid_cores:
            self.avoided |= around(self.layout.core_cpus, cpus)
        elif self.request.avoid_numas:
            self.avoided |= around(self.layout.numa_cpus, cpus)


def _first_cpus_of_free_cores(layout: CpuLayout, cpus: int) -> int:
    """
    Return the first free CPU of every core that counts as wholly free.

    Rule: Koordinator contract 6.4: as many CPUs free as a core has on the machine's average.
    """
    firsts = _firsts_of_whole_cores(layout, cpus)
    for core in layout.odd_cores:
        free = core & cpus
        if free.bit_count() == layout.threads_per_core:
            firsts |= free & -free
    return firsts


def cpus_of_free_cores(layout: CpuLayout, cpus: int) -> int:
    """Return the CPUs of cores of which every CPU is among these."""
    odd = sum(core for core in layout.odd_cores if not core & ~cpus)
    return _cpus_of_cores(layout, _firsts_of_whole_cores(layout, cpus)) | odd


def _firsts_of_whole_cores(layout: CpuLayout, cpus: int) -> int:
    """Return the first CPU of every core of average size whose CPUs are all among these."""
    firsts = 0
    for siblings in layout.siblings:
        free = cpus & siblings.firsts
        for distance in siblings.distances[1:]:
            free &= cpus >> distance
        firsts |= free
    return firsts


def one_of_each_core(layout: CpuLayout, cpus: int) -> int:
    """Return the lowest of these CPUs on every core that has any."""
    found = 0
    for siblings in layout.siblings:
        seen = 0
        for distance in siblings.distances:
            fresh = cpus >> distance & siblings.firsts & ~seen
            found |= fresh << distance
            seen |= fresh
    for core in layout.odd_cores:
        free = core & cpus
        found |= free & -free
    return found


def _cores_by_free_cpus(layout: CpuLayout, cpus: int) -> list[int]:
    """Return the first CPUs of cores with one of these CPUs, with two, and so on."""
    more_than = [0] * (layout.threads_per_core + 1)  # at [n], cores with more than n
    for siblings in layout.siblings:
        for distance in siblings.distances:
            fresh = cpus >> distance & siblings.firsts
            for count in range(len(siblings.distances) - 1, 0, -1):
                more_than[count] |= more_than[count - 1] & fresh
            more_than[0] |= fresh
    return [more_than[count] & ~more_than[count + 1] for count in range(layout.threads_per_core)]


def _cpus_of_cores(layout: CpuLayout, firsts: int) -> int:
    cpus = 0
    for siblings in layout.siblings:
        for distance in siblings.distances:
            cpus |= (firsts & siblings.firsts) << distance
    return cpus


def _spread(layout: CpuLayout, cpus: list[int]) -> list[int]:
    """Return CPUs in spread order; a list no longer than a core has CPUs stays as it is."""
    return cpus if len(cpus) <= layout.threads_per_core else _rounds(layout, cpus)


def _rounds(layout: CpuLayout, cpus: list[int]) -> list[int]:
    """Return CPUs round after round, in each the next one of every core."""
    spread: list[int] = []
    while cpus:
        later, seen = [], 0
        for cpu in cpus:
            if seen >> cpu & 1:
                later.append(cpu)
            else:
                spread.append(cpu)
                seen |= layout.core_cpus[cpu]
        cpus = later
    return spread


def _mask_of(cpus: Iterable[int]) -> int:
    mask = 0
    for cpu in cpus:
        mask |= 1 << cpu
    return mask
