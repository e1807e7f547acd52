"""What would make a waiting Pod fit: the scene is built, everything is decided, told as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.amounts import format_bytes, format_cores
from ledger.domain.log.events import RefusalReason
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.scene import Scene
from scheduler.decide.dialects.registry import CHOOSERS
from scheduler.decide.outcome import Unplaced
from scheduler.decide.refusal import reasons
from scheduler.whatif.bench import Bench
from scheduler.whatif.findings import find_reasons
from scheduler.whatif.nearest import GroupNearest, Nearest, nearest, nearest_of_group
from scheduler.whatif.releases import Ending
from scheduler.whatif.smaller import Smaller
from tenure.output import Column

NODE_COLUMNS: Final = (
    Column(key="node", title="NODE"),
    Column(key="reason", title="REASON"),
    Column(key="asked", title="ASKED", right=True),
    Column(key="available", title="AVAILABLE", right=True),
    Column(key="unit", title="UNIT"),
    Column(key="about", title="ABOUT"),
)
_PODS_SHOWN: Final = 8
_NEEDS_OBJECTS: Final = (
    "the ledger does not record what this refusal is about: name the files of the Pod and of the"
    " nodes by --objects to see what would help"
)
_NO_REQUEST: Final = (
    "the ledger has no request of it (it broke rules, or its events are in the archive): name the"
    " Pod's file by --objects to see what would help"
)
_OF_DIALECTS: Final = frozenset(text for each in CHOOSERS for text in each.abouts)
_UNRECORDED: Final = _OF_DIALECTS | frozenset(
    reason.text
    for reason in (
        reasons.UNSCHEDULABLE,
        reasons.TOO_MANY_PODS,
        reasons.DIALECT_NOT_SERVED,
        reasons.NO_PARTITION_TABLE,
        reasons.PARTITION_COUNT,
        reasons.NO_FREE_PARTITION,
        reasons.NO_TOPOLOGY_TREE,
        reasons.NOT_WHOLE_CORES,
        reasons.BIND_POLICY_CONFLICT,
    )
)
_UNRECORDED_STARTS: Final = (
    "node(s) had untolerated taint",
    reasons.NUMA_POLICY_CONFLICT.text,
    reasons.NO_NUMA_NODES.text,
    reasons.INSUFFICIENT_NUMA_CPU.text,
    reasons.UNALIGNED.text,
    reasons.UNSATISFIED.text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """
    How a Pod that waits stands now, on the cluster as it is known.

    Attributes:
        message: what a decision answers now; empty where the Pod would get a place.
        untold: facts that nobody wrote down where we looked.
        note: what is not looked at, in words.
        group: of a member of a group or gang whose members are known: how far they get together.
    """

    message: str
    nodes: tuple[dict[str, Any], ...]
    nearest: Nearest | None
    names: tuple[str, ...]
    untold: tuple[str, ...]
    note: str = ""
    group: GroupNearest | None = None


def prospects_of(pod_uid: str, scene: Scene, refused: Sequence[RefusalReason] = ()) -> Prospects:
    """
    Return what would make the Pod fit; for a member of a group, as if it came alone.

    Args:
        refused: the reasons of its newest refusal. Where all of them are about facts that nobody
            wrote down, nothing is decided: the answer would be of another cluster.
    """
    names = tuple(node.name for node in scene.nodes)
    request = scene.requests.get(pod_uid)
    unseen = [item.reason for item in refused if scene.untold and is_unrecorded(item.reason)]
    if request is None or (unseen and len(unseen) == len(refused)):
        note = _NEEDS_OBJECTS if request is not None else _NO_REQUEST
        return Prospects(
            message="", nodes=(), nearest=None, names=names, untold=scene.untold, note=note
        )
    bench = Bench(scene.nodes, scene.others(pod_uid), scene.settings)
    answer = bench.decide(request)
    name = group_name(request)
    members = _members(name, scene) if name else []
    note = f"looked at alone: it is a member of {name}" if name else ""
    if unseen:
        note = f"taken as open here, since the ledger does not record why: {', '.join(unseen)}"
    return Prospects(
        message=answer.message if isinstance(answer, Unplaced) else "",
        nodes=tuple(_rows(request, answer, bench)) if isinstance(answer, Unplaced) else (),
        nearest=nearest(request, bench),
        names=names,
        untold=scene.untold,
        note=note,
        group=nearest_of_group(members, bench) if len(members) > 1 else None,
    )


def _members(name: str, scene: Scene) -> list[PodRequest]:
    """Return the members of a group that hold nothing yet."""
    holding = {holder.uid for holder in scene.holders}
    return [
        request
        for uid, request in scene.requests.items()
        if uid not in holding and group_name(request) == name
    ]


def is_unrecorded(reason: str) -> bool:
    """Tell whether a reason is about facts that the events of a ledger do not carry."""
    return reason in _UNRECORDED or reason.startswith(_UNRECORDED_STARTS)


def _rows(request: PodRequest, answer: Unplaced, bench: Bench) -> Iterator[dict[str, Any]]:
    for found in find_reasons(request, answer, bench):
        yield {
            "node": bench.nodes[found.node].name,
            "reason": found.reason,
            "asked": found.asked,
            "available": found.available,
            "unit": found.unit,
            "about": found.about,
        }


def record_of(prospects: Prospects) -> dict[str, Any]:
    """Return the JSON keys `now`, `nodes`, `nearest` and `untold`."""
    return {
        "now": prospects.message,
        "nodes": list(prospects.nodes),
        "nearest": nearest_record(prospects.nearest, prospects.names),
        "note": prospects.note,
        "group": _group_record(prospects),
        "untold": list(prospects.untold),
    }


def nearest_record(found: Nearest | None, names: Sequence[str]) -> dict[str, Any] | None:
    """Return what would help as values."""
    if found is None:
        return None
    return {
        "fits": None if found.fits is None else names[found.fits],
        "smaller": [_smaller_record(item, names) for item in found.smaller],
        "other": [{"change": list(item.texts), "node": names[item.node]} for item in found.others],
        "ending": _ending_record(found.ending, names),
        "at_most": [_smaller_record(item, names) for item in found.at_most],
        "cut": list(found.cut),
    }


def _group_record(prospects: Prospects) -> dict[str, Any] | None:
    group = prospects.group
    if group is None:
        return None
    return {
        "members": group.members,
        "together": group.together,
        "next": nearest_record(group.next_one, prospects.names),
    }


def _smaller_record(item: Smaller, names: Sequence[str]) -> dict[str, Any]:
    return {
        "what": item.name,
        "unit": item.unit,
        "asked": item.asked,
        "fits": item.fits,
        "node": names[item.node],
    }


def _ending_record(ending: Ending | None, names: Sequence[str]) -> dict[str, Any] | None:
    if ending is None:
        return None
    return {
        "node": names[ending.node],
        "pods": [holder.path for holder in ending.holders],
        "exact": ending.exact,
    }


def lines_of(prospects: Prospects) -> Iterator[str]:
    """Yield what would help, for people."""
    found, names = prospects.nearest, prospects.names
    if prospects.note:
        yield f"note: {prospects.note}"
    if found is not None and found.fits is not None:
        yield f"{'alone' if prospects.group else 'now'} it would fit on {names[found.fits]}"
    elif found is not None:
        yield f"now: {prospects.message}"
        changes = list(change_lines(found, names))
        yield "it would fit (each one decided):" if changes else "no single change makes it fit"
        yield from (f"  {line}" for line in changes)
        for item in found.at_most:
            yield f"  even without any other Pod: {_smaller_text(item)}: {names[item.node]}"
        yield from (f"bound met: {text}" for text in found.cut)
    group = prospects.group
    if group is not None:
        yield f"of its group {group.together} of {group.members} waiting members fit together now"
        if group.next_one is not None:
            yield "the next one would fit beside them:"
            yield from (f"  {line}" for line in change_lines(group.next_one, names))
    for text in prospects.untold if found is not None else ():
        yield f"not recorded, so not looked at (--objects FILE tells): {text}"


def change_lines(found: Nearest, names: Sequence[str]) -> Iterator[str]:
    """Yield one line per change: smaller requests, other wishes, Pods that would have to end."""
    for item in found.smaller:
        yield f"{_smaller_text(item)}: {names[item.node]}"
    for other in found.others:
        also = f" and {_ending_text(other.ending)}" if other.ending else ""
        yield f"{' and '.join(other.texts)}{also}: {names[other.node]}"
    if found.ending is not None:
        yield f"{_ending_text(found.ending)}: {names[found.ending.node]}"


def _smaller_text(item: Smaller) -> str:
    fits, asked = amount_text(item.fits, item.unit), amount_text(item.asked, item.unit)
    return f"ask for {item.name} {fits} instead of {asked}"


def _ending_text(ending: Ending) -> str:
    holders = ending.holders
    listed = ", ".join(holder.path for holder in holders[:_PODS_SHOWN])
    more = f" and {len(holders) - _PODS_SHOWN} more" if len(holders) > _PODS_SHOWN else ""
    pods = "1 Pod" if len(holders) == 1 else f"{len(holders)} Pods"
    fewest = "" if ending.exact else " (perhaps fewer do)"
    return f"end {pods}{fewest}: {listed}{more}"


def amount_text(amount: int, unit: str) -> str:
    """Return an amount as people read it: `1.5`, `20 GiB`, `40%`, `4`."""
    match unit:
        case "milli":
            return format_cores(amount)
        case "MiB":
            return format_bytes(amount << 20)
        case "percent":
            return f"{amount}%"
        case _:
            return str(amount)
