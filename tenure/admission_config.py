"""The settings of admission as YAML says them (`kind: AdmissionConfiguration`), read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, Field, StrictInt, model_validator

from ledger.domain.request.rule_names import Rule
from tenure.shared_config import ADMISSION, BOTH, Section, SharedConfiguration, parsed, read_one
from tenure.sources.text import content_of, parse_source
from webhook.decide.settings import (
    DEFAULT_ADMISSION,
    DIALECT_SCHEDULERS,
    AdmissionSettings,
    DomainSetting,
    PodDefaults,
    Profile,
    RuleMode,
    Takeover,
    TakeoverRule,
)
from webhook.decide.validating.findings import Advice

_KNOWN_RULES: Final = frozenset(map(str, (*Rule, *Advice)))


class _Model(Section):
    model_config = ConfigDict(strict=False)  # texts are read as their enums


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


class AdmissionConfiguration(SharedConfiguration):
    """A file of admission's."""

    kind: Literal["AdmissionConfiguration"]
    domain: DomainSetting = DEFAULT_ADMISSION.domain
    """Domain that device resources are written under: `kept`, `kubernetes.io`, `koordinator.sh`."""
    takeover: _Takeover = Field(default_factory=_Takeover)
    scheduler_name: str = Field(DEFAULT_ADMISSION.scheduler_name, min_length=1)
    """What takeover writes into `spec.schedulerName`."""
    mode: RuleMode = DEFAULT_ADMISSION.mode
    """What a violation does: `enforce`, `warn` or `off`."""
    modes: Mapping[str, RuleMode] = Field(default_factory=dict)
    """Rule -> mode, for rules that differ from `mode`; names are in docs/rules.md."""
    defaults: _Defaults = Field(default_factory=_Defaults)
    profiles: tuple[_Profile, ...] = ()
    isolation_providers: frozenset[str] = DEFAULT_ADMISSION.isolation_providers
    """Isolation providers that enforce a share of a card."""

    @model_validator(mode="after")
    def _known_rules(self) -> AdmissionConfiguration:
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
    from tenure.both_config import TenureConfiguration

    kinds: dict[str, type[AdmissionConfiguration]] = {
        ADMISSION: AdmissionConfiguration,
        BOTH: TenureConfiguration,
    }
    return _settings(parsed(document, kinds))


def _settings(read: AdmissionConfiguration) -> AdmissionSettings:
    return AdmissionSettings(
        domain=read.domain,
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
        koordlet_binds_cpus=read.cpu.bound_by == "koordlet",
        vocabulary=read.vocabulary(),
    )


def read_admission_file(path: Path, content: bytes) -> AdmissionSettings:
    """
    Return the settings that a file's bytes say.

    Raises:
        InputError: with file, line and field.
    """
    return read_one(parse_source(str(path), content), ADMISSION, read_admission)


def admission_settings(path: Path | None) -> AdmissionSettings:
    """
    Return the settings of a file, or the defaults without one.

    Raises:
        InputError: with file, line and field.
    """
    return DEFAULT_ADMISSION if path is None else read_admission_file(path, content_of(path))
