"""
The CPU picker, said again over sets and sorted lists from the text of the contract alone.

Rule: Koordinator contract, 6.3 (available CPUs) and 6.4 (the picker). Where the text is open, the
recorded answers of the release decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Core = tuple[int, int]
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a CPU sits; core ids may repeat in other sockets."""

    core: int
    socket: int
    numa: int

    @property
    def whole_core(self) -> Core:
        """Return what names the core in the machine."""
        return self.socket, self.core


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """
    What one Pod wants of the picker.

    Attributes:
        full: FullPCPUs, else SpreadByPCPUs.
        exclusive: `None`, `PCPULevel` or `NUMANodeLevel`.
        most: MostAllocated, else LeastAllocated.
    """

    count: int
    full: bool
    exclusive: str = "None"
    most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    What others have.

    Attributes:
        refs: holders of each CPU; counts only where a CPU may have several.
        cores: cores with a PCPULevel holder.
        numas: NUMA nodes with a NUMANodeLevel holder.
    """

    refs: Mapping[int, int] = field(default_factory=dict)
    cores: frozenset[Core] = frozenset()
    numas: frozenset[int] = frozenset()


def pick(
    places: Mapping[int, Place],
    wish: Wish,
    available: Collection[int],
    held: Held,
    preferred: Collection[int] = (),
) -> set[int] | None:
    """Return the CPUs, or None when not enough are available."""
    inside = {cpu for cpu in available if cpu in preferred}
    outside = {cpu for cpu in available if cpu not in preferred}
    if wish.count > len(inside) + len(outside):
        return None
    first = min(max(wish.count, 0), len(inside))
    chosen = _Run(places, wish, inside, held, first).result()
    return chosen | _Run(places, wish, outside, held, wish.count - first).result()


class _Run:
    """One run through the stages; what is taken leaves the free CPUs."""

    def __init__(
        self,
        places: Mapping[int, Place],
        wish: Wish,
        available: Collection[int],
        held: Held,
        need: int,
    ) -> None:
        self.places, self.wish, self.need = places, wish, need
        self.free, self.refs = set(available), held.refs
        self.cores, self.numas = set(held.cores), set(held.numas)
        self.taken: list[int] = []
        self.threads = len(places) // len({place.whole_core for place in places.values()})
        self.per_numa = len(places) // len({place.numa for place in places.values()})
        self.per_socket = len(places) // len({place.socket for place in places.values()})

    def result(self) -> set[int]:
        """Return what is taken when the first stage that can has ended it."""
        if self.need > 0 and (self.wish.full or self.threads == 1):
            self._whole_cores()
        if self.need > 0 and not self.wish.full:
            self._spread()
        if self.need > 0:
            self._whatever_is_left()
        return set(self.taken)

    # Stages

    def _whole_cores(self) -> None:
        """6.4, stage 1."""
        if self.need <= self.per_numa:
            for alone in (self.wish.exclusive == "NUMANodeLevel", False):
                for cpus in self._in_numas(self._of_whole_cores(self._clean_numas(alone))):
                    if len(cpus) >= self.need:
                        return self._take(cpus[: self.need])
        if self.need <= self.per_socket:
            for cpus in self._in_sockets(self._of_whole_cores(self.free)):
                if len(cpus) >= self.need:
                    return self._take(cpus[: self.need])
        sockets = self._in_sockets(self._of_whole_cores(self.free))
        rest = []
        for cpus in sorted(sockets, key=len, reverse=True):
            if self.need >= len(cpus):
                self._take(cpus)
            else:
                rest.append(cpus)
        for cpus in sorted(rest, key=len):
            for first in range(0, len(cpus), self.threads):
                if self.need < self.threads:
                    return None
                self._take(cpus[first : first + self.threads])
        return None

    def _spread(self) -> None:
        """6.4, stage 2."""
        if self.need <= self.per_numa:
            for cleanly in (True, False):
                for cpus in self._in_numas(self._clean(self.free) if cleanly else self.free, self._by_holders):
                    candidates = self._one_per_core(cpus) if cleanly else cpus
                    if len(candidates) >= self.need:
                        return self._take(self._spread_order(candidates)[: self.need])
        if self.need <= self.per_socket:
            for cleanly in (True, False):
                cpus_free = self._clean_cores(self.wish.exclusive == "PCPULevel" and cleanly)
                if cleanly:
                    cpus_free = set(self._one_per_core(self._by_holders(cpus_free)))
                for cpus in self._in_sockets(cpus_free, self._by_holders):
                    if len(cpus) >= self.need:
                        return self._take(self._spread_order(cpus)[: self.need])
        return None

    def _whatever_is_left(self) -> None:
        """6.4, stage 3."""
        for cleanly in (True, False):
            free = self._clean(self.free) if cleanly else self.free
            cores = sorted(self._cores(free).items(), key=lambda item: self._last_order(item, free))
            order = self._spread_order([cpu for _, cpus in cores for cpu in self._by_holders(cpus)])
            self._take(order[: self.need])

    def _last_order(self, item: tuple[Core, list[int]], free) -> Order:
        (socket, core), cpus = item
        numa = self.places[cpus[0]].numa
        beside = sum(self.places[cpu].socket == socket for cpu in self.taken)
        in_socket = sum(self.places[cpu].socket == socket for cpu in free)
        in_numa = sum(self.places[cpu].numa == numa for cpu in free)
        towards = 1 if self.wish.most else -1
        return (
            -beside,
            towards * in_socket,
            towards * in_numa,
            len(cpus),
            socket,
            self._refs_of(cpus),
            core,
        )

    # Orders

    def _cores(self, cpus: Iterable[int]) -> dict[Core, list[int]]:
        """Return the CPUs of each core, ascending."""
        cores: dict[Core, list[int]] = {}
        for cpu in sorted(cpus):
            cores.setdefault(self.places[cpu].whole_core, []).append(cpu)
        return cores

    def _by_core(self, cpus: Iterable[int]) -> list[int]:
        """Return the CPUs of one group: the fullest cores first, then the fewest holders."""
        cores = sorted(
            self._cores(cpus).items(),
            key=lambda item: (-len(item[1]), self._refs_of(item[1]), item[0][1], item[0][0]),
        )
        return [cpu for _, cpus_of_core in cores for cpu in cpus_of_core]

    def _by_holders(self, cpus):
        return sorted(cpus, key=lambda cpu: (self.refs.get(cpu, 0), cpu))

    def _refs_of(self, cpus: Iterable[int]) -> int:
        return sum(self.refs.get(cpu, 0) for cpu in cpus)

    def _in_numas(self, candidates: Iterable[int], order_in=None) -> list[list[int]]:
        """Return the candidates of each NUMA node, the first node first."""
        socket_of = {place.numa: place.socket for place in self.places.values()}
        in_socket = {socket: 0 for socket in socket_of.values()}
        for cpu in candidates:
            in_socket[self.places[cpu].socket] += 1
        towards = 1 if self.wish.most else -1
        groups = self._groups(candidates, lambda place: place.numa, order_in or self._by_core)
        order = sorted(
            groups,
            key=lambda numa: (
                towards * len(groups[numa]),
                towards * in_socket[socket_of[numa]],
                numa,
            ),
        )
        return [groups[numa] for numa in order]

    def _in_sockets(self, candidates: Iterable[int], order_in=None) -> list[list[int]]:
        """Return the candidates of each socket, the first socket first."""
        towards = 1 if self.wish.most else -1
        groups = self._groups(candidates, lambda place: place.socket, order_in or self._by_core)
        order = sorted(groups, key=lambda socket: (towards * len(groups[socket]), socket))
        return [groups[socket] for socket in order]

    def _groups(
        self, candidates: Iterable[int], group_of: Callable[[Place], int], order_in
    ) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for cpu in candidates:
            groups.setdefault(group_of(self.places[cpu]), []).append(cpu)
        return {group: order_in(cpus) for group, cpus in groups.items()}

    def _spread_order(self, cpus: list[int]) -> list[int]:
        """Return first the first CPU of every core, then the second, and so on."""
        if len(cpus) <= self.threads:
            return cpus
        return [cpu for row in self._rows(cpus) for cpu in row]

    def _rows(self, cpus: list[int]) -> Iterator[list[int]]:
        rest = cpus
        while rest:
            row = self._one_per_core(rest)
            yield row
            rest = [cpu for cpu in rest if cpu not in row]

    def _one_per_core(self, cpus: Iterable[int]) -> list[int]:
        """Return the first CPU of every core, in the order given."""
        seen: dict[Core, int] = {}
        for cpu in cpus:
            seen.setdefault(self.places[cpu].whole_core, cpu)
        return list(seen.values())

    # Filters

    def _of_whole_cores(self, cpus: Collection[int]) -> list[int]:
        """Return the CPUs of the cores that are free with all their threads."""
        return [
            cpu for core in self._cores(cpus).values() for cpu in core if len(core) == self.threads
        ]

    def _clean(self, cpus: Collection[int]) -> set[int]:
        """Return the CPUs that the wish for exclusive use leaves."""
        if self.wish.exclusive == "PCPULevel":
            return {cpu for cpu in cpus if self.places[cpu].whole_core not in self.cores}
        if self.wish.exclusive == "NUMANodeLevel":
            return {cpu for cpu in cpus if self.places[cpu].numa not in self.numas}
        return set(cpus)

    def _clean_numas(self, alone: bool) -> set[int]:  # noqa: FBT001
        return self._clean(self.free) if alone else self.free

    def _clean_cores(self, alone: bool) -> set[int]:  # noqa: FBT001
        return self._clean(self.free) if alone else self.free

    def _take(self, cpus: Iterable[int]) -> None:
        for cpu in list(cpus):
            self.taken.append(cpu)
            self.free.discard(cpu)
            self.need -= 1
            if self.wish.exclusive == "PCPULevel":
                self.cores.add(self.places[cpu].whole_core)
            elif self.wish.exclusive == "NUMANodeLevel":
                self.numas.add(self.places[cpu].numa)
