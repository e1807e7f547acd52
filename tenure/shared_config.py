"""
What the settings files of scheduling and admission share: one schema of it, one reader of both.

`kind: SchedulerConfiguration` and `kind: AdmissionConfiguration` are files of one service,
`kind: TenureConfiguration` has the keys of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ledger.domain.device_types import read_device_types
from ledger.domain.errors import InputError
from ledger.domain.vocabulary import Vocabulary
from tenure.exits import with_next
from tenure.sources.text import InputFile
from webhook.decide.settings import SERVICE_ACCOUNTS

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

T = TypeVar("T")
Read = TypeVar("Read", bound="SharedConfiguration")

SCHEDULER: Final = "SchedulerConfiguration"
ADMISSION: Final = "AdmissionConfiguration"
BOTH: Final = "TenureConfiguration"


class Section(BaseModel):
    """Keys in camel case; unknown ones are refused, and nothing is taken for another type."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_name=False,
        use_attribute_docstrings=True,
    )


class MgpuLimits(Section):
    """What an mGPU request may be."""

    multi_min_memory_mib: int = Field(default=256, ge=1, le=1 << 20, alias="multiMinMemoryMiB")
    """Least memory on each card of a multi-card mGPU container."""
    max_memory_mib: int = Field(default=1 << 20, ge=256, le=1 << 33, alias="maxMemoryMiB")
    """Most mGPU memory on one card; more has the wrong unit."""


class GpuShareUnit(Section):
    """What a GPU share request counts."""

    unit: Literal["MiB", "GiB"] = "MiB"
    """What `aliyun.com/gpu-mem` counts."""


class CpuDefaults(Section):
    """What Pods with CPUs of their own get that name no policy, and what binds them."""

    default_bind_policy: Literal["FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst"] = "FullPCPUs"
    """For LSE and LSR Pods that name none."""
    default_exclusive_policy: Literal["None", "PCPULevel", "NUMANodeLevel"] = "None"
    """For LSE and LSR Pods that name none."""
    bound_by: Literal["agent", "koordlet"] = "agent"
    """What binds containers to their CPUs: our agent where its label says so, or koordlet."""


class SharedConfiguration(Section):
    """The vocabulary, as every kind of file says it; each kind may have more in a section."""

    model_config = ConfigDict(strict=False)  # sections of one service read texts as their enums

    api_version: Literal["tenure.sh/v1alpha1"]
    gpushare: GpuShareUnit = Field(default_factory=GpuShareUnit)
    mgpu: MgpuLimits = Field(default_factory=MgpuLimits)
    cpu: CpuDefaults = Field(default_factory=CpuDefaults)
    whole_cards: Literal["ours", "nvidia"] = "ours"
    """Who gives the cards of `nvidia.com/gpu`, where a namespace's label does not say it."""
    slot_mode: Literal["env", "plugin", "gpushare"] = "env"
    """How containers are shown their cards, the `--mode` of the cluster's agents."""
    device_types: dict[Any, Any] = Field(default_factory=dict)
    """Types of devices beside GPUs, RDMA and FPGA, alike for both services (device-types.md)."""
    service_accounts: frozenset[str] = Field(SERVICE_ACCOUNTS, min_length=1)
    """Users that may write allocations and bind managed Pods."""

    def vocabulary(self) -> Vocabulary:
        """Return what requests mean. Raises InputError where `deviceTypes` means nothing clear."""
        try:
            types = read_device_types(self.device_types)
        except InputError as error:
            raise error.within("deviceTypes") from None
        return Vocabulary(
            device_types=types,
            gpushare_unit=self.gpushare.unit,
            mgpu_multi_min_memory_mib=self.mgpu.multi_min_memory_mib,
            mgpu_max_memory_mib=self.mgpu.max_memory_mib,
            default_bind_policy=self.cpu.default_bind_policy,
            default_exclusive_policy=self.cpu.default_exclusive_policy,
            whole_cards=self.whole_cards,
            slot_mode=self.slot_mode,
        )


def read_one(source: InputFile, kind: str, read: Callable[[object], T]) -> T:
    """
    Return what `read` makes of the one document of a settings file.

    Raises:
        InputError: not one document, or what `read` raises; with file, line and field.
    """
    documents = [document for document in source.documents if document is not None]
    if len(documents) != 1:
        raise InputError(f"one {kind} is needed: documents={len(documents)}", place=source.name)
    number = source.documents.index(documents[0])
    try:
        return read(documents[0])
    except InputError as error:
        found = error.at(source.place_of(number, error.field))
        raise with_next(found, "correct that setting and run it again") from error


def parsed(document: object, kinds: Mapping[str, type[Read]]) -> Read:
    """
    Return a document as the model of its kind.

    Args:
        kinds: kind -> its model; the first is meant where a document is of none of them.

    Raises:
        InputError: another kind or version, or every unknown key and value that is not allowed;
            with the field of the first.
    """
    meant = next(iter(kinds))
    if not isinstance(document, dict):
        raise InputError(f"not a {meant} but another kind of value")
    sections = {key: {} if value is None else value for key, value in document.items()}
    kind = sections.get("kind")
    model = kinds.get(kind, kinds[meant]) if isinstance(kind, str) else kinds[meant]
    try:
        return model.model_validate(sections)
    except ValidationError as error:
        raise _every_error(error) from None


def _every_error(error: ValidationError) -> InputError:
    found = error.errors()
    # a wrong kind or version explains every other error
    whole = [one for one in found if one["loc"][:1] in {("apiVersion",), ("kind",)}]
    first, *others = whole[:1] or found
    facts = [_fact(first), *(f"{_field(one)}: {_fact(one)}" for one in others)]
    return InputError("; ".join(facts), field=_field(first))


def _field(error: ErrorDetails) -> str:
    return ".".join(str(step) for step in error["loc"])


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
