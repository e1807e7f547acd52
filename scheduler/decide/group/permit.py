"""
The bind calls of one gang's members, which wait for each other: all are allowed, or all rejected.

Rule: docs/adr/0043. kube-scheduler binds each Pod by a call of its own, and an extender has no
Permit stage. So a call waits until as many have come as must start together. Nothing is bound
before, and at the deadline there is nothing to take back.

Pure: calls, facts and time go in; who is allowed or rejected comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

WAIT_SECONDS: Final = 15.0
"""
From a gang's first call: longer than kube-scheduler's longest backoff after an error (some 11 s),
by which members would miss each other, and well below the 30 s of its `httpTimeout` for binds.
"""
CALLS_MAX: Final = 500
"""
Calls that wait, of all gangs: the listener takes 1,024 connections, and filters need some. A gang
begins to wait only where there is room for all that must come, for two could else never begin.
"""
MISSING_MAX: Final = 3
"""Members that are named as missing; of the others the number is enough."""

NEWER: Final = "a newer call for this Pod has come"
TOO_MANY: Final = "too many members of gangs wait to be bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What kube-scheduler asks for; `number` tells calls for one Pod apart."""

    number: int
    pod_uid: str
    node_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """
    One try to start a gang.

    Attributes:
        until: its deadline, by the monotonic clock.
        size: how many calls there may be.
        calls: Pod UID -> the newest call for it, of callers that still wait.
    """

    until: float
    size: int = 0
    calls: Mapping[str, Call] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    What is true now.

    Attributes:
        why_not: why nothing is bound at all, empty where it may be.
        wrong: why a member that has come can't be bound where it was planned, empty where all can.
        needed: how many must come before anyone is bound.
        missing: those that have not come, in words for people.
    """

    needed: int
    why_not: str = ""
    wrong: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Allow:
    """All of these are bound."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """None of these is bound; `is_over`: the gang is not tried again before it has a new plan."""

    calls: tuple[Call, ...]
    why: str
    is_over: bool = False


def come(
    attempt: Attempt | None,
    call: Call,
    now: float,
    *,
    needed: int,
    others: int = 0,
    seconds: float = WAIT_SECONDS,
) -> tuple[Attempt | None, Reject | None]:
    """
    Take a call; the newest one for a Pod counts, and the one before it is rejected.

    Args:
        needed: how many must come.
        others: how many calls there may be of other gangs.
        seconds: how long the first one waits.
    """
    known = attempt or Attempt(until=now + seconds)
    before = known.calls.get(call.pod_uid)
    calls = {uid: one for uid, one in known.calls.items() if uid != call.pod_uid}
    calls[call.pod_uid] = call
    size = max(known.size, needed, len(calls))
    if before is None and others + size > CALLS_MAX:
        return attempt, Reject((call,), TOO_MANY)
    now_known = replace(known, calls=calls, size=size)
    return now_known, None if before is None else Reject((before,), NEWER)


def gone(attempt: Attempt, call: Call) -> Attempt | None:
    """Forget a call whose caller waits no more; None once nobody waits."""
    if attempt.calls.get(call.pod_uid) != call:
        return attempt
    left = {uid: one for uid, one in attempt.calls.items() if uid != call.pod_uid}
    return replace(attempt, calls=left) if left else None


def judge(attempt: Attempt, facts: Facts, now: float) -> Allow | Reject | None:
    """Return what becomes of the calls of an attempt; None = they wait on."""
    calls = tuple(attempt.calls.values())
    if facts.why_not:
        return Reject(calls, facts.why_not)
    if facts.wrong:
        return Reject(calls, f"the gang is not begun: {facts.wrong}", is_over=True)
    if now >= attempt.until:
        named = "; ".join(facts.missing[:MISSING_MAX])
        text = f"the gang is not begun: {len(calls)} of {facts.needed} members came in time"
        return Reject(calls, f"{text}; missing: {named}" if named else text, is_over=True)
    return Allow(calls) if len(calls) >= facts.needed else None
