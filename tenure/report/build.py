"""The report of an open ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger.domain.errors import InputError, LedgerError
from ledger.domain.log.events import NodeDescribed, SettingsChanged
from ledger.store.reading import gpu_hours, pod_queries, unnamed_queries
from ledger.store.reading import report_queries as queries
from ledger.store.reading.gpu_hours import CapacityChange, GpuGroup
from ledger.store.reading.kept import each_of, events_of
from ledger.store.reading.report_rows import Counts, Span, UsageRecord
from scheduler.service.api.words import WEBHOOK_ACTOR
from scheduler.usage.capacity import (
    PARTS,
    capacity_at,
    capacity_between,
    cards_over,
    changes_of_others,
    in_percent,
)
from scheduler.usage.history import history_of
from scheduler.usage.machines import has_twins
from scheduler.usage.model import CapacityPoint, History
from scheduler.usage.unplaced import counted_us, unlisted, with_unplaced
from tenure.exits import with_next
from tenure.picture import not_counted_words, picture_of_ledger, rows_of_ledgers_others
from tenure.report.model import Report, ReportSource, Totals, models_in
from tenure.report.page import render
from tenure.report.thin import within
from tenure.report.waiting import CauseRow, Wait, cause_rows, waits_of, waits_within
from tenure.times import decided_us
from tenure.units import format_time
from tenure.version import tenure_version

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from ledger.store.proving.verify import VerifyReport

SAMPLES: Final = 360
"""Moments of the capacity chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From when to when a report tells; None = from the ledger's beginning, to its end."""

    since_us: int | None = None
    until_us: int | None = None


ALL: Final = Period()


def write_report(report: Report, path: Path) -> int:
    """Write the page and return its size in bytes. Raises InputError: it can't be written."""
    page = render(report).encode()
    try:
        path.write_bytes(page)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"can't write the report: {reason}", place=str(path)) from error
    return len(page)


def read_report(
    ledger: Ledger,
    *,
    proof: VerifyReport | None,
    command: str,
    seed: str = "",
    period: Period = ALL,
) -> Report:
    """
    Return the report of an open ledger, everything in it from one transaction.

    `proof` is what `verify` found; without it the page says "not verified". `seed` is shown in the
    footer; without it the one of the settings in force, if they have one.

    Raises:
        InputError: a ledger without events or with none in the period.
    """
    head, connection = ledger.head(), ledger.connection
    began = ledger.began
    if not head.position:
        error = InputError("the ledger has no events yet", place=ledger.url)
        raise with_next(error, "`tenure simulate FILE... --ledger FILE` makes one that has")
    with connection.begin():
        span = queries.span(connection)
        history = load_history(ledger, span)
        window = _window(period, history, span)
        if began is not None:  # who ended before is in no object: one moment is known
            window = (window[0], decided_us(began))
            at = window[1] if history.axis == "time" else history.end
            history = within(history, at, at)
        elif period != ALL:
            history = within(history, *window)
        counts = _counts(ledger, period, window)
        refusals = [*pod_queries.refusals(connection)]
        waits_by = partial(
            waits_of,
            placings=[*pod_queries.placing_rows(connection)],
            axis=history.axis,
            nodes={node.node_uid: node.node_name for node in queries.nodes(connection)},
        )
        waits = waits_by(refusals)
        if began is not None:
            waits = tuple(
                replace(wait, opened=min(began.get(wait.pod_uid, at), at)) for wait in waits
            )
        told = events_of(connection, SettingsChanged)
        usage = usage_of(ledger, span, "namespace", window)
        missing = not_counted(ledger, span, window)
        capacity, mean = _capacity(ledger, history) if began is None else ((), None)
        now = period == ALL and began is None
        picture = picture_of_ledger(ledger, None) if now else None
    if picture is None:  # what was is the same in any transaction
        picture = picture_of_ledger(ledger, window[1])
    at_end = waits if period == ALL else waits_by(r for r in refusals if r.at_us <= window[1])
    causes = _causes(ledger, at_end, period, history.end)
    return Report(
        totals=_totals(counts, history, proof, events=head.position),
        history=history,
        cards=picture.summary.cards,
        models=models_in(picture),
        source=ReportSource(
            command=command,
            ledger=ledger.url,
            origin=head.origin,
            seed=seed or setting(told[-1].settings if told else "", "seed"),
            chain_head=head.chain_hash.hex(),
            position=head.position,
            head_at_us=ledger.now_us(),
            version=tenure_version(),
        ),
        capacity=capacity,
        mean=mean,
        causes=causes,
        waits=waits_within(waits, history.start, history.end),
        usage=usage,
        of_objects=began is not None,
        notes=tuple(not_counted_lines(ledger, missing)),
    )


def _causes(ledger: Ledger, waits: Iterable[Wait], period: Period, end: int) -> list[CauseRow]:
    """Return why those wait that wait at the end; what keeps them is decided for now alone."""
    from scheduler.cluster.snapshot import settings_of, snapshot_of_ledger
    from scheduler.whatif.causes import FITS

    still = [
        wait for wait in waits if not wait.admission and (wait.closed is None or wait.closed > end)
    ]
    cluster = None
    if still and period == ALL:
        with suppress(LedgerError):  # a broken ledger has a page, too
            cluster = snapshot_of_ledger(ledger, None, settings_of(ledger))
    rows = [*cause_rows(still, cluster)]
    if ledger.began is not None:
        with ledger.connection.begin():
            holders = queries.pod_holders(ledger.connection)
        until = decided_us(ledger.began)
        fits = [f"{h.namespace}/{h.pod_name}" for h in holders if h.opened_at_us > until]
        rows += [CauseRow(words=FITS, pods=len(fits), example=fits[0])] if fits else []
    return sorted(rows, key=lambda row: (-row.pods, row.words))


def _totals(counts: Counts, history: History, proof: VerifyReport | None, *, events: int) -> Totals:
    return Totals(
        decided=counts.decided,
        placed=counts.placed,
        refused=counts.refused,
        waiting=counts.waiting,
        at_admission=counts.at_admission,
        events=events,
        over=len(cards_over(history)) if proof and proof.ok else None,
        verified_seconds=proof.seconds if proof else None,
        findings=tuple(map(str, proof.findings)) if proof else (),
        unread=proof.unread if proof else 0,
    )


def _window(period: Period, history: History, span: Span) -> tuple[int, int]:
    """Return the period within the ledger's own time, in microseconds since the epoch."""
    if period == ALL:
        return span.first_at_us, span.last_at_us
    if history.axis == "position":
        error = InputError("every decision of this ledger was made at one moment", field="--since")
        raise with_next(error, "leave out --since and --until")
    since, until = period.since_us, period.until_us
    first = span.first_at_us if since is None else max(since, span.first_at_us)
    last = span.last_at_us if until is None else min(until, span.last_at_us)
    if first >= last:
        told = f"{format_time(span.first_at_us)} to {format_time(span.last_at_us)}"
        error = InputError("nothing is recorded in this period", field="--since")
        raise with_next(error, f"choose a part of {told}")
    return first, last


def _counts(ledger: Ledger, period: Period, window: tuple[int, int]) -> Counts:
    connection = ledger.connection
    if period == ALL:
        return pod_queries.counts(connection, admission=WEBHOOK_ACTOR)
    since, until = window
    ended = pod_queries.counts(connection, admission=WEBHOOK_ACTOR, until_us=until)
    counts = pod_queries.counts(connection, admission=WEBHOOK_ACTOR, since_us=since, until_us=until)
    return replace(counts, waiting=ended.waiting, at_admission=ended.at_admission)


def _capacity(
    ledger: Ledger, history: History
) -> tuple[Sequence[CapacityPoint], dict[str, float] | None]:
    connection, start, end = ledger.connection, history.start, history.end
    moments = sorted({start + (end - start) * i // SAMPLES for i in range(SAMPLES + 1)})
    changes = capacity_of(ledger, queries.span(connection))
    if history.axis == "time":
        return (
            capacity_at(changes, moments),
            in_percent(capacity_between(changes, start, end)),
        )
    found = capacity_at(changes, gpu_hours.times_of(connection, moments))
    points = [replace(point, at=at) for point, at in zip(found, moments, strict=True)]
    return points, in_percent({name: sum(getattr(p, name) for p in points) for name in PARTS})


def capacity_of(ledger: Ledger, span: Span) -> list[CapacityChange]:
    """Return every change of what became of all cards, by time; inside a transaction."""
    connection, others = ledger.connection, rows_of_ledgers_others(ledger, span)
    changes = list(gpu_hours.capacity_changes(connection))
    if not others.given:
        return changes
    there = gpu_hours.others_there(connection)
    more = changes_of_others(others, there, queries.lost_ranges(connection))
    return sorted([*changes, *more])


def load_history(ledger: Ledger, span: Span) -> History:
    """Return everything the ledger knows of devices and their holders; inside a transaction."""
    connection = ledger.connection
    nodes, created = queries.nodes(connection), {}
    if has_twins(nodes):
        described = each_of(connection, NodeDescribed)
        created = {each.node_uid: each.facts.created for each in described}
    others = rows_of_ledgers_others(ledger, span)
    devices = [each for each in queries.devices(connection) if each.node_uid not in others.nodes]
    told = {each.row.position for each in others.unplaced}
    unnamed = unnamed_queries.unplaced_rows(connection)  # nobody can name their cards
    return history_of(
        span=span,
        nodes=nodes,
        devices=[*devices, *others.devices],
        health=[*others.health, *others.absent, *queries.health_changes(connection)],
        holdings=[*queries.holding_rows(connection), *others.holdings],
        unplaced=[*unlisted(row for row in unnamed if row.position not in told), *others.unplaced],
        apart=others.apart,
        first_reserved=queries.first_reserved(connection),
        created=created,
    )


def usage_of(
    ledger: Ledger,
    span: Span,
    by: GpuGroup,
    window: tuple[int, int],
    *,
    namespace: str | None = None,
) -> list[UsageRecord]:
    """Return what each group used, with what others gave, which is counted by their own units."""
    others = rows_of_ledgers_others(ledger, span)
    rows = queries.usage(ledger.connection, by, *window, namespace=namespace)
    counted = zip(
        others.used, counted_us(others.used, others.given, window, others.passing), strict=True
    )
    seen = (each for each in counted if namespace in {None, each[0].row.namespace})
    return with_unplaced(rows, by, seen)


def not_counted(
    ledger: Ledger, span: Span, window: tuple[int, int], *, namespace: str | None = None
) -> list[str]:
    """Return the paths of those of whom `usage_of` can't know what they held, by first holding."""
    if (began := ledger.began) is not None:
        holders = queries.pod_holders(ledger.connection)
        undated = [each for each in holders if each.pod_uid not in began]
        return [f"{each.namespace}/{each.pod_name}" for each in undated]
    archived = unnamed_queries.archived_holders(ledger.connection, *window, namespace=namespace)
    nodes = rows_of_ledgers_others(ledger, span).nodes if archived else frozenset[str]()
    return list(dict.fromkeys(path for node, path in archived if node in nodes))


def not_counted_lines(ledger: Ledger, missing: Sequence[str]) -> Iterator[str]:
    """Say whose hours are not known, and what of a cluster's objects nobody knows."""
    if missing:
        yield not_counted_words(missing, of_objects=ledger.began is not None)
    if ledger.began is not None:
        yield "Pods that ended before are not in the objects: their hours are not known"


def setting(text: str, key: str) -> str:
    """Return one setting as text, from the event's settings; empty if it is not there."""
    settings = json.loads(text or "{}")
    value = settings.get(key) if isinstance(settings, dict) else None
    return "" if value is None else str(value)
