"""What a machine has, as one value, and the port behind which it is looked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from ledger.domain.bounds import Count, Index, Name, Number, Units
from ledger.domain.devices import WHOLE_PERCENT, VirtualFunction
from ledger.domain.errors import InputError
from ledger.domain.topology import LinkMatrix

MIG_NOT_SERVED: Final = "MIGNotServed"
"""Why a card that is cut into MIG instances takes no Pods of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    Where a device sits.

    Attributes:
        bus_id: the PCI address as sysfs has it, `0000:3b:00.0`; empty = none, or unknown.
        root: the PCIe root complex, `pci0000:3a`; empty = unknown.
        numa_node: -1 = unknown.
    """

    bus_id: Name = ""
    root: Name = ""
    numa_node: Index = -1


NOWHERE: Final = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a device takes no new holders: a CamelCase word such as `Xid79`, and words for people."""

    reason: Name
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that the driver sees on a card. `memory_bytes` 0 = the driver does not say."""

    pid: Number
    memory_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A part of a card that the driver has cut off, such as `1g.5gb`."""

    uuid: Name
    profile: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """
    A GPU.

    Attributes:
        uuid: the driver's, unique in the world.
        minor: of its device node, `/dev/nvidia<minor>`; stays while the machine runs.
        model: as the driver says it, `NVIDIA A100-SXM4-80GB`.
        memory_bytes: in all, less `reserved_bytes`: what Pods can have.
        reserved_bytes: what the driver keeps for itself.
        mig: MIG mode is on; `instances` are those that exist.
        faults: in the order of their reasons.
        processes: None = could not be asked.
    """

    uuid: Name
    minor: Number
    model: Name = ""
    memory_bytes: Count
    reserved_bytes: Count = 0
    place: Place = NOWHERE
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    faults: tuple[Fault, ...] = ()
    processes: tuple[CardProcess, ...] | None = None


class Kind(StrEnum):
    """Who tells of a device."""

    GPU = "gpu"
    """The GPUs' driver."""
    RDMA = "rdma"
    """The kernel, of RDMA NICs."""
    OTHER = "other"
    """A file that somebody wrote."""


class Common(StrEnum):
    """What lies between two GPUs at best, nearest first, as `nvidia-smi topo -m` tells it."""

    INTERNAL = "internal"
    """One board."""
    SINGLE = "single"
    """PIX: one PCIe switch."""
    MULTIPLE = "multiple"
    """PXB: several PCIe switches, no host bridge."""
    HOST_BRIDGE = "host-bridge"
    """PHB: a host bridge."""
    NODE = "node"
    """NODE: several host bridges of one NUMA node."""
    SYSTEM = "system"
    """SYS: between sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """
    What connects two GPUs; `first` and `second` are minors, the smaller one first.

    Attributes:
        nvlinks: NVLinks that are up between them, through a switch or directly; 0 = none.
        nvlink_mbps: megabytes a second of one of them and direction; 0 = unknown.
        common: None = could not be asked.
    """

    first: Number
    second: Number
    nvlinks: Number = 0
    nvlink_mbps: Count = 0
    common: Common | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """
    An RDMA NIC: a physical function.

    Attributes:
        name: of its RDMA device, `mlx5_0`.
        minor: its place in the order of bus addresses among the NICs of the machine.
        fabric: the link layer of its ports, `ib` or `roce`; empty = mixed or unknown.
        vfs: its virtual functions, by number.
    """

    name: Name
    minor: Number
    place: Place
    fabric: Name = ""
    faults: tuple[Fault, ...] = ()
    vfs: tuple[VirtualFunction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDevice:
    """
    A device that somebody declared, such as an FPGA.

    Attributes:
        device_type: a type of the settings (docs/device-types.md).
        percent: 100 for a whole device.
        labels: key and value, by key.
    """

    device_type: Name
    device_id: Name
    minor: Number
    percent: Units = WHOLE_PERCENT
    memory_bytes: Count = 0
    place: Place = NOWHERE
    labels: tuple[tuple[Name, Name], ...] = ()
    faults: tuple[Fault, ...] = ()
    vfs: tuple[VirtualFunction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which machine this is, and which start of it; an empty id is unknown and equals nothing."""

    system_uuid: Name = ""
    machine_id: Name = ""
    boot_id: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """
    All that a machine has.

    Attributes:
        driver_version: the GPUs'; empty = no driver, or it does not answer.
        unknown: the kinds of which not all could be read: one that is missing among them may be
            there, which is another thing than gone. In order, each once.
        cards: by minor; `nics` and `others` likewise, these by type first.
        links: by their minors.
        measured: bandwidth between GPUs that somebody measured; None = nobody did.
        problems: what could not be read, and why.
    """

    identity: Identity = field(default_factory=Identity)
    driver_version: Name = ""
    unknown: tuple[Kind, ...] = ()
    cards: tuple[Card, ...] = ()
    links: tuple[GpuLink, ...] = ()
    nics: tuple[Nic, ...] = ()
    others: tuple[OtherDevice, ...] = ()
    measured: LinkMatrix | None = None
    problems: tuple[Fault, ...] = ()


class Probe(Protocol):
    """Looks at the machine, or at a part of it. It may block: call it in a thread."""

    def look(self) -> Discovery:
        """
        Return what there is now.

        What could not be read of a device is among `problems`.

        Raises:
            InputError: a file that somebody wrote says something else than a machine.
        """


def checked(found: Discovery) -> Discovery:
    """Return it in order. Raises InputError: an id or minor twice, or a link without its GPUs."""
    _check_ids("cards", [("", card.uuid, card.minor) for card in found.cards])
    _check_ids("nics", [("", nic.place.bus_id, nic.minor) for nic in found.nics])
    _check_ids("others", [(one.device_type, one.device_id, one.minor) for one in found.others])
    known = {card.minor for card in found.cards}
    for number, link in enumerate(found.links):
        if not (link.first < link.second and {link.first, link.second} <= known):
            fact = f"not two GPUs, the smaller first: first={link.first}, second={link.second}"
            raise InputError(fact, field=f"links[{number}]")
    return replace(
        found,
        cards=tuple(sorted(found.cards, key=lambda card: card.minor)),
        links=tuple(sorted(found.links, key=lambda link: (link.first, link.second))),
        nics=tuple(sorted(found.nics, key=lambda nic: nic.minor)),
        others=tuple(sorted(found.others, key=lambda one: (one.device_type, one.minor))),
    )


def _check_ids(name: str, devices: Iterable[tuple[str, str, int]]) -> None:
    seen: set[tuple[str, str | int]] = set()
    for number, (kind, device_id, minor) in enumerate(devices):
        path = f"{name}[{number}]"
        if not device_id:
            raise InputError("missing; expected an id", field=path)
        for what, key in (("id", device_id), ("minor", minor)):
            if (kind, key) in seen:
                raise InputError(f"two have one {what}: value={key!r}", field=path)
            seen.add((kind, key))
