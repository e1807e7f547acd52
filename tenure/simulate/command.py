"""The work of `tenure simulate`: options in, inputs read, runs decided, the answer written."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, TextIO

from ledger.domain.errors import InputError
from ledger.domain.request.requests import PodRequest
from ledger.store.open import open_ledger
from scheduler.cluster.constraints import in_sum
from scheduler.cluster.rebuilt import requests_seen
from scheduler.decide.settings import DEFAULT_SCHEDULING, POLICIES, SchedulingSettings
from tenure.exits import AnswerIsNo, note, warn, with_next
from tenure.opening import clock_us, moment_of
from tenure.output import Column, OutputFormat, write_answer
from tenure.progress import counting_bar
from tenure.settings import read_settings
from tenure.simulate.model import Run
from tenure.simulate.options import Options
from tenure.simulate.render import write_result
from tenure.simulate.results import Result
from tenure.simulate.runner import RunRecord, recorded_start_us, run_simulation
from tenure.times import LedgerTime
from tenure.units import parse_decimal
from tenure.version import tenure_version

OPENB_START_US: Final = 1_672_531_200_000_000
"""2023-01-01T00:00:00Z: the openb trace counts seconds from an undisclosed day."""


def simulate_command(options: Options) -> None:
    """
    Run the command. Everything is read before anything is decided or written.

    Raises:
        InputError: wrong usage or unreadable input.
        AnswerIsNo: `--strict` and a Pod without a place.
    """
    _check_usage(options)
    settings = DEFAULT_SCHEDULING if options.config is None else read_settings(options.config)
    policies = _policies(options, settings)
    run = _read(options, settings)
    if options.learn is not None:
        run = with_learned(run, options.learn)
    for warning in (*run.warnings, *in_sum(run.unread)):
        warn(warning)
    if options.compare is None:
        result = _simulate(options, run, replace(settings, node_policy=policies[0]))
        write_result(result, options.output, sys.stdout)
        failed = result.tally.failed
    else:
        results = [
            _simulate(options, run, replace(settings, node_policy=policy)) for policy in policies
        ]
        write_comparison([row_of(result) for result in results], options.output, sys.stdout)
        failed = max(result.tally.failed for result in results)
    if options.strict and failed:
        raise AnswerIsNo


def _check_usage(options: Options) -> None:
    openb = options.openb_nodes is not None or options.openb_pods is not None
    inputs = bool(options.files) + openb + (options.trace is not None)
    if inputs != 1:
        error = InputError(
            "one input is needed: FILE..., --openb-nodes with --openb-pods, or --trace"
        )
        raise with_next(error, "see `tenure simulate --help`")
    if options.schedule is not None and not options.files:
        raise InputError("only with FILE...; a trace has its own", field="--schedule")
    if openb and (options.openb_nodes is None or options.openb_pods is None):
        missing = "--openb-nodes" if options.openb_nodes is None else "--openb-pods"
        raise InputError("needed beside the other openb file", field=missing)
    extras = {
        "--openb-arrivals": options.openb_arrivals,
        "--openb-node-rank": options.openb_node_rank,
        "--inflate": options.inflate,
    }
    for name, value in extras.items():
        if value is not None and not openb:
            raise InputError("only with --openb-nodes and --openb-pods", field=name)
    if options.inflate is not None and options.openb_arrivals is not None:
        raise InputError("an exact order of arrival is not inflated", field="--inflate")
    if options.ledger in ("", "sqlite:///"):
        raise InputError("a file name is needed", field="--ledger")
    if options.resume and options.ledger is None:
        raise InputError("needs the ledger of the interrupted run, --ledger FILE", field="--resume")
    if options.compare is not None:
        for name, given in {"--ledger": options.ledger, "--policy": options.policy}.items():
            if given is not None:
                fact = "not with --compare, where each policy has a temporary ledger of its own"
                raise InputError(fact, field=name)


def _policies(options: Options, settings: SchedulingSettings) -> tuple[str, ...]:
    if options.compare is None:
        return (str(options.policy or settings.node_policy),)
    policies = tuple(policy.strip() for policy in options.compare.split(","))
    for policy in policies:
        if policy not in POLICIES:
            fact = f"not one of {', '.join(POLICIES)}: value={policy!r}"
            raise InputError(fact, field="--compare")
    return tuple(dict.fromkeys(policies))


def _read(options: Options, settings: SchedulingSettings) -> Run:
    clock = LedgerTime(now_us=clock_us(), virtual=False)
    now_us = None if options.now is None else moment_of(options.now, clock, option="--now")
    if options.openb_nodes is not None and options.openb_pods is not None:
        from tenure.simulate.openb import read_openb

        return read_openb(
            nodes_csv=options.openb_nodes,
            pods_csv=options.openb_pods,
            arrivals_csv=options.openb_arrivals,
            rank_csv=options.openb_node_rank,
            inflate=_ratio(options.inflate),
            seed=options.seed,
            start_us=OPENB_START_US if now_us is None else now_us,
        )
    if options.trace is not None:
        from tenure.simulate.trace.reader import read_trace

        if now_us is not None:
            raise InputError("a trace has its own time", field="--now")
        return read_trace(options.trace, settings.vocabulary)
    from tenure.simulate.inputs import read_manifest_run

    if now_us is None and options.resume and options.ledger is not None:
        now_us = recorded_start_us(options.ledger)
    return read_manifest_run(
        options.files or (),
        settings=settings,
        start_us=clock.now_us if now_us is None else now_us,
        schedule=options.schedule,
    )


def _ratio(text: str | None) -> Decimal | None:
    if text is None:
        return None
    ratio = parse_decimal(text)
    if ratio is None or not 0 < ratio <= 100:
        fact = f"not a ratio above 0 and up to 100, such as 1.3: value={text!r}"
        raise InputError(fact, field="--inflate")
    return ratio


def _simulate(options: Options, run: Run, settings: SchedulingSettings) -> Result:
    record = RunRecord(ledger=options.ledger, resume=options.resume, batch=options.batch)
    nodes_shown = options.compare is None and options.output in (
        OutputFormat.JSON,
        OutputFormat.YAML,
    )
    with counting_bar(f"deciding, {settings.node_policy}", len(run.arrivals)) as progress:
        result = run_simulation(
            run,
            settings=settings,
            seed=options.seed,
            version=tenure_version(),
            clock=time.perf_counter,
            record=record,
            keep_nodes=nodes_shown,
            draw=options.compare is None and options.output.is_table,
            progress=progress,
        )
    for line in (*result.conflicts, *result.warnings[len(run.warnings) + len(run.unread) :]):
        warn(line)
    span = result.ledger
    where = span.url or "temporary, deleted (--ledger FILE keeps it)"
    note(f"ledger: {where}, positions {span.first} to {span.last}")
    return result


def _percent(value: float) -> str:
    return f"{value:.2f}%"


_COLUMNS: Final = (
    Column(key="policy", title="POLICY"),
    Column(key="placed", title="PLACED", right=True),
    Column(key="failed", title="FAILED", right=True),
    Column(key="allocated_percent", title="GPU ALLOCATED", show=_percent, right=True),
    Column(key="fragmentation_percent", title="FRAGMENTED", show=_percent, right=True),
    Column(key="nodes_untouched", title="NODES UNTOUCHED", right=True),
    Column(key="cards_untouched", title="CARDS UNTOUCHED", right=True),
    Column(key="seconds", title="SECONDS", show="{:.2f}".format, right=True),
    Column(key="decisions_per_second", title="DECISIONS/S", show="{:,.0f}".format, right=True),
)


def row_of(result: Result) -> dict[str, Any]:
    """Return the figures of one policy. Untouched: held no Pod at any time of the run."""
    tally = result.tally
    row: dict[str, Any] = {
        "policy": result.policy,
        "placed": tally.placed,
        "failed": tally.failed,
        "allocated_percent": round(result.allocated_percent, 4),
        "fragmentation_percent": round(result.fragmentation_percent, 4),
        "nodes_untouched": len(result.nodes) - len(tally.nodes_used),
        "cards_untouched": result.cards_untouched,
        "seconds": round(result.seconds, 3),
        "decisions_per_second": round(tally.decisions / result.seconds, 1) if result.seconds else 0,
    }
    if result.source == "openb":
        series = result.allocated_at_arrived_percent()
        row["allocated_at_arrived_percent"] = {str(step): value for step, value in series.items()}
    return row


def write_comparison(rows: Sequence[dict[str, Any]], output: OutputFormat, out: TextIO) -> None:
    """Write one line per policy."""
    steps = [
        key for key in ("100", "130") if key in rows[0].get("allocated_at_arrived_percent", {})
    ]
    at_arrived = tuple(
        Column(key=f"at {step}% arrived", title=f"AT {step}% ARRIVED", show=_percent, right=True)
        for step in steps
    )
    shown = rows
    if output not in (OutputFormat.JSON, OutputFormat.YAML):
        shown = [
            row
            | {
                f"at {step}% arrived": row["allocated_at_arrived_percent"].get(step)
                for step in steps
            }
            for row in rows
        ]
    columns = (*_COLUMNS[:4], *at_arrived, *_COLUMNS[4:])
    write_answer(output, shown, columns, out=out)


def with_learned(run: Run, url: str) -> Run:
    """
    Return the run with typical Pods out of another ledger in place of its own.

    The run's inputs are other ones then, so that a ledger of one is never continued by the other.

    Raises:
        InputError: no such ledger, or one that has seen no Pod.
    """
    learned, untold = learned_from(url)
    if not learned:
        error = InputError("the ledger has seen no Pod to learn from", place=url)
        raise with_next(error, "leave --learn out: the arrivals themselves are typical then")
    told = hashlib.sha256(run.inputs_hash.encode())
    for request in learned:
        told.update(repr((request.cpu_milli, request.devices, request.placement)).encode())
    warnings = run.warnings
    if untold:
        fact = "what they asked for is not in the log, they are not learned from"
        warnings = (*warnings, f"--learn {url}: {fact}: pods={untold}")
    return replace(run, typical=learned, inputs_hash=told.hexdigest(), warnings=warnings)


def learned_from(url: str) -> tuple[tuple[PodRequest, ...], int]:
    """Return a ledger's requests, and how many Pods have none. Raises InputError: no ledger."""
    with open_ledger(url, mode="read") as ledger:
        return requests_seen(ledger.read_events())
