"""The links of GPUs whose bandwidth nobody measured, out of where they sit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Final

from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.devices import GPU, DeviceRecord, DeviceTopology
from ledger.domain.quantity import NANO
from ledger.domain.topology import LinkMatrix

MINOR_MAX: Final = 63
"""Nothing is derived for nodes with higher GPU minors: no machine has so many."""

NVLINK_GBPS: Final = 25.0
ROOT_GBPS: Final = 16.0
NUMA_GBPS: Final = 12.0
SOCKET_GBPS: Final = 10.0
ACROSS_GBPS: Final = 9.0
"""Nominal: their order counts. One NVLink; one PCIe root; one NUMA node; one socket; neither."""

_GIGA: Final = 10**9
_GBPS_MAX: Final = 1e9

Partitions = Mapping[int, tuple[GpuPartition, ...]]


def derive_links(
    devices: Iterable[DeviceRecord], partitions: Partitions | None = None
) -> LinkMatrix | None:
    """
    Return the matrix that places and partitions of a node's GPUs suggest, None without either.

    Rule: Koordinator contract 3.1 (`topology`) and 2.5 (`gpu-partitions`); ours: two GPUs of a
    partition with a ring bandwidth have a link of it, of an NVLink partition without one
    `NVLINK_GBPS`; else what they share counts: PCIe root, NUMA node, socket. What is unknown is
    not shared.

    Symmetric; the diagonal, and the rows of minors that no GPU has, are 0.
    """
    places = {item.minor: item.topology for item in devices if item.device_type == GPU}
    rings = _rings(partitions or {}, places)
    if not rings and not any(map(_is_known, places.values())):
        return None
    if max(places) > MINOR_MAX:
        return None
    return _matrix(tuple(sorted(places.items())), frozenset(rings.items()))


@lru_cache(maxsize=256)
def _matrix(
    places: tuple[tuple[int, DeviceTopology | None], ...],
    rings: frozenset[tuple[tuple[int, int], float]],
) -> LinkMatrix:
    """Return the matrix of one kind of machine: a large cluster has few, so each is once."""
    speeds = dict(rings)
    size = places[-1][0] + 1
    rows = [[0.0] * size for _ in range(size)]
    for (a, at), (b, other) in combinations(places, 2):
        rows[a][b] = rows[b][a] = max(_shared(at, other), speeds.get((a, b), 0.0))
    return LinkMatrix(rows=tuple(map(tuple, rows)))


def _rings(
    partitions: Partitions, places: Mapping[int, DeviceTopology | None]
) -> dict[tuple[int, int], float]:
    fastest: dict[tuple[int, int], float] = {}
    for group in partitions.values():
        for partition in group:
            speed = _ring_gbps(partition)
            if not speed:
                continue
            there = [minor for minor in partition.minors if minor in places]
            for pair in combinations(there, 2):
                fastest[pair] = max(fastest.get(pair, 0.0), speed)
    return fastest


def _ring_gbps(partition: GpuPartition) -> float:
    """Return the ring's bandwidth in GB/s, 0 when the partition says nothing of its links."""
    if partition.ring_bus_bandwidth is not None:
        return min(partition.ring_bus_bandwidth.nanos / (NANO * _GIGA), _GBPS_MAX)
    return NVLINK_GBPS if partition.link_type.lower() == "nvlink" else 0.0


def _shared(a: DeviceTopology | None, b: DeviceTopology | None) -> float:
    if a is None or b is None:
        return ACROSS_GBPS
    if a.pcie_id and a.pcie_id == b.pcie_id:
        return ROOT_GBPS
    if 0 <= a.numa_node == b.numa_node:
        return NUMA_GBPS
    return SOCKET_GBPS if 0 <= a.socket == b.socket else ACROSS_GBPS


def _is_known(place: DeviceTopology | None) -> bool:
    return place is not None and bool(place.pcie_id or place.numa_node >= 0 or place.socket >= 0)
