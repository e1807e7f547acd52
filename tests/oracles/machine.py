"""One node and one Pod in plain words: what the oracles read and the allocator is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.devices import DevicePlace, DeviceRecord, VirtualFunction
from ledger.domain.errors import RefusedError
from ledger.domain.nodes import NodeFacts
from ledger.domain.normalise import NormaliseSettings, decode_pod
from ledger.domain.quantity import quantity_from_int
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings
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


def view_of(machine: Machine) -> NodeView:
    """Return the node as the allocator sees it."""
    cards = [_card(device) for device in machine.devices]
    table = None
    if machine.partitions is not None:
        table = {
            count: tuple(
                GpuPartition(
                    minors=item.minors,
                    allocation_score=item.score,
                    ring_bus_bandwidth=None if item.ring is None else quantity_from_int(item.ring),
                )
                for item in groups
            )
            for count, groups in machine.partitions.items()
        }
    facts = NodeFacts(
        uid="uid-n1",
        name="n1",
        devices=tuple(card.record for card in cards),
        links=machine.links,
        derived_links=machine.nominal,
        partitions=table,
        honors_partitions=machine.honors,
        mgpu_policy=machine.mgpu_policy,
    )
    return NodeView(facts=facts, cards=tuple(cards))


def _card(device: Device) -> CardView:
    place = None
    if device.numa is not None:
        place = DevicePlace(numa_node=device.numa, pcie_id=device.root)
    record = DeviceRecord(
        device_type=device.kind,
        minor=device.minor,
        device_id=f"{device.kind}-{device.minor}",
        memory_bytes=device.memory,
        labels={"tier": device.tier},
        place=place,
        vfs=tuple(
            VirtualFunction(minor=n, bus_id=item.bus_id, labels={"use": item.use})
            for n, item in enumerate(device.functions)
        ),
    )
    return CardView(
        record=record,
        core_free=100 - device.core_used,
        memory_free=device.memory - device.memory_used,
        tenants=device.tenants,
        exclusive=device.alone,
        instances=device.instances,
        closed=device.closed,
        vfs_in_use=frozenset(item.bus_id for item in device.functions if item.taken),
    )


def allocated(
    machine: Machine,
    ask: Ask,
    settings: SchedulingSettings,
    normalise: NormaliseSettings,
) -> tuple[Parts, Uses] | str:
    """Return what the code gives: the parts, and the containers' uses; or why it gives nothing."""
    try:
        request = decode_pod(ask.as_object(), normalise)
    except RefusedError:
        return REFUSED
    answer = choose(replace(request, uid="uid-p"), view_of(machine), settings)
    if isinstance(answer, Unfit):
        return UNFIT
    parts = {
        share.key: Part(
            core=share.core_percent,
            memory=share.memory_bytes,
            ratio=share.memory_ratio_percent,
            alone=share.exclusive,
            functions=share.vf_bus_ids,
        )
        for share in answer.shares
    }
    uses = sorted(
        (use.container, share.minor, use.core_percent, use.memory_bytes)
        for share in answer.shares
        if share.device_type == "gpu"
        for use in share.containers
    )
    return parts, uses
