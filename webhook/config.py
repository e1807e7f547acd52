"""The settings of admission as YAML says them (`kind: AdmissionConfiguration`), read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from ledger.domain.device_types import DeviceType, read_device_types
from ledger.domain.errors import InputError
from ledger.domain.request.rule_names import Rule
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.settings import (
    DEFAULT_ADMISSION,
    DIALECT_SCHEDULERS,
    AdmissionSettings,
    DomainSetting,
    PodDefaults,
    Profile,
    RuleMode,
    SlotMode,
    Takeover,
    TakeoverRule,
)
from webhook.decide.validating.entries import Advice

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

API_VERSION: Final = "tenure.sh/v1alpha1"
KIND: Final = "AdmissionConfiguration"

_KNOWN_RULES: Final = frozenset(map(str, (*Rule, *Advice)))


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=False,
        use_attribute_docstrings=True,
    )


class _Takeover(_Model):
    rule: TakeoverRule = DEFAULT_ADMISSION.takeover.rule
    """Which Pods of managed namespaces get our scheduler: `devices`, `labelled` or `none`."""
    foreign_schedulers: frozenset[str] = frozenset()
    """Schedulers whose Pods are never taken over."""


class _Defaults(_Model):
    qos: str = ""
    """QoS class of Pods that ask for something of ours and name none; empty changes nothing."""
    priority_class: str = ""
    """Koordinator priority class of such Pods."""
    priority_class_by_qos: Mapping[str, str] = Field(default_factory=dict)
    """QoS class -> priority class, before `priorityClass`."""


class _Profile(_Model):
    name: str = Field(min_length=1)
    """Profiles are applied in order of their names."""
    pod_labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels that a Pod must have; empty matches every Pod."""
    namespace_labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels that its namespace must have."""
    qos: str = ""
    """QoS class to set."""
    priority_class_name: str = ""
    """`spec.priorityClassName` to set, together with `priority`."""
    priority: StrictInt | None = None
    """The number of that PriorityClass."""
    koordinator_priority: str = ""
    """Sub-priority to set."""
    scheduler_name: str = ""
    """`spec.schedulerName` to set."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels to add."""
    annotations: Mapping[str, str] = Field(default_factory=dict)
    """Annotations to add."""

    @model_validator(mode="after")
    def _class_with_number(self) -> _Profile:
        if bool(self.priority_class_name) != (self.priority is not None):
            raise ValueError("priorityClassName and priority go together")
        return self


class _GPUShare(_Model):
    unit: Literal["MiB", "GiB"] = "MiB"
    """What `aliyun.com/gpu-mem` counts."""


class _MGPU(_Model):
    multi_min_memory_mib: StrictInt = Field(
        default=256, ge=1, le=1 << 20, alias="multiMinMemoryMiB"
    )
    """Least memory on each card of a multi-card mGPU container."""
    max_memory_mib: StrictInt = Field(default=1 << 20, ge=256, le=1 << 33, alias="maxMemoryMiB")
    """Most mGPU memory on one card; more has the wrong unit."""


class _Cpu(_Model):
    default_bind_policy: Literal["FullPCPUs", "SpreadByPCPUs"] = "FullPCPUs"
    """For LSE and LSR Pods that name none."""
    default_exclusive_policy: Literal["None", "PCPULevel", "NUMANodeLevel"] = "None"
    """For LSE and LSR Pods that name none."""


class _Configuration(_Model):
    api_version: Literal["tenure.sh/v1alpha1"]
    kind: Literal["AdmissionConfiguration"]
    domain: DomainSetting = DEFAULT_ADMISSION.domain
    """Domain that device resources are written under: `kept`, `kubernetes.io`, `koordinator.sh`."""
    rewrite_whole_cards: StrictBool = DEFAULT_ADMISSION.rewrite_whole_cards
    """Whether `nvidia.com/gpu` becomes whole cards of ours in managed namespaces."""
    takeover: _Takeover = Field(default_factory=_Takeover)
    scheduler_name: str = Field(DEFAULT_ADMISSION.scheduler_name, min_length=1)
    """What takeover writes into `spec.schedulerName`."""
    mode: RuleMode = DEFAULT_ADMISSION.mode
    """What a violation does: `enforce`, `warn` or `off`."""
    modes: Mapping[str, RuleMode] = Field(default_factory=dict)
    """Rule -> mode, for rules that differ from `mode`; names are in docs/rules.md."""
    defaults: _Defaults = Field(default_factory=_Defaults)
    profiles: tuple[_Profile, ...] = ()
    service_accounts: frozenset[str] = Field(DEFAULT_ADMISSION.service_accounts, min_length=1)
    """Users that may write allocations and bind managed Pods."""
    isolation_providers: frozenset[str] = DEFAULT_ADMISSION.isolation_providers
    """Isolation providers that enforce a share of a card."""
    slot_mode: SlotMode = DEFAULT_ADMISSION.slot_mode
    """How a container learns of its devices: `env` or `plugin`."""
    gpushare: _GPUShare = Field(default_factory=_GPUShare)
    mgpu: _MGPU = Field(default_factory=_MGPU)
    cpu: _Cpu = Field(default_factory=_Cpu)
    device_types: dict[Any, Any] = Field(default_factory=dict)
    """Types of devices beside GPUs, RDMA and FPGA, as in the scheduler's file (device-types.md)."""

    @model_validator(mode="after")
    def _known_rules(self) -> _Configuration:
        unknown = sorted(set(self.modes) - _KNOWN_RULES)
        if unknown:
            raise ValueError(f"no such rule in modes: {', '.join(unknown)}")
        names = [profile.name for profile in self.profiles]
        if len(set(names)) != len(names):
            raise ValueError("a profile's name is there twice")
        return self


def read_admission(document: object) -> AdmissionSettings:
    """
    Return the settings that a document says; what it leaves out has its default.

    Raises:
        InputError: another kind or version, an unknown key, or a value that is not allowed; with
            the field.
    """
    if not isinstance(document, dict):
        raise InputError(f"not a {KIND} but another kind of value")
    sections = {key: {} if value is None else value for key, value in document.items()}
    try:
        read = _Configuration.model_validate(sections)
    except ValidationError as error:
        raise _first_error(error) from None
    try:
        types = read_device_types(read.device_types)
    except InputError as error:
        raise error.within("deviceTypes") from None
    return _settings(read, types)


def settings_table() -> list[tuple[str, str, str]]:
    """Return every setting as path, default and meaning, in the order of the file."""
    return list(_rows(_Configuration, ""))


def _rows(model: type[BaseModel], path: str) -> Any:  # noqa: ANN401 - a generator of rows
    for name, field in model.model_fields.items():
        shown = f"{path}{field.alias or to_camel(name)}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _rows(inner, f"{shown}.")
        elif name == "profiles":
            yield from _rows(_Profile, f"{shown}[].")
        elif name not in ("api_version", "kind"):
            default = field.get_default(call_default_factory=True)
            yield shown, _shown(default), (field.description or "").strip()


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(str, value)))
    return "" if value in (None, {}, ()) or repr(value) == "PydanticUndefined" else str(value)


def _settings(read: _Configuration, types: tuple[DeviceType, ...]) -> AdmissionSettings:
    return AdmissionSettings(
        domain=read.domain,
        rewrite_whole_cards=read.rewrite_whole_cards,
        takeover=Takeover(
            rule=read.takeover.rule,
            foreign_schedulers=read.takeover.foreign_schedulers | DIALECT_SCHEDULERS,
        ),
        scheduler_name=read.scheduler_name,
        mode=read.mode,
        modes=dict(read.modes),
        defaults=PodDefaults(**read.defaults.model_dump()),
        profiles=tuple(Profile(**profile.model_dump()) for profile in read.profiles),
        service_accounts=read.service_accounts,
        isolation_providers=read.isolation_providers,
        slot_mode=read.slot_mode,
        vocabulary=Vocabulary(
            device_types=types,
            gpushare_unit=read.gpushare.unit,
            mgpu_multi_min_memory_mib=read.mgpu.multi_min_memory_mib,
            mgpu_max_memory_mib=read.mgpu.max_memory_mib,
            default_bind_policy=read.cpu.default_bind_policy,
            default_exclusive_policy=read.cpu.default_exclusive_policy,
        ),
    )


def _first_error(error: ValidationError) -> InputError:
    # a wrong kind or version explains every other error
    first = min(error.errors(), key=lambda one: one["loc"][:1] not in (("apiVersion",), ("kind",)))
    return InputError(_fact(first), field=".".join(str(step) for step in first["loc"]))


def _fact(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "required"
        case "extra_forbidden":
            return "unknown setting"
        case "literal_error" | "enum":
            return f"must be {context['expected']}: value={error['input']!r}"
        case "value_error":
            return str(context["error"])
        case _:
            text = error["msg"]
            return f"{text[:1].lower()}{text[1:]}: value={error['input']!r}"
