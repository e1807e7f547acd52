"""`tenure ledger state` and `tenure ledger snapshot`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.cpuset import format_cpuset
from ledger.domain.errors import InputError
from tenure.exits import warn, with_next
from tenure.opening import ledger_url, moment_of, opened, taken_over, time_of
from tenure.options import LedgerUrl, Output, Segments
from tenure.output import Column, OutputFormat, write_answer

if TYPE_CHECKING:
    from ledger.domain.log.state import Holding, NodeState
    from ledger.store.reading.timetravel import Loaded


_HOLDER: Final = "tenure ledger snapshot"
_COLUMNS: Final = (
    Column(key="node", title="NODE"),
    Column(key="pod_path", title="POD"),
    Column(key="kind", title="KIND"),
    Column(key="phase", title="PHASE"),
    Column(key="devices", title="DEVICES"),
    Column(key="cpuset", title="CPUS"),
    Column(key="event", title="EVENT", right=True),
)
_TAKEN_COLUMNS: Final = (
    Column(key="position", title="POSITION", right=True),
    Column(key="digest", title="DIGEST"),
)


def state(
    *,
    at: Annotated[
        str | None, typer.Option("--at", help="The state at this time; the default is the head.")
    ] = None,
    position: Annotated[
        int | None, typer.Option("--position", min=0, help="The state after this event.")
    ] = None,
    segments: Segments = None,
    ledger: LedgerUrl = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Show who held what on every node, folded from the events alone.

    Example: tenure ledger state --at 2026-03-02T14:05:00Z -o json
    """
    from ledger.store.reading.timetravel import position_at, state_at

    if at is not None and position is not None:
        raise with_next(InputError("--at and --position exclude each other"), "name one of them")
    with opened(ledger) as source:
        if at is not None:
            position = position_at(source, moment_of(at, time_of(source), option="--at"))
        elif position is None:
            position = source.head().position
        try:
            loaded = state_at(source, position, segments=segments)
        except InputError as error:
            if "no such position" not in error.message:
                raise
            raise with_next(error, "`tenure status` shows the last position") from None
    for finding in loaded.findings:
        warn(finding)
    document = _document(loaded)
    if output.is_table:
        sys.stdout.write(f"after event {loaded.position}\n")
    write_answer(output, list(_rows(document)), _COLUMNS, document=document)


def snapshot(*, ledger: LedgerUrl = None, output: Output = OutputFormat.TABLE) -> None:
    """
    Store the folded state in a ledger file, so that a start reads only the events after it.

    Takes the file over: a process that writes it meanwhile is fenced.

    Example: tenure ledger snapshot --ledger tenure.db
    """
    from ledger.store.reading.snapshots import take_snapshot

    url = ledger_url(ledger)
    if url.startswith("postgres"):
        raise with_next(
            InputError("snapshots of a database are taken by the process that writes it"),
            "name a ledger file",
        )
    with opened(ledger, mode="write") as source:
        if not source.head().origin:
            raise with_next(
                InputError("nothing was recorded yet", place=source.url),
                "take a snapshot of a ledger with events",
            )
        writer, wall_us = taken_over(source, _HOLDER)
        taken = take_snapshot(source, writer, wall_us=wall_us)
    record = {"position": taken.at_position, "digest": taken.digest}
    write_answer(output, [record], _TAKEN_COLUMNS, document=record)


def _document(loaded: Loaded) -> dict[str, Any]:
    """Return the state in base units, nodes by name, holdings in the order of their events."""
    nodes = sorted(loaded.state.nodes.values(), key=lambda node: (node.name, node.uid))
    return {
        "position": loaded.position,
        "snapshot_position": loaded.snapshot_position,
        "nodes": [_node(node) for node in nodes],
        "places": [
            {
                "node_uid": place.node_uid,
                "minor": place.minor,
                "group": place.group,
                "pod_uid": place.pod_uid,
                "event": place.opened_position,
            }
            for place in loaded.state.planned_cards
        ],
    }


def _node(node: NodeState) -> dict[str, Any]:
    holdings = sorted(node.everyone(), key=lambda holding: holding.opened_position)
    return {
        "node": node.name,
        "node_uid": node.uid,
        "devices": len(node.devices),
        "cpus": len(node.cpus),
        "holdings": [_holding(holding) for holding in holdings],
    }


def _holding(holding: Holding) -> dict[str, Any]:
    return {
        "namespace": holding.namespace,
        "pod": holding.pod_name,
        "pod_uid": holding.pod_uid,
        "attempt": holding.attempt,
        "kind": holding.kind,
        "phase": holding.phase,
        "event": holding.opened_position,
        "cpu_milli": holding.cpu_milli,
        "memory_bytes": holding.memory_bytes,
        "cpuset": format_cpuset(holding.cpuset),
        "unknown_types": list(holding.unknown_types),
        "devices": [
            {
                "device_type": share.device_type,
                "minor": share.minor,
                "device_id": share.device_id,
                "core_percent": share.core_percent,
                "memory_bytes": share.memory_bytes,
                "exclusive": share.exclusive,
            }
            for share in holding.shares
        ],
    }


def _rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for node in document["nodes"]:
        for holding in node["holdings"]:
            devices = [f"{each['device_type']}/{each['minor']}" for each in holding["devices"]]
            unknown = [f"{name}/?" for name in holding["unknown_types"]]
            yield {
                **holding,
                "node": node["node"],
                "pod_path": f"{holding['namespace']}/{holding['pod']}",
                "devices": " ".join(devices + unknown),
            }
