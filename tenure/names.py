"""Reading the names that users type: NODE, NODE/CARD, NODE/cpu/LIST, NS/POD, job/NAME, a UUID."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.resources import TYPE_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeName:
    """A whole node."""

    node: str

    def __str__(self) -> str:
        return self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class CardName:
    """One device of a node; the type `gpu` goes without saying."""

    node: str
    device_type: str
    minor: int

    def __str__(self) -> str:
        return card_text(self.node, self.device_type, self.minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuName:
    """Logical CPUs of a node, one or a list."""

    node: str
    cpus: CpuSet

    def __str__(self) -> str:
        return f"{self.node}/cpu/{self.cpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """One Pod."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerName:
    """Every Pod of one owner. An empty namespace means all of them."""

    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        scope = f"{self.namespace}/" if self.namespace else ""
        return f"{scope}{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceName:
    """The device with an id: a UUID, or a PCI address in the kernel's form. No node means any."""

    device_id: str
    node: str = ""

    def __str__(self) -> str:
        return f"{self.node}/{self.device_id}" if self.node else self.device_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyPodName:
    """A Pod of whichever namespace."""

    name: str

    def __str__(self) -> str:
        return self.name


Name = NodeName | CardName | CpuName | PodName | OwnerName
"""What a ledger can be asked about."""
Reading = Name | DeviceName | AnyPodName
"""What a text may mean."""

OWNER_KINDS: Final = {
    "job": "job",
    "jobs": "job",
    "cj": "cronjob",
    "cronjob": "cronjob",
    "deploy": "deployment",
    "deployment": "deployment",
    "rs": "replicaset",
    "replicaset": "replicaset",
    "sts": "statefulset",
    "statefulset": "statefulset",
    "ds": "daemonset",
    "daemonset": "daemonset",
}
"""What kubectl users write -> the kind as the ledger's owners spell it."""

FORMS: Final = (
    "NODE, NODE/CARD, NODE/TYPE/N, NODE/cpu/LIST, NAMESPACE/POD, POD, job/NAME, UUID or PCI address"
)

_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_TYPE: Final = re.compile(r"[a-z][a-z-]*")
_CPUS: Final = re.compile(r"[0-9]{1,9}(?:[,-][0-9]{1,9})*")
_PCI: Final = re.compile(
    r"(?:PCI:)?(?:0{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(\.[0-7])?", re.IGNORECASE
)
"""A PCI address as the kernel, an Xid message (`PCI:0000:3b:00`) and nvidia-smi spell it."""


def card_text(node: str, device_type: str, minor: int) -> str:
    """Return the name of a device as `parse_name` reads it: `n/3`, `n/rdma/0`."""
    if device_type == TYPE_GPU:
        return f"{node}/{minor}"
    return f"{node}/{device_type}/{minor}"


def parse_name(text: str) -> tuple[Reading, ...]:
    """
    Return every reading of a name, the likelier first; the ledger decides which one exists.

    `a/3` may be card 3 of node `a` or a Pod called `3`; `job/x` a Job or a Pod of the namespace
    `job`; `web` a node, a Pod of some namespace or the id of a device.

    Raises:
        InputError: the text has none of the forms.
    """
    node, slash, last = text.strip().rpartition("/")
    pci = _PCI.fullmatch(last)
    if pci is not None and (_PART.fullmatch(node) or not slash):
        address = f"{pci[1]}{pci[2] or '.0'}".lower()
        return (DeviceName(device_id=address, node=node),)
    parts = text.strip().split("/")
    if len(parts) == 3 and parts[1] == "cpu" and _CPUS.fullmatch(parts[2]):
        if not _PART.fullmatch(parts[0]):
            raise _unreadable(text)
        return (CpuName(node=parts[0], cpus=parse_cpuset(parts[2])),)
    if not all(_PART.fullmatch(part) for part in parts):
        raise _unreadable(text)
    match parts:
        case [node]:
            return (NodeName(node=node), AnyPodName(name=node), DeviceName(device_id=node))
        case [first, second]:
            return _of_two(first, second)
        case [first, middle, last]:
            return _of_three(text, first, middle, last)
        case _:
            raise _unreadable(text)


def _of_two(first: str, second: str) -> tuple[Reading, ...]:
    readings: list[Reading] = []
    if _NUMBER.fullmatch(second):
        readings.append(CardName(node=first, device_type=TYPE_GPU, minor=int(second)))
    if first in OWNER_KINDS:
        readings.append(OwnerName(kind=OWNER_KINDS[first], name=second))
    readings.append(PodName(namespace=first, name=second))
    if not second.islower() and not second.isdigit():  # no Pod's name
        readings.append(DeviceName(device_id=second, node=first))
    return tuple(readings)


def _of_three(text: str, first: str, middle: str, last: str) -> tuple[Reading, ...]:
    readings: list[Reading] = []
    if _NUMBER.fullmatch(last) and _TYPE.fullmatch(middle):
        readings.append(CardName(node=first, device_type=middle, minor=int(last)))
    if middle in OWNER_KINDS:
        readings.append(OwnerName(kind=OWNER_KINDS[middle], name=last, namespace=first))
    if not readings:
        raise _unreadable(text)
    return tuple(readings)


def _unreadable(text: str) -> InputError:
    return InputError(f"not a name of something held: want {FORMS}", place=repr(text))
