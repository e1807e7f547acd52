"""What a node is and has, out of its Node, Device and NodeResourceTopology objects."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, TypeVar

from ledger.domain import resources
from ledger.domain.annotations import node_cpu, wire
from ledger.domain.annotations.checkpoints import DeviceCheckpoint, read_devices_checkpoints
from ledger.domain.annotations.cpu import CpuBindPolicy, NumaPolicy
from ledger.domain.annotations.partitions import (
    GpuPartition,
    built_in_partitions,
    decode_gpu_partitions,
    honors_partitions,
)
from ledger.domain.annotations.volcano_vgpu import VGPU_NUMBER, VGPU_REGISTER, decode_vgpu_register
from ledger.domain.bounds import bounds_of
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.protocol import Listed
from ledger.domain.dialects.registry import READERS
from ledger.domain.errors import InputError
from ledger.domain.kube import device_objects, nrt_objects, object_fields
from ledger.domain.kube.derived_links import derive_links
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.quantity import NANO, ZERO, Quantity
from ledger.domain.request.card_names import WHOLE_CARD, cut_of, product_of
from ledger.domain.request.extended import is_device, offered
from ledger.domain.systems import UNHEALTHY, VOLCANO, DeviceSystems
from ledger.domain.typed import read
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary


def decode_unhealthy_cards(text: str) -> tuple[frozenset[int], tuple[str, ...]]:
    """
    Return the card indexes to avoid, and the tokens that are no index.

    Rule: GPU-sharing contract B.3, "OURS": a token that does not parse is ignored and reported;
    it never condemns card 0. Blanks around an index are taken.
    """
    tokens = [token.strip() for token in text.split(",") if token.strip()]
    numbers = [token for token in tokens if wire.is_number(token)]
    bad = tuple(token for token in tokens if not wire.is_number(token))
    return frozenset(map(int, numbers)), bad


T = TypeVar("T")

_BY_PLUGIN: Final = frozenset(reader.dialect for reader in READERS if reader.by_plugin)
_COPIED_LABELS: Final = (
    resources.LABEL_GPU_VENDOR,
    resources.LABEL_GPU_MODEL,
    resources.LABEL_GPU_DRIVER_VERSION,
)
_CPUS_MAX: Final = bounds_of("cpu_milli")[1] // 1000 - 1
"""Less than what a Pod's wish without bounds is cut to: that fits nowhere."""
_EFFECTS: Final = frozenset({"NoSchedule", "PreferNoSchedule", "NoExecute"})
_BIND_POLICIES: Final = {
    node_cpu.NodeCpuBindPolicy.NONE: "",
    node_cpu.NodeCpuBindPolicy.FULL_PCPUS_ONLY: str(CpuBindPolicy.FULL_PCPUS),
    node_cpu.NodeCpuBindPolicy.SPREAD_BY_PCPUS: str(CpuBindPolicy.SPREAD_BY_PCPUS),
}
"""A node's policy -> the same in a Pod's words."""

_UNREADY: Final = {"False": resources.TAINT_NOT_READY, "Unknown": resources.TAINT_UNREACHABLE}
"""What the condition Ready says -> the taint that goes with it."""
UNSAID: Final = "PreferNoSchedule"
"""The effect of the taint that a node which is not ready has by its condition alone."""

Quantities = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletReports:
    """What a node's objects say about Pods that got their devices and CPUs from someone else."""

    checkpoints: Mapping[str, tuple[DeviceCheckpoint, ...]]  # Pod UID -> entries
    cpus: Mapping[str, CpuSet]  # Pod UID -> CPUs that kubelet pinned


NO_WITNESSES: Final = KubeletReports(checkpoints={}, cpus={})


def decode_node(
    node: Mapping[str, object],
    device: Mapping[str, object] | None = None,
    nrt: Mapping[str, object] | None = None,
    unhealthy_gpus: str | None = None,
    *,
    vocabulary: Vocabulary = DEFAULT_VOCABULARY,
    cpu_ref_count_max: int = 1,
    known_pods: Container[str] = (),
) -> tuple[NodeFacts, list[str]]:
    """
    Return what deciding needs to know about a node, and warnings.

    Rule: cli.md, Predicates and Inventory without a Device object; Koordinator contract 1.2, 2.3,
    2.4, 3; GPU-sharing contract A.1, B.1, B.3.

    The Device's vendor, model and driver labels count as the Node's, as Koordinator copies them.

    Args:
        unhealthy_gpus: the list of the node's `unhealthy-gpu-<node>` ConfigMap.
        known_pods: UIDs of Pods that the caller adopts; their kubelet-pinned CPUs are theirs, not
            the node's reserve.

    Raises:
        InputError: a wrong type, a missing name, a bad or negative quantity, JSON that does not
            parse. `place` names the object when it is not the Node: `Device n-17`.
    """
    metadata = object_fields.metadata_of(node)
    name, annotations = object_fields.name_of(metadata), object_fields.annotations_of(node)
    device_labels = _within(f"Device {name}", lambda: object_fields.labels_of(device))
    labels = {
        **{key: device_labels[key] for key in _COPIED_LABELS if key in device_labels},
        **object_fields.labels_of(node),
    }
    spec, status = object_fields.spec_of(node), wire.an_object(node.get("status"), "status")
    quantities = _quantities(status, vocabulary)
    found = (reader.listed(annotations, labels, quantities or {}) for reader in READERS)
    listed = next((one for one in found if one is not None), None)
    if device is None:
        inventory = _without_device(quantities or {}, labels, listed, vocabulary)
    else:
        model = labels.get(resources.LABEL_GPU_MODEL, "")
        inventory = _within(
            f"Device {name}", lambda: device_objects.inventory_of_device(device, model, vocabulary)
        )
    closed: dict[str, str] = dict(listed.closed) if listed else {}
    devices, health_warnings = _with_health(inventory.devices, unhealthy_gpus, name)
    if device is not None:
        devices, closed, said = _with_witnesses(devices, annotations)
        health_warnings += said
    topology = _within(
        f"NodeResourceTopology {name}", lambda: nrt_objects.read_topology(nrt, known_pods)
    )
    own = {**topology.copies, **annotations}
    cpu_milli, memory_bytes, pods_max = _limits(quantities, nrt_objects.read_node_reservation(own))
    partitions, partition_warnings = _partitions(device, labels)
    info = wire.an_object(status.get("nodeInfo"), "status.nodeInfo")
    taints = _with_readiness(wire.each(spec.get("taints"), "spec.taints", _taint), status)
    systems, of_systems = systems_of_node(status, annotations, vocabulary)
    facts = NodeFacts(
        uid=object_fields.text_at(metadata, "uid", "metadata")
        or object_fields.default_uid("Node", "", name),
        name=name,
        # In lower case: kernels differ in how they print the same one.
        system_uuid=object_fields.text_at(info, "systemUUID", "status.nodeInfo").lower(),
        machine_id=object_fields.text_at(info, "machineID", "status.nodeInfo"),
        boot_id=object_fields.text_at(info, "bootID", "status.nodeInfo"),
        created=object_fields.text_at(metadata, "creationTimestamp", "metadata"),
        lost=any(taint.key == resources.TAINT_OUT_OF_SERVICE for taint in taints),
        labels=labels,
        taints=taints,
        unschedulable=wire.a_flag(spec.get("unschedulable"), "spec.unschedulable", default=False),
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        pods_max=pods_max,
        devices=devices,
        dialects=inventory.dialects,
        card_amounts=inventory.card_amounts,
        cpu_ref_count_max=cpu_ref_count_max,
        links=inventory.links,
        derived_links=None if inventory.links else derive_links(devices, partitions),
        partitions=partitions,
        honors_partitions=honors_partitions(labels, device_labels),
        extended=offered(quantities or {}, vocabulary, plain=device is None),
        advertised=_advertised_names(status, {*vocabulary.device_names, resources.SLOT}),
        systems=replace(
            systems,
            scaled=listed.scaled if listed else (),
            closed=tuple(sorted(closed.items())),
            unread=systems.unread + (listed.unread if listed else ()),
        ),
        other_scheduler=(listed.scheduler if listed else "")
        or (VOLCANO if systems.cards and dict(systems.offers).get(VGPU_NUMBER) else ""),
    )
    for reader in READERS:
        facts = reader.on_node(facts)
    known = None if device is None else inventory.devices
    warnings = [
        *inventory.warnings,
        *health_warnings,
        *partition_warnings,
        *of_systems,
        *(word for one in READERS for word in one.node_warnings(labels, quantities or {}, known)),
        *(_uncounted(quantities or {}) if device is None else ()),
    ]
    facts = _completed(facts, topology, own, warnings)
    return facts, [f"node {name}: {warning}" for warning in warnings]


def decode_witnesses(
    device: Mapping[str, object] | None = None, nrt: Mapping[str, object] | None = None
) -> KubeletReports:
    """
    Return what a Device and a NodeResourceTopology say about Pods that others placed.

    Rule: Koordinator contract 2.4 (only kubelet's entries with UID and CPUs count) and 2.7.

    Raises:
        InputError: JSON that does not parse.
    """
    checkpoints: dict[str, tuple[DeviceCheckpoint, ...]] = {}
    for entry in read_devices_checkpoints(object_fields.annotations_of(device)):
        checkpoints[entry.pod_uid] = (*checkpoints.get(entry.pod_uid, ()), entry)
    cpus: dict[str, CpuSet] = {}
    for alloc in nrt_objects.kubelet_allocs(object_fields.annotations_of(nrt)):
        cpus[alloc.uid] = cpus.get(alloc.uid, EMPTY) | alloc.cpus
    return KubeletReports(checkpoints=checkpoints, cpus=cpus)


def _within(place: str, read: Callable[[], T]) -> T:
    """Return what `read` returns; an error in that other object is placed there."""
    try:
        return read()
    except InputError as error:
        raise error.at(place) from error


def _quantities(status: Mapping[str, object], vocabulary: Vocabulary) -> Quantities | None:
    """Return allocatable, else capacity, else None: a Node that says nothing has no limits."""
    for section in ("allocatable", "capacity"):
        path = f"status.{section}"
        items = object_fields.named(status.get(section), path)
        if items:
            return vocabulary.canonical_resources(
                {name: _quantity(item, f"{path}[{name}]", name) for name, item in items.items()}
            )
    return None


def _advertised_names(status: Mapping[str, object], names: set[str]) -> tuple[str, ...] | None:
    """Return which of these names the Node has, in whatever amount; None as `_quantities` does."""
    sections = (
        object_fields.named(status.get(section), section) for section in ("allocatable", "capacity")
    )
    amounts = next(filter(None, sections), None)
    return None if amounts is None else tuple(sorted(names & amounts.keys()))


def _quantity(value: object, path: str, name: str) -> Quantity:
    quantity = wire.a_quantity(value, path)
    most = _CPUS_MAX if name == resources.CPU else INTEGER_MAX
    if quantity.nanos > most * NANO:
        raise InputError(f"beyond what can be counted exactly: value={value!r}", field=path)
    return quantity


def _limits(
    quantities: Quantities | None, reservation: node_cpu.NodeReservation
) -> tuple[int | None, int | None, int | None]:
    """
    Return cpu in thousandths, memory in bytes and the number of Pods.

    Rule: cli.md, Predicates: missing cpu or memory is 0, missing pods is unlimited. What the node
    keeps for itself is taken off, unless it keeps CPUs only (Koordinator contract 2.3).
    """
    if quantities is None:
        return None, None, None
    pods = quantities.get(resources.PODS)
    kept = dict(reservation.resources)
    cpu, memory = kept.get(resources.CPU, ZERO).milli(), kept.get(resources.MEMORY, ZERO).ceil()
    if reservation.reserved_cpus:
        cpu = 1000 * len(reservation.reserved_cpus)
    if reservation.apply_policy is node_cpu.ReservationApplyPolicy.RESERVED_CPUS_ONLY:
        cpu = memory = 0
    return (
        max(0, quantities.get(resources.CPU, ZERO).nanos * 1000 // NANO - cpu),
        max(0, quantities.get(resources.MEMORY, ZERO).nanos // NANO - memory),
        None if pods is None else pods.nanos // NANO,
    )


def _without_device(
    quantities: Quantities,
    labels: Mapping[str, str],
    listed: Listed | None,
    vocabulary: Vocabulary,
) -> device_objects.Inventory:
    """
    Return the devices of a Node without a Device object.

    Rule: cli.md, Inventory without a Device object; an annotation that lists GPUs with their ids
    says more than a number of them. Of cards that are offered in parts no number is a card's.
    """
    if listed is None:
        found = _advertised(quantities, labels, vocabulary)
        if found.dialects != _BY_PLUGIN or cut_of(resources.NVIDIA_GPU, labels) == WHOLE_CARD:
            return found
        others = tuple(one for one in found.devices if one.device_type != resources.TYPE_GPU)
        return replace(found, devices=others)
    rest = {name: units for name, units in quantities.items() if name not in listed.instead_of}
    return device_objects.with_listed(_advertised(rest, labels, vocabulary), listed)


def _advertised(
    quantities: Quantities, labels: Mapping[str, str], vocabulary: Vocabulary
) -> device_objects.Inventory:
    cards = quantities.get(resources.NVIDIA_GPU, ZERO).ceil()
    model = labels.get(resources.LABEL_GPU_MODEL, "") or product_of(labels, cards)
    try:
        return device_objects.inventory_of_quantities(
            quantities, model=model, vocabulary=vocabulary
        )
    except InputError as error:
        raise InputError(error.message, field=f"status.allocatable[{error.field}]") from error


def _with_health(
    devices: tuple[DeviceRecord, ...], unhealthy_gpus: str | None, name: str
) -> tuple[tuple[DeviceRecord, ...], list[str]]:
    """Close the cards that the ConfigMap lists (GPU-sharing contract B.3, ours)."""
    if unhealthy_gpus is None:
        return devices, []
    place = resources.unhealthy_gpu_config_map(name)
    minors, bad = decode_unhealthy_cards(unhealthy_gpus)
    warnings = [f"{place}: not a card index, ignored: value={token!r}" for token in bad]
    known = {record.minor for record in devices if record.device_type == resources.TYPE_GPU}
    warnings += [
        f"{place}: the node has no such card, ignored: value={minor}"
        for minor in sorted(minors - known)
    ]
    marked = tuple(
        replace(record, healthy=False)
        if record.device_type == resources.TYPE_GPU and record.minor in minors
        else record
        for record in devices
    )
    return marked, warnings


def _with_witnesses(
    devices: tuple[DeviceRecord, ...], annotations: Mapping[str, str]
) -> tuple[tuple[DeviceRecord, ...], dict[str, str], list[str]]:
    """Close the GPUs that a dialect's annotations on the Node close beside a Device object."""
    warnings: list[str] = []
    reasons: dict[str, str] = {}
    for reader in READERS:
        closed, said = reader.beside_device(annotations, devices)
        warnings += said
        ill = {one.device_id for one in devices if not one.healthy}
        reasons |= {key: why for key, why in closed.items() if key not in ill and why != UNHEALTHY}
        if closed:
            devices = tuple(
                replace(record, healthy=False)
                if record.device_type == resources.TYPE_GPU and record.device_id in closed
                else record
                for record in devices
            )
    return devices, reasons, warnings


def _partitions(
    device: Mapping[str, object] | None, labels: Mapping[str, str]
) -> tuple[Mapping[int, tuple[GpuPartition, ...]] | None, list[str]]:
    """
    Return the node's table of GPU partitions, and what is wrong with it.

    Rule: Koordinator contract 2.5 and 8.5: a broken table is none at all.
    """
    if device is None:
        return None, []  # cards made up from quantities have no minors that a table could mean
    text = object_fields.annotations_of(device).get(resources.ANNOTATION_GPU_PARTITIONS)
    if text is None:
        vendor, model = (
            labels.get(resources.LABEL_GPU_VENDOR, ""),
            labels.get(resources.LABEL_GPU_MODEL, ""),
        )
        return built_in_partitions(vendor, model), []
    try:
        return decode_gpu_partitions(text), []
    except InputError as error:
        return None, [f"GPU partition table ignored: {error}"]


def _taint(value: object, path: str) -> Taint:
    taint = read(Taint, value, path)
    if not taint.key:
        raise InputError("missing; expected a taint key", field=f"{path}.key")
    if taint.effect not in _EFFECTS:
        raise InputError(
            f"not one of NoSchedule, PreferNoSchedule, NoExecute: value={taint.effect!r}",
            field=f"{path}.effect",
        )
    return taint


def _with_readiness(taints: tuple[Taint, ...], status: Mapping[str, object]) -> tuple[Taint, ...]:
    """
    Return the taints with that of a node that is not ready, where its object has it not yet.

    Rule: Kubernetes' node lifecycle controller: Ready False is `not-ready`, Unknown `unreachable`.
    A Node that says nothing of it is taken for ready. It keeps nobody off, as kube-scheduler reads
    what the object has.
    """
    known = {taint.key for taint in taints}
    for condition in wire.each(status.get("conditions"), "status.conditions", wire.an_object):
        key = _UNREADY.get(str(condition.get("status")))
        if condition.get("type") == "Ready" and key and known.isdisjoint(_UNREADY.values()):
            return (*taints, Taint(key=key, value="", effect=UNSAID))
    return taints


def _completed(
    facts: NodeFacts,
    topology: nrt_objects.NodeTopology,
    annotations: Mapping[str, str],
    warnings: Iterable[str],
) -> NodeFacts:
    """Return a node with its CPUs and what is wrong with it."""
    reserve = nrt_objects.read_node_reserve(annotations, topology.cpus)
    full_pcpus_only = topology.kubelet.full_pcpus_only
    return replace(
        facts,
        cpu_topology=topology.cpus,
        reserved_cpus=topology.reserved | reserve,
        unpooled_cpus=topology.pinned | reserve,
        cpu_bind_policy=_bind_policy(facts.labels, full_pcpus_only=full_pcpus_only),
        numa_strategy=_numa_strategy(facts.labels, topology.kubelet),
        numa_policy=_numa_policy(facts.labels, topology.numa_policy),
        kubelet=topology.kubelet_rejects,
        numa_zones=topology.zones,
        cpu_amplification=_cpu_amplification(annotations),
        faults=tuple(warnings),
    )


def _bind_policy(labels: Mapping[str, str], *, full_pcpus_only: bool) -> str:
    """
    Return the node's policy in a Pod's words.

    Rule: CPU proposal, "Compatible kubelet CPU management policies" 1: the label's, else kubelet's.
    What kubelet rejects all the same is its own matter (`KubeletPolicy`).
    """
    named = node_cpu.read_node_cpu_policies(labels).bind_policy
    if full_pcpus_only and not _BIND_POLICIES[named]:
        return _BIND_POLICIES[node_cpu.NodeCpuBindPolicy.FULL_PCPUS_ONLY]
    return _BIND_POLICIES[named]


def _numa_strategy(labels: Mapping[str, str], kubelet: node_cpu.KubeletCpuPolicy) -> str:
    """Return the label's strategy, else what kubelet's own option comes to (proposal, Story 1)."""
    strategy = node_cpu.read_node_cpu_policies(labels).numa_allocate_strategy
    if strategy is node_cpu.NumaAllocateStrategy.UNSET and kubelet.distribute_across_numa:
        return str(node_cpu.NumaAllocateStrategy.DISTRIBUTE_EVENLY)
    return str(strategy)


def _numa_policy(labels: Mapping[str, str], kubelets: NumaPolicy) -> NumaPolicy:
    """
    Return the label's policy, else kubelet's Topology Manager's.

    Rule: Koordinator contract 7; CPU proposal, NUMA topology alignment policy. A label of any
    other text, `None` too, is no policy, whatever kubelet's is.
    """
    named = any(
        labels.get(key)
        for key in (
            resources.LABEL_NUMA_TOPOLOGY_POLICY,
            resources.LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL,
        )
    )
    return node_cpu.read_node_cpu_policies(labels).numa_policy if named else kubelets


def _uncounted(quantities: Quantities) -> Iterator[str]:
    """Say which memory a node offers without a number of cards: nobody can share that out."""
    for one in (item for reader in READERS for item in reader.uncounted):
        memory, cards, least = one.memory, one.cards, one.least
        if quantities.get(memory) and quantities.get(cards, ZERO).ceil() < least:
            yield f"{memory} serves no Pod: it takes {cards} of at least {least} to know the cards"


def _cpu_amplification(annotations: Mapping[str, str]) -> Fraction:
    ratios = wire.decoded(
        annotations, resources.ANNOTATION_AMPLIFICATION_RATIO, node_cpu.decode_amplification_ratios
    )
    return (ratios or {}).get(resources.CPU, Fraction(1))


def systems_of_node(
    status: Mapping[str, object], annotations: Mapping[str, str], vocabulary: Vocabulary
) -> tuple[DeviceSystems, list[str]]:
    """
    Return what a Node's quantities, which were read already, and annotations tell, and warnings.

    Rule: docs/contracts/device-plugins.md, docs/contracts/volcano-vgpu.md.

    What of its capacity can't be read is not told. Amounts that change without a device, such as
    batch cpu, are no part of it.
    """
    there = _units(status.get("capacity"), vocabulary)
    offers = _units(status.get("allocatable") or status.get("capacity"), vocabulary)
    cards = decode_vgpu_register(annotations.get(VGPU_REGISTER, ""))
    fault = f"{wire.annotation_path(VGPU_REGISTER)} can't be read: not as the plugin writes it"
    others = [reader.registered(annotations) for reader in READERS]
    unread = [each for other in others for each in other.unread]
    faults = [f"a register of {vendor} cards can't be read" for _, vendor in unread]
    return DeviceSystems(
        offers=tuple(sorted(offers.items())),
        capacity=tuple(
            (name, amount) for name, amount in sorted(there.items()) if offers.get(name) != amount
        ),
        cards=(*(cards or ()), *(card for other in others for card in other.cards)),
        unread=(*unread, *(((VOLCANO, ""),) if cards is None else ())),
    ), [*faults, *([fault] if cards is None else [])]


def _units(amounts: object, vocabulary: Vocabulary) -> dict[str, int]:
    try:
        items = object_fields.named(amounts, "")
        return {
            name: min(INTEGER_MAX, max(0, wire.a_quantity(amount, name).nanos // NANO))
            for name, amount in items.items()
            if "/" in name and is_device(name, vocabulary)
        }
    except InputError:
        return {}
