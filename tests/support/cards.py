"""Builders of cards, nodes and requests, as the choices on one node see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol, TypedDict, Unpack

from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import (
    ContainerNeed,
    DeviceDemand,
    GangRef,
    GroupRef,
    PodRequest,
)
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.view import NodeView
from scheduler.decide.outcome import CardView

MIB: Final = 2**20
GIB: Final = 2**30


class NodeFields(TypedDict, total=False):
    """The facts of a node that tests vary."""

    dialects: frozenset[Dialect]
    links: LinkMatrix | None
    derived_links: LinkMatrix | None
    mgpu_policy: str
    mgpu_invalid: bool


class PodFields(TypedDict, total=False):
    """The fields of a request that tests vary."""

    uid: str
    name: str
    cpu_milli: int
    containers: tuple[ContainerNeed, ...]
    group: GroupRef | None
    gang: GangRef | None
    mgpu_policy: str
    mgpu_multi: bool
    gpushare_units: int


class HasMinor(Protocol):
    """A share or a record."""

    @property
    def minor(self) -> int:
        """Return its minor."""
        ...


def card(
    minor: int,
    *,
    device_type: str = "gpu",
    core: int = 100,
    memory_bytes: int = 40 * GIB,
    core_used: int = 0,
    memory_used: int = 0,
    tenants: int | None = None,
    exclusive: bool = False,
    instances: int | None = None,
    closed: bool = False,
    model: str = "",
) -> CardView:
    """Return a card with what is used of it; whatever uses it is one tenant unless said."""
    if tenants is None:
        tenants = int(bool(core_used or memory_used or exclusive))
    return CardView(
        record=DeviceRecord(
            device_type=device_type,
            minor=minor,
            device_id=f"{device_type.upper()}-{minor}",
            model=model,
            core_percent=core,
            memory_bytes=memory_bytes,
        ),
        core_free=core - core_used,
        memory_free=memory_bytes - memory_used,
        tenants=tenants,
        exclusive=exclusive,
        instances=tenants if instances is None else instances,
        closed=closed,
    )


def nic(minor: int, *, used: int = 0) -> CardView:
    """Return an RDMA NIC: 100 units, no memory."""
    return card(minor, device_type="rdma", memory_bytes=0, core_used=used)


def node_of(*cards: CardView, **facts: Unpack[NodeFields]) -> NodeView:
    """Return a node with these cards, ordered as a node orders them."""
    ordered = sorted(cards, key=lambda card: card.record.key)
    described = NodeFacts(
        uid="uid-n1",
        name="n1",
        devices=tuple(card.record for card in ordered),
        **facts,
    )
    return NodeView(facts=described, cards=tuple(ordered))


def whole(count: int = 1, *, model_names: tuple[str, ...] = ()) -> DeviceDemand:
    """Return a demand for whole GPUs, as every dialect is normalised to."""
    return DeviceDemand(
        device_type="gpu",
        count=count,
        core_percent=100,
        memory_ratio_percent=100,
        exclusive=True,
        model_names=model_names,
    )


def part(core: int = 0, *, ratio: int = 0, memory: int = 0, count: int = 1) -> DeviceDemand:
    """Return a demand for parts of GPUs."""
    return DeviceDemand(
        device_type="gpu",
        count=count,
        core_percent=core,
        memory_ratio_percent=ratio,
        memory_bytes=memory,
    )


def rdma(percent: int, *, count: int = 1) -> DeviceDemand:
    """Return a demand for parts of NICs."""
    return DeviceDemand(device_type="rdma", count=count, core_percent=percent)


def need(name: str, place: str, kind: str = "app", **device_counts: int) -> ContainerNeed:
    """Return a container with its number of devices by type."""
    return ContainerNeed(
        name=name, index=place, kind=kind, device_counts=tuple(sorted(device_counts.items()))
    )


def pod(
    *demands: DeviceDemand, dialect: Dialect | None = None, **fields: Unpack[PodFields]
) -> PodRequest:
    """Return a request; with GPUs and no dialect given it speaks Koordinator's."""
    if dialect is None and any(demand.device_type == "gpu" for demand in demands):
        dialect = Dialect.KOORDINATOR
    plain = PodRequest(
        uid="uid-p", namespace="ml", name="p", cpu_milli=0, memory_bytes=0, devices=demands
    )
    return replace(plain, dialect=dialect, **fields)


def mgpu_pod(*asks: DeviceDemand, **fields: Unpack[PodFields]) -> PodRequest:
    """Return an mGPU Pod with containers c0, c1, ... that ask for one demand each."""
    demands = tuple(replace(demand, containers=(str(place),)) for place, demand in enumerate(asks))
    fields["containers"] = tuple(
        need(f"c{place}", str(place), gpu=demand.count) for place, demand in enumerate(asks)
    )
    return pod(*demands, dialect=Dialect.MGPU, **fields)


def gpushare_pod(memory_bytes: int, units: int = 0, containers: int = 1) -> PodRequest:
    """Return a GPU share Pod whose containers ask for so much together."""
    needs = tuple(need(f"c{place}", str(place), gpu=1) for place in range(containers))
    return pod(
        part(memory=memory_bytes),
        dialect=Dialect.GPUSHARE,
        containers=needs,
        gpushare_units=units or memory_bytes // MIB,
    )


def minors_of(shares: Sequence[HasMinor]) -> tuple[int, ...]:
    """Return the minors of shares, in their order."""
    return tuple(share.minor for share in shares)
