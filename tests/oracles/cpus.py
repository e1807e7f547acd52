"""
The CPU picker, said again over sets and sorted lists from the text of the contract alone.

Rule: Koordinator contract, 6.2 (required policies), 6.3 (available CPUs) and 6.4 (the picker).
Where the text is open the recorded answers of the release decide: a core's CPUs are in the order
of their ids in stage 1 and in the order of their holders after it, and the free CPUs of a socket
or NUMA node are counted behind the filter for exclusive use, before cores are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ledger.domain.topology import Cpu, CpuTopology

Core = tuple[int, int]
Order = tuple[int, ...]


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


class Host:
    """The CPUs of a machine; core ids may repeat in other sockets."""

    def __init__(self, topology: CpuTopology) -> None:
        """Note where each CPU sits and how large a core, NUMA node and socket is by the mean."""
        places = {cpu.id: cpu for cpu in topology.cpus}
        self.places: Mapping[int, Cpu] = places
        self.core = {cpu: (place.socket, place.core) for cpu, place in places.items()}
        self.socket_of_numa = {place.numa: place.socket for place in places.values()}
        self.threads = len(places) // len(set(self.core.values()))
        self.per_numa = len(places) // len(self.socket_of_numa)
        self.per_socket = len(places) // len(set(self.socket_of_numa.values()))


def pick(
    host: Host,
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
    chosen = _Run(host, wish, inside, held, first).result()
    return chosen | _Run(host, wish, outside, held, wish.count - first).result()


def candidates(host: Host, available: Iterable[int], *, full: bool) -> set[int]:
    """Return the CPUs that a required policy leaves: of free cores all, else of each the lowest."""
    cores: dict[Core, list[int]] = {}
    for cpu in sorted(available):
        cores.setdefault(host.core[cpu], []).append(cpu)
    if not full:
        return {cpus[0] for cpus in cores.values()}
    sizes: dict[Core, int] = {}
    for core in host.core.values():
        sizes[core] = sizes.get(core, 0) + 1
    return {cpu for core, cpus in cores.items() for cpu in cpus if len(cpus) == sizes[core]}


def choices(
    host: Host, available: set[int], idle: set[int], *, full: bool
) -> tuple[set[int], set[int]]:
    """
    Return the CPUs that a required policy leaves, and those of them to be taken first.

    Rule: Koordinator contract 6.2; CPU proposal, QoS principle 3: a CPU that nobody holds is
    before one that is shared, on each core where one of it is enough.
    """
    first = candidates(host, idle, full=full)
    if full:
        return candidates(host, available, full=True), first
    cores = {host.core[cpu] for cpu in first}
    others = {cpu for cpu in available if host.core[cpu] not in cores}
    return first | candidates(host, others, full=False), first


class _Run:
    """One run through the stages; what is taken leaves the free CPUs."""

    def __init__(
        self, host: Host, wish: Wish, available: Collection[int], held: Held, need: int
    ) -> None:
        self.host, self.wish, self.need = host, wish, need
        self.free, self.refs = set(available), held.refs
        self.cores, self.numas = set(held.cores), set(held.numas)
        self.taken: list[int] = []
        self.towards = 1 if wish.most else -1

    def result(self) -> set[int]:
        """Return what the stages took."""
        if self.need > 0 and (self.wish.full or self.host.threads == 1):
            self._whole_cores()
        if self.need > 0 and not self.wish.full:
            self._spread()
        if self.need > 0:
            self._whatever_is_left()
        return set(self.taken)

    # Stage 1

    def _whole_cores(self) -> None:
        if self.need <= self.host.per_numa:
            alone = self._clean() if self.wish.exclusive == "NUMANodeLevel" else self.free
            for clean in (alone, self.free):
                if self._took(self._by_numa(self._of_free_cores(clean), clean, self._by_core)):
                    return
        sockets = self._by_socket(self._of_free_cores(self.free), self._by_core)
        if self.need <= self.host.per_socket and self._took(sockets):
            return
        rest = []
        for cpus in sorted(sockets, key=len, reverse=True):
            if self.need >= len(cpus):
                self._take(cpus)
            else:
                rest.append(cpus)
        for cpus in sorted(rest, key=len):
            self._take_cores(cpus)

    def _take_cores(self, cpus: list[int]) -> None:
        threads = self.host.threads
        for first in range(0, len(cpus), threads):
            if self.need < threads:
                return
            self._take(cpus[first : first + threads])

    # Stage 2

    def _spread(self) -> None:
        if self.need <= self.host.per_numa:
            clean = self._clean()
            nodes = self._by_numa(clean, clean, self._by_holders)
            if self._took([self._spread_order(self._one_per_core(cpus)) for cpus in nodes]):
                return
            nodes = self._by_numa(self.free, self.free, self._by_holders)
            if self._took([self._spread_order(cpus) for cpus in nodes]):
                return
        if self.need <= self.host.per_socket:
            clean = self._clean() if self.wish.exclusive == "PCPULevel" else self.free
            for cpus in (self._one_per_core(self._by_holders(clean)), self.free):
                sockets = self._by_socket(cpus, self._by_holders)
                if self._took([self._spread_order(socket) for socket in sockets]):
                    return

    # Stage 3

    def _whatever_is_left(self) -> None:
        for free in (self._clean(), self.free):
            cores = sorted(
                self._cores(free).items(),
                key=lambda item: self._last_order(item[0], item[1], free),
            )
            order = [cpu for _, cpus in cores for cpu in self._by_holders(cpus)]
            self._take(self._spread_order(order)[: self.need])

    def _last_order(self, core: Core, cpus: list[int], free: Collection[int]) -> Order:
        places, numa = self.host.places, self.host.places[cpus[0]].numa
        return (
            -sum(places[cpu].socket == core[0] for cpu in self.taken),
            self.towards * sum(places[cpu].socket == core[0] for cpu in free),
            self.towards * sum(places[cpu].numa == numa for cpu in free),
            len(cpus),
            core[0],
            self._refs_of(cpus),
            core[1],
        )

    # Orders

    def _by_core(self, cpus: Iterable[int]) -> list[int]:
        """Return the CPUs of one group: the fullest cores first, then the fewest holders."""
        cores = sorted(
            self._cores(cpus).items(),
            key=lambda item: (-len(item[1]), self._refs_of(item[1]), item[0]),
        )
        return [cpu for _, cpus_of_core in cores for cpu in cpus_of_core]

    def _by_holders(self, cpus: Iterable[int]) -> list[int]:
        return sorted(cpus, key=lambda cpu: (self.refs.get(cpu, 0), cpu))

    def _refs_of(self, cpus: Iterable[int]) -> int:
        return sum(self.refs.get(cpu, 0) for cpu in cpus)

    def _by_numa(
        self,
        cpus: Iterable[int],
        clean: Iterable[int],
        within: Callable[[Iterable[int]], list[int]],
    ) -> list[list[int]]:
        """Return the CPUs of each NUMA node, the first node first."""
        sockets = self._grouped(clean, lambda place: place.socket)
        groups = self._grouped(cpus, lambda place: place.numa)

        def order(numa: int) -> Order:
            beside = len(sockets[self.host.socket_of_numa[numa]])
            return self.towards * len(groups[numa]), self.towards * beside, numa

        return [within(groups[numa]) for numa in sorted(groups, key=order)]

    def _by_socket(
        self, cpus: Iterable[int], within: Callable[[Iterable[int]], list[int]]
    ) -> list[list[int]]:
        """Return the CPUs of each socket, the first socket first."""
        groups = self._grouped(cpus, lambda place: place.socket)
        order = sorted(groups, key=lambda socket: (self.towards * len(groups[socket]), socket))
        return [within(groups[socket]) for socket in order]

    def _grouped(self, cpus: Iterable[int], group_of: Callable[[Cpu], int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for cpu in cpus:
            groups.setdefault(group_of(self.host.places[cpu]), []).append(cpu)
        return groups

    def _cores(self, cpus: Iterable[int]) -> dict[Core, list[int]]:
        """Return the CPUs of each core, ascending."""
        cores: dict[Core, list[int]] = {}
        for cpu in sorted(cpus):
            cores.setdefault(self.host.core[cpu], []).append(cpu)
        return cores

    def _spread_order(self, cpus: list[int]) -> list[int]:
        """Return first the first CPU of every core, then the second, and so on."""
        if len(cpus) <= self.host.threads:
            return cpus
        return [cpu for row in self._rows(cpus) for cpu in row]

    def _rows(self, cpus: list[int]) -> Iterator[list[int]]:
        rest = cpus
        while rest:
            row = self._one_per_core(rest)
            yield row
            gone = set(row)
            rest = [cpu for cpu in rest if cpu not in gone]

    def _one_per_core(self, cpus: Iterable[int]) -> list[int]:
        """Return the first CPU of every core, in the order given."""
        seen: dict[Core, int] = {}
        for cpu in cpus:
            seen.setdefault(self.host.core[cpu], cpu)
        return list(seen.values())

    # Filters

    def _of_free_cores(self, cpus: Iterable[int]) -> list[int]:
        """Return the CPUs of the cores that are free with all their threads."""
        cores = self._cores(cpus).values()
        return [cpu for core in cores for cpu in core if len(core) == self.host.threads]

    def _clean(self) -> set[int]:
        """Return the free CPUs that the wish for exclusive use leaves."""
        if self.wish.exclusive == "PCPULevel":
            return {cpu for cpu in self.free if self.host.core[cpu] not in self.cores}
        if self.wish.exclusive == "NUMANodeLevel":
            return {cpu for cpu in self.free if self.host.places[cpu].numa not in self.numas}
        return set(self.free)

    # Taking

    def _took(self, groups: Iterable[list[int]]) -> bool:
        """Take all that is needed of the first group that has as much."""
        for cpus in groups:
            if len(cpus) >= self.need:
                self._take(cpus[: self.need])
                return True
        return False

    def _take(self, cpus: list[int]) -> None:
        self.taken += cpus
        self.free -= set(cpus)
        self.need -= len(cpus)
        if self.wish.exclusive == "PCPULevel":
            self.cores |= {self.host.core[cpu] for cpu in cpus}
        if self.wish.exclusive == "NUMANodeLevel":
            self.numas |= {self.host.places[cpu].numa for cpu in cpus}
