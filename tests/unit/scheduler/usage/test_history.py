from dataclasses import replace

import pytest

from ledger.store.reading.report_rows import (
    Device,
    HealthRow,
    HoldingRow,
    Node,
    Span,
)
from scheduler.usage.history import axis_of, history_of
from scheduler.usage.model import History

SECOND = 1_000_000
DAY = 86_400 * SECOND
SPAN = Span(first_at_us=DAY, last_at_us=2 * DAY, last_position=20)
NODE = Node(node_uid="a", node_name="gpu-a", cpu_milli=8000, memory_bytes=1 << 34)
CARD = Device(
    node_uid="a",
    node_name="gpu-a",
    device_type="gpu",
    minor=0,
    device_id="id-0",
    model="T4",
    core_capacity_percent=100,
    memory_capacity_bytes=1 << 34,
    core_used_percent=0,
    memory_used_bytes=0,
    tenants=0,
    healthy=True,
    closed_reason="",
)
HOLDING = HoldingRow(
    position=7,
    node_uid="a",
    device_type="gpu",
    minor=0,
    namespace="ml",
    pod_name="x",
    pod_uid="u",
    core_percent=50,
    memory_bytes=0,
    memory_ratio_percent=50,
    exclusive=0,
    kind="granted",
    policy="fgd",
    end_reason="completed",
    opened_at_us=DAY + SECOND,
    closed_at_us=DAY + 9 * SECOND,
    closed_position=12,
)


def history(
    span: Span = SPAN,
    *,
    devices: tuple[Device, ...] = (CARD,),
    holdings: tuple[HoldingRow, ...] = (HOLDING,),
    health: tuple[HealthRow, ...] = (),
) -> History:
    """The history of one node."""
    return history_of(
        span=span,
        nodes=[NODE],
        devices=devices,
        health=health,
        holdings=holdings,
        first_reserved=7,
    )


def change(position: int, *, healthy: bool) -> HealthRow:
    """The card dies or returns, a second a position."""
    return HealthRow(
        position=position,
        at_us=DAY + position * SECOND,
        node_uid="a",
        device_type="gpu",
        minor=0,
        healthy=healthy,
        reason="Xid79",
    )


@pytest.mark.parametrize(
    ("lasted", "events", "axis"),
    [
        pytest.param(7 * DAY, 20_000, "time", id="a week"),
        pytest.param(19_999, 20_000, "position", id="a microsecond an event is no time"),
        pytest.param(2_999_999, 3_000_000, "position", id="however many events there are"),
        pytest.param(0, 1, "position", id="one event"),
    ],
)
def test_a_run_at_one_moment_is_told_by_its_order(lasted: int, events: int, axis: str) -> None:
    """The ledger itself keeps its moments a microsecond apart."""
    span = Span(first_at_us=DAY, last_at_us=DAY + lasted, last_position=events)

    assert axis_of(span) == axis


def test_a_holding_becomes_an_interval_of_its_card() -> None:
    """With whose it was, how much, and why it ended."""
    found = history()

    (hold,) = found.holds
    assert (hold.opened, hold.closed, hold.position) == (DAY + SECOND, DAY + 9 * SECOND, 7)
    assert found.cards[hold.card].model == "T4"
    assert found.pods[hold.pod] == ("ml", "x")
    assert found.shares[hold.share].percent == 50
    assert found.endings[hold.ending].end_reason == "completed"
    assert (found.start, found.end) == (DAY, 2 * DAY)


def test_without_time_positions_are_the_axis() -> None:
    """Intervals run from event to event, beginning just before the first one."""
    found = history(Span(first_at_us=DAY, last_at_us=DAY + 19, last_position=20))

    assert (found.start, found.end) == (6, 20)
    assert (found.holds[0].opened, found.holds[0].closed) == (7, 12)


def test_pods_of_one_name_and_two_lives_are_two() -> None:
    """The UID tells them apart, as in the ledger."""
    second = HOLDING._replace(position=15, pod_uid="v", opened_at_us=DAY + 20 * SECOND)

    assert len(history(holdings=(HOLDING, second)).pods) == 2


def test_a_card_that_left_keeps_its_history() -> None:
    """Its minor may be another card's now; the present one gives its model."""
    gone = replace(CARD, model="K80", closed_reason="gone")
    elsewhere = HOLDING._replace(minor=5)

    found = history(devices=(CARD, gone), holdings=(HOLDING, elsewhere))

    assert [(card.minor, card.model) for card in found.cards] == [(0, "T4"), (5, "")]


def test_an_outage_lasts_from_failure_to_return() -> None:
    """A failure told twice is one; one that never ended is open."""
    changes = (
        change(2, healthy=False),
        change(3, healthy=False),
        change(5, healthy=True),
        change(8, healthy=False),
    )

    found = history(health=changes).outages

    assert [(outage.opened, outage.closed) for outage in found] == [
        (DAY + 2 * SECOND, DAY + 5 * SECOND),
        (DAY + 8 * SECOND, None),
    ]
