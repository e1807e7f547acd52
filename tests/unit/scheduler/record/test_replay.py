"""
Decisions decided again: what is equal, what differs, and what can't be decided again.

That whole runs come out equal, with groups, changes of nodes and every policy, `tests.support.runs`
asserts of each run that any test plays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.errors import InputError
from ledger.domain.log.events import (
    EpochStarted,
    GroupPlanned,
    LedgerEvent,
    NodeDescribed,
    PlanDropped,
    PodReserved,
    PodVoided,
    RequestDescribed,
    RequestRefused,
    SettingsChanged,
)
from ledger.domain.log.recorded import RecordedEvent
from ledger.domain.request.requests import GangRef, GroupRef
from scheduler.cluster.model import NodeChange
from scheduler.decide.group.life import DEADLINE, NODE_GONE, NODE_REFUSES
from scheduler.decide.settings import POLICIES, SchedulingSettings
from scheduler.record.replay import Difference, Replay
from scheduler.record.so_far import InForce
from tests.support.replays import differing, replayed
from tests.support.runs import (
    SECOND_US,
    START_US,
    Played,
    arrival,
    gpu_node,
    gpu_pod,
    play,
    recorded,
    run_of,
)

NODES = [gpu_node(name, 2) for name in "abc"]
ARRIVALS = [
    arrival(gpu_pod("p0", 1, 50)),
    arrival(gpu_pod("p1", 1, 50)),
    arrival(gpu_pod("p2", 2)),
    arrival(gpu_pod("big", 3)),
    arrival(gpu_pod("p3", 1)),
]


Change = Callable[[LedgerEvent], LedgerEvent | None]


def words(played: Played, change: Change) -> list[RecordedEvent]:
    """Return the events of a run, each as `change` says it; None leaves it out."""
    said = [(new, change(new.event)) for new in played.ledger.events]
    kept = [structs.replace(new, event=event) for new, event in said if event is not None]
    return [recorded(new, position) for position, new in enumerate(kept, start=1)]


def on(minor: int | None, name: str) -> Callable[[LedgerEvent], LedgerEvent]:
    """Return what writes another device into the reservation of one Pod; None: the other of two."""

    def change(event: LedgerEvent) -> LedgerEvent:
        if not isinstance(event, PodReserved) or event.pod_name != name:
            return event
        shares = tuple(
            structs.replace(share, minor=1 - share.minor if minor is None else minor)
            for share in event.shares
        )
        return structs.replace(event, shares=shares)

    return change


def told(differences: Sequence[Difference]) -> dict[str, tuple[str, str]]:
    """Return what differs, and how it is told."""
    return {each.what: (each.recorded, each.decided) for each in differences}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_comes_out_equal_by_every_policy(policy: str) -> None:
    """The workload, the number of an arrival and the order of equal nodes are in the events."""
    run = replace(run_of(NODES, ARRIVALS), rank=(2, 0, 1))
    played = play(run, policy=policy)

    kinds = [again.kind for again in replayed(played.ledger.recorded())]
    assert kinds == ["placed", "placed", "placed", "refused", "placed"]


def test_another_device_in_an_event_is_named() -> None:
    """A reservation of another card of the same node than comes out."""
    played = play(run_of(NODES, [ARRIVALS[0], *ARRIVALS[2:4]]))

    (again,) = differing(words(played, on(1, "p0")))

    assert (again.kind, again.name) == ("placed", "ml/p0")
    assert told(again.differences)["devices"] == (
        "gpu/1 (50%, 8589934592 B, ratio 50%, instances 1)",
        "gpu/0 (50%, 8589934592 B, ratio 50%, instances 1)",
    )


def test_the_decisions_after_a_difference_are_made_on_what_was_recorded() -> None:
    """The second half joins the first where that is said to be, and not where it would be now."""
    played = play(run_of(NODES, ARRIVALS[:2]))

    _, joined = differing(words(played, on(1, "p0")))

    assert [text[:5] for text in told(joined.differences)["devices"]] == ["gpu/0", "gpu/1"]


def test_a_device_that_no_inventory_has_is_named_too() -> None:
    """It is held as strange, and the node is closed for its type."""
    played = play(run_of(NODES[:1], [ARRIVALS[0], arrival(gpu_pod("p1"))]))

    first, second = differing(words(played, on(7, "p0")))

    assert told(first.differences)["devices"][0].startswith("gpu/7")
    assert told(second.differences)["outcome"][0].startswith("placed on a: gpu/1")


def test_another_node_another_message_and_a_place_for_nobody_are_named() -> None:
    """Whatever a decision says is compared with what comes out now."""

    def change(event: LedgerEvent) -> LedgerEvent:
        if isinstance(event, PodReserved) and event.pod_name == "p3":
            return structs.replace(event, node_name="c", node_uid="uid-c", score=1)
        if isinstance(event, RequestRefused):
            return structs.replace(event, message="no")
        return event

    refused, moved = differing(words(play(run_of(NODES, ARRIVALS)), change))

    assert told(moved.differences)["node"] == ("c", "a")
    assert told(moved.differences)["score"][0] == "1"
    assert told(refused.differences) == {
        "message": ("no", "0/3 nodes are available: 3 Insufficient gpu devices.")
    }


def test_a_refusal_of_what_fits_is_named() -> None:
    """The other way round than a place for what does not fit."""
    full = play(run_of(NODES[:1], [arrival(gpu_pod("p", 3))]))
    refusal = full.ledger.of_type(RequestRefused)[0].event
    assert isinstance(refusal, RequestRefused)
    room = play(run_of(NODES[:1], [arrival(gpu_pod("p", 2))]))

    def change(event: LedgerEvent) -> LedgerEvent:
        if isinstance(event, PodReserved):
            return structs.replace(refusal, request=event.request)
        return event

    (again,) = differing(words(room, change))

    assert told(again.differences)["outcome"] == (
        f"refused: {refusal.message}",
        "placed on a",
    )


def test_other_settings_decide_otherwise_and_are_told_by_their_hash() -> None:
    """Who decides by settings of his own sees what they would have changed."""
    played = play(run_of(NODES, ARRIVALS), policy="binpack")
    by = InForce(settings=SchedulingSettings(node_policy="spread"), settings_hash="other", seed=1)

    first, *_ = [a for a in replayed(played.ledger.recorded(), by=by) if a.differences]

    assert told(first.differences)["policy"] == ("binpack", "spread")
    assert told(first.differences)["settings_hash"][1] == "other"


def test_settings_whose_words_do_not_give_their_hash_are_named() -> None:
    """A reservation quotes the hash of what it was decided by, not what an event calls it."""
    played = play(run_of(NODES, ARRIVALS[:1]))

    def change(event: LedgerEvent) -> LedgerEvent:
        if isinstance(event, SettingsChanged):
            return structs.replace(
                event, settings=event.settings.replace("MostAllocated", "LeastAllocated")
            )
        return event

    (again,) = differing(words(played, change))

    assert "settings_hash" in told(again.differences)


def test_one_decision_alone_is_the_same_as_among_all() -> None:
    """Everything before it is only applied."""
    played = play(run_of(NODES, ARRIVALS))
    events = words(played, on(1, "p3"))
    for chosen in (each.envelope.position for each in events):
        replay = Replay()
        found = [
            again
            for each in events[:chosen]
            if (again := replay.take(each, decide=each.envelope.position == chosen)) is not None
        ]
        among_all = [again for again in replayed(events) if again.position == chosen]
        assert found == among_all


@pytest.mark.parametrize(
    ("left_out", "fact"),
    [
        (RequestDescribed, "what the Pod asked for is not in the log: pod=ml/p0"),
        (NodeDescribed, "what deciding reads of a node is not in the log: node=a"),
    ],
)
def test_what_a_ledger_does_not_tell_is_said(left_out: type[LedgerEvent], fact: str) -> None:
    """A guess would only say that something differs."""
    played = play(run_of(NODES, ARRIVALS))
    events = words(played, lambda event: None if isinstance(event, left_out) else event)

    with pytest.raises(InputError, match=fact):
        replayed(events)


def test_members_of_a_group_that_were_never_described_are_said() -> None:
    """The plan quotes digests as reservations do."""
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    played = play(run_of(NODES, [arrival(gpu_pod(f"g{i}", gang=gang)) for i in range(2)]))
    events = words(played, lambda event: None if isinstance(event, RequestDescribed) else event)

    with pytest.raises(InputError, match="what a member of the group asks for"):
        replayed(events)


def test_a_run_that_was_resumed_is_equal() -> None:
    """A new epoch in between is no decision and changes none."""
    played = play(run_of(NODES, ARRIVALS))
    events = list(played.ledger.recorded())
    epoch = EpochStarted(epoch=2, holder="h", origin="simulation/x", tenure_version="t")
    again = structs.replace(events[-3], event=epoch)

    assert differing([*events[:-3], again, *events[-3:]]) == []


def test_another_place_in_a_plan_is_named_and_its_members_take_what_was_recorded() -> None:
    """The plan, and not one difference for each member that comes later."""
    group = GroupRef(name="job", replica=2)
    pods = [replace(gpu_pod(f"w{i}", 1), group=group) for i in range(2)]
    run = run_of(NODES[:2], [arrival(pods[0]), arrival(pods[1], 30)], timed=True)

    def change(event: LedgerEvent) -> LedgerEvent:
        if isinstance(event, GroupPlanned):
            first, second = event.members
            return structs.replace(
                event,
                members=(
                    structs.replace(first, minors=(1,), whole=(1,)),
                    structs.replace(second, minors=(0,), whole=(0,)),
                ),
            )
        if isinstance(event, PodReserved):
            return on(None, event.pod_name)(event)
        return event

    found = differing(words(play(run), change))

    assert (found[0].kind, found[0].name) == ("planned", "group/ml/job/2")
    assert told(found[0].differences)["places"] == (
        "w0 on uid-a gpu/1, w1 on uid-a gpu/0",
        "w0 on uid-a gpu/0, w1 on uid-a gpu/1",
    )


def test_what_a_recovery_read_off_a_pod_is_applied_and_not_decided() -> None:
    """Nobody knows on what it was decided."""
    played = play(run_of(NODES, ARRIVALS[:2]))
    events = list(played.ledger.recorded())
    last = events[-1]
    key = structs.replace(last.envelope, idempotency_key="recover/i-1/hold/uid-p1/1")
    assert isinstance(last.event, PodReserved)
    event = structs.replace(last.event, request=None)

    assert len(replayed([*events[:-1], structs.replace(last, envelope=key, event=event)])) == 1


def test_the_events_say_what_the_node_was_rated_and_which_came_next() -> None:
    """Of the choice of node the scores of the winner and the runner-up are kept."""
    played = play(run_of(NODES, ARRIVALS[:1]), policy="binpack")

    (reserved,) = (new.event for new in played.ledger.of_type(PodReserved))
    assert isinstance(reserved, PodReserved)
    assert reserved.score is not None
    assert (reserved.runner_up, reserved.runner_up_score) == ("b", reserved.score)


def test_the_only_node_that_fits_has_no_runner_up() -> None:
    """Nothing is compared with nothing."""
    played = play(run_of([gpu_node("a", 2), gpu_node("b", 1)], [arrival(gpu_pod("p", 2))]))

    (reserved,) = (new.event for new in played.ledger.of_type(PodReserved))
    assert isinstance(reserved, PodReserved)
    assert (reserved.runner_up, reserved.runner_up_score) == ("", None)


GANG = GangRef(name="g", min_available=2, waiting_seconds=60)


def a_wait_that_ends() -> Played:
    """Return a run in which a gang of two has one member until its time is over."""
    pods = [gpu_pod(f"w{i}", 1, gang=GANG) for i in range(2)]
    return play(run_of(NODES[:1], [arrival(pods[0]), arrival(pods[1], 300)], timed=True))


def a_plan_that_ends() -> Played:
    """Return a run in which the node is lost that a plan keeps a place on."""
    group = GroupRef(name="job", replica=2)
    pods = [replace(gpu_pod(f"w{i}", 1), group=group) for i in range(2)]
    lost = NodeChange(at_us=START_US + SECOND_US, node=0, facts=replace(NODES[0], lost=True))
    arrivals = [arrival(pods[0]), arrival(pods[1], 300)]
    return play(run_of(NODES[:1], arrivals, changes=[lost], timed=True))


def test_the_end_of_a_plan_is_decided_again() -> None:
    """That of a gang whose time is over, and that of a plan whose node was lost."""
    for played, reason in ((a_wait_that_ends(), DEADLINE), (a_plan_that_ends(), NODE_GONE)):
        ends = [new.event for new in played.ledger.of_type(PlanDropped)]
        kinds = [again.kind for again in replayed(played.ledger.recorded())]

        assert [end.reason for end in ends if isinstance(end, PlanDropped)] == [reason]
        assert kinds.count("ended") == 1


def test_another_reason_of_an_end_is_named() -> None:
    """And another member by whose place the plan can't stand."""

    def change(event: LedgerEvent) -> LedgerEvent:
        return (
            structs.replace(event, reason=NODE_REFUSES, pod_uid="uid-x")
            if isinstance(event, PlanDropped)
            else event
        )

    (late,) = differing(words(a_wait_that_ends(), change))[:1]
    (gone,) = differing(words(a_plan_that_ends(), change))[:1]

    assert told(late.differences) == {"outcome": (f"{NODE_REFUSES} uid-x", DEADLINE)}
    assert told(gone.differences) == {"outcome": (f"{NODE_REFUSES} uid-x", f"{NODE_GONE} uid-w1")}


def test_a_member_that_does_not_give_back_at_the_end_is_named() -> None:
    """Its reservation was to be void."""
    played = a_wait_that_ends()

    found = differing(words(played, lambda event: None if isinstance(event, PodVoided) else event))

    assert (found[0].kind, found[0].name) == ("ended", "gang/ml/g")
    assert told(found[0].differences) == {
        "voided": ("none", f"uid-w0/1 on uid-a: {DEADLINE}"),
    }


def test_a_wait_that_ends_for_another_reason_is_named() -> None:
    """What is void in a simulation is void because the time of a gang was over."""

    def change(event: LedgerEvent) -> LedgerEvent:
        return structs.replace(event, reason="x") if isinstance(event, PodVoided) else event

    (again,) = differing(words(a_wait_that_ends(), change))

    assert told(again.differences)["voided"][0] == "uid-w0/1 on uid-a: x"


@pytest.mark.parametrize("of", [GroupPlanned, PlanDropped])
def test_a_plan_or_an_end_of_another_group_is_named(of: type[LedgerEvent]) -> None:
    """Its members have places already when they are planned again, and that ends nothing."""
    played = a_wait_that_ends()

    def change(event: LedgerEvent) -> LedgerEvent:
        return structs.replace(event, group="gang/ml/x") if type(event) is of else event

    assert {again.kind for again in differing(words(played, change))} >= {"planned"}


def test_what_a_simulation_never_writes_is_a_difference() -> None:
    """A version of the Pod, and a refusal by rules of a Pod that a request is told of."""

    def change(event: LedgerEvent) -> LedgerEvent:
        if isinstance(event, PodReserved) and event.pod_name == "p0":
            return structs.replace(event, resource_version="7")
        return structs.replace(event, stage="x") if isinstance(event, RequestRefused) else event

    versioned, refused = differing(words(play(run_of(NODES, ARRIVALS)), change))

    assert told(versioned.differences) == {"resource_version": ("7", "none")}
    assert told(refused.differences) == {"stage": ("x", "scheduling")}


def test_an_end_that_nothing_calls_for_is_named() -> None:
    """A plan that stands is over for whoever reads it."""
    group = GroupRef(name="job", replica=2)
    pods = [replace(gpu_pod(f"w{i}", 1), group=group) for i in range(2)]
    run = run_of(NODES[:1], [arrival(pods[0]), arrival(pods[1], 300)], timed=True)
    events = list(play(run).ledger.recorded())
    plan = next(n for n, each in enumerate(events) if isinstance(each.event, GroupPlanned))
    dropped = PlanDropped(group="group/ml/job/2", reason=NODE_GONE, pod_uid="uid-w1")
    end = structs.replace(events[plan + 1], event=dropped)

    (again, *_) = differing([*events[: plan + 2], end, *events[plan + 2 :]])

    assert told(again.differences) == {"outcome": (f"{NODE_GONE} uid-w1", "the plan stands")}


def test_a_node_that_is_lost_and_comes_back_changes_a_row_of_the_engine() -> None:
    """It is the same engine before and after, as in the run."""
    lost = NodeChange(at_us=START_US + SECOND_US, node=0, facts=replace(NODES[0], lost=True))
    back = NodeChange(at_us=START_US + 2 * SECOND_US, node=0, facts=NODES[0])
    arrivals = [arrival(gpu_pod(name), at) for name, at in (("p0", 0), ("p1", 1), ("p2", 2))]
    played = play(run_of(NODES, arrivals, changes=[lost, back], timed=True))
    replay = Replay()
    engines = []
    for each in played.ledger.recorded():
        replay.take(each)
        if isinstance(each.event, PodReserved):
            engines.append(replay._state._engine)

    assert len(engines) == 3
    assert len(set(map(id, engines))) == 1
