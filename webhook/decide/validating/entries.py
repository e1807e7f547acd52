"""What one line of the list of rules says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ledger.domain.request.rule_names import Rule
from webhook.decide.settings import RuleMode


class Advice(StrEnum):
    """What is only ever said, never refused. `off` silences it like a rule."""

    ISOLATION_MISSING = "IsolationMissing"
    MISSPELT_NAME = "MisspeltName"
    MISPLACED_KEY = "MisplacedKey"
    SUSPICIOUS_UNIT = "SuspiciousUnit"
    UNKNOWN_VALUE = "UnknownValue"
    NEVER_PLACED = "NeverPlaced"
    UNASKED_DEVICES = "UnaskedDevices"
    UNKNOWN_POD = "UnknownPod"
    MIRROR_POD = "MirrorPod"
    WORKLOAD_METADATA = "WorkloadMetadata"
    WORKLOAD_REPLICAS = "WorkloadReplicas"


class Reach(StrEnum):
    """What a rule is for, and which of the API server's two ways keeps it."""

    EVERYWHERE = "every namespace"
    """Every Pod there is, by policy, whether its namespace has opted in or not."""
    OURS = "our Pods"
    """Those of managed namespaces, and by policy those with our mark or for our scheduler."""
    MANAGED = "managed"
    """Pods of managed namespaces, by the webhook."""
    CLUSTER = "cluster"
    """Objects of the cluster that say what there is and who has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry:
    """One line of `docs/rules.md`."""

    name: str
    refuses: str
    source: str
    mode: RuleMode = RuleMode.ENFORCE
    reach: Reach = Reach.MANAGED


def rule_entry(rule: Rule, refuses: str, source: str, *, reach: Reach = Reach.MANAGED) -> RuleEntry:
    """Return the line of a rule that refuses."""
    return RuleEntry(name=str(rule), refuses=refuses, source=source, reach=reach)


def advice_entry(advice: Advice, says: str, source: str) -> RuleEntry:
    """Return the line of what is only ever said."""
    return RuleEntry(name=str(advice), refuses=says, source=source, mode=RuleMode.WARN)
