"""
Of a cluster at work: cards and CPUs on the node that was named, as at the position that is told.

What a live scheduler will record is written here as a simulation's events, each reservation with a
position that it was decided on, and other events between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from ledger.domain.log.events import (
    DeviceHealthChanged,
    GroupPlanned,
    LedgerEvent,
    PlanDropped,
    PodReleased,
    PodReserved,
    RequestDescribed,
)
from ledger.domain.log.recorded import NewEvent, RecordedEvent
from ledger.domain.request.requests import GroupRef
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from scheduler.record.replay import HELD, NOT_BEFORE, NOT_THERE, Difference
from tests.support.replays import differing, replayed
from tests.support.runs import arrival, gpu_node, gpu_pod, play, recorded, run_of

NODES = [gpu_node(name, 2) for name in "ab"]


def recorded_of(*pods: str, cards: int = 1) -> list[NewEvent]:
    """Return the events of a run in which these Pods ask for as many whole cards each."""
    run = run_of(NODES, [arrival(gpu_pod(name, cards)) for name in pods])
    return play(run, policy="binpack").ledger.events


def reservations(events: Sequence[NewEvent]) -> dict[str, int]:
    """Return where Pods were reserved, by name."""
    return {
        new.event.pod_name: position
        for position, new in enumerate(events, start=1)
        if isinstance(new.event, PodReserved)
    }


def log(events: Sequence[NewEvent], on: Mapping[str, int]) -> Iterator[RecordedEvent]:
    """Return the events as a ledger has them, each reservation decided on the position in `on`."""
    for position, new in enumerate(events, start=1):
        event = new.event
        if isinstance(event, PodReserved):
            event = structs.replace(event, decided_on=on.get(event.pod_name, position - 1))
        yield recorded(structs.replace(new, event=event), position)


def told(differences: Sequence[Difference]) -> dict[str, tuple[str, str]]:
    """Return what differs, and how it is told."""
    return {each.what: (each.recorded, each.decided) for each in differences}


def with_event(events: Sequence[NewEvent], before: int, event: LedgerEvent) -> list[NewEvent]:
    """Return the events with one more, so that it comes before what was at that position."""
    new = structs.replace(events[before - 1], event=event, idempotency_key="one more")
    return [*events[: before - 1], new, *events[before - 1 :]]


def test_the_choice_on_the_named_node_is_decided_again_and_nothing_else() -> None:
    """How the node was rated, and who signed, is none of it."""
    events = recorded_of("p0", "p1", "p2", "big", cards=1) + recorded_of("x", cards=3)[-1:]

    def elsewhere(each: RecordedEvent) -> RecordedEvent:
        if not isinstance(each.event, PodReserved):
            return each
        signed = {**each.event.annotations, ANNOTATION_TENURE_ALLOCATION: "signed"}
        event = structs.replace(each.event, annotations=signed, score=3, runner_up="x")
        return structs.replace(each, event=event)

    again = replayed(map(elsewhere, log(events, {})), whole=False)

    assert [each.kind for each in again] == ["placed"] * 4
    assert [each for each in again if each.differences] == []


def test_another_card_of_the_named_node_is_named() -> None:
    """The first free one is what comes out."""
    events = recorded_of("p0")
    (position,) = reservations(events).values()
    event = events[position - 1].event
    assert isinstance(event, PodReserved)
    (share,) = event.shares
    other = structs.replace(event, shares=(structs.replace(share, minor=1, device_id="GPU-a-1"),))
    events[position - 1] = structs.replace(events[position - 1], event=other)

    (again,) = differing(log(events, {}), whole=False)

    assert told(again.differences)["devices"][1].startswith("gpu/0")


def test_what_came_between_the_state_and_the_event_is_not_what_was_decided_on() -> None:
    """
    A card that died, and one that came free, after the state was read.

    Decided on the state right before its event, the Pod would have another card.
    """
    events = recorded_of("p0", "p1")
    at = reservations(events)
    dead = DeviceHealthChanged(
        node_uid="uid-a",
        device_type="gpu",
        minor=1,
        device_id="GPU-a-1",
        healthy=False,
        reason="XidError",
    )
    died = with_event(events, at["p1"], dead)
    gone = PodReleased(pod_uid="uid-p0", attempt=1, node_uid="uid-a", reason="completed")
    freed = with_event(events, at["p1"], gone)
    before, at_once = {"p1": at["p1"] - 1}, {"p1": at["p1"]}

    assert differing(log(died, before), whole=False) == []
    assert told(differing(log(died, at_once), whole=False)[0].differences)["outcome"] == (
        "placed on a: gpu/1 (100%, 17179869184 B, ratio 100%, instances 1, alone)",
        f"refused: {NOT_THERE}",
    )
    assert differing(log(freed, before), whole=False) == []
    assert "devices" in told(differing(log(freed, at_once), whole=False)[0].differences)


def test_what_a_pod_asks_may_be_described_behind_the_state_that_it_was_decided_on() -> None:
    """In the commit of its reservation."""
    events = recorded_of("p0")
    at = reservations(events)["p0"]
    described = next(
        position
        for position, new in enumerate(events, start=1)
        if isinstance(new.event, RequestDescribed)
    )

    assert described == at - 1
    assert differing(log(events, {"p0": described - 1}), whole=False) == []


def test_a_position_that_is_not_before_its_own_is_named() -> None:
    """Nobody decides on what is to come."""
    events = recorded_of("p0", "p1")
    at = reservations(events)

    found = differing(log(events, {"p0": at["p0"], "p1": at["p1"] + 7}), whole=False)

    assert [told(again.differences) for again in found] == [
        {"decided_on": (str(at["p0"]), NOT_BEFORE)},
        {"decided_on": (str(at["p1"] + 7), NOT_BEFORE)},
    ]


def test_in_a_simulation_such_a_position_is_a_difference() -> None:
    """There the whole decision was made on the state before its commit, and no event says more."""
    events = recorded_of("p0")

    (again,) = differing(log(events, {}))

    assert told(again.differences) == {
        "decided_on": (str(reservations(events)["p0"] - 1), "none"),
    }


def test_a_reservation_without_such_a_position_is_not_decided_again() -> None:
    """Nothing tells on what it was decided."""
    events = recorded_of("p0")

    assert (
        replayed((recorded(new, at) for at, new in enumerate(events, start=1)), whole=False) == []
    )


def test_a_node_that_would_not_take_what_was_given_there_is_named() -> None:
    """Its cards are all held."""
    events = recorded_of("p0", cards=2)
    event = events[-1].event
    assert isinstance(event, PodReserved)
    twice = structs.replace(event, pod_uid="uid-x", pod_name="x")
    events.append(structs.replace(events[-1], event=twice))

    (again,) = differing(log(events, {}), whole=False)

    assert told(again.differences)["outcome"][1] == f"refused: {NOT_THERE}"


def test_a_pod_that_held_something_then_is_named() -> None:
    """Its second reservation was decided before the first was given back."""
    events = recorded_of("p0")
    at = reservations(events)["p0"]
    event = events[-1].event
    assert isinstance(event, PodReserved)
    gone = PodReleased(pod_uid="uid-p0", attempt=1, node_uid="uid-a", reason="x")
    again = structs.replace(event, attempt=2, pod_name="again")
    events += [structs.replace(events[-1], event=each) for each in (gone, again)]

    assert differing(log(events, {"again": at + 1}), whole=False) == []
    (found,) = differing(log(events, {"again": at}), whole=False)
    assert told(found.differences)["outcome"][1] == f"refused: {HELD}"


def test_what_was_reserved_since_counts() -> None:
    """Who decides knows what he has chosen before it is recorded: two tell one position."""
    events = recorded_of("p0", "p1")
    at = reservations(events)
    start = min(at.values()) - 1

    assert at["p1"] > at["p0"]
    assert differing(log(events, dict.fromkeys(at, start)), whole=False) == []


def of_a_group(*, apart: bool) -> list[NewEvent]:
    """Return the events of a group of two, each with half a card; `apart`: the second later."""
    group = GroupRef(name="job", replica=2)
    pods = [replace(gpu_pod(f"w{i}", 1, 50), group=group) for i in range(2)]
    arrivals = [arrival(pods[0]), arrival(pods[1], 30 if apart else 0)]
    return play(run_of(NODES, arrivals, timed=True)).ledger.events


def test_members_that_are_recorded_together_are_decided_in_turn() -> None:
    """They tell one position; the second was decided on what the first got."""
    events = of_a_group(apart=False)
    at = reservations(events)
    plan = next(n for n, new in enumerate(events, start=1) if isinstance(new.event, GroupPlanned))

    assert differing(log(events, dict.fromkeys(at, plan - 1)), whole=False) == []


def test_what_the_last_of_a_command_counted_counts_for_the_next() -> None:
    """Three of a group whose plan is not at hand: each names the one before it alone."""
    group = GroupRef(name="job", replica=3)
    pods = [replace(gpu_pod(f"w{i}", 1), group=group) for i in range(3)]
    made = play(run_of([gpu_node("a", 4)], [arrival(each) for each in pods])).ledger.events
    events = [new for new in made if not isinstance(new.event, GroupPlanned)]
    at = reservations(events)
    names = {"w0": (), "w1": ("uid-w0/1",), "w2": ("uid-w1/1",)}

    def naming(each: RecordedEvent) -> RecordedEvent:
        if not isinstance(each.event, PodReserved):
            return each
        event = structs.replace(each.event, beside=names[each.event.pod_name])
        return structs.replace(each, event=event)

    found = replayed(map(naming, log(events, dict.fromkeys(at, min(at.values()) - 1))), whole=False)

    assert len(found) == 3
    assert not any("devices" in told(each.differences) for each in found)


def test_a_member_gets_the_card_that_the_plan_of_its_group_keeps() -> None:
    """The plan says which; without one, and where it was dropped, the choice is free."""
    group = GroupRef(name="job", replica=2)
    pods = [replace(gpu_pod(f"w{i}", 1), group=group) for i in range(2)]
    run = run_of([gpu_node("a", 4)], [arrival(pods[0]), arrival(pods[1], 30)], timed=True)
    events = play(run).ledger.events
    at = reservations(events)["w1"]

    def on_the_last(event: LedgerEvent) -> LedgerEvent:
        if isinstance(event, GroupPlanned):
            first, second = event.members
            last = structs.replace(second, minors=(3,), whole=(3,))
            return structs.replace(event, members=(first, last))
        if isinstance(event, PodReserved) and event.pod_name == "w1":
            (share,) = event.shares
            there = structs.replace(share, minor=3, device_id="GPU-a-3")
            return structs.replace(event, shares=(there,), annotations={})
        return event

    planned = [structs.replace(new, event=on_the_last(new.event)) for new in events]
    dropped = with_event(planned, at, PlanDropped(group="group/ml/job/2", reason="x"))

    def differences(events: Sequence[NewEvent]) -> dict[str, tuple[str, str]]:
        found = {each.name: each for each in differing(log(events, {}), whole=False)}
        return told(found["ml/w1"].differences)

    assert "devices" not in differences(planned)
    assert differences(dropped)["devices"][1].startswith("gpu/1")
