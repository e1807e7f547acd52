"""The history in the document of a page: what the page's script does, in Python."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from scheduler.usage.model import CardInfo, History, Hold, HoldEnd, NodeInfo, Outage, Share

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def unpack(document: dict[str, Any]) -> History:
    """Return the history of a document; see `tenure.report.thin`."""
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


def _unzigzag(number: int) -> int:
    return -(number // 2) - 1 if number % 2 else number // 2


def _read(text: str) -> Iterator[int]:
    number = shift = 0
    for byte in b64decode(text):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


def _unfronted(text: str) -> Iterator[str]:
    before = ""
    for line in text.split("\n") if text else ():
        before = before[: _DIGITS.index(line[0])] + line[1:]
        yield before
