"""`tenure usage`: GPU-hours and CPU-hours by group, and what was left idle or stranded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from ledger.domain.errors import InputError
from tenure.asking import EVERYBODY, Answer, Sight
from tenure.exits import with_next
from tenure.live.place import NO_PARQUET, Place, asks, say
from tenure.opening import moment_of, time_of
from tenure.options import (
    DataOutput,
    Out,
)
from tenure.output import Column, DataFormat, OutputFormat, write_answer
from tenure.times import LedgerTime, iso_time
from tenure.units import format_time

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from ledger.store.reading.report_queries import UsageGroup
    from ledger.store.reading.report_rows import Span, UsageRecord
    from scheduler.usage.model import CapacityPoint, History


LABEL: Final = "label:"
GROUPS: Final = ("namespace", "owner", "model")
SAMPLES: Final = 500
"""Moments at which idle and stranded capacity are looked at."""
_COLUMNS: Final = (
    Column(key="group", title="GROUP"),
    Column(key="pods", title="PODS", right=True, show="{:,}".format),
    Column(key="gpu_hours", title="GPU-HOURS", right=True, show="{:,.1f}".format),
    Column(key="share_percent", title="SHARE", right=True, show="{:.1f}%".format),
    Column(key="cpu_hours", title="CPU-HOURS", right=True, show="{:,.1f}".format),
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("usage")(usage)


@asks()
def usage(
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="GROUP", help="namespace, owner, model or label:KEY.")
    ] = "namespace",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help='ISO 8601 with a zone, or "7d ago". Default: the ledger\'s beginning.',
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Default: now.", show_default=False),
    ] = None,
    place: Place,
    output: DataOutput = DataFormat.TABLE,
    out: Out = None,
) -> None:
    """
    GPU-hours and CPU-hours by group, with what was idle or stranded.

    Example: tenure usage --by namespace --since "7d ago"

    By the label team: tenure usage --by label:team -o csv
    """
    from tenure.parquet import parquet_target

    parquet = parquet_target(output, out)
    question = UsageQuestion(by=by, since=since, until=until, output=output.text_form)
    if parquet is None:
        place.print("usage", answer_usage, question)
        return
    _group(by)
    with place.opened(NO_PARQUET) as source:
        answer = Answer()
        used = _used(source, question, EVERYBODY, answer)
    say(answer)
    parquet.write(used.records, [column.key for column in _COLUMNS])


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuestion:
    """Who used how much within a window, by group."""

    by: str = "namespace"
    since: str | None = None
    until: str | None = None
    output: OutputFormat = OutputFormat.TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """What was used, and what capacity there was; None for whoever sees one namespace."""

    since_us: int
    until_us: int
    records: list[dict[str, Any]]
    history: History | None


def answer_usage(source: Ledger, question: UsageQuestion, sight: Sight) -> Answer:
    """
    Answer who used how much.

    Raises:
        InputError: the group or the window can't be read.
    """
    from scheduler.usage.capacity import capacity_over

    answer = Answer()
    used = _used(source, question, sight, answer)
    history, parts, has_time = used.history, None, True
    if history is not None:
        moments = _moments(used.since_us, used.until_us)
        points = capacity_over(history, moments) if history.cards else ()
        has_time = history.axis == "time"
        parts = capacity_parts(points) if has_time else None
    document = {
        "since": iso_time(used.since_us),
        "until": iso_time(used.until_us),
        "by": question.by,
        **({} if sight.whole else {"namespace": sight.namespace}),
        "groups": used.records,
        "capacity_percent": parts,
    }
    columns = [Column(key="group", title=question.by.upper()), *_COLUMNS[1:]]
    write_answer(question.output, used.records, columns, document=document, out=answer.out)
    answer.note(f"window: {format_time(used.since_us)} to {format_time(used.until_us)}")
    if parts is not None and question.output.is_table:
        words = ", ".join(f"{name} {part} %" for name, part in parts.items())
        answer.out.write(f"GPU capacity, mean: {words}\n")
    if not has_time:
        answer.note("every decision was made at one moment, so nothing lasted for hours")
    return answer


def _used(source: Ledger, question: UsageQuestion, sight: Sight, answer: Answer) -> _Used:
    """Return what was used, from one state of the ledger."""
    from ledger.store.reading import report_queries as queries
    from scheduler.usage.unplaced import with_unplaced
    from tenure.report.build import load_history, unlisted_of

    group = _group(question.by)
    now = time_of(source)
    with source.connection.begin():
        span = queries.span(source.connection)
        since_us, until_us = _window(question, now, span, answer)
        namespace = sight.namespace or None
        rows = queries.usage(source.connection, group, since_us, until_us, namespace=namespace)
        rows = with_unplaced(
            rows,
            group,
            unlisted_of(source, span, namespace=namespace),
            (since_us, until_us),
        )
        history = load_history(source, span) if sight.whole else None
    if group == "labels":
        rows = by_label(rows, question.by.removeprefix(LABEL))
    records = [_record(row, rows) for row in sorted(rows, key=_by_hours)]
    return _Used(since_us=since_us, until_us=until_us, records=records, history=history)


def capacity_parts(points: Sequence[CapacityPoint]) -> dict[str, float] | None:
    """Return the mean parts of the GPU capacity in percent, None without any capacity."""
    names = ("allocated", "stranded", "usable", "closed")
    sums = {name: sum(getattr(point, name) for point in points) for name in names}
    whole = sum(sums.values())
    if not whole:
        return None
    share = {name: round(part * 100 / whole, 1) for name, part in sums.items()}
    return {
        "allocated": share["allocated"],
        "stranded": share["stranded"],
        "idle": share["usable"],
        "closed": share["closed"],
    }


def by_label(rows: Iterable[UsageRecord], key: str) -> list[UsageRecord]:
    """Return usage by label set as usage by the value of one label; "" for Pods without it."""
    from ledger.store.reading.report_rows import UsageRecord

    groups: dict[str, list[UsageRecord]] = {}
    for row in rows:
        labels = json.loads(row.group or "{}")
        groups.setdefault(str(labels.get(key, "")), []).append(row)
    return [
        UsageRecord(
            group=value,
            pods=sum(row.pods for row in members),
            gpu_hours=sum(row.gpu_hours for row in members),
            cpu_hours=sum(row.cpu_hours or 0.0 for row in members),
        )
        for value, members in groups.items()
    ]


def _group(by: str) -> UsageGroup:
    if by.startswith(LABEL) and len(by) > len(LABEL):
        return "labels"
    if by not in GROUPS:
        error = InputError(f"unknown group: {by!r}", field="--by")
        raise with_next(error, f"use {', '.join(GROUPS)} or label:KEY, such as label:team")
    return cast("UsageGroup", by)


def _window(
    question: UsageQuestion, now: LedgerTime, span: Span, answer: Answer
) -> tuple[int, int]:
    since_us, until_us = span.first_at_us, now.now_us
    if question.since is not None:
        since_us = moment_of(question.since, now, option="--since", say=answer.note)
    if question.until is not None:
        until_us = moment_of(question.until, now, option="--until", say=answer.note)
    if until_us < since_us:
        raise InputError("the window ends before it begins", field="--until")
    return max(since_us, span.first_at_us), max(since_us, min(until_us, now.now_us))


def _moments(since_us: int, until_us: int) -> list[int]:
    """Return moments in the middle of equal parts of the window."""
    width = until_us - since_us
    return [since_us + width * (2 * i + 1) // (2 * SAMPLES) for i in range(SAMPLES)]


def _by_hours(row: UsageRecord) -> tuple[float, float, str]:
    return -row.gpu_hours, -(row.cpu_hours or 0.0), row.group


def _record(row: UsageRecord, rows: Sequence[UsageRecord]) -> dict[str, Any]:
    total = sum(each.gpu_hours for each in rows)
    return {
        "group": row.group,
        "pods": row.pods,
        "gpu_hours": round(row.gpu_hours, 3),
        "share_percent": round(row.gpu_hours * 100 / total, 2) if total else 0.0,
        "cpu_hours": None if row.cpu_hours is None else round(row.cpu_hours, 3),
    }
