"""One node and one Pod in plain words: what the oracles read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.topology import LinkMatrix
from tests.support.objects import Object, container, pod

MIB: Final = 2**20
GIB: Final = 2**30
KOORDINATOR: Final = "koordinator.sh/"
REFUSED: Final = "refused by a rule of requests"
UNFIT: Final = "does not fit the node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A VF: its bus id, its use, and whether a Pod has it."""

    bus_id: str
    use: str
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """
    One device and what Pods have of it.

    Attributes:
        numa: -1 is unknown; None (with an empty root) when no topology is told at all.
        alone: one of its holders must stay alone.
        instances: mGPU containers on it.
    """

    kind: str
    minor: int
    memory: int = 0
    core_used: int = 0
    memory_used: int = 0
    tenants: int = 0
    alone: bool = False
    instances: int = 0
    closed: bool = False
    tier: str = ""
    numa: int | None = None
    root: str = ""
    functions: tuple[Function, ...] = ()

    @property
    def name(self) -> tuple[str, int]:
        """Return (type, minor)."""
        return (self.kind, self.minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A group of GPUs that a node hands out together."""

    minors: tuple[int, ...]
    score: int = 1
    ring: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """
    One node.

    Attributes:
        links: measured bandwidth, row = from; None when nobody measured.
        nominal: the matrix worked out of places where nobody measured.
        partitions: number of GPUs -> groups in table order; None without a table.
        honors: whole GPUs go by the table only.
    """

    devices: tuple[Device, ...]
    links: LinkMatrix | None = None
    nominal: LinkMatrix | None = None
    partitions: Mapping[int, Sequence[Partition]] | None = None
    honors: bool = False
    mgpu_policy: str = ""

    def of_kind(self, kind: str) -> list[Device]:
        """Return the devices of one type, ascending."""
        return [device for device in self.devices if device.kind == kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A Pod: the limits of each container, by full resource name, and its annotations."""

    containers: tuple[Mapping[str, int], ...]
    inits: tuple[Mapping[str, int], ...] = ()
    annotations: Mapping[str, object] = field(default_factory=dict)

    def as_object(self) -> Object:
        """Return the Pod object."""
        apps = [container(f"c{place}", limits=item) for place, item in enumerate(self.containers)]
        inits = [container(f"i{place}", limits=item) for place, item in enumerate(self.inits)]
        return pod(*apps, init=inits, annotations=self.annotations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a Pod gets of one device; `ratio` as shown on the wire."""

    core: int = 0
    memory: int = 0
    ratio: int = 0
    alone: bool = False
    functions: tuple[str, ...] = ()


Parts = Mapping[tuple[str, int], Part]
"""Device -> what is given of it."""

Uses = Sequence[tuple[str, int, int, int]]
"""(container, minor, core, memory) for every container and GPU."""

Given = tuple[Parts, Uses]
"""What a Pod gets."""
