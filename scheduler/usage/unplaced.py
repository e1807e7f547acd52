"""GPU-hours of cards that Pods held and nobody can name: whole ones, as many as they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ledger.domain.log.events import PodObserved, decode_event
from ledger.domain.resources import TYPE_GPU
from ledger.store.reading.report_rows import Device, Node, UnplacedRow, UsageRecord
from scheduler.usage.cluster_now import unknown_cards
from scheduler.usage.machines import GONE

HOUR_US: Final = 3_600_000_000.0


def cards_of_row(row: UnplacedRow) -> int:
    """Return how many cards a Pod held that nobody can name."""
    event = decode_event(PodObserved.event_type, row.body)
    assert isinstance(event, PodObserved), row
    return unknown_cards(event)


def models_of(nodes: Iterable[Node], devices: Iterable[Device]) -> dict[str, str]:
    """Return node UID -> the model of its machine's GPUs, empty where there are several."""
    machines = {node.node_uid: node.machine_no or node.node_uid for node in nodes}
    models: dict[int | str, set[str]] = {}
    for device in devices:
        if device.device_type == TYPE_GPU and device.closed_reason != GONE:
            machine = machines.get(device.node_uid, device.node_uid)
            models.setdefault(machine, set()).add(device.model)
    return {
        uid: next(iter(found)) if len(found := models.get(machine, set())) == 1 else ""
        for uid, machine in machines.items()
    }


def with_unplaced(
    rows: Iterable[UsageRecord],
    by: str,
    unplaced: Iterable[UnplacedRow],
    models: Mapping[str, str],
    window: tuple[int, int],
) -> list[UsageRecord]:
    """
    Return usage with the GPU-hours of cards that nobody can name, by group.

    Args:
        by: `namespace`, `owner`, `labels` or `model`.
        window: since and until, microseconds.
    """
    since, until = window
    hours: dict[str, float] = {}
    pods: dict[str, set[str]] = {}
    for row in unplaced:
        ended = until if row.counted_until_us is None else min(until, row.counted_until_us)
        lasted = ended - max(since, row.opened_at_us)
        cards = cards_of_row(row) if lasted > 0 else 0
        if not cards:
            continue
        key = models.get(row.node_uid, "") if by == "model" else str(getattr(row, by))
        hours[key] = hours.get(key, 0.0) + cards * lasted / HOUR_US
        pods.setdefault(key, set()).add(row.pod_uid)
    found = {record.group: record for record in rows}
    for key, more in hours.items():
        record = found.get(key)
        if record is None:
            none = None if by == "model" else 0.0
            record = UsageRecord(group=key, pods=0, gpu_hours=0.0, cpu_hours=none)
        number = record.pods + len(pods[key]) if by == "model" else record.pods
        found[key] = replace(record, pods=number, gpu_hours=record.gpu_hours + more)
    return [found[key] for key in sorted(found)]
