"""The settings of deciding (`kind: SchedulerConfiguration`), as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ledger.domain.annotations.wire import TRUE
from ledger.domain.kube.shared_templates import SharedTemplate
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import LABEL_TENURE_CPU_MANAGED
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary


class PolicyName(StrEnum):
    """How nodes are chosen (cli.md, Policies)."""

    BINPACK = "binpack"
    SPREAD = "spread"
    BESTFIT = "bestfit"
    FGD = "fgd"
    SCARCITY = "scarcity"
    RANDOM = "random"


POLICIES: Final = tuple(str(policy) for policy in PolicyName)
"""What `node.policy` may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """
    How cards are picked on a node, and which can be shared.

    Attributes:
        scoring: `MostAllocated` or `LeastAllocated` (Koordinator contract 8.2).
        unshared_models: `<vendor>-<model>` of cards that are only handed out whole (8.8).
        shared_templates: the parts that cards can be cut into (8.7).
    """

    scoring: str = "MostAllocated"
    partition_score_order: str = "highest"
    unshared_models: tuple[str, ...] = ()
    shared_templates: tuple[SharedTemplate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MGPUSettings:
    """
    Volcano mGPU's arguments.

    Rule: GPU-sharing contract A.2. `weight_of_core` in percent, memory gets the rest;
    `search_levels`: above this many the search stops at the first fit.
    """

    enabled: bool = True
    policy: str = "binpack"
    weight_of_core: int = 20
    schedule_mode: str = "index"
    max_containers_per_card: int = 16
    search_levels: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSettings:
    """
    CPU set defaults (Koordinator contract 6.1, 6.3, 6.6).

    The last four are what the CPU proposal asks for and the release never built; they change
    picks, so they are off unless asked for.

    Attributes:
        bound_by: what binds containers to CPUs: `agent`, where a Node's label says so, `koordlet`.
        numa_level_downgrades: NUMANodeLevel falls back to PCPULevel where no clean NUMA node holds
            the request.
        spread_over_numa_nodes: a preferred SpreadByPCPUs takes one CPU of each core of several
            NUMA nodes before two of a core.
        spread_avoids_whole_cores: a Pod that prefers SpreadByPCPUs avoids FullPCPUsOnly nodes.
        arm_full_pcpus_only: ARM nodes know FullPCPUs and NUMANodeLevel only.
    """

    numa_allocate_strategy: str = "LeastAllocated"
    default_numa_topology_policy: str = "None"
    max_ref_count: int = 1
    bound_by: str = "koordlet"
    numa_level_downgrades: bool = False
    spread_over_numa_nodes: bool = False
    spread_avoids_whole_cores: bool = False
    arm_full_pcpus_only: bool = False

    def leaves_unbound(self, node: NodeFacts) -> bool:
        """Tell whether nothing binds containers to CPUs of their own on a node."""
        return self.bound_by == "agent" and node.labels.get(LABEL_TENURE_CPU_MANAGED) != TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """
    All settings that change a decision (cli.md, Settings of scheduling).

    Attributes:
        bottleneck_first: for Pods of several whole GPUs, measured links between them come before
            the node policy; else after it, among nodes that it rates alike.
        owned_nodes_only: devices and CPUs are granted on nodes of ours alone, which carry the taint
            and the label that keep everybody else off.
        vocabulary: what requests mean, which admission has to be told alike.
    """

    node_policy: str = "scarcity"
    bottleneck_first: bool = True
    owned_nodes_only: bool = False
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    mgpu: MGPUSettings = field(default_factory=MGPUSettings)
    cpu: CpuSettings = field(default_factory=CpuSettings)
    proposal_domain: bool = False
    vocabulary: Vocabulary = DEFAULT_VOCABULARY


DEFAULT_SCHEDULING: Final = SchedulingSettings(cpu=CpuSettings(bound_by="agent"))
"""What a settings file says that names nothing. `SchedulingSettings()` reads older ledgers."""
