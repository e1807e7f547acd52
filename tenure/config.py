"""The settings file (`kind: SchedulerConfiguration`): bytes in, the plain settings values out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from ledger.domain.device_types import DeviceType, read_device_types
from ledger.domain.errors import InputError
from ledger.domain.kube.shared_templates import read_shared_templates
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.settings import with_templates
from scheduler.decide.settings import (
    CpuSettings,
    DeviceSettings,
    MGPUSettings,
    SchedulingSettings,
)
from tenure.exits import with_next
from tenure.sources.text import Source, read_source

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

API_VERSION: Final = "tenure.sh/v1alpha1"
KIND: Final = "SchedulerConfiguration"
_DEVICE_TYPES: Final = "deviceTypes"
_TEMPLATES: Final = "devices.gpuSharedResourceTemplates"

Policy = Literal["binpack", "spread", "bestfit", "fgd", "scarcity", "random"]
POLICIES: Final[tuple[str, ...]] = get_args(Policy)


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, validate_by_name=False
    )


class _Node(_Model):
    policy: Policy = "scarcity"
    bottleneck_first: bool = True
    owned_only: bool = False


class _Devices(_Model):
    scoring: Literal["MostAllocated", "LeastAllocated"] = "MostAllocated"
    partition_score_order: Literal["highest", "release"] = "highest"
    gpu_share_unsupported_models: dict[str, list[str]] = Field(default_factory=dict)
    gpu_shared_resource_templates: dict[Any, Any] = Field(default_factory=dict)


class _MGPU(_Model):
    enabled: bool = True
    policy: Literal["binpack", "spread"] = "binpack"
    weight_of_core: int = Field(default=20, ge=0, le=100)
    schedule_mode: Literal["index", "id"] = "index"
    max_containers_per_card: int = Field(default=16, ge=1, le=1024)
    search_levels: int = Field(default=5, ge=0, le=64)
    multi_min_memory_mib: int = Field(default=256, ge=1, le=1 << 20, alias="multiMinMemoryMiB")
    max_memory_mib: int = Field(default=1 << 20, ge=256, le=1 << 33, alias="maxMemoryMiB")

    @field_validator("policy", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value  # GPU-sharing contract A.2


class _GPUShare(_Model):
    unit: Literal["MiB", "GiB"] = "MiB"


class _Cpu(_Model):
    default_bind_policy: Literal["FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst"] = "FullPCPUs"
    default_exclusive_policy: Literal["None", "PCPULevel", "NUMANodeLevel"] = "None"
    numa_allocate_strategy: Literal["LeastAllocated", "MostAllocated", "DistributeEvenly"] = (
        "LeastAllocated"
    )
    default_numa_topology_policy: Literal["None", "BestEffort", "Restricted", "SingleNUMANode"] = (
        Field(default="None", alias="defaultNUMATopologyPolicy")
    )
    max_ref_count: int = Field(default=1, ge=1, le=1024)
    numa_level_downgrades: bool = False
    spread_over_numa_nodes: bool = Field(default=False, alias="spreadOverNUMANodes")
    spread_avoids_whole_cores: bool = False
    arm_full_pcpus_only: bool = Field(default=False, alias="armFullPCPUsOnly")


class _Compat(_Model):
    proposal_domain: bool = False


class _Configuration(_Model):
    api_version: Literal["tenure.sh/v1alpha1"]
    kind: Literal["SchedulerConfiguration"]
    node: _Node = Field(default_factory=_Node)
    devices: _Devices = Field(default_factory=_Devices)
    mgpu: _MGPU = Field(default_factory=_MGPU)
    gpushare: _GPUShare = Field(default_factory=_GPUShare)
    cpu: _Cpu = Field(default_factory=_Cpu)
    compat: _Compat = Field(default_factory=_Compat)
    device_types: dict[Any, Any] = Field(default_factory=dict)


def read_settings(path: Path) -> SchedulingSettings:
    """
    Read a settings file. A setting that is absent has its default.

    Rule: cli.md, Settings of scheduling.

    Raises:
        InputError: another kind or version, an unknown key, or a value that is not allowed; with
            file, line and field.
    """
    source = read_source(path)
    documents = [document for document in source.documents if document is not None]
    if len(documents) != 1:
        fact = f"one {KIND} is needed: documents={len(documents)}"
        raise InputError(fact, place=str(path))
    number = source.documents.index(documents[0])
    if not isinstance(documents[0], dict):
        raise InputError(f"not a {KIND} but another kind of value", place=source.place_of(number))
    try:
        settings = _Configuration.model_validate(_with_sections(documents[0]))
    except ValidationError as error:
        raise _first_error(source, number, error) from None
    try:
        types = read_device_types(settings.device_types)
    except InputError as error:
        raise _placed(error.within(_DEVICE_TYPES), source, number) from error
    try:
        templates = read_shared_templates(settings.devices.gpu_shared_resource_templates)
    except InputError as error:
        raise _placed(error.within(_TEMPLATES), source, number) from error
    return with_templates(_scheduling(settings, types), templates)


def _placed(error: InputError, source: Source, number: int) -> InputError:
    found = error.at(source.place_of(number, error.field))
    return with_next(found, "correct that setting and run it again")


def _with_sections(document: dict[str, Any]) -> dict[str, Any]:
    """Read `mgpu:` with nothing below it as an empty section, as people leave it."""
    return {key: {} if value is None else value for key, value in document.items()}


def _scheduling(read: _Configuration, types: tuple[DeviceType, ...]) -> SchedulingSettings:
    return SchedulingSettings(
        node_policy=read.node.policy,
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
        cpu=CpuSettings(
            **read.cpu.model_dump(exclude={"default_bind_policy", "default_exclusive_policy"})
        ),
        proposal_domain=read.compat.proposal_domain,
        vocabulary=Vocabulary(
            device_types=types,
            gpushare_unit=read.gpushare.unit,
            mgpu_multi_min_memory_mib=read.mgpu.multi_min_memory_mib,
            mgpu_max_memory_mib=read.mgpu.max_memory_mib,
            default_bind_policy=read.cpu.default_bind_policy,
            default_exclusive_policy=read.cpu.default_exclusive_policy,
        ),
    )


def _first_error(source: Source, number: int, error: ValidationError) -> InputError:
    details = error.errors()
    # a wrong kind or version explains every other error
    first = min(details, key=lambda item: item["loc"][0] not in ("apiVersion", "kind"))
    field = ".".join(str(step) for step in first["loc"])
    found = InputError(_fact(first), field=field, place=source.place_of(number, field))
    return with_next(found, "correct that setting and run it again")


def _fact(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "required"
        case "extra_forbidden":
            return "unknown setting"
        case "literal_error":
            return f"must be {context['expected']}: value={error['input']!r}"
        case _:
            text = error["msg"]
            return f"{text[:1].lower()}{text[1:]}: value={error['input']!r}"
