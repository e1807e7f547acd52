"""`tenure top`: who holds most now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.amounts import format_bytes, format_cores
from ledger.domain.errors import InputError
from ledger.domain.resources import TYPE_GPU
from tenure.asking import Answer, Sight
from tenure.live.place import Place, asks, expect_now
from tenure.live.place import watch as watch_it
from tenure.opening import time_of
from tenure.options import Files, Output
from tenure.output import Column, OutputFormat, write_answer
from tenure.simulate.dump import ledger_of_files
from tenure.times import LedgerTime, iso_or_none
from tenure.units import format_duration

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import HolderRow

LIMIT: Final = 20
_MIB: Final = 1 << 20


class TopGroup(StrEnum):
    """Who is compared."""

    POD = "pod"
    OWNER = "owner"
    NAMESPACE = "namespace"
    NODE = "node"


@asks()
def top(
    files: Files = None,
    *,
    by: Annotated[TopGroup, typer.Option("--by", help="Who is compared.")] = TopGroup.POD,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="How many are shown.")
    ] = LIMIT,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.5, max=3600, metavar="SECONDS", help="Between two looks.")
    ] = 2.0,
    place: Place,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Who holds most now: GPUs, their memory, CPUs, and since when.

    Example: tenure top --by namespace

    Any cluster: kubectl get nodes,pods -A -o json | tenure top -

    Of the live service, again and again: tenure top --live --watch
    """
    place = place.over(files, ledger_of_files)
    expect_now(files, watch=watch)
    question = TopQuestion(by=by, limit=limit, output=output)
    if not watch:
        place.print("top", answer_top, question)
        return
    if not output.is_table:
        raise InputError("--watch shows a table", field="--watch")
    watch_it(place, "top", answer_top, lambda _: question, interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopQuestion:
    """Who holds most now."""

    by: TopGroup = TopGroup.POD
    limit: int = LIMIT
    output: OutputFormat = OutputFormat.TABLE


_NOTHING: Final = Fraction()


@dataclass(slots=True)
class _Sum:
    """What one group holds."""

    pods: set[str]
    nodes: set[str]
    since_us: int | None
    gpu_percent: Fraction = _NOTHING
    gpu_memory_bytes: int = 0
    cpu_milli: int = 0
    unknown: int = 0


def answer_top(source: Ledger, question: TopQuestion, sight: Sight) -> Answer:
    """
    Answer who holds most: by GPUs, then by their memory, CPUs, and name.

    A card counts as `usage` counts it (docs/audit.md, GPU-hours), so that nobody's part of a card
    is more than the card has for him.

    Raises:
        InputError: the limit is none.
    """
    from ledger.store.reading import report_queries as queries
    from scheduler.usage.picture import counted_percent, of_others, unplaced_on
    from tenure.picture import picture_of_ledger

    if question.limit < 1:
        raise InputError(f"must be at least 1: value={question.limit}", field="--limit")
    with source.connection.begin():
        devices = queries.device_holders(source.connection)
        whole = queries.pod_holders(source.connection)
        picture = picture_of_ledger(source, None)
    unplaced: Counter[str] = Counter()
    for pod in (pod for node in picture.nodes for pod in unplaced_on(node)):
        unplaced[pod.uid] += pod.cards
    others = of_others(picture)
    counted = counted_percent(picture)
    now, sums = time_of(source), dict[str, _Sum]()
    for holder in _seen(whole, sight):
        one = _sum_of(sums, holder, question.by, now)
        one.cpu_milli += holder.cpu_milli
        one.unknown += unplaced[holder.pod_uid]
        for part in others.get(holder.pod_uid, ()):
            one.gpu_memory_bytes += (part.memory_mib or 0) * _MIB
        one.gpu_percent += counted.pop(holder.pod_uid, 0)
    for holder in _seen(devices, sight):
        one = _sum_of(sums, holder, question.by, now)
        if holder.device_type == TYPE_GPU:
            one.gpu_memory_bytes += holder.memory_bytes
    order = sorted(sums, key=lambda name: (*_amounts(sums[name]), name))
    records = [_record(name, sums[name], now.now_us) for name in order[: question.limit]]
    answer = Answer()
    columns = [Column(key="name", title=question.by.upper()), *_COLUMNS]
    write_answer(question.output, records, columns, out=answer.out)
    if len(order) > question.limit:
        answer.note(f"{len(order) - question.limit} more hold less: give --limit for more")
    return answer


_COLUMNS: Final = (
    Column(key="pods", title="PODS", right=True),
    Column(key="nodes", title="NODES", right=True),
    Column(key="gpus", title="GPUS", right=True, show="{:.2f}".format),
    Column(
        key="gpu_memory_bytes",
        title="GPU MEMORY",
        right=True,
        show=lambda amount: format_bytes(amount) if amount else "-",
    ),
    Column(key="cpu_milli", title="CPUS", right=True, show=format_cores),
    Column(key="unknown", title="UNKNOWN CARDS", right=True, show=lambda n: str(n or "-")),
    Column(key="seconds", title="FOR", right=True, show=lambda s: format_duration(round(s * 1e6))),
    Column(key="since", title="SINCE", wide=True),
)


def _seen(holders: Iterable[HolderRow], sight: Sight) -> Iterable[HolderRow]:
    return (holder for holder in holders if sight.sees(holder.namespace))


def _sum_of(sums: dict[str, _Sum], holder: HolderRow, by: TopGroup, now: LedgerTime) -> _Sum:
    since_us = now.since(holder.pod_uid, holder.opened_at_us)
    pod = f"{holder.namespace}/{holder.pod_name}"
    match by:
        case TopGroup.POD:
            name = pod
        case TopGroup.OWNER:
            name = f"{holder.namespace}/{holder.owner}" if holder.owner else pod
        case TopGroup.NAMESPACE:
            name = holder.namespace
        case TopGroup.NODE:
            name = holder.node_name
    one = sums.get(name)
    if one is None:
        one = sums[name] = _Sum(pods=set(), nodes=set(), since_us=since_us)
    one.pods.add(holder.pod_uid)
    one.nodes.add(holder.node_uid)
    if one.since_us is not None:
        one.since_us = None if since_us is None else min(one.since_us, since_us)
    return one


def _amounts(one: _Sum) -> tuple[Fraction, int, int]:
    return -one.gpu_percent, -one.gpu_memory_bytes, -one.cpu_milli


def _record(name: str, one: _Sum, now_us: int) -> dict[str, Any]:
    return {
        "name": name,
        "pods": len(one.pods),
        "nodes": len(one.nodes),
        "gpus": float(one.gpu_percent / 100),
        "gpu_memory_bytes": one.gpu_memory_bytes,
        "cpu_milli": one.cpu_milli,
        "unknown": one.unknown,
        "seconds": None if one.since_us is None else max(0, now_us - one.since_us) / 1_000_000,
        "since": iso_or_none(one.since_us),
    }
