"""
A history as one small JSON document: the page carries it, its script unpacks it.

The document (version 1):

- `axis`, `start`, `tick`, `end`: the axis; a moment is `start + n * tick`, `end` is in ticks.
- `kinds`: the distinct cards as [type, minor, model, core capacity in percent, memory in bytes];
  `racks`: the distinct nodes as lists of places in `kinds`; `nodes`: one place in `racks` per node.
- `node_names`, `pod_names`: front-coded, one line per name: a digit of base 62 for the number of
  characters shared with the line before, then the rest. `namespaces`: texts; `pod_namespaces`: one
  place in it per Pod.
- `shares`: [core percent, memory in bytes, memory ratio in percent, exclusive, observed];
  `endings`: [policy, end reason].
- `before`: by how many ticks the first hold is older than `start`.
- `holds`: one column per field, in the order of `History.holds`: `opened` (ticks after the hold
  before, the first after `start - before`), `lasted` (0 = still held, else ticks + 1), `card`,
  `pod` and `position` (signed steps from the hold before), `share`, `ending`.
- `outages`: [card, opened, closed or null, reason], in ticks.

A column is base64 of unsigned LEB128 numbers. Signed numbers are zigzag: 0, -1, 1, -2, 2, ...
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from math import gcd
from typing import Any, Final

from scheduler.usage.model import History, Hold, Outage

VERSION: Final = 1
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def pack(history: History, tick: int) -> dict[str, Any]:
    """Return the document of a history, in units of `tick_of`."""
    start = history.start
    before = max(0, (start - history.holds[0].opened) // tick) if history.holds else 0
    kinds, racks, rack_of_node = _racks(history)
    namespaces = sorted({namespace for namespace, _ in history.pods})
    namespace_index = {namespace: i for i, namespace in enumerate(namespaces)}
    return {
        "v": VERSION,
        "axis": history.axis,
        "start": start,
        "tick": tick,
        "end": (history.end - start) // tick,
        "kinds": kinds,
        "racks": racks,
        "nodes": _numbers(rack_of_node),
        "node_names": _fronted(node.name for node in history.nodes),
        "namespaces": namespaces,
        "pod_namespaces": _numbers(namespace_index[namespace] for namespace, _ in history.pods),
        "pod_names": _fronted(name for _, name in history.pods),
        "shares": [
            [s.core_percent, s.memory_bytes, s.memory_ratio_percent, s.exclusive, s.observed]
            for s in history.shares
        ],
        "endings": [[ending.policy, ending.end_reason] for ending in history.endings],
        "before": before,
        "holds": _pack_holds(history.holds, start - before * tick, tick),
        "outages": [
            [
                outage.card,
                (outage.opened - start) // tick,
                None if outage.closed is None else (outage.closed - start) // tick,
                outage.reason,
            ]
            for outage in history.outages
        ],
    }


def tick_of(history: History) -> int:
    """Return the largest unit in which every moment of the history is whole."""
    unit = gcd(history.end - history.start)
    intervals: Iterable[Hold | Outage] = chain(history.holds, history.outages)
    for interval in intervals:
        unit = gcd(unit, interval.opened - history.start)
        if interval.closed is not None:
            unit = gcd(unit, interval.closed - history.start)
        if unit == 1:
            break
    return unit or 1


def _racks(history: History) -> tuple[list[list[Any]], list[list[int]], list[int]]:
    kinds: dict[tuple[str, int, str, int, int], int] = {}
    racks: dict[tuple[int, ...], int] = {}
    rack_of_node = []
    for node in history.nodes:
        rack = []
        for index in node.cards:
            card = history.cards[index]
            kind = (
                card.device_type,
                card.minor,
                card.model,
                card.core_capacity_percent,
                card.memory_capacity_bytes,
            )
            rack.append(kinds.setdefault(kind, len(kinds)))
        rack_of_node.append(racks.setdefault(tuple(rack), len(racks)))
    return [list(kind) for kind in kinds], [list(rack) for rack in racks], rack_of_node


def _pack_holds(holds: Sequence[Hold], start: int, tick: int) -> dict[str, str]:
    def stepped(values: Iterable[int]) -> str:
        return _numbers(_zigzag(after - before) for before, after in pairwise((0, *values)))

    opened = [(hold.opened - start) // tick for hold in holds]
    return {
        "opened": _numbers(after - before for before, after in pairwise((0, *opened))),
        "lasted": _numbers(
            0 if hold.closed is None else (hold.closed - hold.opened) // tick + 1 for hold in holds
        ),
        "card": stepped(hold.card for hold in holds),
        "pod": stepped(hold.pod for hold in holds),
        "position": stepped(hold.position for hold in holds),
        "share": _numbers(hold.share for hold in holds),
        "ending": _numbers(hold.ending for hold in holds),
    }


def _zigzag(number: int) -> int:
    return number * 2 if number >= 0 else -number * 2 - 1


def _numbers(values: Iterable[int]) -> str:
    data = bytearray()
    for value in values:
        rest = value
        while rest > 127:
            data.append(rest & 127 | 128)
            rest >>= 7
        data.append(rest)
    return b64encode(data).decode("ascii")


def _fronted(names: Iterable[str]) -> str:
    lines = []
    before = ""
    for name in names:
        clean = name.replace("\n", " ")
        shared = 0
        for one, other in zip(before, clean[: len(_DIGITS) - 1], strict=False):
            if one != other:
                break
            shared += 1
        lines.append(_DIGITS[shared] + clean[shared:])
        before = clean
    return "\n".join(lines)
