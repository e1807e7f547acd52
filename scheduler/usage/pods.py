"""The Pods of a ledger's rows: what they hold that no row of a device says."""

from __future__ import annotations

from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.log import events
from ledger.domain.log.claims import claim_as_observed
from ledger.store.reading.report_rows import UnknownRow


def pod_of(row: UnknownRow) -> events.PodObserved:
    """
    Return a Pod that somebody else placed; a claim that no gate let through is told as one.

    Of one whose event is in an archive no more than rows say: GPUs by number.
    """
    if row.body is None:
        return _archived(row)
    if row.holder == events.CLAIM:
        claim = events.decode_event(events.ClaimObserved.event_type, row.body)
        assert isinstance(claim, events.ClaimObserved), row
        return claim_as_observed(claim)
    event = events.decode_event(events.PodObserved.event_type, row.body)
    assert isinstance(event, events.PodObserved), row
    return event


def _archived(row: UnknownRow) -> events.PodObserved:
    types = tuple(filter(None, row.unknown_types.split(",")))
    return events.PodObserved(
        pod_uid=row.pod_uid,
        attempt=row.attempt,
        namespace=row.namespace,
        pod_name=row.pod_name,
        node_uid=row.node_uid,
        node_name=row.node_name,
        source="",
        unknown_types=types,
        counted={GPU: row.gpu_count} if GPU in types and row.gpu_count > 0 else {},
    )


def asking_pod(row: UnknownRow, *, without: str = "") -> events.PodObserved:
    """
    Return what a Pod asked for that was granted something, but of one resource.

    Nothing of one whose event is in an archive.
    """
    if row.body is None:
        return _archived(row)
    event = events.skim_event(events.PodReserved.event_type, row.body)
    assert isinstance(event, events.PodReserved), row
    asked = {
        key: amount
        for key, amount in event.snapshot.original.items()
        if not without or key.partition(".")[2] != without
    }
    return events.PodObserved(
        pod_uid=event.pod_uid,
        attempt=event.attempt,
        namespace=event.namespace,
        pod_name=event.pod_name,
        node_uid=event.node_uid,
        node_name=event.node_name,
        source="",
        snapshot=structs.replace(event.snapshot, original=asked),
    )
