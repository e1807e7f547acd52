from __future__ import annotations

import pytest

from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.devices import DeviceRecord, DeviceTopology
from ledger.domain.kube.derived_links import (
    ACROSS_GBPS,
    MINOR_MAX,
    NUMA_GBPS,
    NVLINK_GBPS,
    ROOT_GBPS,
    SOCKET_GBPS,
    derive_links,
)
from ledger.domain.quantity import parse_quantity


def gpu(minor: int, place: DeviceTopology | None = None, device_type: str = "gpu") -> DeviceRecord:
    """A device at a place."""
    return DeviceRecord(
        device_type=device_type, minor=minor, device_id=f"{device_type}-{minor}", topology=place
    )


def at(root: str = "", numa: int = -1, socket: int = -1) -> DeviceTopology:
    """Where a device sits."""
    return DeviceTopology(pcie_id=root, numa_node=numa, socket=socket)


def test_what_two_gpus_share_is_their_link() -> None:
    """One root before one NUMA node before one socket before neither; both ways alike."""
    links = derive_links(
        [
            gpu(0, at("pci0", 0, 0)),
            gpu(1, at("pci0", 0, 0)),
            gpu(2, at("pci1", 0, 0)),
            gpu(3, at("pci2", 1, 0)),
            gpu(4, at("pci3", 2, 1)),
        ]
    )

    assert links is not None
    assert [links.bandwidth_gbps(0, other) for other in (1, 2, 3, 4)] == [
        ROOT_GBPS,
        NUMA_GBPS,
        SOCKET_GBPS,
        ACROSS_GBPS,
    ]
    assert links.rows[4][0] == links.rows[0][4]


def test_the_kinds_of_links_are_told_apart() -> None:
    """Each kind is faster than the next."""
    kinds = [NVLINK_GBPS, ROOT_GBPS, NUMA_GBPS, SOCKET_GBPS, ACROSS_GBPS]

    assert kinds == sorted(set(kinds), reverse=True)


def test_unknown_places_share_nothing() -> None:
    """NUMA node -1, no root and no place at all are not shared with one another."""
    links = derive_links([gpu(0, at(numa=0)), gpu(1, at()), gpu(2, at()), gpu(3), gpu(4)])

    assert links is not None
    assert {links.bandwidth_gbps(a, b) for a in range(5) for b in range(a)} == {ACROSS_GBPS}


def test_partitions_tell_of_nvlink() -> None:
    """The fastest ring that two GPUs are in together; a partition without links says nothing."""
    links = derive_links(
        [gpu(minor) for minor in range(5)],
        {
            2: (
                GpuPartition(minors=(0, 1), ring_bus_bandwidth=parse_quantity("300G")),
                GpuPartition(minors=(2, 3), link_type="NVLink"),
                GpuPartition(minors=(3, 4), allocation_score=1),
            ),
            3: (GpuPartition(minors=(0, 1, 9), ring_bus_bandwidth=parse_quantity("60G")),),
        },
    )

    assert links is not None
    assert links.bandwidth_gbps(0, 1) == 300.0
    assert links.bandwidth_gbps(2, 3) == NVLINK_GBPS
    assert links.bandwidth_gbps(3, 4) == ACROSS_GBPS


@pytest.mark.parametrize(
    "devices",
    [
        [],
        [gpu(0), gpu(1)],
        [gpu(0, at()), gpu(1, at())],
        [gpu(0, at("pci0"), "rdma"), gpu(1)],
        [gpu(0, at("pci0")), gpu(MINOR_MAX + 1, at("pci0"))],
    ],
    ids=[
        "no device",
        "no place",
        "places that say nothing",
        "a NIC alone has a place",
        "an absurd minor",
    ],
)
def test_without_places_nothing_is_made_up(devices: list[DeviceRecord]) -> None:
    """No matrix at all."""
    assert derive_links(devices) is None


def test_a_minor_that_no_gpu_has_has_no_links() -> None:
    """Rows are minors; a gap between minors is a row of zeros."""
    links = derive_links([gpu(0, at("pci0")), gpu(2, at("pci0"))])

    assert links is not None
    assert links.rows == ((0.0, 0.0, ROOT_GBPS), (0.0, 0.0, 0.0), (ROOT_GBPS, 0.0, 0.0))
