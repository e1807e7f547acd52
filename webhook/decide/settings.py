"""What the operator may choose about admission, with defaults that are safe to start with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from ledger.domain.dialects.names import FOREIGN_WORDS
from ledger.domain.resources import HAMI_CORE, SCHEDULER_NAME
from ledger.domain.setting import Setting
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

DEFAULT_SCHEDULER: Final = "default-scheduler"
SERVICE_ACCOUNTS: Final = frozenset(
    f"system:serviceaccount:tenure-system:tenure-{name}"
    for name in ("scheduler", "agent", "cpus", "webhook")
)
ISOLATION_PROVIDERS: Final = frozenset({HAMI_CORE})


class DomainSetting(StrEnum):
    """Under which domain a Pod's device resources are written (Koordinator contract 1.1)."""

    KEPT = "kept"
    """As the Pod wrote them; what is added follows the Pod, else is `koordinator.sh/`."""
    KUBERNETES = "kubernetes.io"
    KOORDINATOR = "koordinator.sh"


class RuleMode(StrEnum):
    """What a violation of one rule does."""

    ENFORCE = "enforce"
    WARN = "warn"
    OFF = "off"


class TakeoverRule(StrEnum):
    """Which Pods of a managed namespace get our scheduler."""

    DEVICES = "devices"
    """Every Pod that asks for devices or for CPUs of its own."""
    LABELLED = "labelled"
    """Of those, the ones whose namespace or own label `tenure.sh/takeover` is `true`."""
    NONE = "none"


DIALECT_SCHEDULERS: Final = frozenset(name for words in FOREIGN_WORDS for name in words.schedulers)
"""Schedulers of systems whose words we speak: what they place is theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """
    Which Pods get our scheduler.

    Rule: design section 8, Guests in the cluster.

    The label `tenure.sh/takeover: "false"`, on the namespace or the Pod, takes Pods out; the Pod's
    own label counts before its namespace's.

    Attributes:
        foreign_schedulers: names of schedulers whose Pods are never taken over.
    """

    rule: TakeoverRule = TakeoverRule.DEVICES
    foreign_schedulers: Annotated[frozenset[str], Setting(read=DIALECT_SCHEDULERS.union)] = (
        DIALECT_SCHEDULERS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """
    What Pods with certain labels get, where they do not say it themselves.

    Rule: Koordinator contract 5.1, step 1 and 3.3, ClusterColocationProfile.

    Attributes:
        name: profiles are applied in order of their names, a later one over an earlier one.
        pod_labels, namespace_labels: every pair has to be there; empty matches everything.
        qos: the label `koordinator.sh/qosClass`.
        priority_class_name, priority: `spec.priorityClassName` and its number, both or none,
            because the API server refuses a number that is not the class's.
        koordinator_priority: the label `koordinator.sh/priority`.
        scheduler_name: `spec.schedulerName`; takeover does not touch it.
        labels, annotations: added to the Pod.
    """

    name: Annotated[str, Setting(least=1)]
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    qos: str = ""
    priority_class_name: str = ""
    priority: int | None = None
    koordinator_priority: str = ""
    scheduler_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a class without its number, and a number without its class."""
        if bool(self.priority_class_name) != (self.priority is not None):
            raise ValueError("priorityClassName and priority go together")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDefaults:
    """
    What Pods that ask for something of ours get where they do not say it; empty changes nothing.

    Attributes:
        qos: the label `koordinator.sh/qosClass`.
        priority_class: the label `koordinator.sh/priority-class`.
        priority_class_by_qos: QoS class -> the same label, before `priority_class`.
    """

    qos: str = ""
    priority_class: str = ""
    priority_class_by_qos: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """
    Everything that admission can be told.

    Attributes:
        domain: under which domain device resources are written.
        scheduler_name: what takeover writes into `spec.schedulerName`.
        modes: rule -> mode, for rules that differ from `mode`.
        service_accounts: users that may write allocations and bind managed Pods.
        isolation_providers: values of `koordinator.sh/gpu-isolation-provider` that enforce shares.
        koordlet_binds_cpus: it does on every node; else only those with our agent's label bind any.
        vocabulary: what requests mean, which the scheduler has to be told alike.
    """

    vocabulary: Vocabulary = DEFAULT_VOCABULARY
    domain: DomainSetting = DomainSetting.KEPT
    takeover: Takeover = Takeover()
    scheduler_name: Annotated[str, Setting(least=1)] = SCHEDULER_NAME
    mode: RuleMode = RuleMode.ENFORCE
    modes: Mapping[str, RuleMode] = field(default_factory=dict)
    defaults: PodDefaults = PodDefaults()
    profiles: tuple[Profile, ...] = ()
    service_accounts: Annotated[frozenset[str], Setting(least=1)] = SERVICE_ACCOUNTS
    isolation_providers: frozenset[str] = ISOLATION_PROVIDERS
    koordlet_binds_cpus: Annotated[
        bool, Setting(key="cpu.boundBy", words=("agent", "koordlet"), read="koordlet".__eq__)
    ] = False

    def mode_of(self, rule: str) -> RuleMode:
        """Return what a violation of the rule does."""
        return self.modes.get(rule, self.mode)


DEFAULT_ADMISSION: Final = AdmissionSettings()
