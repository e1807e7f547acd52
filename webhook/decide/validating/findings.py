"""
What the checks of one request found, before the settings say what becomes of it.

Rules and advice are named as the list of rules has them, a line for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import spec_of, text_at
from webhook.decide.answers import warning

_SHOWN_MAX: Final = 60
Json = Mapping[str, object]


class Advice(StrEnum):
    """What is only ever said, never refused. `off` silences it like a rule."""

    CPUS_NOT_BOUND = "CpusNotBound"
    ISOLATION_MISSING = "IsolationMissing"
    NO_SHARED_POOLS = "NoSharedPools"
    MISSPELT_NAME = "MisspeltName"
    MISPLACED_KEY = "MisplacedKey"
    SUSPICIOUS_UNIT = "SuspiciousUnit"
    UNKNOWN_VALUE = "UnknownValue"
    NEVER_PLACED = "NeverPlaced"
    GANG_IN_PART = "GangInPart"
    UNASKED_DEVICES = "UnaskedDevices"
    UNKNOWN_POD = "UnknownPod"
    MIRROR_POD = "MirrorPod"
    WORKLOAD_METADATA = "WorkloadMetadata"
    WORKLOAD_REPLICAS = "WorkloadReplicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One piece of advice."""

    advice: Advice
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundViolations:
    """Every violation of one request, each with its rule, and what is only ever a warning."""

    errors: tuple[FieldError, ...] = ()
    said: tuple[Said, ...] = ()


NOTHING: Final = FoundViolations()


def say(advice: Advice, text: str) -> Said:
    """Return advice, in one line that the API server passes on whole."""
    return Said(advice=advice, text=warning(text))


def shown(text: str) -> str:
    """Return a value from outside as messages quote it: one line, cut where it is long."""
    line = text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."
    if not line.isprintable():
        line = line.encode("unicode_escape").decode("ascii")
    return f'"{line}"'


def scheduler_of(obj: Json | None) -> str:
    """Return a Pod's scheduler, empty when it names none."""
    return text_at(spec_of(obj), "schedulerName", "spec")


def node_of(obj: Json | None) -> str:
    """Return a Pod's node, empty while it has none."""
    return text_at(spec_of(obj), "nodeName", "spec")
