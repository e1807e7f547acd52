"""Named machines: the CPU topologies and the GPU link matrix that the documents count on."""

from __future__ import annotations

from typing import Final

from ledger.domain.topology import Cpu, CpuTopology, LinkMatrix, cpu_topology_of

MACHINE_X: Final[CpuTopology] = cpu_topology_of(
    Cpu(id=thread * 12 + core, core=core, socket=0, numa=core // 6)
    for thread in range(2)
    for core in range(12)
)
"""Koordinator contract 6.5: 1 socket, 2 NUMA nodes, 6 cores each; CPU i and i+12 share core i."""

MACHINE_Y: Final[CpuTopology] = cpu_topology_of(
    Cpu(id=thread * 8 + core, core=core, socket=core // 4, numa=core // 4)
    for thread in range(2)
    for core in range(8)
)
"""Koordinator contract 6.5: 2 sockets of 1 NUMA node and 4 cores; CPU i and i+8 share a core."""

EIGHT_GPU_NVLINK: Final = LinkMatrix(
    rows=(
        (750.48, 48.39, 48.33, 96.41, 15.77, 15.52, 96.40, 15.74),
        (48.39, 753.38, 96.46, 48.38, 4.64, 16.93, 16.98, 96.39),
        (48.38, 96.25, 751.92, 96.48, 48.39, 17.57, 17.59, 16.72),
        (96.25, 48.39, 96.43, 750.48, 15.45, 48.39, 15.88, 14.62),
        (5.00, 16.81, 48.38, 15.98, 755.56, 96.39, 48.38, 96.44),
        (15.80, 16.93, 17.50, 48.39, 96.25, 751.92, 96.23, 48.38),
        (96.42, 16.75, 17.47, 15.89, 48.35, 96.28, 754.10, 48.33),
        (15.65, 96.20, 16.77, 15.71, 96.25, 48.38, 48.33, 754.83),
    )
)
"""The bandwidth matrix of the Koordinator GPU-topology proposal, Motivation; GB/s."""

EIGHT_GPU_DEVICE_TEXT: Final = (
    "[[750.48,48.39,48.39,96.46,15.97,16.15,96.41,16.18],"
    "[48.39,752.65,96.46,48.38,16.96,16.84,16.67,96.23],"
    "[48.38,96.25,749.04,6.02,48.38,17.57,17.54,16.95],"
    "[96.44,48.39,96.48,752.65,17.27,48.38,17.33,16.8],"
    "[15.99,16.8,48.38,17.27,755.56,96.44,48.38,96.44],"
    "[16.14,16.74,17.73,48.38,96.23,755.56,96.25,48.38],"
    "[96.43,16.81,17.6,17.35,48.33,96.23,754.83,48.39],"
    "[16.28,96.22,17.18,16.88,96.23,48.33,48.33,755.56]]"
)
"""The matrix text in the same proposal's Device example; other measurements than the one above."""
