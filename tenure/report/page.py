"""The report as one HTML page that fetches nothing and can be read without its script."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from scheduler.decide.outcome import what_release_means
from scheduler.usage.capacity import PARTS
from scheduler.usage.model import WHOLE, CapacityPoint, History
from tenure.picture import many_text
from tenure.report.model import Report, Totals
from tenure.report.thin import PAYLOAD_BYTES_MAX, Fitted, fit, size_of
from tenure.report.waiting import WAITS_BYTES_MAX, Packed, pack_waits
from tenure.units import MICROSECONDS, format_time

TICKS_MAX: Final = 8
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_STEPS_SECONDS: Final = (
    *(1, 5, 15, 30),
    *(_MINUTE * n for n in (1, 5, 15, 30)),
    *(_HOUR * n for n in (1, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

TEMPLATES: Final = Path(__file__).parent / "templates"
SCRIPTS: Final = ("data", "times", "map", "panel", "main")
"""The parts of the script, in their order."""
FILTERS: Final = (
    ("all", "All"),
    ("held", "Held"),
    ("free", "Free"),
    ("stranded", "Stranded"),
    ("closed", "Closed"),
    ("waiting", "Waiting Pods"),
)
"""What of the map can be shown: value, text."""
CAUSES_MAX: Final = 60
USAGE_MAX: Final = 200


def render(report: Report, *, budget_bytes: int = PAYLOAD_BYTES_MAX) -> str:
    """Return the page. Every text of the ledger is escaped: a Pod may be called anything."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"many": many_text, "percent": _percent, "counted": _counted}
    page = _page(report, budget_bytes)
    return environment.get_template("report.html.j2").render(page=page, report=report)


def headline(totals: Totals) -> str:
    """Return the one sentence that matters; it says "proved" only of a proof that was made."""
    decided = f"{totals.decided:,} Pods decided, {totals.placed:,} placed"
    if totals.findings:
        return f"{decided}, but the ledger does not prove itself"
    if totals.over is None or totals.verified_seconds is None:
        return f"{decided}, not verified"
    where = f" from {totals.unread + 1:,} on" if totals.unread else ""
    return f"{decided}, {totals.over:,} cards ever above 100 %, proved at every position{where}"


def _page(report: Report, budget_bytes: int) -> dict[str, Any]:
    history, source, script = report.history, report.source, _script()
    fitted = fit(history, budget_bytes)
    room = budget_bytes - size_of(fitted.document) if fitted.document else 0
    waits, left_out = pack_waits(report.waits, history.start, WAITS_BYTES_MAX + room)
    by_time = history.axis == "time"
    usage = sorted(report.usage, key=lambda row: (-row.gpu_hours, -(row.cpu_hours or 0), row.group))
    waiting = sum(row.pods for row in report.causes)
    return {
        "script": Markup(script),  # noqa: S704 - our own file
        "script_hash": f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        "style": Markup(_template("report.css")),  # noqa: S704 - our own file
        "headline": f"{_counted(len(history.pods), 'Pod')} with cards, {waiting:,} waiting"
        if report.of_objects
        else headline(report.totals),
        "period": _period(history),
        "by_time": by_time,
        "shares": [*_shares(report)],
        "map_notes": [note for note in (fitted.note, _left_out(left_out)) if note],
        "data": _data(report, fitted, waits) if history.cards else None,
        "has_observed": any(share.observed for share in history.shares),
        "end_words": "at the end" if by_time else "after the last event",
        "start_us": history.start,
        "end_us": history.end,
        "start": format_time(history.start) if by_time else "",
        "end": format_time(history.end) if by_time else "",
        "filters": FILTERS,
        "ticks": axis_ticks(history),
        "chart": _chart(report),
        "causes": report.causes[:CAUSES_MAX],
        "release": what_release_means(row.remedy for row in report.causes[:CAUSES_MAX]),
        "cause_count": len(report.causes),
        "waiting": sum(row.pods for row in report.causes),
        "usage": usage[:USAGE_MAX] if by_time else (),
        "head": f"position {source.position:,}, {local(source.head_at_us).isoformat()}",
    }


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _script() -> str:
    """Return the page's script: its parts share one scope."""
    parts = "\n".join(_template(f"page/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _left_out(waits: int) -> str:
    if not waits:
        return ""
    return f"The earliest {_counted(waits, 'wait')} of Pods did not fit; the ledger has them."


def _data(report: Report, fitted: Fitted, waits: Packed) -> Markup | None:
    """Return the packed history as JSON that no name in it can end early."""
    if fitted.document is None:
        return None
    document = {**fitted.document, "first": _first_step(report, fitted.steps), "waits": waits}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - no tag is left in it


def _first_step(report: Report, steps: int) -> int:
    """Return where the slider stands at first: the end, or the busiest moment if all is over."""
    points, history = report.capacity, report.history
    busiest = max(points, key=lambda point: point.allocated, default=None)
    span = history.end - history.start
    if busiest is None or not span or points[-1].allocated * 4 >= busiest.allocated:
        return steps
    return (busiest.at - history.start) * steps // span


def _period(history: History) -> str:
    if history.axis == "position":
        return f"events {history.start:,} to {history.end:,}"
    start, end = (format_time(at).replace("T", " ") for at in (history.start, history.end))
    return f"{start} to {end}"


def _shares(report: Report) -> Iterator[tuple[str, float, float, float]]:
    """Yield what the GPUs were in percent: in the mean, at most, and at the end."""
    for name in ("allocated", "stranded") if report.capacity and report.mean else ():
        shares = [100 * getattr(each, name) / (each.capacity or 1) for each in report.capacity]
        yield name, (report.mean or {})[name], max(shares), shares[-1]


def _chart(report: Report) -> dict[str, Any] | None:
    history, points = report.history, report.capacity
    bands = areas(history, points)
    if not bands:
        return None
    mean = report.mean or dict.fromkeys(PARTS, 0.0)
    over = "the period" if history.axis == "time" else "the events"
    summary = (
        f"Of {cards_of(points[-1].capacity):,.0f} cards {mean['allocated']:.1f} % were allocated"
        f" and {mean['stranded']:.1f} % stranded in the mean over {over}."
    )
    return {
        "areas": bands,
        "y_ticks": y_ticks(max(1, max(p.capacity for p in points) // WHOLE)),
        "summary": summary,
        "has_closed": any(point.closed for point in points),
        "has_unknown": any(point.unknown for point in points),
    }


def _percent(value: float) -> str:
    """Return a percentage that no line break takes apart."""
    return f"{value:.1f}\u00a0%"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on an axis, `percent` of the way along."""

    percent: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One band of a stacked chart, as an SVG path in a box of 1000 by 100."""

    name: str
    path: str


def local(at_us: int) -> datetime:
    """Return the moment in local time."""
    return (_EPOCH + timedelta(microseconds=at_us)).astimezone()


def axis_ticks(history: History) -> tuple[Tick, ...]:
    """Return the marks of the axis: local midnights or hours, or round positions."""
    span = history.end - history.start
    if span <= 0:
        return ()
    if history.axis == "position":
        step = nice_step(span, TICKS_MAX)
        first = history.start + (-history.start % step)
        return tuple(
            Tick(percent=_along(history, at), label=f"{at:,}")
            for at in range(first, history.end + 1, step)
        )
    return tuple(_time_ticks(history))


def _time_ticks(history: History) -> Iterator[Tick]:
    span = (history.end - history.start) / MICROSECONDS
    step = next((s for s in _STEPS_SECONDS if span / s <= TICKS_MAX), _STEPS_SECONDS[-1])
    first = local(history.start).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    end = local(history.end).replace(tzinfo=None)
    count = int((end - first).total_seconds()) // step + 1
    for i in range(count + 1):
        moment = (first + timedelta(seconds=step * i)).astimezone()
        at = (moment - _EPOCH) // timedelta(microseconds=1)
        if history.start <= at <= history.end:
            yield Tick(percent=_along(history, at), label=_label(moment, step))


def _label(moment: datetime, step: int) -> str:
    if step >= _DAY or (moment.hour == 0 and moment.minute == 0 and moment.second == 0):
        return f"{moment:%a} {moment.day} {moment:%b}"
    return f"{moment:%H:%M:%S}" if step < _MINUTE else f"{moment:%H:%M}"


def nice_step(span: int, parts: int) -> int:
    """Return the smallest 1, 2 or 5 times a power of ten that cuts `span` in at most `parts`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if span <= parts * factor * power:
                return factor * power
        power *= 10


def y_ticks(top: int) -> tuple[Tick, ...]:
    """Return round marks from 0 to `top`, in whole cards."""
    step = nice_step(top, 5)
    return tuple(
        Tick(percent=round(at * 100 / top, 3), label=f"{at:,}") for at in range(0, top + 1, step)
    )


def areas(history: History, points: Sequence[CapacityPoint]) -> tuple[Area, ...]:
    """Return the stacked bands: allocated at the bottom, then stranded and the rest."""
    top = max((point.capacity for point in points), default=0)
    if not top:
        return ()
    floor = [0] * len(points)
    bands = []
    for name in PARTS:
        roof = [low + int(getattr(p, name)) for low, p in zip(floor, points, strict=True)]
        if roof != floor:
            bands.append(Area(name=name, path=_band(history, points, floor, roof, top)))
        floor = roof
    return tuple(bands)


def _band(
    history: History,
    points: Sequence[CapacityPoint],
    floor: Sequence[int],
    roof: Sequence[int],
    top: int,
) -> str:
    across = [round(_along(history, point.at) * 10, 1) for point in points]
    up = [round(100 - high * 100 / top, 2) for high in roof]
    down = [round(100 - low * 100 / top, 2) for low in floor]
    there = " L".join(f"{x:g} {y:g}" for x, y in _corners(across, up))
    back = " ".join(f"L{x:g} {y:g}" for x, y in reversed(list(_corners(across, down))))
    return f"M{there} {back}Z"


def _corners(across: Sequence[float], heights: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield the corners of a line that keeps each height until the next point."""
    before: float | None = None
    for i, (x, y) in enumerate(zip(across, heights, strict=True)):
        if before is not None and before != y:
            yield x, before
        if before != y or i == len(across) - 1:
            yield x, y
        before = y


def cards_of(core_percent: int) -> float:
    """Return core percent as cards."""
    return core_percent / WHOLE


def _along(history: History, at: int) -> float:
    span = history.end - history.start
    return round((at - history.start) * 100 / span, 3) if span else 0.0
