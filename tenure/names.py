"""Reading the names that users type: NODE, NODE/CARD, NODE/cpu/N, NS/POD, job/NAME."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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
    """One logical CPU of a node."""

    node: str
    cpu: int

    def __str__(self) -> str:
        return f"{self.node}/cpu/{self.cpu}"


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


Name = NodeName | CardName | CpuName | PodName | OwnerName

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

FORMS: Final = "NODE, NODE/CARD, NODE/TYPE/N, NODE/cpu/N, NAMESPACE/POD or job/NAME"

_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_TYPE: Final = re.compile(r"[a-z][a-z-]*")


def card_text(node: str, device_type: str, minor: int) -> str:
    """Return the name of a device as `parse_name` reads it: `n/3`, `n/rdma/0`."""
    if device_type == TYPE_GPU:
        return f"{node}/{minor}"
    return f"{node}/{device_type}/{minor}"


def parse_name(text: str) -> tuple[Name, ...]:
    """
    Return every reading of a name, the likelier first; the ledger decides which one exists.

    `a/3` may be card 3 of node `a` or a Pod called `3`; `job/x` a Job or a Pod of the namespace
    `job`.

    Raises:
        InputError: the text has none of the forms.
    """
    parts = text.strip().split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        raise _unreadable(text)
    match parts:
        case [node]:
            return (NodeName(node=node),)
        case [first, second]:
            return _of_two(first, second)
        case [first, middle, last]:
            return _of_three(text, first, middle, last)
        case _:
            raise _unreadable(text)


def _of_two(first: str, second: str) -> tuple[Name, ...]:
    readings: list[Name] = []
    if _NUMBER.fullmatch(second):
        readings.append(CardName(node=first, device_type=TYPE_GPU, minor=int(second)))
    if first in OWNER_KINDS:
        readings.append(OwnerName(kind=OWNER_KINDS[first], name=second))
    readings.append(PodName(namespace=first, name=second))
    return tuple(readings)


def _of_three(text: str, first: str, middle: str, last: str) -> tuple[Name, ...]:
    readings: list[Name] = []
    if _NUMBER.fullmatch(last) and middle == "cpu":
        readings.append(CpuName(node=first, cpu=int(last)))
    elif _NUMBER.fullmatch(last) and _TYPE.fullmatch(middle):
        readings.append(CardName(node=first, device_type=middle, minor=int(last)))
    if middle in OWNER_KINDS:
        readings.append(OwnerName(kind=OWNER_KINDS[middle], name=last, namespace=first))
    if not readings:
        raise _unreadable(text)
    return tuple(readings)


def _unreadable(text: str) -> InputError:
    return InputError(f"not a name of something held: want {FORMS}", place=repr(text))
