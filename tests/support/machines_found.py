"""Machines as an agent finds them: named ones, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from agent.discover.machine import (
    Card,
    Discovery,
    Fault,
    GpuLink,
    Identity,
    MigInstance,
    Nic,
    OtherDevice,
    Place,
)
from ledger.domain.devices import VirtualFunction
from ledger.domain.log.codec import plain_value

GIB: Final = 1 << 30


def card(minor: int, *, numa: int = 0, root: str = "pci0000:3a", gib: int = 80) -> Card:
    """Return a healthy card on the bus address that its minor makes."""
    return Card(
        uuid=f"GPU-0000000{minor}-1111-2222-3333-444444444444",
        minor=minor,
        model="NVIDIA A100-SXM4-80GB",
        memory_bytes=gib * GIB - 512 * (1 << 20),
        reserved_bytes=512 * (1 << 20),
        place=Place(
            bus_id=f"0000:{0x3B + minor:02x}:00.0",
            root=root,
            numa_node=numa,
        ),
        processes=(),
    )


TWO_CARDS: Final = Discovery(
    identity=Identity(system_uuid="a-b-c", machine_id="0123", boot_id="first"),
    driver_version="550.90.07",
    cards=(card(0), card(1, numa=1, root="pci0000:5d")),
    links=(GpuLink(first=0, second=1, nvlinks=12, nvlink_mbps=25_000),),
    nics=(
        Nic(
            name="mlx5_0",
            minor=0,
            place=Place(bus_id="0000:5e:00.0", root="pci0000:5d", numa_node=1),
            fabric="roce",
            vfs=(VirtualFunction(minor=0, bus_id="0000:5e:00.2"),),
        ),
    ),
    others=(OtherDevice(device_type="fpga", device_id="0000:81:00.0", minor=0),),
)
"""Two cards on two sockets with NVLink between them, a NIC with a VF, and an FPGA."""

CUT: Final = Card(
    uuid="GPU-cut",
    minor=2,
    model="NVIDIA A100-SXM4-80GB",
    memory_bytes=80 * GIB,
    mig=True,
    instances=(MigInstance(uuid="MIG-1", profile="1g.10gb"),),
    faults=(Fault(reason="MIGNotServed", message="1g.10gb MIG-1"),),
)


def write_machine(path: Path, found: Discovery) -> Path:
    """Write a machine for the probe that reads a file."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_text(json.dumps(plain_value(found)), encoding="utf-8")
    return fresh.replace(path)
