"""Where what was recorded and what is decided now are not the same, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.devices import DeviceShare
from ledger.domain.log.events import (
    GroupMember,
    GroupPlanned,
    PlanDropped,
    PlannedMember,
    PodObserved,
    PodReserved,
    PodVoided,
    RefusalReason,
    RequestRefused,
)

OUTCOME: Final = "outcome"
STAYS: Final = "the plan stands"
_CALLED: Final = {
    "node_name": "node",
    "shares": "devices",
    "cpuset": "cpus",
    "device_models": "models",
    "members": "places",
}
"""What fields of events are called where a difference is told."""

Decision = PodReserved | PodObserved | RequestRefused | GroupPlanned
End = PodVoided | PlanDropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact of a decision that comes out otherwise now, in words."""

    what: str
    recorded: str
    decided: str


def outcome(recorded: str, decided: str) -> Difference:
    """Return that another thing altogether is decided now."""
    return Difference(what=OUTCOME, recorded=recorded, decided=decided)


def where(event: PodReserved | PodObserved) -> str:
    """Return what a decision gave."""
    given = [_text(event.shares)] if event.shares else []
    if isinstance(event, PodObserved):
        given += [f"{count} {kind} by count" for kind, count in event.counted.items()]
    given += [f"CPUs {event.cpuset}"] if event.cpuset else []
    return f"placed on {event.node_name}" + (f": {', '.join(given)}" if given else "")


def field_differences(recorded: Decision, decided: Decision) -> Iterator[Difference]:
    """Yield the fields of two events of one type that are not the same, in words."""
    for name in recorded.__struct_fields__:
        before, after = getattr(recorded, name), getattr(decided, name)
        if before == after:
            continue
        if isinstance(before, Mapping):
            for key in sorted(before.keys() | after.keys()):
                if before.get(key) != after.get(key):
                    yield difference(key, before.get(key), after.get(key))
        else:
            yield difference(_CALLED.get(name, name), before, after)


def end_differences(recorded: Sequence[End], decided: Sequence[End]) -> Iterator[Difference]:
    """Yield where the end of a plan comes out otherwise: why it ends, and who gives back."""
    why, now = _ending(recorded), _ending(decided)
    if why != now:
        yield difference(OUTCOME, why, now or STAYS)
    gave, gives = _gives_back(recorded), _gives_back(decided)
    if gave != gives:
        yield difference("voided", gave, gives)


def _ending(ends: Sequence[End]) -> str:
    """Return why a plan ends, and by whose place."""
    last = ends[-1] if ends else None
    return f"{last.reason} {last.pod_uid}".rstrip() if isinstance(last, PlanDropped) else ""


def _gives_back(ends: Sequence[End]) -> str:
    return ", ".join(
        f"{end.pod_uid}/{end.attempt} on {end.node_uid}: {end.reason}"
        for end in ends
        if isinstance(end, PodVoided)
    )


def difference(what: str, before: object, after: object) -> Difference:
    """Return that a fact is another now."""
    return Difference(what=what, recorded=_text(before), decided=_text(after))


def _text(value: Any) -> str:  # noqa: ANN401 - of whatever a field holds
    match value:
        case None | "" | ():
            return "none"
        case tuple():
            return ", ".join(map(_text, value))
        case DeviceShare():
            parts = [f"{value.core_percent}%", f"{value.memory_bytes} B"]
            parts += [f"ratio {value.memory_ratio_percent}%", f"instances {value.instances}"]
            parts += ["alone"] if value.exclusive else []
            parts += [f"VFs {' '.join(value.vf_bus_ids)}"] if value.vf_bus_ids else []
            return f"{value.device_type}/{value.minor} ({', '.join(parts)})"
        case RefusalReason():
            near = f" ({value.nearest_node}: {value.detail})" if value.nearest_node else ""
            return f"{value.nodes} {value.reason}{near}"
        case GroupMember():
            return value.pod_name
        case PlannedMember():
            cards = ",".join(map(str, value.minors))
            return f"{value.pod_name} on {value.node_uid} gpu/{cards}"
        case _:
            return str(value)
