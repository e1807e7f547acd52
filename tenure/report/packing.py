"""
A history as one small JSON document, and back: the page carries it, its script unpacks it.

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

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from math import gcd
from typing import Any, Final

from scheduler.usage.model import CardInfo, History, Hold, HoldEnd, NodeInfo, Outage, Share

VERSION: Final = 1
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def pack(history: History, tick: int) -> dict[str, Any]:
    """Return the document of a history, without its claims and shapes, in units of `tick_of`."""
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


def unpack(document: dict[str, Any]) -> History:
    """Return the history of a document: what the page's script does, in Python."""
    start, tick = document["start"], document["tick"]
    nodes, cards = _unpack_nodes(document)
    namespaces = document["namespaces"]
    return History(
        axis=document["axis"],
        start=start,
        end=start + document["end"] * tick,
        nodes=nodes,
        cards=cards,
        pods=tuple(
            (namespaces[index], name)
            for index, name in zip(
                _read(document["pod_namespaces"]), _unfronted(document["pod_names"]), strict=True
            )
        ),
        shares=tuple(
            Share(
                core_percent=core,
                memory_bytes=memory,
                memory_ratio_percent=ratio,
                exclusive=exclusive,
                observed=observed,
            )
            for core, memory, ratio, exclusive, observed in document["shares"]
        ),
        endings=tuple(
            HoldEnd(policy=policy, end_reason=reason) for policy, reason in document["endings"]
        ),
        holds=tuple(_unpack_holds(document["holds"], start - document["before"] * tick, tick)),
        outages=tuple(
            Outage(
                card=card,
                opened=start + opened * tick,
                closed=None if closed is None else start + closed * tick,
                reason=reason,
            )
            for card, opened, closed, reason in document["outages"]
        ),
    )


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


def _unpack_nodes(document: dict[str, Any]) -> tuple[tuple[NodeInfo, ...], tuple[CardInfo, ...]]:
    nodes: list[NodeInfo] = []
    cards: list[CardInfo] = []
    names = _unfronted(document["node_names"])
    for name, rack in zip(names, _read(document["nodes"]), strict=True):
        first = len(cards)
        for kind in document["racks"][rack]:
            device_type, minor, model, core, memory = document["kinds"][kind]
            cards.append(
                CardInfo(
                    node=len(nodes),
                    device_type=device_type,
                    minor=minor,
                    model=model,
                    core_capacity_percent=core,
                    memory_capacity_bytes=memory,
                )
            )
        nodes.append(NodeInfo(name=name, cards=range(first, len(cards))))
    return tuple(nodes), tuple(cards)


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


def _unpack_holds(columns: dict[str, str], start: int, tick: int) -> Iterator[Hold]:
    opened = accumulate(_read(columns["opened"]))
    lasted = _read(columns["lasted"])
    card, pod, position = (
        accumulate(_unzigzag(number) for number in _read(columns[name]))
        for name in ("card", "pod", "position")
    )
    rows = zip(
        card,
        pod,
        opened,
        lasted,
        position,
        _read(columns["share"]),
        _read(columns["ending"]),
        strict=True,
    )
    for on_card, of_pod, at, ticks, event, share, ending in rows:
        moment = start + at * tick
        closed = None if ticks == 0 else moment + (ticks - 1) * tick
        yield Hold(on_card, of_pod, moment, closed, event, share, ending)


def _zigzag(number: int) -> int:
    return number * 2 if number >= 0 else -number * 2 - 1


def _unzigzag(number: int) -> int:
    return -(number // 2) - 1 if number % 2 else number // 2


def _numbers(values: Iterable[int]) -> str:
    data = bytearray()
    for value in values:
        rest = value
        while rest > 127:
            data.append(rest & 127 | 128)
            rest >>= 7
        data.append(rest)
    return b64encode(data).decode("ascii")


def _read(text: str) -> Iterator[int]:
    number = shift = 0
    for byte in b64decode(text):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


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


def _unfronted(text: str) -> Iterator[str]:
    before = ""
    for line in text.split("\n") if text else ():
        before = before[: _DIGITS.index(line[0])] + line[1:]
        yield before
