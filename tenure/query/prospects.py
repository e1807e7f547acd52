"""What would make a waiting Pod fit, in words and as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

from ledger.domain.amounts import format_bytes, format_cores
from scheduler.cluster.model import HELD_BY_CLAIM
from scheduler.whatif.nearest import Nearest
from scheduler.whatif.prospects import Prospects
from scheduler.whatif.releases import Ending
from scheduler.whatif.smaller import Smaller
from tenure.output import Column, OutputFormat, one_line, write_table

_COLUMNS: Final = (
    Column(key="node", title="NODE"),
    Column(key="reason", title="REASON"),
    Column(key="asked", title="ASKED", right=True),
    Column(key="available", title="AVAILABLE", right=True),
    Column(key="unit", title="UNIT"),
    Column(key="about", title="ABOUT"),
)
_KEYS: Final = ("reason", "asked", "available", "unit", "about")
_PODS_SHOWN: Final = 8
_AHEAD_SHOWN: Final = 4
_NODES_SHOWN: Final = 3
_NEEDS_OBJECTS: Final = (
    "the ledger does not record what deciding reads of the nodes: name their files by --objects to"
    " see what would help"
)
_NO_REQUEST: Final = (
    "the ledger has no request of it (it broke rules, or its events are in the archive): name the"
    " Pod's file by --objects to see what would help"
)


def write_prospects(
    prospects: Prospects, output: OutputFormat, out: TextIO, message: str = "", when: str = "now"
) -> None:
    """Write what would help, and with `-o wide` first every node; `message` is written already."""
    if output is OutputFormat.WIDE and prospects.findings:
        out.write("\n")
        _write_nodes(prospects, out)
    out.write("\n")
    out.writelines(f"{one_line(line)}\n" for line in lines_of(prospects, message, when))


def _write_nodes(prospects: Prospects, out: TextIO) -> None:
    """Write why it has no place now: alike nodes in one row, hopeless ones in one line."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for found in prospects.findings:
        if found.node not in prospects.hopeless:
            key = tuple(getattr(found, name) for name in _KEYS)
            alike.setdefault(key, []).append(prospects.names[found.node])
    rows = [
        {"node": _names(names), **dict(zip(_KEYS, key, strict=True))}
        for key, names in alike.items()
    ]
    if rows:
        write_table(rows, _COLUMNS, out, wide=True)
    if prospects.hopeless:
        never = [prospects.names[node] for node in sorted(prospects.hopeless)]
        out.write(f"never, whoever holds what there: {one_line(_names(never))}\n")


def _names(names: Sequence[str]) -> str:
    """Return one node by its name, several with their number: `12 nodes: n0, n1, n2, ...`."""
    if len(names) == 1:
        return names[0]
    more = ", ..." if len(names) > _NODES_SHOWN else ""
    return f"{len(names)} nodes: {', '.join(names[:_NODES_SHOWN])}{more}"


def _note(prospects: Prospects) -> str:
    if not prospects.is_known:
        return _NO_REQUEST
    if prospects.nearest is None:
        return _NEEDS_OBJECTS
    return (
        f"looked at alone: it is a member of {prospects.member_of}" if prospects.member_of else ""
    )


def record_of(prospects: Prospects) -> dict[str, Any]:
    """Return the JSON keys `now`, `never`, `nodes`, `nearest`, `fragmentation` and `untold`."""
    found, group = prospects.fragmentation, prospects.group
    return {
        "now": prospects.message,
        "never": prospects.never,
        "nodes": [
            {
                "node": prospects.names[each.node],
                "never": each.node in prospects.hopeless,
                **{key: getattr(each, key) for key in _KEYS},
            }
            for each in prospects.findings
        ],
        "nearest": nearest_record(prospects.nearest, prospects.names),
        "fragmentation": found
        and {
            "nodes": [prospects.names[node] for node in found.nodes],
            "ending": _ending_record(found.ending, prospects.names),
        },
        "note": _note(prospects),
        "group": group
        and {
            "members": group.members,
            "together": group.together,
            "next": nearest_record(group.next_one, prospects.names),
        },
        "untold": list(prospects.untold),
        **({"ahead": ahead_record(prospects.ahead)} if prospects.ahead else {}),
    }


def ahead_record(ahead: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the Pods that wait and were given a place first."""
    return [{"pod": path, "node": node} for path, node in ahead]


def nearest_record(found: Nearest | None, names: Sequence[str]) -> dict[str, Any] | None:
    """Return what would help as values."""
    if found is None:
        return None
    return {
        "fits": None if found.fits is None else names[found.fits],
        "smaller": [_smaller_record(item, names) for item in found.smaller],
        "other": [{"change": [item.text], "node": names[item.node]} for item in found.others],
        "ending": _ending_record(found.ending, names),
        "cut": list(found.cut),
    }


def _smaller_record(item: Smaller, names: Sequence[str]) -> dict[str, Any]:
    keys = ("what", "unit", "asked", "fits")
    return dict(zip(keys, item, strict=False)) | {"node": names[item.node]}


def _ending_record(ending: Ending | None, names: Sequence[str]) -> dict[str, Any] | None:
    if ending is None:
        return None
    return {"node": names[ending.node], "pods": [holder.path for holder in ending.holders]}


def lines_of(prospects: Prospects, told: str = "", when: str = "now") -> Iterator[str]:
    """Yield what would help, for people; `told` is a message that they have read already."""
    found, names = prospects.nearest, prospects.names
    if note := _note(prospects):
        yield f"note: {note}"
    if prospects.ahead:
        yield before_text(prospects.ahead)
    if found is not None and found.fits is not None:
        yield f"{'alone' if prospects.group else when} it would fit on {names[found.fits]}"
    elif found is not None:
        if prospects.message != told:
            yield f"{when}: {prospects.message}"
        changes = list(change_lines(found, names))
        yield "it would fit (each one decided):" if changes else "no single change makes it fit"
        yield from (f"  {line}" for line in changes)
        yield from (f"bound met: {text}" for text in found.cut)
    if (pieces := prospects.fragmentation) is not None:
        where = _names([names[node] for node in pieces.nodes])
        nobody = "kube-scheduler before 1.38 ends nobody for that"
        yield f"it waits for fragmentation alone on {where}: {nobody}"
        ending = "no Pods of a lower priority make room there"
        if pieces.ending is not None:
            ending = _ending_text(pieces.ending, " of a lower priority")
            ending = f"{ending}: {names[pieces.ending.node]}"
        yield f"  {ending}"
    group = prospects.group
    if group is not None:
        yield f"of its group {group.together} of {group.members} waiting members fit together now"
        if group.next_one is not None:
            yield "the next one would fit beside them:"
            yield from (f"  {line}" for line in change_lines(group.next_one, names))
    for text in prospects.untold if found is not None else ():
        yield f"not recorded, so not looked at (--objects FILE tells): {text}"


def before_text(ahead: Sequence[tuple[str, str]]) -> str:
    """Return which Pods that wait were given a place first."""
    shown = ", ".join(f"{path} on {node}" for path, node in ahead[:_AHEAD_SHOWN])
    more = len(ahead) - _AHEAD_SHOWN
    pods = "1 Pod that waits" if len(ahead) == 1 else f"{len(ahead)} Pods that wait"
    return f"decided after {pods} too: {shown}{f' and {more} more' if more > 0 else ''}"


def change_lines(found: Nearest, names: Sequence[str]) -> Iterator[str]:
    """Yield one line per change: smaller requests, other wishes, Pods that would have to end."""
    for item in found.smaller:
        fits, asked = amount_text(item.fits, item.unit), amount_text(item.asked, item.unit)
        yield f"ask for {item.name} {fits} instead of {asked}: {names[item.node]}"
    for other in found.others:
        yield f"{other.text}: {names[other.node]}"
    if found.ending is not None:
        note = "" if len(found.ending.holders) == 1 else " (perhaps fewer do)"
        yield f"{_ending_text(found.ending, note)}: {names[found.ending.node]}"


def _ending_text(ending: Ending, note: str) -> str:
    holders = ending.holders
    named = [f"that of claim {h.path}" if h.fixed == HELD_BY_CLAIM else h.path for h in holders]
    listed = ", ".join(named[:_PODS_SHOWN])
    more = f" and {len(holders) - _PODS_SHOWN} more" if len(holders) > _PODS_SHOWN else ""
    pods = "1 Pod" if len(holders) == 1 else f"{len(holders)} Pods"
    return f"end {pods}{note}: {listed}{more}"


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
