"""Refusals on their way to the ledger: bounded, the newest are kept, what is lost is counted."""

from __future__ import annotations

from dataclasses import replace

from tenure.serving.telling_refusals import TEXT_MAX, RefusalQueue
from webhook.server.metrics import Metrics
from webhook.server.ports import RefusalRecord


def record(number: int) -> RefusalRecord:
    """Return a refusal that is told from others by its uid."""
    return RefusalRecord(
        uid=str(number),
        kind="Pod",
        namespace="ml",
        name="train",
        user="ada",
        rule="DevicePercent",
        mode="enforce",
        field="spec",
        message="no",
    )


def test_the_oldest_make_room_and_are_counted() -> None:
    """However many come, memory is bounded and nobody waits."""
    metrics = Metrics()
    queue = RefusalQueue(metrics, waiting_max=3)
    for number in range(5):
        queue.put(record(number))
    assert [one.uid for one in queue.take(2)] == ["2", "3"]
    assert [one.uid for one in queue.take(10)] == ["4"]
    assert queue.take(10) == []
    dropped = "tenure_admission_refusals_dropped_total"
    assert metrics.registry.get_sample_value(dropped) == 2.0


def test_no_text_is_longer_than_is_kept() -> None:
    """Ten thousand refusals of a caller with a name of a megabyte are no ten gigabytes."""
    queue = RefusalQueue(Metrics())
    queue.put(replace(record(1), user="x" * 1_000_000))
    (kept,) = queue.take(1)
    assert kept == replace(record(1), user="x" * TEXT_MAX)
