"""Who waited, from when to when, and why: for the page of a Pod."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

from ledger.domain.log.events import STAGE_GONE, RefusalReason, RequestRefused, decode_event
from ledger.store.reading.report_rows import PlacingRow, RefusalRow
from scheduler.cluster.model import ClusterSnapshot
from scheduler.decide.outcome import what_release_means
from scheduler.service.api.words import WEBHOOK_ACTOR
from scheduler.usage.model import Axis
from scheduler.whatif.causes import Cause, cause_of
from scheduler.whatif.what_if import what_if_of

WAITS_BYTES_MAX: Final = 350_000
"""What the waits may take of a page at least."""

Packed: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """
    One Pod's refusals in a row.

    Attributes:
        opened: of the first refusal, on the axis of the history.
        closed: when it got a place, None where it got none.
        admission: refused at admission at last: its object never was, so nothing waits.
        refusals: (moment, message), ascending.
        reasons: of the last refusal.
        asked: what was asked for by then: alike Pods have the same.
    """

    namespace: str
    name: str
    opened: int
    closed: int | None
    node: str
    admission: bool
    shape: str
    refusals: tuple[tuple[int, str], ...]
    reasons: tuple[RefusalReason, ...]
    pod_uid: str = ""
    asked: tuple[str | None, int, int] = (None, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One cause for which Pods wait, in words, with the one that waits longest as an example."""

    words: str
    pods: int
    example: str
    detail: str = ""
    remedy: str = ""


def cause_rows(waits: Iterable[Wait], cluster: ClusterSnapshot | None) -> Iterator[CauseRow]:
    """Yield the causes of waits, each under one; `cluster` is as it is now, None = not known."""
    known = cluster if cluster is not None and cluster.knows_nodes else None
    what_if = None if known is None else what_if_of(known, "")
    causes: dict[object, Cause] = {}
    rows: dict[str, list[tuple[Wait, str]]] = {}
    for wait in waits:
        request = None if known is None else known.requests.get(wait.pod_uid)
        alike = (wait.asked, wait.reasons)
        if alike not in causes or causes[alike].takes:
            causes[alike] = cause_of(request, wait.reasons, what_if)
        rows.setdefault(causes[alike].words, []).append((wait, causes[alike].about))
    for words, pods in rows.items():
        first, about = pods[0]
        same = (each.remedy for each in first.reasons if each.reason.startswith(about))
        yield CauseRow(
            words=words,
            pods=len(pods),
            example=f"{first.namespace}/{first.name}",
            detail=first.refusals[-1][1],
            remedy=next(filter(None, same), ""),
        )


def waits_of(
    refusals: Iterable[RefusalRow],
    placings: Iterable[PlacingRow],
    *,
    axis: Axis,
    nodes: Mapping[str, str],
) -> tuple[Wait, ...]:
    """
    Return the waits by their beginnings.

    Args:
        refusals: by position.
        placings: of Pods that were refused, by position.
        nodes: UID -> name.
    """
    placed: dict[str, list[PlacingRow]] = {}
    for row in placings:
        placed.setdefault(row.pod_uid, []).append(row)
    runs: dict[tuple[str, int], list[RefusalRow]] = {}
    for refusal in refusals:
        nth = sum(row.position < refusal.position for row in placed.get(refusal.pod_uid, ()))
        runs.setdefault((refusal.pod_uid, nth), []).append(refusal)
    waits = []
    for (uid, nth), run in runs.items():
        rest = placed.get(uid, [])[nth:]
        waits.append(_wait(run, rest[0] if rest else None, axis, nodes))
    return tuple(sorted(waits, key=lambda wait: (wait.opened, wait.namespace, wait.name)))


def _wait(
    run: Sequence[RefusalRow], place: PlacingRow | None, axis: Axis, nodes: Mapping[str, str]
) -> Wait:
    *words, end = run
    is_gone = end.stage == STAGE_GONE and bool(words)
    run = words if is_gone else run
    last = run[-1]
    event = decode_event(RequestRefused.event_type, last.body)
    assert isinstance(event, RequestRefused), last
    moments = [row.at_us if axis == "time" else row.position for row in run]
    closed = None
    if is_gone:
        closed = end.at_us if axis == "time" else end.position
    elif place is not None:
        closed = place.opened_at_us if axis == "time" else place.position
    return Wait(
        namespace=last.namespace,
        name=last.pod_name,
        opened=moments[0],
        closed=closed,
        node=nodes.get(place.node_uid, "") if place else "",
        admission=last.actor == WEBHOOK_ACTOR,
        shape=last.shape,
        refusals=tuple((at, row.message) for at, row in zip(moments, run, strict=True)),
        reasons=event.reasons,
        pod_uid=last.pod_uid,
        asked=(event.request, event.cpu_milli, event.memory_bytes),
    )


def waits_within(waits: Iterable[Wait], since: int, until: int) -> tuple[Wait, ...]:
    """Return those that waited, or were refused, between two moments."""
    return tuple(
        wait
        for wait in waits
        if wait.opened <= until and (wait.closed is None or wait.closed >= since)
    )


def pack_waits(
    waits: Sequence[Wait], start: int, budget_bytes: int = WAITS_BYTES_MAX
) -> tuple[Packed, int]:
    """
    Return the document of the waits, and how many did not fit: the earliest that ended.

    `texts` are the distinct texts. A row is [namespace, name, opened, closed or null, node,
    admission, shape, refusals, reasons, what their advice means], a refusal [moment, message], a
    reason [reason, nodes, nearest node, detail, remedy]. Moments count from `start`; texts are
    places in `texts`; `left_out` is how many did not fit.
    """
    texts: dict[str, int] = {}
    rows: list[list[Any]] = []
    size = 0
    for wait in sorted(waits, key=lambda wait: (wait.closed is not None, -wait.opened)):
        known = len(texts)
        row = _packed(wait, start, texts)
        new = list(islice(reversed(texts), len(texts) - known))
        size += len(json.dumps(row, separators=(",", ":"))) + 1
        size += sum(len(json.dumps(text)) + 1 for text in new)
        if size > budget_bytes:
            for text in new:
                del texts[text]
            break
        rows.append(row)
    rows.sort(key=itemgetter(2))
    left_out = len(waits) - len(rows)
    return {"texts": list(texts), "rows": rows, "left_out": left_out}, left_out


def _packed(wait: Wait, start: int, texts: dict[str, int]) -> list[Any]:
    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    return [
        place(wait.namespace),
        place(wait.name),
        wait.opened - start,
        None if wait.closed is None else wait.closed - start,
        place(wait.node),
        int(wait.admission),
        place(wait.shape),
        [[at - start, place(message)] for at, message in wait.refusals],
        [
            [place(r.reason), r.nodes, place(r.nearest_node), place(r.detail), place(r.remedy)]
            for r in wait.reasons
        ],
        place(what_release_means(r.remedy for r in wait.reasons)),
    ]
