"""
The host's `/sys` for tests, as the kernel lays it out: folders, links and one-line files.

A tree is written down as the links of `/sys/class/infiniband` show it, since the rest follows: a
device's folder lies in its parent's, and `/sys/bus/pci/devices` links to all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HPC_WORKER: Final[Mapping[str, str]] = {
    "mlx5_0": (
        "pci0000:3f/0000:3f:01.1/0000:40:00.0/0000:41:00.0/0000:42:00.0/0000:43:10.0/0000:44:00.0/"
        "0000:45:00.0/0000:46:00.0/0000:47:00.0/0000:48:00.0"
    ),
    "mlx5_1": (
        "pci0000:3f/0000:3f:01.1/0000:40:00.0/0000:41:00.0/0000:42:00.0/0000:43:10.0/0000:44:00.0/"
        "0000:45:00.0/0000:46:00.0/0000:47:00.0/0000:48:00.1"
    ),
    "mlx5_2": (
        "pci0000:3f/0000:3f:01.1/0000:40:00.0/0000:41:00.0/0000:42:00.0/0000:43:10.0/0000:44:00.0/"
        "0000:45:04.0/0000:49:00.0/0000:4a:10.0/0000:4c:00.0"
    ),
    "mlx5_4": "pci0000:2c/0000:2c:03.1/0000:2d:00.0",
    "mlx5_10": (
        "pci0000:ba/0000:ba:01.1/0000:bb:00.0/0000:bc:00.0/0000:bd:00.0/0000:be:10.0/0000:bf:00.0/"
        "0000:c0:00.0/0000:c1:00.0/0000:c2:00.0/0000:c3:00.0"
    ),
}
"""
Some of the NICs of a bare-metal machine with eight GPUs, as `ls -l /sys/class/infiniband` printed
them on 24 Feb (a public bring-up checklist of a cluster on OCI): two functions of one NIC, one
behind another switch of the same root, a NIC of its own, one of the other socket.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SysTree:
    """A host's `/`, of which the tests fill in what is read."""

    root: Path
    numa: Mapping[str, int] = field(default_factory=dict)

    def write(self, path: str, text: str) -> None:
        """Write a file with one line, as the kernel ends it."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        """Make a link as the kernel does: relative, from a folder of the tree to another."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(self.root / target, place.parent))

    def pci(self, path: str, *, numa: int = 0) -> str:
        """Add a PCI device at its place below `/sys/devices`; return its folder."""
        folder = f"sys/devices/{path}"
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.write(f"{folder}/numa_node", str(numa))
        self.link(f"sys/bus/pci/devices/{path.rpartition('/')[2]}", folder)
        return folder

    def nic(
        self,
        name: str,
        path: str,
        *,
        numa: int = 0,
        layer: str = "Ethernet",
        state: str = "4: ACTIVE",
        interface: str = "",
    ) -> str:
        """Add an RDMA device with one port; return the folder of its PCI function."""
        folder = self.pci(path, numa=numa)
        here = f"{folder}/infiniband/{name}"
        self.write(f"{here}/ports/1/link_layer", layer)
        self.write(f"{here}/ports/1/state", state)
        self.link(f"{here}/device", folder)
        self.link(f"sys/class/infiniband/{name}", here)
        if interface:
            self.write(f"{folder}/net/{interface}/operstate", "up")
        return folder

    def functions(self, physical: str, addresses: Sequence[str], *, named: int = 0) -> None:
        """Give a physical function virtual ones; the first `named` have RDMA devices too."""
        parent = physical.rpartition("/")[0].removeprefix("sys/devices/")
        for number, address in enumerate(addresses):
            path = f"{parent}/{address}"
            folder = self.nic(f"{address}_rdma", path) if number < named else self.pci(path, numa=0)
            self.link(f"{physical}/virtfn{number}", folder)
            self.link(f"{folder}/physfn", physical)


def hpc_worker(root: Path) -> SysTree:
    """Return the machine of `HPC_WORKER`, its roots 00 to 7e on socket 0, and its ids."""
    tree = SysTree(root=root)
    for name, path in HPC_WORKER.items():
        tree.nic(name, path, numa=int(path >= "pci0000:80"), interface=f"rdma{name[5:]}")
    tree.write("sys/class/dmi/id/product_uuid", "4C4C4544-0051-3010-8059-B7C04F4E3832")
    tree.write("etc/machine-id", "9f2c8b0e5d1a4c7e8b3f6a2d1c0e9b8a")
    tree.write("proc/sys/kernel/random/boot_id", "0f3b8a52-6a3e-4d8e-9f4e-5f0b9d1c2a77")
    return tree
