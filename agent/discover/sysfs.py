"""RDMA NICs, where devices sit, and which machine this is: what the kernel says in its files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from agent.discover.host_files import HostFiles
from agent.discover.machine import NOWHERE, Discovery, Fault, Identity, Kind, Nic, Place, checked
from ledger.domain.bounds import NAME_MAX
from ledger.domain.devices import VirtualFunction

PORT_DOWN: Final = "PortDown"
UNREADABLE: Final = "Unreadable"
NOT_PCI: Final = "NotPCI"

_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_FUNCTION: Final = re.compile(r"virtfn([0-9]{1,5})")
_PCI: Final = "sys/bus/pci/devices"
_RDMA: Final = "sys/class/infiniband"
_FABRICS: Final = {"InfiniBand": "ib", "Ethernet": "roce"}
"""What a port says of its link layer -> how a NIC is labelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SysfsProbe:
    """Finds RDMA NICs and the machine's ids in the host's `sys`, `proc` and `etc/machine-id`."""

    host: HostFiles

    def look(self) -> Discovery:
        """Return NICs by bus address, and the machine's ids."""
        found: list[Nic] = []
        problems: list[Fault] = []
        for name in self.host.names(_RDMA):
            try:
                nic = _nic(self.host, name)
            except (OSError, ValueError) as error:
                problems.append(Fault(reason=UNREADABLE, message=f"{_RDMA}/{name}: {error}"))
                continue
            if nic is None:
                continue
            if not nic.place.bus_id:
                fact = f"{_RDMA}/{name}: no PCI device, it is not offered"
                problems.append(Fault(reason=NOT_PCI, message=fact))
                continue
            found.append(nic)
        ordered = sorted(_joined(found), key=lambda nic: bus_order(nic.place.bus_id))
        nics = tuple(replace(nic, minor=minor) for minor, nic in enumerate(ordered))
        unread = any(problem.reason == UNREADABLE for problem in problems)
        return checked(
            Discovery(
                identity=read_identity(self.host),
                unknown=(Kind.RDMA,) if unread else (),
                nics=nics,
                problems=tuple(problems),
            )
        )


def read_identity(host: HostFiles) -> Identity:
    """
    Return the ids that kubelet reports of the same machine, empty where they can't be read.

    Rule: design section 4, "One account per physical device". The firmware's UUID is in lower case:
    kernels differ in how they print the same one.
    """
    system_uuid = host.text_or("sys/class/dmi/id/product_uuid").lower()
    return Identity(
        system_uuid=system_uuid[:NAME_MAX],
        machine_id=host.text_or("etc/machine-id")[:NAME_MAX],
        boot_id=host.text_or("proc/sys/kernel/random/boot_id")[:NAME_MAX],
    )


def place_of(host: HostFiles, bus_id: str) -> Place:
    """
    Return where the device with this PCI address sits, as far as the kernel says.

    Rule: Koordinator contract 3.1: `pcieID` is the root complex, which is on one NUMA node alone.
    """
    if not _BUS_ID.fullmatch(bus_id):
        return NOWHERE
    try:
        path = host.real(f"{_PCI}/{bus_id}")
    except OSError:
        return Place(bus_id=bus_id)
    numa = host.text_or(f"{'/'.join(path)}/numa_node")
    return Place(
        bus_id=bus_id,
        root=next((name for name in path if _ROOT.fullmatch(name)), ""),
        numa_node=int(numa) if re.fullmatch(r"[0-9]{1,4}", numa) else -1,
    )


def bus_order(bus_id: str) -> tuple[int, ...]:
    """Return what orders PCI addresses by their numbers; what is none comes last."""
    if not _BUS_ID.fullmatch(bus_id):
        return (1 << 32,)
    return tuple(int(part, 16) for part in re.split(r"[:.]", bus_id))


def _nic(host: HostFiles, name: str) -> Nic | None:
    """Return the NIC of an RDMA device, None for a virtual function; without a place: no PCI."""
    path = host.real(f"{_RDMA}/{name}")
    addresses = [part for part in path if _BUS_ID.fullmatch(part)]
    if not addresses:
        return Nic(name=name, minor=0, place=NOWHERE)
    bus_id = addresses[-1]
    folder = f"{_PCI}/{bus_id}"
    if "physfn" in host.names(folder):
        return None
    layers, states = [], []
    ports = host.names(f"{_RDMA}/{name}/ports")
    for port in ports:
        layers.append(host.text_or(f"{_RDMA}/{name}/ports/{port}/link_layer"))
        states.append((port, host.text_or(f"{_RDMA}/{name}/ports/{port}/state", "unknown")))
    fabric = _FABRICS.get(layers[0], "") if len(set(layers)) == 1 else ""
    return Nic(
        name=name,
        minor=0,
        place=place_of(host, bus_id),
        fabric=fabric,
        faults=_faults(states),
        vfs=virtual_functions(host, bus_id),
    )


def virtual_functions(host: HostFiles, bus_id: str) -> tuple[VirtualFunction, ...]:
    """Return virtual functions by number. Raises OSError, ValueError: links lead nowhere."""
    folder = f"{_PCI}/{bus_id}"
    found = []
    for name in host.names(folder):
        number = _FUNCTION.fullmatch(name)
        if number is not None:
            address = host.real(f"{folder}/{name}")[-1]
            if not _BUS_ID.fullmatch(address):
                raise ValueError(f"not a PCI address: {folder}/{name} -> {address}")
            found.append(VirtualFunction(minor=int(number[1]), bus_id=address))
    return tuple(sorted(found, key=lambda function: function.minor))


def _faults(states: list[tuple[str, str]]) -> tuple[Fault, ...]:
    """Return why a NIC takes nobody: none of its ports is up (`4: ACTIVE`)."""
    if any(state.endswith("ACTIVE") for _, state in states):
        return ()
    said = ", ".join(f"port {port} is {state}" for port, state in states) or "no port"
    return (Fault(reason=PORT_DOWN, message=said),)


def _joined(nics: list[Nic]) -> list[Nic]:
    """Return one NIC per PCI address: an old driver has an RDMA device for each of its ports."""
    by_address: dict[str, Nic] = {}
    for nic in nics:
        other = by_address.get(nic.place.bus_id)
        if other is None or (other.faults and not nic.faults):
            by_address[nic.place.bus_id] = nic
    return list(by_address.values())
