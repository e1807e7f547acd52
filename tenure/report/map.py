"""`tenure map`: nodes, cards and CPUs in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.errors import InputError
from ledger.domain.resources import TYPE_GPU
from tenure.exits import note, stdout, warn, with_next
from tenure.opening import clock_us, moment_of, opened, time_of
from tenure.options import At, LedgerUrl, Output
from tenure.output import Column, OutputFormat, write_answer
from tenure.units import format_time

if TYPE_CHECKING:
    from agent.decide.cpus_now import CpusNow
    from ledger.domain.log.events import PodObserved, PodReserved
    from ledger.domain.log.recorded_node import RecordedNode
    from ledger.store.open import Ledger
    from ledger.store.reading.timetravel import Loaded
    from scheduler.usage.model import MappedNode
    from tenure.simulate.model import Run


_MAP_COLUMNS: Final = (
    Column(key="node", title="NODE"),
    Column(key="device_type", title="TYPE"),
    Column(key="minor", title="MINOR"),
    Column(key="model", title="MODEL"),
    Column(key="level_percent", title="HELD"),
    Column(key="by_memory", title="BY MEMORY"),
    Column(key="tenants", title="TENANTS"),
    Column(key="closed", title="CLOSED"),
    Column(key="unknown_holders", title="UNKNOWN HOLDERS"),
    Column(key="unknown_cards", title="UNKNOWN CARDS"),
)
_CPU_COLUMNS: Final = (
    Column(key="node", title="NODE"),
    Column(key="socket", title="SOCKET", right=True),
    Column(key="numa", title="NUMA", right=True),
    Column(key="core", title="CORE", right=True),
    Column(key="cpu", title="CPU", right=True),
    Column(key="reserved", title="RESERVED"),
    Column(key="holders", title="HOLDERS"),
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("map")(draw)


def draw(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...]",
            help="Manifests to show in place of a ledger; - for stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    at: At = None,
    cpus: Annotated[
        bool, typer.Option("--cpus", help="Sockets, NUMA nodes, cores and who holds them.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Draw it again and again.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.5, max=3600, metavar="SECONDS", help="Between two drawings.")
    ] = 2.0,
    ledger: LedgerUrl = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Nodes and cards in the terminal: how full each card is, which are shared, free or closed.

    Example: tenure map --at "2h ago"

    Any cluster: kubectl get nodes,pods -A -o json | tenure map -

    CPUs: tenure map --cpus
    """
    if cpus:
        answer_cpus(tuple(files or ()), at=at, watch=watch, ledger=ledger, output=output)
        return
    answer_map(
        tuple(files or ()), at=at, watch=watch, interval=interval, ledger=ledger, output=output
    )


def answer_map(
    files: Sequence[str],
    *,
    at: str | None,
    watch: bool,
    interval: float,
    ledger: str | None,
    output: OutputFormat,
) -> None:
    """
    Draw the cluster: from manifests if there are any, else from the ledger.

    Raises:
        InputError: input that can't be read, or options that do not go together.
    """
    if files:
        if at is not None or watch:
            option = "--watch" if watch else "--at"
            error = InputError("files show one moment only", field=option)
            raise with_next(error, "leave the files out to ask the ledger")
        _show(_fleet_of_files(files), output)
        return
    with opened(ledger) as source:
        at_us = None if at is None else moment_of(at, time_of(source), option="--at")
        if not watch:
            nodes = read_fleet(source, at_us)
            note(f"at {format_time(at_us or time_of(source).now_us)}")
            _show(nodes, output)
            return
        if at is not None or not output.is_table:
            raise InputError("--watch draws what is held now", field="--watch")
        _watch(lambda: read_fleet(source, None), interval)


def answer_cpus(
    files: Sequence[str], *, at: str | None, watch: bool, ledger: str | None, output: OutputFormat
) -> None:
    """
    Draw the CPUs of the nodes with their holders: from manifests if there are any, else a ledger.

    Raises:
        InputError: input that can't be read, or options that do not go together.
    """
    from agent.decide.cpus_now import cpus_of_objects, cpus_of_states

    if watch:
        raise InputError("--watch draws cards", field="--watch")
    if files:
        if at is not None:
            error = InputError("files show one moment only", field="--at")
            raise with_next(error, "leave the files out to ask the ledger")
        run = _run_of_files(files)
        _show_cpus(cpus_of_objects(run.nodes, run.adopted), output)
        return
    from ledger.store.reading.timetravel import position_at, state_at

    with opened(ledger) as source:
        at_us = None if at is None else moment_of(at, time_of(source), option="--at")
        position = source.head().position if at_us is None else position_at(source, at_us)
        loaded = state_at(source, position)
        described, holdings = _told_of_cpus(source, loaded)
        note(f"at {format_time(at_us or time_of(source).now_us)}")
    for finding in loaded.findings:
        warn(finding)
    _show_cpus(cpus_of_states(loaded.state.nodes.values(), described, holdings), output)


def _told_of_cpus(
    source: Ledger, loaded: Loaded
) -> tuple[dict[str, RecordedNode], dict[int, PodReserved | PodObserved]]:
    """Return what was said of nodes, by UID, and what opened holdings of CPUs, by position."""
    from ledger.domain.log.events import NodeDescribed, PodObserved, PodReserved
    from ledger.store.reading.kept import events_at, events_of

    positions = [
        holding.opened_position
        for node in loaded.state.nodes.values()
        for holding in node.holdings.values()
        if holding.cpuset
    ]
    with source.connection.begin():
        described = events_of(source.connection, NodeDescribed, loaded.position)
        opened_by = events_at(source.connection, positions)
    return (
        {event.node_uid: event.facts for event in described},
        {
            position: event
            for position, event in opened_by.items()
            if isinstance(event, PodReserved | PodObserved)
        },
    )


def _show_cpus(nodes: Sequence[CpusNow], output: OutputFormat) -> None:
    from tenure.report.cpu_map import cpu_records, cpu_rows, draw_cpus

    if not output.is_table:
        write_answer(output, list(cpu_rows(nodes)), _CPU_COLUMNS, document=cpu_records(nodes))
        return
    console = stdout()
    width = console.width if console.is_terminal else 80
    console.print(draw_cpus(nodes, width=width), soft_wrap=True, end="")


def read_fleet(source: Ledger, at_us: int | None) -> tuple[MappedNode, ...]:
    """Return the cluster of a ledger, now or at a moment, from one transaction."""
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading.report_queries import When
    from scheduler.usage.cluster_now import closed_at, cluster_now_of_ledger

    connection, when = source.connection, When(at_us=at_us)
    with connection.begin():
        return cluster_now_of_ledger(
            queries.nodes(connection),
            queries.devices(connection),
            queries.device_holders(connection, when),
            closed_at(queries.health_changes(connection), at_us),
            queries.unknown_rows(connection, when),
        )


def _fleet_of_files(files: Sequence[str]) -> tuple[MappedNode, ...]:
    from scheduler.usage.cluster_now import cluster_now_of_objects

    run = _run_of_files(files)
    return cluster_now_of_objects(run.nodes, run.adopted)


def _run_of_files(files: Sequence[str]) -> Run:
    """Read manifests, and say what they leave unsaid."""
    from scheduler.decide.settings import SchedulingSettings
    from tenure.simulate.inputs import read_manifest_run

    run = read_manifest_run(files, settings=SchedulingSettings(), start_us=clock_us())
    for warning in run.warnings:
        warn(warning)
    if not run.nodes:
        error = InputError("no Node in the input", place=", ".join(files))
        raise with_next(error, "kubectl get nodes,pods -A -o json | tenure map -")
    return run


def _show(nodes: Sequence[MappedNode], output: OutputFormat) -> None:
    if not output.is_table:
        write_answer(output, _csv_rows(nodes), _MAP_COLUMNS, document=_node_records(nodes))
        return
    from tenure.report.terminal import draw_map

    console = stdout()
    width = console.width if console.is_terminal else 80
    console.print(draw_map(nodes, width=width, blocks=_has_blocks()), soft_wrap=True, end="")


def _watch(read: Callable[[], Sequence[MappedNode]], interval: float) -> None:
    from rich.live import Live

    from tenure.report.terminal import draw_map

    console = stdout()
    if not console.is_terminal:
        error = InputError("--watch needs a terminal", field="--watch")
        raise with_next(error, "leave it out, or ask for -o json again and again")
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:  # until Ctrl-C, which is how a watch ends well
            text = draw_map(read(), width=console.width, blocks=_has_blocks())
            text.append(f"{format_time(clock_us())}, every {interval:g} s, Ctrl-C ends")
            live.update(text, refresh=True)
            time.sleep(interval)


def _has_blocks() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _node_records(nodes: Sequence[MappedNode]) -> list[dict[str, Any]]:
    return [
        {
            "node": node.name,
            "cards": [
                {key: value for key, value in row.items() if key != "node"}
                for row in _card_rows([node])
            ],
            "unknown_holders": list(node.unknown_holders),
            "unknown_cards": node.unknown_cards,
        }
        for node in nodes
    ]


def _card_rows(nodes: Sequence[MappedNode]) -> list[dict[str, Any]]:
    return [
        {
            "node": node.name,
            "device_type": card.device_type,
            "minor": card.minor,
            "model": card.model,
            "level_percent": card.level_percent,
            "by_memory": card.by_memory,
            "tenants": card.tenants,
            "closed": card.unhealthy,
        }
        for node in nodes
        for card in node.cards
    ]


def _csv_rows(nodes: Sequence[MappedNode]) -> list[dict[str, Any]]:
    """
    Return a row per card; each GPU has its node's Pods on unknown cards beside it.

    Any of those may hold it; `unknown_cards` is how many of the node's GPUs they hold together. A
    node without GPUs that has such Pods gets a row without a minor.
    """
    rows = []
    for node in nodes:
        unknown = {
            "unknown_holders": " ".join(node.unknown_holders),
            "unknown_cards": node.unknown_cards,
        }
        none = {"unknown_holders": "", "unknown_cards": 0}
        cards = _card_rows([node])
        if node.unknown_holders and not any(row["device_type"] == TYPE_GPU for row in cards):
            cards.append({"node": node.name, "device_type": TYPE_GPU})
        rows += [{**row, **(unknown if row["device_type"] == TYPE_GPU else none)} for row in cards]
    return rows
