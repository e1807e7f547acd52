"""The Pods of a ledger's rows: what they hold that no row of a device says."""

from __future__ import annotations

from ledger.domain.log.events import PodObserved, PodReserved, decode_event, skim_event
from ledger.store.reading.report_rows import UnknownRow, UnplacedRow


def pod_of(row: UnknownRow | UnplacedRow) -> PodObserved:
    """Return a Pod that somebody else placed."""
    event = decode_event(PodObserved.event_type, row.body)
    assert isinstance(event, PodObserved), row
    return event


def asking_pod(row: UnknownRow) -> PodObserved:
    """Return what a Pod asked for that was granted devices; these are rows of their own."""
    event = skim_event(PodReserved.event_type, row.body)
    assert isinstance(event, PodReserved), row
    return PodObserved(
        pod_uid=event.pod_uid,
        attempt=event.attempt,
        namespace=event.namespace,
        pod_name=event.pod_name,
        node_uid=event.node_uid,
        node_name=event.node_name,
        source="",
        snapshot=event.snapshot,
    )
