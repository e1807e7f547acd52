"""The settings file (`kind: SchedulerConfiguration`): bytes in, the plain settings values out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, field_validator

from ledger.domain.errors import InputError
from ledger.domain.kube.shared_templates import read_shared_templates
from scheduler.cluster.settings import with_templates
from scheduler.decide.settings import (
    CpuSettings,
    DeviceSettings,
    MGPUSettings,
    PolicyName,
    SchedulingSettings,
)
from tenure.shared_config import (
    BOTH,
    SCHEDULER,
    CpuDefaults,
    MgpuLimits,
    Section,
    SharedConfiguration,
    parsed,
    read_one,
)
from tenure.sources.text import read_source

_TEMPLATES: Final = "devices.gpuSharedResourceTemplates"


class _Node(Section):
    policy: PolicyName = Field(default=PolicyName.SCARCITY, strict=False)
    bottleneck_first: bool = True
    owned_only: bool = False


class _Devices(Section):
    scoring: Literal["MostAllocated", "LeastAllocated"] = "MostAllocated"
    partition_score_order: Literal["highest", "release"] = "highest"
    gpu_share_unsupported_models: dict[str, list[str]] = Field(default_factory=dict)
    gpu_shared_resource_templates: dict[Any, Any] = Field(default_factory=dict)


class _MGPU(MgpuLimits):
    enabled: bool = True
    policy: Literal["binpack", "spread"] = "binpack"
    weight_of_core: int = Field(default=20, ge=0, le=100)
    schedule_mode: Literal["index", "id"] = "index"
    max_containers_per_card: int = Field(default=16, ge=1, le=1024)
    search_levels: int = Field(default=5, ge=0, le=64)

    @field_validator("policy", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value  # GPU-sharing contract A.2


class _Cpu(CpuDefaults):
    numa_allocate_strategy: Literal["LeastAllocated", "MostAllocated", "DistributeEvenly"] = (
        "LeastAllocated"
    )
    default_numa_topology_policy: Literal["None", "BestEffort", "Restricted", "SingleNUMANode"] = (
        Field(default="None", alias="defaultNUMATopologyPolicy")
    )
    max_ref_count: int = Field(default=1, ge=1, le=1024)
    as_proposed: bool = False
    """What the next four are that are absent."""
    numa_level_downgrades: bool | None = None
    spread_over_numa_nodes: bool | None = Field(default=None, alias="spreadOverNUMANodes")
    spread_avoids_whole_cores: bool | None = None
    arm_full_pcpus_only: bool | None = Field(default=None, alias="armFullPCPUsOnly")


_NOT_DECIDED_BY: Final = {"default_bind_policy", "default_exclusive_policy", "as_proposed"}


class _Compat(Section):
    proposal_domain: bool = False


class SchedulerConfiguration(SharedConfiguration):
    """A file of the scheduler's."""

    kind: Literal["SchedulerConfiguration"]
    node: _Node = Field(default_factory=_Node)
    devices: _Devices = Field(default_factory=_Devices)
    mgpu: _MGPU = Field(default_factory=_MGPU)
    cpu: _Cpu = Field(default_factory=_Cpu)
    compat: _Compat = Field(default_factory=_Compat)


def read_settings(path: Path) -> SchedulingSettings:
    """
    Read a settings file. A setting that is absent has its default.

    Rule: cli.md, Settings of scheduling.

    Raises:
        InputError: another kind or version, an unknown key, or a value that is not allowed; with
            file, line and field.
    """
    return read_one(read_source(path), SCHEDULER, read_scheduling)


def read_service_accounts(path: Path) -> frozenset[str]:
    """Return the users that admission takes for Tenure's. Raises InputError as `read_settings`."""
    return read_one(read_source(path), SCHEDULER, _configuration).service_accounts


def _configuration(document: object) -> SchedulerConfiguration:
    from tenure.both_config import TenureConfiguration

    kinds: dict[str, type[SchedulerConfiguration]] = {
        SCHEDULER: SchedulerConfiguration,
        BOTH: TenureConfiguration,
    }
    return parsed(document, kinds)


def read_scheduling(document: object) -> SchedulingSettings:
    """Return the settings of scheduling that a document says. Raises InputError, with the field."""
    read = _configuration(document)
    settings = _scheduling(read)
    try:
        templates = read_shared_templates(read.devices.gpu_shared_resource_templates)
    except InputError as error:
        raise error.within(_TEMPLATES) from None
    return with_templates(settings, templates)


def _scheduling(read: SchedulerConfiguration) -> SchedulingSettings:
    cpu: dict[str, Any] = {
        name: read.cpu.as_proposed if value is None else value
        for name, value in read.cpu.model_dump(exclude=_NOT_DECIDED_BY).items()
    }
    return SchedulingSettings(
        node_policy=str(read.node.policy),
        bottleneck_first=read.node.bottleneck_first,
        owned_nodes_only=read.node.owned_only,
        devices=DeviceSettings(
            scoring=read.devices.scoring,
            partition_score_order=read.devices.partition_score_order,
            unshared_models=tuple(
                sorted(
                    f"{vendor}-{model}"
                    for vendor, models in read.devices.gpu_share_unsupported_models.items()
                    for model in models
                )
            ),
        ),
        mgpu=MGPUSettings(
            **read.mgpu.model_dump(exclude={"multi_min_memory_mib", "max_memory_mib"})
        ),
        cpu=CpuSettings(**cpu),
        proposal_domain=read.compat.proposal_domain,
        vocabulary=read.vocabulary(),
    )
