"""Placements in the words of the dialect the Pod spoke: the Binding's annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from ledger.domain import resources as names
from ledger.domain.annotations import cpu, device_allocated, tenure
from ledger.domain.annotations.gpu_topology import GpuTopologyAllocation, encode_gpu_topology
from ledger.domain.device_types import DeviceType, Unit
from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceShare
from ledger.domain.kube.shared_templates import Amounts, matched_template, template_amounts
from ledger.domain.nodes import NodeFacts
from ledger.domain.quantity import Quantity, QuantityStyle, quantity_from_int, quantity_from_milli
from ledger.domain.request.requests import PodRequest, is_whole
from ledger.domain.vocabulary import Vocabulary
from scheduler.decide.cards.shares import held_by
from scheduler.decide.cpusets.choose import bind_policy_on
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.nodes.card_amounts import card_amounts_of
from scheduler.decide.outcome import NumaPart, Placement
from scheduler.decide.settings import SchedulingSettings

_NO_STATUS: Final = cpu.ResourceStatus()


def encode(
    placement: Placement, *, node: NodeFacts, now_ns: int, settings: SchedulingSettings
) -> dict[str, str]:
    """
    Return exactly the annotations of the Binding, sorted by key.

    Rule: design section 3 (answers, own names); cli.md, Output; GPU-sharing contract A.5 and
    B.1; Koordinator contract 2.2 and 11. A search that was cut says so on the Pod, too. The Pod's
    `resource-spec` is among them where a default became effective.

    Args:
        node: the node placed on; its devices name what a group sees and a card's size.
        now_ns: Unix time in nanoseconds, for the assume time.
    """
    annotations: dict[str, str] = {}
    if placement.shares:
        annotations[names.ANNOTATION_DEVICE_ALLOCATED] = device_allocated.encode_device_allocated(
            _allocations(placement, node, settings),
            settings.vocabulary,
            proposal_domain=settings.proposal_domain,
        )
    status = cpu.ResourceStatus(
        cpuset=placement.cpuset,
        cpu_shared_pools=placement.shared_pools,
        numa_node_resources=tuple(map(_numa_resources, placement.numa_parts)),
    )
    if status != _NO_STATUS:
        annotations[names.ANNOTATION_RESOURCE_STATUS] = cpu.encode_resource_status(status)
    if placement.cpuset:
        annotations |= _policy_that_counted(placement, node, settings)
    gpus = tuple(share for share in placement.shares if share.device_type == GPU)
    if gpus:
        chooser = chooser_of(placement.request.dialect)
        annotations |= chooser.answer(placement, gpus, node, now_ns, settings)
        annotations |= _container_answer(placement, gpus, node)
    return dict(sorted(annotations.items()))


def _policy_that_counted(
    placement: Placement, node: NodeFacts, settings: SchedulingSettings
) -> dict[str, str]:
    policy = bind_policy_on(placement.request, node, settings.cpu)
    if not policy:
        return {}
    text = cpu.effective_resource_spec(
        placement.request.snapshot.annotations.get(names.ANNOTATION_RESOURCE_SPEC, "{}"),
        cpu.CpuBindPolicy(policy),
        by_node=bool(node.cpu_bind_policy),
    )
    return {} if text is None else {names.ANNOTATION_RESOURCE_SPEC: text}


def _numa_resources(part: NumaPart) -> cpu.NumaNodeResources:
    """Return one NUMA node's part in raw quantities (contract 7)."""
    resources = (
        (names.CPU, quantity_from_milli(part.cpu_milli)),
        (names.MEMORY, quantity_from_int(part.memory_bytes, QuantityStyle.BINARY_SI)),
    )
    return cpu.NumaNodeResources(
        node=part.node, resources=tuple((name, amount) for name, amount in resources if amount)
    )


def resources_of(
    share: DeviceShare, vocabulary: Vocabulary, amounts: Amounts = ()
) -> dict[str, int]:
    """
    Return what a share gives, by released resource name, in base units, sorted by name.

    Rule: cli.md, Output: core only if asked, memory and ratio always.

    Args:
        amounts: what a GPU gives beside; its compute was then asked for by these.
    """
    if share.device_type != GPU:
        return _unit_resources(share, vocabulary.type_named(share.device_type))
    if amounts:
        memory = {
            names.GPU_MEMORY: share.memory_bytes,
            names.GPU_MEMORY_RATIO: share.memory_ratio_percent,
        }
        return dict(sorted({**memory, **dict(amounts)}.items()))
    core = {names.GPU_CORE: share.core_percent} if share.core_percent else {}
    return core | {
        names.GPU_MEMORY: share.memory_bytes,
        names.GPU_MEMORY_RATIO: share.memory_ratio_percent,
    }


def _unit_resources(share: DeviceShare, kind: DeviceType) -> dict[str, int]:
    """Return what a share of a device that is no GPU gives, in the words of its type."""
    whole = kind.unit is Unit.COUNT
    units = share.core_percent // WHOLE_PERCENT if whole else share.core_percent
    given = {kind.resource: units} if units or not kind.memory else {}
    return dict(
        sorted((given | ({kind.memory: share.memory_bytes} if kind.memory else {})).items())
    )


def _allocations(
    placement: Placement, node: NodeFacts, settings: SchedulingSettings
) -> dict[str, tuple[device_allocated.DeviceAllocation, ...]]:
    """
    Return the shares with what else their cards give, and the template that this is by.

    Rule: Koordinator contract 2.2 and 8.7.
    """
    by_type: dict[str, tuple[device_allocated.DeviceAllocation, ...]] = {}
    amounts = card_amounts_of(placement.request)
    template = ""
    if amounts:
        asked = template_amounts(placement.request.devices[0])
        templates = settings.devices.shared_templates
        template = matched_template(asked, node.labels, templates) or ""
    for share in placement.shares:
        given = resources_of(share, settings.vocabulary, amounts)
        allocation = device_allocated.DeviceAllocation(
            minor=share.minor,
            id=share.device_id,
            resources=_amounts(tuple(given.items())),
            vfs=_functions(share, node) if share.vf_bus_ids else (),
            template=template if share.device_type == GPU else "",
        )
        by_type[share.device_type] = (*by_type.get(share.device_type, ()), allocation)
    return by_type


def _functions(share: DeviceShare, node: NodeFacts) -> tuple[device_allocated.VfAllocation, ...]:
    minors = {
        vf.bus_id: vf.minor
        for record in node.devices
        if record.key == share.key
        for vf in record.vfs
    }
    return tuple(
        device_allocated.VfAllocation(minor=minors.get(bus_id, 0), bus_id=bus_id)
        for bus_id in share.vf_bus_ids
    )


@lru_cache(maxsize=4096)
def _amounts(resources: tuple[tuple[str, int], ...]) -> tuple[tuple[str, Quantity], ...]:
    return tuple((name, quantity_from_int(amount)) for name, amount in resources)


def _container_answer(
    placement: Placement, gpus: tuple[DeviceShare, ...], node: NodeFacts
) -> dict[str, str]:
    """
    Write which GPUs each container sees and holds, in our words and in the proposal's.

    Rule: design section 3; GPU-topology proposal, "Record the allocation information to the pod
    annotation".

    A group's container sees all GPUs that the group has on the node, any other its own.
    """
    request = placement.request
    if not request.containers and request.group is None:
        return {}
    users = [need for need in request.containers if held_by(need, gpus)]
    ids = {card.minor: card.device_id for card in node.devices if card.device_type == GPU}
    ids |= {share.minor: share.device_id for share in gpus if share.device_id}
    containers = []
    for need in users:
        own = [share.minor for share in held_by(need, gpus)]
        containers.append(
            _devices_of(need.index, own, sorted({*placement.visible_minors, *own}), ids)
        )
    annotations = tenure.encode_container_devices(containers) | tenure.encode_shown(placement.shown)
    if request.group is not None or _holds_whole_gpus(request):
        annotations[names.ANNOTATION_GPU_TOPOLOGY] = encode_gpu_topology(
            GpuTopologyAllocation(
                allocated=tuple(
                    (int(need.index), tuple(share.minor for share in held_by(need, gpus)))
                    for need in users
                    if need.index.isdecimal()
                ),
                visible=placement.visible_minors or tuple(share.minor for share in gpus),
            )
        )
    return annotations


def _holds_whole_gpus(request: PodRequest) -> bool:
    """Tell whether the proposal's annotation says all; parts and other dialects have their own."""
    gpus = [demand for demand in request.devices if demand.device_type == GPU]
    return chooser_of(request.dialect).has_topology and all(map(is_whole, gpus))


def _devices_of(
    place: str, own: Sequence[int], seen: Sequence[int], ids: Mapping[int, str]
) -> tenure.ContainerDevices:
    """
    Return what a container sees and holds: by UUID, or by index where one is not known.

    Half a list would mislead, an empty one hides the GPU that the container holds. CUDA counts the
    GPUs that the container sees from 0, so its indexes are places among these.
    """
    if all(ids.get(minor) for minor in seen):
        return tenure.ContainerDevices(
            index=place,
            visible=tuple(ids[minor] for minor in seen),
            allocated=tuple(ids[minor] for minor in own),
        )
    return tenure.ContainerDevices(
        index=place,
        visible=tuple(map(str, seen)),
        allocated=tuple(str(seen.index(minor)) for minor in own),
    )
