"""Making a history small enough for a page, and saying what was left out."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduler.usage.model import History, Hold, HoldEnd, Share
from tenure.report.packing import pack, tick_of

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
        thinned = at_steps(history, step_moments(history, count, tick))
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


def at_steps(history: History, moments: Sequence[int]) -> History:
    """Return the history with only those holds and Pods that one of the moments shows."""
    return _with_holds(history, [hold for hold in history.holds if _is_shown(hold, moments)])


def within(history: History, since: int, until: int) -> History:
    """
    Return what was held between two moments of the axis.

    What began earlier or ended later keeps its true beginning and end.
    """
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
