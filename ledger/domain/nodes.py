"""What deciding needs to know about a node, decoded from its API objects or a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.bounds import Count, CpuId, Milli
from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.names import Dialect
from ledger.domain.systems import NO_SYSTEMS, DeviceSystems
from ledger.domain.topology import CpuTopology, LinkMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node taint. Effects: NoSchedule, PreferNoSchedule (not read), NoExecute."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaZone:
    """
    What a NodeResourceTopology says one NUMA node has to give; None = it does not say.

    Rule: Koordinator contract 3.2: `allocatable` only.
    """

    id: CpuId
    cpu_milli: Milli | None = None
    memory_bytes: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPolicy:
    """
    What kubelet by itself rejects of Guaranteed Pods with whole CPUs, once they are scheduled.

    Rule: CPU proposal, "Compatible kubelet CPU management policies", Story 3.

    Attributes:
        whole_cores: its static CPU manager has `full-pcpus-only`.
        numa_policy: its Topology Manager's, where that rejects: Restricted or SingleNUMANode.
        pod_scope: a Pod is aligned as a whole, else container after container.
        kept: CPUs that it gives to no further container: its reserve, and what it gave to Pods that
            nobody adopts.
        reserved: its reserve.
    """

    whole_cores: bool = False
    numa_policy: NumaPolicy = NumaPolicy.NONE
    pod_scope: bool = False
    kept: CpuSet = field(default_factory=CpuSet)
    reserved: CpuSet = field(default_factory=CpuSet)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:
    """
    What deciding reads of a node beside its inventory, where a ledger keeps it in the same form.

    Attributes:
        created: when the Node object was made, as it says (RFC 3339, UTC); empty = not known.
        cpu_milli, memory_bytes: None = no limits at all (neither allocatable nor capacity given).
        pods_max: None = unlimited.
        reserved_cpus: never handed out (kubelet's, the node reservation's, the system set).
        unpooled_cpus: those of them that are in no shared pool; kubelet's own reserve is in one.
        cpu_bind_policy: what every CPU set on the node must follow, in a Pod's words (`FullPCPUs`,
            `SpreadByPCPUs`); empty = each Pod's own (Koordinator contract 6.1, 6.2).
        numa_strategy: which NUMA node is filled first (`MostAllocated`, `LeastAllocated`,
            `DistributeEvenly`); empty = the settings' (contract 6.6).
        numa_policy: how strictly a Pod's resources must come from the same NUMA nodes (7).
        kubelet: what kubelet rejects by itself; None = nothing that deciding has not seen to.
        numa_zones: by NUMA node; empty without a NodeResourceTopology.
        cpu_amplification: by how much the node's cpu is more than its CPUs; at least 1.
        mgpu_policy: the node's mGPU compute policy; `mgpu_invalid` when the schedule label has a
            value that makes the node serve no mGPU at all (GPU-sharing contract A.1).
        links: measured GPU bandwidth matrix of the Device object, row and column = minor.
        honors_partitions: whole GPUs are handed out by the table of partitions only (Koordinator
            contract 8.5).
        by_claims: resources that it may give by claims of dynamic resource allocation.
        advertised: the names of devices, and of our slot, in its allocatable, sorted, as it spells
            them; None where that is not known.
        systems: what it says of devices that others hand out; nothing is decided by it.
        other_scheduler: who gives its cards beside us, and counts none of our Pods; empty = nobody.
        faults: what its objects say that can't be read or be so, in words; likewise.
    """

    created: str = ""
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    cpu_milli: Milli | None = None
    memory_bytes: Count | None = None
    pods_max: Count | None = None
    reserved_cpus: CpuSet = field(default_factory=CpuSet)
    unpooled_cpus: CpuSet = field(default_factory=CpuSet)
    cpu_bind_policy: str = ""
    numa_strategy: str = ""
    numa_policy: NumaPolicy = NumaPolicy.NONE
    kubelet: KubeletPolicy | None = None
    numa_zones: tuple[NumaZone, ...] = ()
    cpu_amplification: Fraction = Fraction(1)
    mgpu_policy: str = ""
    mgpu_invalid: bool = False
    links: LinkMatrix | None = None
    honors_partitions: bool = False
    by_claims: tuple[str, ...] = ()
    advertised: tuple[str, ...] | None = None
    systems: DeviceSystems = NO_SYSTEMS
    other_scheduler: str = ""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts(NodeTerms):
    """
    One node as deciding sees it.

    Rule: cli.md, Predicates and Inventory without a Device object.

    Attributes:
        system_uuid, machine_id: the machine is both of them (`machines.machine_of`).
        boot_id: another one means that the machine was started again.
        lost: out of service: no grants, and what its Pods hold stays held.
        devices: ordered by (device_type, minor).
        dialects: GPU dialects that the cards serve; None = every one (there is a Device object).
        card_amounts: GPU minor -> what the card has beside core percent and memory, by resource
            name (`CARD_AMOUNT_NAMES`); only cards that have something of it.
        cpu_topology: None when no NodeResourceTopology reports one.
        derived_links: nominal matrix out of places and partitions, for what `links` does not say.
        partitions: number of GPUs -> groups of GPUs handed out together; None = no table.
        extended: resource name -> how many, of resources that are no device of ours.
    """

    uid: str
    name: str
    system_uuid: str = ""
    machine_id: str = ""
    boot_id: str = ""
    lost: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceRecord, ...] = ()
    dialects: frozenset[Dialect] | None = None
    card_amounts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    cpu_topology: CpuTopology | None = None
    cpu_ref_count_max: int = 1
    derived_links: LinkMatrix | None = None
    partitions: Mapping[int, tuple[GpuPartition, ...]] | None = None
    extended: Mapping[str, int] = field(default_factory=dict)

    def with_health(self, device_type: str, minor: int, *, healthy: bool) -> NodeFacts:
        """Return the node with this device healthy, or not."""
        devices = [
            replace(device, healthy=healthy) if device.key == (device_type, minor) else device
            for device in self.devices
        ]
        return replace(self, devices=tuple(devices))

    def cpu_cost_milli(self, cpu_milli: int, own_cpus: int) -> int:
        """
        Return what a Pod costs of the node's cpu, of which it has `own_cpus` to itself.

        Rule: Koordinator contract 6.6: CPU sets cost ceil(milli * ratio), shares what they ask.
        """
        if not own_cpus:
            return cpu_milli
        own_milli = own_cpus * 1000
        return cpu_milli - own_milli + self.amplified(own_milli)

    def amplified(self, cpu_milli: int) -> int:
        """Return what real cpu counts on the node, rounded up."""
        return ceil(cpu_milli * self.cpu_amplification)
