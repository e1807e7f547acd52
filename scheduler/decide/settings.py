"""The settings of deciding (`kind: SchedulerConfiguration`), as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from ledger.domain.annotations.wire import TRUE
from ledger.domain.kube.shared_templates import SharedTemplate, read_shared_templates
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import LABEL_TENURE_CPU_MANAGED
from ledger.domain.setting import Setting
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
_AS_PROPOSED: Final = "cpu.asProposed"


def _models(by_vendor: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    pairs = ((vendor, model) for vendor, models in by_vendor.items() for model in models)
    return tuple(sorted(f"{vendor}-{model}" for vendor, model in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """
    How cards are picked on a node, and which can be shared.

    Attributes:
        scoring: `MostAllocated` or `LeastAllocated` (Koordinator contract 8.2).
        unshared_models: `<vendor>-<model>` of cards that are only handed out whole (8.8).
        shared_templates: the parts that cards can be cut into (8.7).
    """

    scoring: Annotated[str, Setting(words=("MostAllocated", "LeastAllocated"))] = "MostAllocated"
    partition_score_order: Annotated[str, Setting(words=("highest", "release"))] = "highest"
    unshared_models: Annotated[
        tuple[str, ...],
        Setting(key="gpuShareUnsupportedModels", given=dict[str, list[str]], read=_models),
    ] = ()
    shared_templates: Annotated[
        tuple[SharedTemplate, ...],
        Setting(key="gpuSharedResourceTemplates", given=dict[Any, Any], read=read_shared_templates),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MGPUSettings:
    """
    Volcano mGPU's arguments.

    Rule: GPU-sharing contract A.2. `weight_of_core` in percent, memory gets the rest;
    `search_levels`: above this many the search stops at the first fit.
    """

    enabled: bool = True
    policy: Annotated[str, Setting(words=("binpack", "spread"), any_case=True)] = "binpack"
    weight_of_core: Annotated[int, Setting(least=0, most=100)] = 20
    schedule_mode: Annotated[str, Setting(words=("index", "id"))] = "index"
    max_containers_per_card: Annotated[int, Setting(least=1, most=1024)] = 16
    search_levels: Annotated[int, Setting(least=0, most=64)] = 5


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

    bound_by: Annotated[str, Setting(words=("agent", "koordlet"))] = "koordlet"
    numa_allocate_strategy: Annotated[
        str, Setting(words=("LeastAllocated", "MostAllocated", "DistributeEvenly"))
    ] = "LeastAllocated"
    default_numa_topology_policy: Annotated[
        str,
        Setting(
            key="defaultNUMATopologyPolicy",
            words=("None", "BestEffort", "Restricted", "SingleNUMANode"),
        ),
    ] = "None"
    max_ref_count: Annotated[int, Setting(least=1, most=1024)] = 1
    numa_level_downgrades: Annotated[bool, Setting(unless=_AS_PROPOSED)] = False
    spread_over_numa_nodes: Annotated[
        bool, Setting(key="spreadOverNUMANodes", unless=_AS_PROPOSED)
    ] = False
    spread_avoids_whole_cores: Annotated[bool, Setting(unless=_AS_PROPOSED)] = False
    arm_full_pcpus_only: Annotated[bool, Setting(key="armFullPCPUsOnly", unless=_AS_PROPOSED)] = (
        False
    )

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
        share_visible: containers are shown the whole cards of their topology group (ADR 0046).
        vocabulary: what requests mean, which admission has to be told alike.
    """

    vocabulary: Vocabulary = DEFAULT_VOCABULARY
    node_policy: Annotated[str, Setting(key="node.policy", words=POLICIES)] = "scarcity"
    bottleneck_first: Annotated[bool, Setting(key="node.bottleneckFirst")] = True
    owned_nodes_only: Annotated[bool, Setting(key="node.ownedOnly")] = False
    share_visible: Annotated[bool, Setting(key="groups.shareVisible")] = False
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    mgpu: MGPUSettings = field(default_factory=MGPUSettings)
    cpu: CpuSettings = field(default_factory=CpuSettings)
    proposal_domain: Annotated[bool, Setting(key="compat.proposalDomain")] = False


DEFAULT_SCHEDULING: Final = SchedulingSettings(cpu=CpuSettings(bound_by="agent"))
"""What a settings file says that names nothing. `SchedulingSettings()` reads older ledgers."""
