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
from tenure.opening import time_of, window_of
from tenure.options import DataOutput, Files, Out, Since, Until
from tenure.output import Column, DataFormat, OutputFormat, write_answer
from tenure.simulate.dump import ledger_of_files
from tenure.times import iso_time
from tenure.units import format_time

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from ledger.store.reading.gpu_hours import GpuGroup
    from ledger.store.reading.report_rows import UsageRecord


LABEL: Final = "label:"
GROUPS: Final = ("namespace", "owner", "model")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1f}%"


_COLUMNS: Final = (
    Column(key="group", title="GROUP"),
    Column(key="pods", title="PODS", right=True, show="{:,}".format),
    Column(key="gpu_hours", title="GPU-HOURS", right=True, show="{:,.1f}".format),
    Column(key="share_percent", title="SHARE", right=True, show=_percent),
    Column(key="cpu_hours", title="CPU-HOURS", right=True, show="{:,.1f}".format),
)


@asks()
def usage(
    files: Files = None,
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="GROUP", help="namespace, owner, model or label:KEY.")
    ] = "namespace",
    since: Since = None,
    until: Until = None,
    place: Place,
    output: DataOutput = DataFormat.TABLE,
    out: Out = None,
) -> None:
    """
    GPU-hours and CPU-hours by group, with what was idle or stranded.

    Example: tenure usage --by namespace --since "7d ago"

    Of the Pods of any cluster: kubectl get nodes,pods -A -o json | tenure usage -

    By the label team: tenure usage --by label:team -o csv
    """
    from tenure.parquet import parquet_target

    place = place.over(files, ledger_of_files)
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
    """
    What was used, and what became of the GPUs in percent.

    `capacity` is None for whoever sees one namespace, without any GPU, and where nothing lasted.
    `not_counted` are Pods that may have held cards of which only archived events tell, and of
    objects those of which none says since when they run.
    """

    since_us: int
    until_us: int
    records: list[dict[str, Any]]
    capacity: dict[str, float] | None
    has_time: bool
    not_counted: list[str]


def answer_usage(source: Ledger, question: UsageQuestion, sight: Sight) -> Answer:
    """Answer who used how much. Raises InputError: the group or the window can't be read."""
    answer = Answer()
    used = _used(source, question, sight, answer)
    document = {
        "since": iso_time(used.since_us),
        "until": iso_time(used.until_us),
        "by": question.by,
        **({} if sight.whole else {"namespace": sight.namespace}),
        "groups": used.records,
        "capacity_percent": used.capacity,
        "not_counted": used.not_counted,
    }
    columns = [Column(key="group", title=question.by.upper()), *_COLUMNS[1:]]
    write_answer(question.output, used.records, columns, document=document, out=answer.out)
    answer.note(f"window: {format_time(used.since_us)} to {format_time(used.until_us)}")
    if used.capacity is not None and question.output.is_table:
        shown = {name: part for name, part in used.capacity.items() if name != "unknown" or part}
        words = ", ".join(f"{name} {part} %" for name, part in shown.items())
        answer.out.write(f"GPU capacity, mean: {words}\n")
    if not used.has_time:
        answer.note("every decision was made at one moment, so nothing lasted for hours")
    return answer


def _used(source: Ledger, question: UsageQuestion, sight: Sight, answer: Answer) -> _Used:
    from ledger.store.reading import report_queries as queries
    from scheduler.usage.capacity import capacity_between, in_percent
    from scheduler.usage.history import axis_of
    from tenure.report.build import capacity_of, not_counted, not_counted_lines, usage_of

    group = _group(question.by)
    now, capacity = time_of(source), None
    with source.connection.begin():
        span = queries.span(source.connection)
        since_us, until_us = window_of(
            question.since, question.until, now, span.first_at_us, answer.note
        )
        namespace = sight.namespace or None
        rows = usage_of(source, span, group, (since_us, until_us), namespace=namespace)
        missing = not_counted(source, span, (since_us, until_us), namespace=namespace)
        answer.notes += not_counted_lines(source, missing)
        has_time = not sight.whole or now.began is not None or axis_of(span) == "time"
        if sight.whole and has_time and now.began is None:
            changes = capacity_of(source, span)
            capacity = in_percent(capacity_between(changes, since_us, until_us))
    if group == "labels":
        rows = by_label(rows, question.by.removeprefix(LABEL))
    in_order = sorted(rows, key=lambda row: (-row.gpu_hours, -(row.cpu_hours or 0.0), row.group))
    records = [_record(row, rows) for row in in_order]
    return _Used(
        since_us=since_us,
        until_us=until_us,
        records=records,
        capacity=capacity,
        has_time=has_time,
        not_counted=missing,
    )


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


def _group(by: str) -> GpuGroup:
    if by.startswith(LABEL) and len(by) > len(LABEL):
        return "labels"
    if by not in GROUPS:
        error = InputError(f"unknown group: {by!r}", field="--by")
        raise with_next(error, f"use {', '.join(GROUPS)} or label:KEY, such as label:team")
    return cast("GpuGroup", by)


def _record(row: UsageRecord, rows: Sequence[UsageRecord]) -> dict[str, Any]:
    total = sum(each.gpu_hours for each in rows)
    return {
        "group": row.group,
        "pods": row.pods,
        "gpu_hours": round(row.gpu_hours, 3),
        "share_percent": round(row.gpu_hours * 100 / total, 2)
        if round(total, 3)  # moments are no hours
        else None,
        "cpu_hours": None if row.cpu_hours is None else round(row.cpu_hours, 3),
    }
