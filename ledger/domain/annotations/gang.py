"""Gangs: Pods that start together, and the Go durations they wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations import wire
from ledger.domain.errors import InputError

SECOND_NS: Final = 10**9
WAITING_TIME_DEFAULT_NS: Final = 600 * SECOND_NS
DURATION_MAX_NS: Final = 2**63 - 1

_UNITS_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "\N{MICRO SIGN}s": 10**3,
    "\N{GREEK SMALL LETTER MU}s": 10**3,
    "ms": 10**6,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}
_TERM: Final = r"(?:[0-9]{1,24}(?:\.[0-9]{0,24})?|\.[0-9]{1,24})(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
_DURATION: Final = re.compile(rf"[+-]?(?:0|(?:{_TERM})+)")
_TERMS: Final = re.compile(r"([0-9]*)\.?([0-9]*)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")


class GangMode(StrEnum):
    """Whether a gang that fails gives back what its members hold (Strict) or keeps it."""

    STRICT = "Strict"
    NON_STRICT = "NonStrict"


class GangMatchPolicy(StrEnum):
    """Which members count towards the minimum."""

    ONCE_SATISFIED = "once-satisfied"
    ONLY_WAITING = "only-waiting"
    WAITING_AND_RUNNING = "waiting-and-running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """
    What one member says about its gang.

    Attributes:
        min_available: None when the Pod does not say (a PodGroup object may).
        total_number: never below `min_available`; None when neither is said.
        groups: `namespace/name` of gangs that start together with this one.
    """

    name: str
    min_available: int | None = None
    total_number: int | None = None
    waiting_time_ns: int = WAITING_TIME_DEFAULT_NS
    mode: GangMode = GangMode.STRICT
    match_policy: GangMatchPolicy = GangMatchPolicy.ONCE_SATISFIED
    groups: tuple[str, ...] = ()


# gang.scheduling.koordinator.sh/name: "job-7"            .../min-available: "3"
# gang.scheduling.koordinator.sh/total-number: "4"        .../waiting-time: "600s"
# gang.scheduling.koordinator.sh/mode: "Strict"           .../match-policy: "once-satisfied"
# gang.scheduling.koordinator.sh/groups: ["ns/gang-a","ns/gang-b"]


def read_gang(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Gang | None:
    """
    Return the gang a Pod belongs to, None when neither labels nor annotations name one.

    Rule: Koordinator contract 10. The name is looked up in the label `pod-group...io`, then in the
    label `pod-group...io/name`, then in the annotation.

    Raises:
        InputError: a number, duration, mode, policy or list that does not parse; a minimum below
            1; a waiting time that is not positive.
    """
    name = (
        labels.get(resources.LABEL_POD_GROUP)
        or labels.get(resources.LABEL_POD_GROUP_NAME)
        or annotations.get(resources.ANNOTATION_GANG_NAME)
    )
    if not name:
        return None
    least = _number(annotations, resources.ANNOTATION_GANG_MIN_AVAILABLE)
    total = _number(annotations, resources.ANNOTATION_GANG_TOTAL_NUMBER)
    return Gang(
        name=name,
        min_available=least,
        total_number=least if total is None else max(total, least or 0),
        waiting_time_ns=_waiting_time(annotations),
        mode=wire.a_choice(
            annotations.get(resources.ANNOTATION_GANG_MODE, GangMode.STRICT),
            GangMode,
            wire.annotation_path(resources.ANNOTATION_GANG_MODE),
        ),
        match_policy=_match_policy(annotations),
        groups=_groups(annotations),
    )


def parse_duration(text: str) -> int:
    """
    Read a Go duration such as `1h30m`, `1.5s`, `-2ms` or `0`, in nanoseconds.

    Rule: Go's time.ParseDuration: a unit after every number, fractions of a nanosecond cut off.

    Raises:
        InputError: anything else (`600` has no unit), or more than 2^63-1 nanoseconds.
    """
    if not _DURATION.fullmatch(text):
        raise InputError(f"not a duration such as 600s or 10m: value={text[:80]!r}")
    total = 0
    for whole, part, unit in _TERMS.findall(text):
        scale = _UNITS_NS[unit]
        total += int(whole or 0) * scale + int(part or 0) * scale // 10 ** len(part)
    if total > DURATION_MAX_NS:
        raise InputError(f"longer than 2^63-1 nanoseconds: value={text[:80]!r}")
    return -total if text.startswith("-") else total


def _waiting_time(annotations: Mapping[str, str]) -> int:
    text = annotations.get(resources.ANNOTATION_GANG_WAITING_TIME)
    if text is None:
        return WAITING_TIME_DEFAULT_NS
    path = wire.annotation_path(resources.ANNOTATION_GANG_WAITING_TIME)
    duration = wire.within(path, parse_duration, text)
    if duration <= 0:
        raise InputError(f"must be positive: value={text!r}", field=path)
    return duration


def _match_policy(annotations: Mapping[str, str]) -> GangMatchPolicy:
    for key in (
        resources.ANNOTATION_GANG_MATCH_POLICY,
        resources.ANNOTATION_GANG_MATCH_POLICY_ALIAS,
    ):
        if key in annotations:
            return wire.a_choice(annotations[key], GangMatchPolicy, wire.annotation_path(key))
    return GangMatchPolicy.ONCE_SATISFIED


def _groups(annotations: Mapping[str, str]) -> tuple[str, ...]:
    text = annotations.get(resources.ANNOTATION_GANG_GROUPS)
    path = wire.annotation_path(resources.ANNOTATION_GANG_GROUPS)
    return () if text is None else wire.each(wire.load(text, path), path, wire.a_text)


def _number(annotations: Mapping[str, str], key: str) -> int | None:
    text = annotations.get(key)
    return None if text is None else wire.a_decimal(text, wire.annotation_path(key), least=1)
