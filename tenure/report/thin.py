"""
Making a history small enough for a page, and saying what was left out.

It becomes one small JSON document: the page carries it, its script unpacks it.

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

import json
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import gcd
from typing import Any, Final

from scheduler.usage.model import History, Hold, HoldEnd, Outage, Share

VERSION: Final = 1
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

STEPS_MAX: Final = 2000
"""Places of the slider: more than a screen has pixels for."""

NAMED_STEPS_MIN: Final = 125
"""With fewer places of the slider, how full the cards are over time says more than some names."""

PAYLOAD_BYTES_MAX: Final = 2_300_000
"""What the packed history may take of a page below 3 MB; tables, chart and script are the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """
    A document that fits the page.

    Attributes:
        document: None when not even the map of one moment fits.
        steps: the slider has the moments of `step_moments`, steps + 1 of them.
        note: what was left out, for the reader; empty when nothing was.
    """

    document: dict[str, Any] | None
    steps: int
    note: str = ""


def fit(history: History, budget_bytes: int = PAYLOAD_BYTES_MAX) -> Fitted:
    """
    Return the fullest document within the budget.

    In order: everything; only the holds that some step of the slider shows, with fewer steps; only
    how full each card is at each step, with as many steps as fit; nothing.
    """
    tick = tick_of(history)
    steps = min(STEPS_MAX, (history.end - history.start) // tick) or 1
    document = _document(history, steps, tick)
    if size_of(document) <= budget_bytes:
        return Fitted(document=document, steps=steps)
    for count in _fewer(steps, NAMED_STEPS_MIN):
        moments = step_moments(history, count, tick)
        thinned = _with_holds(history, [one for one in history.holds if _is_shown(one, moments)])
        left_out = len(history.holds) - len(thinned.holds)
        note = (
            f"The slider has {count + 1:,} moments; {left_out:,} of {len(history.holds):,} holdings"
            " begin and end between two of them and are not drawn. The ledger has them all."
        )
        document = {**_document(thinned, count, tick), "thinned": True}
        if size_of(document) <= budget_bytes:
            return Fitted(document=document, steps=count, note=note)
    for count in _fewer(steps * 2, 1):
        note = (
            f"The slider has {count + 1:,} moments. {len(history.holds):,} holdings are too many"
            " for one page: it shows how full each card is, and the ledger who held it."
        )
        levels = levels_at_steps(history, step_moments(history, count, tick))
        document = {**_document(levels, count, tick), "thinned": True}
        if size_of(document) <= budget_bytes:
            return Fitted(document=document, steps=count, note=note)
    note = f"{len(history.cards):,} cards are too many for a map on one page."
    return Fitted(document=None, steps=1, note=note)


def step_moments(history: History, steps: int, tick: int) -> tuple[int, ...]:
    """Return the moments that the slider can stand at: ascending, whole ticks, both ends."""
    ticks = (history.end - history.start) // tick
    return tuple(history.start + tick * (ticks * i // steps) for i in range(steps + 1))


def within(history: History, since: int, until: int) -> History:
    """Return what was held between two moments, each with its true beginning and end."""
    holds = [
        hold
        for hold in history.holds
        if hold.opened <= until and (hold.closed is None or hold.closed > since)
    ]
    outages = [
        outage
        for outage in history.outages
        if outage.opened <= until and (outage.closed is None or outage.closed > since)
    ]
    kept = _with_holds(history, holds)
    return replace(kept, start=since, end=until, outages=tuple(outages))


def _with_holds(history: History, kept: Sequence[Hold]) -> History:
    pods = sorted({hold.pod for hold in kept})
    place = {pod: i for i, pod in enumerate(pods)}
    return replace(
        history,
        pods=tuple(history.pods[pod] for pod in pods),
        holds=tuple(
            Hold(h.card, place[h.pod], h.opened, h.closed, h.position, h.share, h.ending)
            for h in kept
        ),
    )


def levels_at_steps(history: History, moments: Sequence[int]) -> History:
    """
    Return the history as nameless holds: one per card and stretch of steps equally full.

    Equal in percent (see `Share.percent`) and memory; who held it is gone.
    """
    shares: dict[Share, int] = {}
    holds = []
    for card, edges in enumerate(_edges_by_card(history, moments)):
        percent = memory = 0
        ordered = sorted(edges)
        for i, step in enumerate(ordered):
            percent += edges[step][0]
            memory += edges[step][1]
            if not (percent or memory):
                continue
            closed = moments[ordered[i + 1]] if i + 1 < len(ordered) else None
            share = Share(core_percent=percent, memory_bytes=memory, memory_ratio_percent=0)
            index = shares.setdefault(share, len(shares))
            holds.append(Hold(card, 0, moments[step], closed, 0, index, 0))
    return replace(
        history,
        pods=(("", ""),) if holds else (),
        shares=tuple(shares),
        endings=(HoldEnd(),) if holds else (),
        holds=tuple(sorted(holds, key=lambda hold: (hold.opened, hold.card))),
    )


def _edges_by_card(history: History, moments: Sequence[int]) -> list[dict[int, tuple[int, int]]]:
    """Return, per card, step -> how percent and memory change at it."""
    edges: list[dict[int, tuple[int, int]]] = [{} for _ in history.cards]
    for hold in history.holds:
        if not _is_shown(hold, moments):
            continue
        share, card = history.shares[hold.share], edges[hold.card]
        opened = bisect_left(moments, hold.opened)
        closed = len(moments) if hold.closed is None else bisect_left(moments, hold.closed)
        for step, sign in ((opened, 1), (closed, -1)):
            if step < len(moments):
                percent, memory = card.get(step, (0, 0))
                card[step] = (percent + sign * share.percent, memory + sign * share.memory_bytes)
    return edges


def _is_shown(hold: Hold, moments: Sequence[int]) -> bool:
    first = bisect_left(moments, hold.opened)
    return first < len(moments) and (hold.closed is None or moments[first] < hold.closed)


def _fewer(steps: int, least: int) -> Iterator[int]:
    """Yield steps / 2, / 4, ... down to `least`."""
    count = steps // 2
    while count >= least:
        yield count
        count //= 2


def _document(history: History, steps: int, tick: int) -> dict[str, Any]:
    return {**pack(history, tick), "steps": steps, "thinned": False}


def size_of(document: dict[str, Any]) -> int:
    """Return the bytes that a document takes of the page."""
    return len(json.dumps(document, separators=(",", ":")))


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
