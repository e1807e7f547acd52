"""How CPUs sit in cores, NUMA nodes and sockets, and how fast the links between GPUs are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Annotated, Final, NamedTuple, TypeVar

from ledger.domain.annotations.wire import at_least
from ledger.domain.bounds import CpuId, Index
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of
from ledger.domain.errors import InputError

Key = TypeVar("Key", int, "CoreId")

_BANDWIDTH_GBPS_MAX: Final = 1e9


class CoreId(NamedTuple):
    """A physical core. Core ids may repeat per socket, so both parts are needed."""

    socket: int
    core: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cpu:
    """One logical CPU and where it sits."""

    id: Annotated[CpuId, at_least(0)]
    core: Index
    socket: Index
    numa: Annotated[Index, "node"]

    @property
    def core_id(self) -> CoreId:
        """The core, told apart from a core of the same number on another socket."""
        return CoreId(self.socket, self.core)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTopology:
    """
    The CPUs of one node, ascending by id, with the sets that the CPU picker asks for.

    Rule: Koordinator contract 2.4 and 6.4.

    Build it with `cpu_topology_of`, which sorts and refuses duplicates. `cores` is ordered by
    (socket, core), `numa_nodes` and `sockets` by id; `cpuset` is all CPUs. A topology
    without CPUs is false.
    """

    cpus: tuple[Cpu, ...]
    cores: tuple[CoreId, ...] = field(init=False, compare=False, repr=False)
    numa_nodes: tuple[int, ...] = field(init=False, compare=False, repr=False)
    sockets: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _by_id: dict[int, Cpu] = field(init=False, compare=False, repr=False)
    _by_core: dict[CoreId, CpuSet] = field(init=False, compare=False, repr=False)
    _by_numa: dict[int, CpuSet] = field(init=False, compare=False, repr=False)
    _by_socket: dict[int, CpuSet] = field(init=False, compare=False, repr=False)
    cpuset: CpuSet = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        by_core = _grouped(self.cpus, lambda cpu: cpu.core_id)
        by_numa = _grouped(self.cpus, lambda cpu: cpu.numa)
        by_socket = _grouped(self.cpus, lambda cpu: cpu.socket)
        set_once = object.__setattr__  # the class is frozen; these follow from `cpus`
        set_once(self, "_by_id", {cpu.id: cpu for cpu in self.cpus})
        set_once(self, "cpuset", cpuset_of(cpu.id for cpu in self.cpus))
        set_once(self, "_by_core", by_core)
        set_once(self, "_by_numa", by_numa)
        set_once(self, "_by_socket", by_socket)
        set_once(self, "cores", tuple(by_core))
        set_once(self, "numa_nodes", tuple(by_numa))
        set_once(self, "sockets", tuple(by_socket))
        # Hashed once: a topology is the key of its layout, looked up at every choice of CPUs.
        set_once(self, "_hash", hash(self.cpus))

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return len(self.cpus)

    @property
    def threads_per_core(self) -> int:
        """CPUs per core (integer mean; 0 without CPUs)."""
        return len(self.cpus) // max(1, len(self.cores))

    @property
    def cpus_per_socket(self) -> int:
        """CPUs per socket (integer mean; 0 without CPUs)."""
        return len(self.cpus) // max(1, len(self.sockets))

    def cpu(self, cpu_id: int) -> Cpu:
        """Return one CPU; KeyError when the node has no such CPU."""
        return self._by_id[cpu_id]

    def cpus_in_core(self, core: CoreId) -> CpuSet:
        """Return the CPUs of a core, empty when there is no such core."""
        return self._by_core.get(core, EMPTY)

    def cpus_in_numa(self, numa: int) -> CpuSet:
        """Return the CPUs of a NUMA node, empty when there is no such node."""
        return self._by_numa.get(numa, EMPTY)

    def cpus_in_socket(self, socket: int) -> CpuSet:
        """Return the CPUs of a socket, empty when there is no such socket."""
        return self._by_socket.get(socket, EMPTY)


def cpu_topology_of(cpus: Iterable[Cpu]) -> CpuTopology:
    """
    Return the topology of these CPUs, in any order; machines of one model share it.

    Raises:
        InputError: two CPUs with one id, or an id below 0 or above 4096.
    """
    ordered = tuple(sorted(cpus))
    for before, after in pairwise(ordered):
        if before.id == after.id:
            raise InputError(f"two CPUs have one id: id={after.id}")
    cpuset_of(cpu.id for cpu in ordered)
    return _shared(ordered)


@lru_cache(maxsize=256)
def _shared(cpus: tuple[Cpu, ...]) -> CpuTopology:
    return CpuTopology(cpus=cpus)


class LinkMatrix:
    """
    Measured bandwidth between the GPUs of one node, GB/s; row = from minor, column = to minor.

    Rule: Koordinator GPU-topology proposal, "GPU topology resource reporting".

    Measured, so not symmetric: a link counts at its slower direction. The diagonal is not read.
    """

    __slots__ = ("_hash", "rows")  # no dataclass: its text is what is recorded, not its fields

    def __init__(self, *, rows: tuple[tuple[float, ...], ...]) -> None:
        self.rows: Final = rows
        # Hashed once: a matrix is the key of what was worked out for it, looked up at every choice.
        self._hash: Final = hash(rows)

    def __repr__(self) -> str:
        return f"LinkMatrix(rows={self.rows})"

    def __eq__(self, other: object) -> bool:
        return type(other) is LinkMatrix and other.rows == self.rows

    def __len__(self) -> int:
        return len(self.rows)

    def __hash__(self) -> int:
        return self._hash

    def bandwidth_gbps(self, a: int, b: int) -> float:
        """Return the slower direction of the link between two minors."""
        return min(self.rows[a][b], self.rows[b][a])

    def bottleneck_gbps(self, minors: Iterable[int]) -> float:
        """Return the slowest link inside the group, infinity when it has none."""
        pairs = combinations(tuple(minors), 2)
        return min((self.bandwidth_gbps(a, b) for a, b in pairs), default=math.inf)


def parse_link_matrix(text: str) -> LinkMatrix:
    """
    Read the text of a Device's `spec.topologies.gpu[].topology`: a square JSON matrix.

    Rule: Koordinator GPU-topology proposal, "GPU topology resource reporting".

    Raises:
        InputError: not JSON, not a list of equally long lists, not square, or a value that is not
            a number between 0 and 1e9.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON matrix: {error}") from error
    if not isinstance(value, list):
        raise InputError(f"not a matrix: value={text[:80]!r}")
    return link_matrix_of(value)


def link_matrix_of(value: Iterable[object]) -> LinkMatrix:
    """Return the matrix of these rows, by the rules of `parse_link_matrix`."""
    rows = tuple(_row_of(row, number) for number, row in enumerate(value))
    for number, row in enumerate(rows):
        if len(row) != len(rows):
            raise InputError(
                f"the matrix is not square: row={number}, length={len(row)}, rows={len(rows)}"
            )
    return LinkMatrix(rows=rows)


def format_link_matrix(matrix: LinkMatrix) -> str:
    """Write the text that `parse_link_matrix` reads, without blanks; whole numbers as integers."""
    rows = [[int(item) if item.is_integer() else item for item in row] for row in matrix.rows]
    return json.dumps(rows, separators=(",", ":"))


def _row_of(row: object, number: int) -> tuple[float, ...]:
    if not isinstance(row, list | tuple):
        raise InputError(f"a row of the matrix is not a list: row={number}")
    for value in row:
        number_like = isinstance(value, int | float) and not isinstance(value, bool)
        if not number_like or not 0 <= value <= _BANDWIDTH_GBPS_MAX:
            raise InputError(
                f"a bandwidth is not a number between 0 and 1e9: row={number}, value={value!r}"
            )
    return tuple(map(float, row))


def _grouped(cpus: Iterable[Cpu], key: Callable[[Cpu], Key]) -> dict[Key, CpuSet]:
    masks: dict[Key, int] = {}
    for cpu in cpus:
        group = key(cpu)
        masks[group] = masks.get(group, 0) | 1 << cpu.id
    return {group: CpuSet(mask=masks[group]) for group in sorted(masks)}
