"""The allocator as the oracles are held against it: one node, one Pod, by both ways in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.devices import (
    DeviceRecord,
    DeviceShare,
    DeviceTopology,
    VirtualFunction,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import RefusedError
from ledger.domain.nodes import NodeFacts
from ledger.domain.quantity import quantity_from_int
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.resources import LABEL_GPU_ISOLATION_PROVIDER
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import NodeView
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import CardView, Placement, Unfit, Unplaced
from scheduler.decide.settings import SchedulingSettings
from tests.oracles.machine import UNFIT, Ask, Device, Given, Machine, Part


def requested(ask: Ask, settings: SchedulingSettings) -> PodRequest | None:
    """Return the Pod's request, None when a rule refuses it."""
    try:
        return replace(decode_pod(ask.as_object(), settings.vocabulary), uid="uid-p")
    except RefusedError:
        return None


def chosen(machine: Machine, request: PodRequest, settings: SchedulingSettings) -> Given | str:
    """Return what the choice of devices gives on this node."""
    answer = choose(request, view_of(machine), settings)
    return UNFIT if isinstance(answer, Unfit) else _given(answer.shares)


def decided(machine: Machine, request: PodRequest, settings: SchedulingSettings) -> Given | str:
    """Return what an engine gives that has this node alone, and a Pod for every tenant."""
    answer = engine_of(machine, settings).decide(request)
    return UNFIT if isinstance(answer, Unplaced) else _given(answer.shares)


def _given(shares: Sequence[DeviceShare]) -> Given:
    parts = {
        share.key: Part(
            core=share.core_percent,
            memory=share.memory_bytes,
            ratio=share.memory_ratio_percent,
            alone=share.exclusive,
            functions=share.vf_bus_ids,
        )
        for share in shares
    }
    uses = sorted(
        (use.container, share.minor, use.core_percent, use.memory_bytes)
        for share in shares
        if share.device_type == "gpu"
        for use in share.containers
    )
    return parts, uses


def engine_of(machine: Machine, settings: SchedulingSettings) -> Engine:
    """
    Return an engine with only this node, and a Pod for every tenant of a device.

    Its node policy names no card of its own: the order of cards is what is asked about.
    """
    facts = _facts(machine)
    engine = Engine([facts], replace(settings, node_policy="binpack"))
    records = {record.key: record for record in facts.devices}
    for device in machine.devices:
        for number, share in enumerate(_held(device)):
            uid = f"{device.kind}-{device.minor}-{number}"
            ours = not number and device.instances  # the first tenant has all of mGPU's containers
            holder = PodRequest(
                uid=uid,
                namespace="ml",
                name=uid,
                cpu_milli=0,
                memory_bytes=0,
                dialect=Dialect.MGPU if ours else Dialect.GPUSHARE,
            )
            engine.reserve(
                Placement(
                    request=holder,
                    node=0,
                    node_uid=facts.uid,
                    node_name=facts.name,
                    shares=(share,),
                    devices=(records[device.name],),
                )
            )
    return engine


def _held(device: Device) -> Iterator[DeviceShare]:
    """Yield one share per tenant; the first has all that is used."""
    for number in range(device.tenants):
        first = number == 0
        yield DeviceShare(
            device_type=device.kind,
            minor=device.minor,
            device_id=f"{device.kind}-{device.minor}",
            core_percent=device.core_used if first else 0,
            memory_bytes=device.memory_used if first else 0,
            exclusive=device.alone,
            instances=(first and device.instances) or 1,
            vf_bus_ids=tuple(item.bus_id for item in device.functions if item.taken and first),
        )


def view_of(machine: Machine) -> NodeView:
    """Return the node as the card choice sees it."""
    facts = _facts(machine)
    cards = [
        _card(device, record) for device, record in zip(machine.devices, facts.devices, strict=True)
    ]
    return NodeView(facts=facts, cards=tuple(cards))


def _facts(machine: Machine) -> NodeFacts:
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
    return NodeFacts(
        uid="uid-n1",
        name="n1",
        devices=tuple(map(_record, machine.devices)),
        links=machine.links,
        derived_links=machine.nominal,
        partitions=table,
        honors_partitions=machine.honors,
        mgpu_policy=machine.mgpu_policy,
        labels={LABEL_GPU_ISOLATION_PROVIDER: "HAMi-core"},
    )


def _record(device: Device) -> DeviceRecord:
    place = None
    if device.numa is not None:
        place = DeviceTopology(numa_node=device.numa, pcie_id=device.root)
    return DeviceRecord(
        device_type=device.kind,
        minor=device.minor,
        device_id=f"{device.kind}-{device.minor}",
        memory_bytes=device.memory,
        healthy=not device.closed,
        labels={"tier": device.tier},
        topology=place,
        vfs=tuple(
            VirtualFunction(minor=n, bus_id=item.bus_id, labels={"use": item.use})
            for n, item in enumerate(device.functions)
        ),
    )


def _card(device: Device, record: DeviceRecord) -> CardView:
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
