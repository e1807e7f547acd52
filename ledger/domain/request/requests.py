"""What a Pod asks for, in one vocabulary, whatever dialect it spoke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ledger.domain.annotations.cpu import NumaTopologySpec
from ledger.domain.annotations.device_hints import DeviceHint, JointAllocation, PartitionSpec
from ledger.domain.bounds import Count, Exact, Priority, Units
from ledger.domain.devices import GPU, WHOLE_PERCENT, ratio_to_bytes
from ledger.domain.dialects.names import Dialect
from ledger.domain.proofs.canonical import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFilter:
    """
    Which cards a Pod takes, by model and id; an empty field says nothing.

    Attributes:
        models, not_models: texts; one of which a card's model contains, or none, whatever the case.
        ids, not_ids: letter for letter.
    """

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    not_ids: tuple[str, ...] = ()

    def takes(self, model: str, device_id: str) -> bool:
        """Tell whether a card of this model and id is among them."""
        name = model.upper()
        if self.models and not any(text.upper() in name for text in self.models):
            return False
        if any(text.upper() in name for text in self.not_models):
            return False
        return device_id not in self.not_ids and (not self.ids or device_id in self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDemand:
    """
    `count` different devices of one type, each giving the same share.

    Rule: Koordinator contract 4.4 (per-device split); GPU-sharing contract A.5, B.3.

    Attributes:
        core_percent: per device; 0 = not asked. Types other than gpu count their units here.
        memory_bytes: per device; 0 when the request is by ratio.
        memory_ratio_percent: per device; 0 when the request is by bytes.
        exclusive: needs devices without any tenant.
        containers: places of the containers that this demand serves, in spec order (see
            `ContainerNeed`). Some dialects have one demand per container, others one for the Pod.
        model_names: GPU models allowed; empty = any.
        amounts: what else each device gives, by resource name (Huawei's AI cores and the like).
        hint: how to choose the devices; None = as the type is chosen by default. With
            `ApplyForAll` the count is 1 and stands for every device that the selector keeps.
    """

    device_type: str
    count: Count
    core_percent: Units = 0
    memory_bytes: Count = 0
    memory_ratio_percent: Units = 0
    exclusive: bool = False
    containers: tuple[str, ...] = ()
    model_names: tuple[str, ...] = ()
    amounts: tuple[tuple[str, Count], ...] = ()
    hint: DeviceHint | None = None

    def memory_bytes_on(self, total_bytes: int) -> int:
        """Return the bytes this demand takes of a device with `total_bytes`."""
        if self.memory_ratio_percent:
            return ratio_to_bytes(self.memory_ratio_percent, total_bytes)
        return self.memory_bytes


def is_whole(demand: DeviceDemand) -> bool:
    """Tell whether the demand is for whole devices, not for a part that wants to be alone."""
    whole_memory = not demand.memory_bytes and demand.memory_ratio_percent in {0, WHOLE_PERCENT}
    return demand.exclusive and whole_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerNeed:
    """
    How many devices of each type one container takes out of the Pod's.

    Rule: design section 3. App containers and sidecars take disjoint devices in spec order;
    init containers reuse the first ones.

    Attributes:
        index: `<i>` for app containers, `init-<i>` for init containers.
        kind: `app`, `sidecar` or `init`.
        device_counts: device type -> count.
    """

    name: str
    index: str
    kind: str
    device_counts: tuple[tuple[str, Count], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSetDemand:
    """
    A request for exclusive logical CPUs.

    Rule: Koordinator contract 6.1, 6.2.

    Attributes:
        bind_policy: the Pod's effective policy (`FullPCPUs`, `SpreadByPCPUs`).
        required: the policy must hold; otherwise it is preferred.
        exclusive_policy: `None`, `PCPULevel`, `NUMANodeLevel`.
        alone: no other Pod ever holds one of these CPUs, whatever their reference count (LSE).
    """

    cpus: Count
    bind_policy: str
    required: bool
    exclusive_policy: str
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCpus:
    """The whole CPUs that kubelet's static CPU manager gives one container of a Guaranteed Pod."""

    kind: str  # as of ContainerNeed
    cpus: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A Pod toleration. Empty key with `Exists` tolerates everything; empty effect all effects."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchExpression:
    """One requirement of a node selector term. `is_field` for matchFields (metadata.name)."""

    key: str
    operator: str
    values: tuple[str, ...]
    is_field: Annotated[bool, None] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """
    Where kube-scheduler's own predicates let the Pod go. Hashable: nodes are matched once.

    Rule: cli.md, Predicates.

    Attributes:
        node_selector: label pairs, sorted.
        affinity_terms: required node affinity, terms ORed, expressions ANDed; None = no
            requirement, an empty tuple matches no node (as kube-scheduler).
    """

    node_selector: tuple[tuple[str, str], ...] = ()
    affinity_terms: tuple[tuple[MatchExpression, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRef:
    """A GPU topology group: same name and replica (its number of Pods), same namespace."""

    name: str
    replica: Exact


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRef:
    """A gang: `min_available` members start together or none (Koordinator contract 10)."""

    name: str
    min_available: Exact
    waiting_seconds: Exact


class PodSnapshot(Recorded, frozen=True, kw_only=True, gc=False):
    """
    What can never be asked later, stored with every reservation and refusal.

    Rule: design section 8, "`reserved` snapshots ...".

    Attributes:
        owner: root owner as `<kind>/<name>` in lower case (`job/train-7`), empty if none.
        labels: allow-listed Pod labels.
        original: the request as written, `<container>.<resource>` -> quantity text.
        created_at_us: creation time of the Pod, microseconds since the epoch; 0 = unknown.
        annotations: allow-listed ones, as the user wrote them: what its CPUs were chosen by.
        init_containers: those in `original` that are no app containers, in starting order, as
            `init/<name>` or `sidecar/<name>`; events from before it was recorded have none.
    """

    owner: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    priority: Priority = 0
    qos: str = ""
    original: Mapping[str, str] = msgspec.field(default_factory=dict)
    created_at_us: Count = 0
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    init_containers: tuple[str, ...] = ()

    @property
    def kinds(self) -> dict[str, str]:
        """Return the kind of each container that is no app container, in starting order."""
        parts = (text.partition("/") for text in self.init_containers)
        return {name: kind for kind, _, name in parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """
    What Pods of one kind ask for alike: all of a request but who it is, its cpu and its memory.

    Attributes:
        dialect: the GPU dialect it spoke; None when it asks for no GPU.
        devices: gpu demands first, in container order, then other types by name.
        joint: the device types to be chosen side by side; None = each on its own.
        partition: the Pod's wish about GPU partitions; not None (even empty) makes the node's
            table binding.
        numa: the Pod's own NUMA policy; None = it names none.
        burst_milli: the cpu limit that the shared pools of few NUMA nodes must hold
            (`ConstrainedBurst`); 0 = the Pod does not burst.
        bound_cpus: the CPUs that a node with a bind policy of its own gives the Pod: Guaranteed,
            whole CPUs, no QoS label; 0 = it stays in the shared pools there, too.
        kubelet_cpus: what kubelet's static CPU manager would give its containers, in starting
            order; containers that it leaves in its shared pool are missing.
        mgpu_policy: the Pod's mGPU compute policy; empty for other dialects.
        mgpu_multi: the Pod spreads a container over several cards (GPU-sharing contract A.4).
        gpushare_units: the whole request in the node daemon's unit; 0 for other dialects.
        card_filter: the GPUs that will do, as HAMi's annotations say; None = all.
        node_policy, card_scoring: by which the Pod is placed, as HAMi's say; empty = the settings'.
        extended: resource name -> how many, of resources that nodes offer by their number alone;
            sorted, none of 0.
        stored: the names of devices that its Pod is stored with, sorted, each of which its node
            has to advertise; empty where that is not looked at.
        by_plugin: its whole cards are given by NVIDIA's device plugin, which picks them.
    """

    dialect: Dialect | None = None
    devices: tuple[DeviceDemand, ...] = ()
    containers: tuple[ContainerNeed, ...] = ()
    cpuset: CpuSetDemand | None = None
    joint: JointAllocation | None = None
    partition: PartitionSpec | None = None
    placement: PlacementRules = PlacementRules()
    group: GroupRef | None = None
    gang: GangRef | None = None
    numa: NumaTopologySpec | None = None
    burst_milli: Count = 0
    bound_cpus: Count = 0
    kubelet_cpus: tuple[ContainerCpus, ...] = ()
    mgpu_policy: str = ""
    mgpu_multi: bool = False
    gpushare_units: Count = 0
    card_filter: CardFilter | None = None
    node_policy: str = ""
    card_scoring: str = ""
    extended: tuple[tuple[str, Count], ...] = ()
    stored: tuple[str, ...] = ()
    by_plugin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest(RequestTerms):
    """
    One Pod's whole request, decoded and normalised.

    Attributes:
        cpu_milli, memory_bytes: the standard Pod request: max(sum of app containers and
            sidecars, max over init containers) + overhead.
    """

    uid: str
    namespace: str
    name: str
    cpu_milli: int
    memory_bytes: int
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)

    @property
    def path(self) -> str:
        """Return `namespace/name`, as users write it."""
        return f"{self.namespace}/{self.name}"


def is_member(request: PodRequest) -> bool:
    """Tell whether a Pod belongs to a group or a gang."""
    return request.group is not None or request.gang is not None


def group_name(request: PodRequest) -> str:
    """Return the name of the group or gang a Pod belongs to, empty without one."""
    if request.gang is not None:
        return f"gang/{request.namespace}/{request.gang.name}"
    if request.group is not None:
        return f"group/{request.namespace}/{request.group.name}/{request.group.replica}"
    return ""


def gpu_core_percent(request: PodRequest) -> int:
    """Return the GPU core percent a Pod asks for over all its cards."""
    return sum(
        demand.count * demand.core_percent
        for demand in request.devices
        if demand.device_type == GPU
    )
