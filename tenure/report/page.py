"""The report as one HTML page that fetches nothing and can be read without its script."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from scheduler.decide.outcome import what_release_means
from scheduler.usage.capacity import PARTS
from scheduler.usage.model import WHOLE, CapacityPoint, History
from tenure.picture import many_text
from tenure.report.charts import (
    Area,
    Tick,
    areas,
    axis_ticks,
    cards_of,
    local,
    y_ticks,
)
from tenure.report.model import Report, Totals, UsageRow
from tenure.report.thin import PAYLOAD_BYTES_MAX, Fitted, fit, size_of
from tenure.report.waiting import WAITS_BYTES_MAX, Packed, pack_waits
from tenure.units import format_time

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    areas: tuple[Area, ...]
    y_ticks: tuple[Tick, ...]
    summary: str
    has_closed: bool
    has_unknown: bool


def render(report: Report, *, budget_bytes: int = PAYLOAD_BYTES_MAX) -> str:
    """Return the page. Every text of the ledger is escaped: a Pod may be called anything."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("report.html.j2").render(page=_page(report, budget_bytes))


def headline(totals: Totals) -> str:
    """Return the one sentence that matters; it says "proved" only of a proof that was made."""
    decided = f"{totals.decided:,} Pods decided, {totals.placed:,} placed"
    if totals.findings:
        return f"{decided}, but the ledger does not prove itself"
    if totals.over is None or totals.verified_seconds is None:
        return f"{decided}, not verified"
    return f"{decided}, {totals.over:,} cards ever above 100 %, proved at every position"


def _of_objects(report: Report) -> str:
    """Return the one sentence that matters of a cluster's objects, of which nothing is proved."""
    holds = "holds" if len(report.history.pods) == 1 else "hold"
    holders = _counted(len(report.history.pods), "Pod")
    return f"{holders} {holds} cards, {report.totals.waiting:,} wait"


def _page(report: Report, budget_bytes: int) -> dict[str, Any]:
    history, script = report.history, _script()
    fitted = fit(history, budget_bytes)
    room = budget_bytes - size_of(fitted.document) if fitted.document else 0
    waits, left_out = pack_waits(report.waits, history.start, WAITS_BYTES_MAX + room)
    by_time = history.axis == "time"
    return {
        "script": Markup(script),  # noqa: S704 - our own file
        "script_hash": f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        "style": Markup(_template("report.css")),  # noqa: S704 - our own file
        "headline": _of_objects(report) if report.of_objects else headline(report.totals),
        "of_objects": report.of_objects,
        "findings": report.totals.findings[:20],
        "period": _period(history),
        "by_time": by_time,
        "figures": _figures(report),
        "map_notes": [note for note in (fitted.note, _left_out(left_out)) if note],
        "data": _data(report, fitted, waits) if history.cards else None,
        "has_observed": any(share.observed for share in history.shares),
        "end_words": "at the end" if by_time else "after the last event",
        "start_us": history.start,
        "end_us": history.end,
        "start": format_time(history.start) if by_time else "",
        "end": format_time(history.end) if by_time else "",
        "filters": FILTERS,
        "models": _models(report),
        "ticks": axis_ticks(history),
        "chart": _chart(report),
        "causes": report.causes[:CAUSES_MAX],
        "release": what_release_means(row.remedy for row in report.causes[:CAUSES_MAX]),
        "cause_count": len(report.causes),
        "waiting": sum(row.pods for row in report.causes),
        **_usage(report),
        "source": _source(report),
        "notes": report.notes,
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
    extras = {
        "first": _first_step(report, fitted.steps),
        "waits": waits,
    }
    text = json.dumps({**fitted.document, **extras}, separators=(",", ":"), ensure_ascii=True)
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


def _figures(report: Report) -> list[_Figure]:
    totals, history = report.totals, report.history
    figures = [
        _Figure(
            label="Cards",
            value=many_text(report.cards),
            detail=f"GPUs on {_counted(len(history.nodes), 'node')}",
        )
    ]
    if report.of_objects:
        return [*figures, _Figure(label="Pods waiting", value=f"{totals.waiting:,}")]
    if report.capacity and report.mean:
        allocated = [_share(p.allocated, p) for p in report.capacity]
        stranded = [_share(p.stranded, p) for p in report.capacity]
        figures += [
            _Figure(
                label="GPU allocated, mean",
                value=_percent(report.mean["allocated"]),
                detail=f"highest {_percent(max(allocated))}, at the end {_percent(allocated[-1])}",
            ),
            _Figure(
                label="GPU stranded, mean",
                value=_percent(report.mean["stranded"]),
                detail=f"highest {_percent(max(stranded))}, at the end {_percent(stranded[-1])}",
            ),
        ]
    figures.append(
        _Figure(
            label="Pods waiting at the end",
            value=f"{totals.waiting:,}",
            detail=f"{totals.refused:,} refused at least once{_never_were(totals)}",
        )
    )
    if totals.verified_seconds is None:
        figures.append(_Figure(label="Events", value=f"{totals.events:,}", detail="not verified"))
    else:
        outcome = "verification failed" if totals.findings else "chain and capacity checked"
        figures.append(
            _Figure(
                label="Events",
                value=f"{totals.events:,}",
                detail=f"{outcome} in {totals.verified_seconds:.1f} s",
            )
        )
    return figures


def _models(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "model": row.model,
            "nodes": len(row.nodes),
            **{name: many_text(getattr(row, name)) for name in ("cards", "full", "partly", "free")},
            "closed": row.closed,
            "percent": row.percent,
        }
        for row in report.models
    ]


def _chart(report: Report) -> _Chart | None:
    history, points = report.history, report.capacity
    bands = areas(history, points)
    if not bands:
        return None
    mean = report.mean or dict.fromkeys(PARTS, 0.0)
    summary = (
        f"Of {cards_of(points[-1].capacity):,.0f} cards {mean['allocated']:.1f} % were allocated"
        f" and {mean['stranded']:.1f} % stranded in the mean over {_run(history)}."
    )
    return _Chart(
        areas=bands,
        y_ticks=y_ticks(max(1, max(p.capacity for p in points) // WHOLE)),
        summary=summary,
        has_closed=any(point.closed for point in points),
        has_unknown=any(point.unknown for point in points),
    )


def _never_were(totals: Totals) -> str:
    """Say of how many Pods there never was an object: they don't wait."""
    return f", {totals.at_admission:,} at admission" if totals.at_admission else ""


def _run(history: History) -> str:
    return "the period" if history.axis == "time" else "the events"


def _usage(report: Report) -> dict[str, Any]:
    rows = sorted(report.usage, key=lambda row: (-row.gpu_hours, -row.cpu_hours, row.group))
    total = UsageRow(
        group="",
        pods=sum(row.pods for row in rows),
        gpu_hours=sum(row.gpu_hours for row in rows),
        cpu_hours=sum(row.cpu_hours for row in rows),
    )
    most = max((row.gpu_hours for row in rows), default=0.0) or 1.0
    note = ""
    if report.history.axis == "position":
        rows, note = [], "Every decision was made at one moment, so nothing lasted for hours."
    elif len(rows) > USAGE_MAX:
        note = f"The first {USAGE_MAX} of {len(rows):,} namespaces."
    return {
        "usage_note": note,
        "usage_total": _usage_row(total, total, most),
        "usage": [_usage_row(row, total, most) for row in rows[:USAGE_MAX]],
    }


def _usage_row(row: UsageRow, total: UsageRow, most: float) -> dict[str, Any]:
    share = row.gpu_hours * 100 / total.gpu_hours if total.gpu_hours else 0.0
    return {
        "group": row.group,
        "pods": f"{row.pods:,}",
        "gpu_hours": f"{row.gpu_hours:,.1f}",
        "cpu_hours": f"{row.cpu_hours:,.1f}",
        "share": f"{share:.1f}",
        "percent": round(min(100.0, row.gpu_hours * 100 / most), 1),
    }


def _source(report: Report) -> list[dict[str, str]]:
    source = report.source
    items = (
        ("Command", source.command),
        ("Ledger", source.ledger),
        ("Origin", source.origin),
        ("Seed", source.seed),
        ("Head", f"position {source.position:,}, {local(source.head_at_us).isoformat()}"),
        ("Chain head", source.chain_head),
        ("Tenure", source.version),
    )
    named = (items[0], ("Objects", source.ledger), items[-1])
    shown = named if report.of_objects else items
    return [{"label": label, "value": value} for label, value in shown if value]


def _share(part: int, point: CapacityPoint) -> float:
    return part * 100 / point.capacity if point.capacity else 0.0


def _percent(value: float) -> str:
    """Return a percentage that no line break takes apart."""
    return f"{value:.1f}\u00a0%"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
