"""GPU-hours and drawn holders of cards that nobody can name."""

from dataclasses import replace

from ledger.store.reading.report_rows import Device, Node, Span, UnplacedRow, UsageRecord
from scheduler.usage.history import UNNAMED, history_of
from scheduler.usage.machines import once_per_machine
from scheduler.usage.model import History
from scheduler.usage.unplaced import Unlisted, counted_us, unlisted, with_unplaced

HOUR = 3_600_000_000


def node(uid: str, *, machine: int = 1, lost: bool = False) -> Node:
    """A Node object of a machine."""
    return Node(
        node_uid=uid,
        node_name=uid,
        cpu_milli=0,
        memory_bytes=0,
        machine_no=machine,
        lost_position=9 if lost else None,
    )


def device(minor: int, *, on: str = "a", number: int = 0, device_id: str = "") -> Device:
    """A card of a node."""
    return Device(
        node_uid=on,
        node_name=on,
        device_type="gpu",
        minor=minor,
        device_id=device_id,
        model="T4",
        core_capacity_percent=100,
        memory_capacity_bytes=0,
        core_used_percent=0,
        memory_used_bytes=0,
        tenants=0,
        healthy=True,
        closed_reason="",
        device_no=number or minor + 1,
    )


def held(cards: int, opened: int, closed: int | None, *, position: int = 5) -> UnplacedRow:
    """A Pod that holds so many cards of node a by their number."""
    return UnplacedRow(
        position=position,
        node_uid="a",
        namespace="ml",
        pod_name=f"x{position}",
        pod_uid=f"u{position}",
        owner="job/x",
        labels="{}",
        opened_at_us=opened,
        closed_at_us=closed,
        closed_position=None if closed is None else position + 1,
        end_reason=None,
        counted_until_us=closed,
        gpu_count=cards,
    )


def test_cards_held_by_number_are_billed_whole_for_as_long_as_they_are_held() -> None:
    """Inside of the window, and in the group that has others already."""
    rows = [UsageRecord(group="ml", pods=2, gpu_hours=1.0, cpu_hours=8.0)]
    unplaced = [held(3, 0, 2 * HOUR), held(1, HOUR, None, position=7), held(8, 0, HOUR // 2)]

    held_there = of_others(*unplaced)
    counted = counted_us(held_there, CARDS, (HOUR, 4 * HOUR))
    (record,) = with_unplaced(rows, "namespace", zip(held_there, counted, strict=True))

    assert (record.gpu_hours, record.pods, record.cpu_hours) == (1.0 + 3 * 1 + 1 * 3, 2, 8.0)
    (of_model,) = with_unplaced([], "model", zip(held_there, counted, strict=True))
    assert (of_model.group, of_model.pods, of_model.gpu_hours) == ("T4", 2, 6.0)


CARDS = [("a", "gpu", minor) for minor in range(8)]


def of_others(*rows: UnplacedRow) -> list[Unlisted]:
    """Return what was held of node a's cards, any of them."""
    return [replace(each, model="T4", among=tuple(CARDS)) for each in unlisted(rows)]


def test_a_card_of_others_is_billed_once_however_many_hold_it() -> None:
    """Two have one card by one claim: from when the second comes each counts half of it."""
    first, second, away = of_others(held(1, 0, None), held(1, HOUR, 3 * HOUR), held(1, 0, None))
    both = [replace(each, card=CARDS[0]) for each in (first, second)]
    other = replace(away, card=CARDS[1])

    counted = counted_us([*both, other], CARDS, (0, 4 * HOUR))

    assert [lasted / HOUR for lasted in counted] == [1 + 1 + 1, 1, 4]


def test_what_nobody_can_name_gets_what_the_named_leave() -> None:
    """Of two cards one is somebody's, so three that ask for one each have a third of the other."""
    named, *rest = of_others(*(held(1, HOUR, 3 * HOUR) for _ in range(4)))
    named = replace(named, card=CARDS[0], row=held(1, 2 * HOUR, 3 * HOUR))

    counted = counted_us([named, *rest], CARDS[:2], (0, 4 * HOUR))

    assert [lasted / HOUR for lasted in counted] == [1, *[(2 + 1) / 3] * 3]
    assert counted_us([named, *rest], CARDS[:2], (4 * HOUR, 5 * HOUR)) == [0] * 4


def history(*unplaced: UnplacedRow) -> History:
    """A node of three cards."""
    return history_of(
        span=Span(first_at_us=0, last_at_us=9 * HOUR, last_position=99),
        nodes=[node("a")],
        devices=[device(minor) for minor in range(3)],
        health=(),
        holdings=(),
        unplaced=[*unlisted(unplaced)],
    )


def test_other_cards_stand_for_those_that_nobody_can_name() -> None:
    """Those that are held least meanwhile, so that nobody is drawn on another's card."""
    drawn = history(held(2, 0, 4 * HOUR), held(1, HOUR, None, position=7))

    assert {drawn.endings[hold.ending].policy for hold in drawn.holds} == {UNNAMED}
    assert sorted((hold.card, drawn.pods[hold.pod][1]) for hold in drawn.holds) == [
        (0, "x7"),
        (1, "x5"),
        (2, "x5"),
    ]


def test_of_more_than_there_are_all_cards_are_held() -> None:
    """Nothing else can be drawn."""
    assert len(history(held(8, 0, None)).holds) == 3


def test_cards_without_ids_of_a_machine_with_two_nodes_are_there_once() -> None:
    """At the Node that was made last and is not lost, by whichever they are held."""
    nodes = [node("a"), node("b"), node("c", lost=True), node("d", machine=2)]
    devices = [
        device(minor, on=on, number=10 * place + minor + 1)
        for place, on in enumerate("abcd")
        for minor in range(2)
    ]
    made = {"a": "2026-02-01", "b": "2026-01-01", "c": "2026-03-01"}

    kept, places = once_per_machine(nodes, devices, made)

    assert [(each.node_uid, each.minor) for each in kept] == [
        ("a", 0),
        ("a", 1),
        ("d", 0),
        ("d", 1),
    ]
    assert places[12] == ("a", "gpu", 1)
    named = [replace(each, device_id=f"GPU-{each.device_no}") for each in devices]
    assert once_per_machine(nodes, named, made)[0] == named
