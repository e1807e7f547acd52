"""`tenure status`: which ledger this is, and where its head stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from tenure.opening import opened
from tenure.options import LedgerUrl, Output
from tenure.output import Column, OutputFormat, one_line, write_answer
from tenure.times import iso_time

if TYPE_CHECKING:
    from ledger.store.open import Ledger

_COLUMNS: Final = (Column(key="what", title="WHAT"), Column(key="value", title="VALUE"))


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("status")(status)


def status(*, ledger: LedgerUrl = None, output: Output = OutputFormat.TABLE) -> None:
    """
    Which ledger this is, where its head stands, and how much it holds.

    Example: tenure status -o json
    """
    with opened(ledger) as source:
        record = status_record(source)
    rows = [{"what": key.replace("_", " "), "value": value} for key, value in record.items()]
    write_answer(output, rows, _COLUMNS, document=record)


def status_record(source: Ledger) -> dict[str, Any]:
    """Return where a ledger stands, as one record."""
    from ledger.store.mending.recover import incarnations
    from ledger.store.reading import report_queries as queries
    from scheduler.service.api.words import WEBHOOK_ACTOR
    from scheduler.usage.cluster_now import GONE

    head = source.head()
    with source.connection.begin():
        devices = [d for d in queries.devices(source.connection) if d.closed_reason != GONE]
        counts = queries.counts(source.connection, admission=WEBHOOK_ACTOR)
        nodes = queries.nodes(source.connection)
        ahead_us = queries.ahead_us(source.connection)
    gpus = [device for device in devices if device.device_type == "gpu"]
    lives, lost = incarnations(source)
    return {
        "ledger": source.url,
        "origin": one_line(head.origin),
        "head": head.position,
        "head_at": iso_time(source.now_us()) if head.position else None,
        "ahead_of_clock_us": ahead_us,
        "chain_head": head.chain_hash.hex(),
        "epoch": head.epoch,
        "incarnation": one_line(lives[-1].name),
        "unknown_positions": ", ".join(
            f"{each.first}-{each.last} of {one_line(each.incarnation)}"
            for each in lost
            if each.last >= each.first
        ),
        "nodes": len(nodes),
        "cards": len(gpus),
        "cards_held": sum(1 for device in gpus if device.tenants),
        "cards_closed": sum(1 for device in gpus if device.closed_reason),
        "pods_decided": counts.decided,
        "pods_placed": counts.placed,
        "pods_refused": counts.refused,
        "pods_waiting": counts.waiting,
        "pods_refused_at_admission": counts.at_admission,
    }
