"""Groups and gangs whose members arrive one after the other, on the virtual clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ledger.domain.log.events import (
    GroupPlanned,
    PlanDropped,
    PodReleased,
    PodReserved,
    PodVoided,
    RequestDescribed,
    RequestRefused,
)
from ledger.domain.request.requests import ContainerNeed, GangRef, GroupRef, PodRequest
from ledger.domain.topology import LinkMatrix
from scheduler.cluster.model import HealthChange
from scheduler.decide.outcome import Unplaced
from scheduler.record.core import Placed
from tenure.simulate.model import Arrival
from tests.support.links import DGX_A100
from tests.support.runs import (
    SECOND_US,
    START_US,
    Played,
    arrival,
    gpu_node,
    gpu_pod,
    health,
    play,
    run_of,
)
from tests.support.topologies import EIGHT_GPU_NVLINK

WORDS = {
    GroupPlanned: "planned",
    PlanDropped: "dropped",
    PodReserved: "reserved",
    PodReleased: "released",
    PodVoided: "voided",
    RequestRefused: "refused",
}


def member(name: str, cards: int = 1, *, job: str = "job", replica: int = 2) -> PodRequest:
    """Return a Pod of a topology group, with one container."""
    need = ContainerNeed(name="c", index="0", kind="app", device_counts=(("gpu", cards),))
    group = GroupRef(name=job, replica=replica)
    return replace(gpu_pod(name, cards), group=group, containers=(need,))


def of_gang(name: str, cards: int = 1, *, least: int = 2, wait: int = 60) -> PodRequest:
    """Return a Pod of the gang that its name begins with."""
    gang = GangRef(name=name[0], min_available=least, waiting_seconds=wait)
    return gpu_pod(name, cards, gang=gang)


def over(
    sizes: Sequence[int], arrivals: Sequence[Arrival], *changes: HealthChange, **links: LinkMatrix
) -> Played:
    """Let time pass on nodes a, b, c, ... with so many GPUs."""
    nodes = [
        replace(gpu_node(name, size), links=links.get(name))
        for name, size in zip("abcdef", sizes, strict=False)
    ]
    return play(run_of(nodes, arrivals, changes=changes, timed=True))


def story(played: Played) -> list[tuple[int, str, str]]:
    """Return what happened: second, what, and to which Pod or for which reason."""
    result = []
    for event in played.ledger.events:
        what, body = WORDS.get(type(event.event)), event.event
        if what is None:
            continue
        which = str(getattr(body, "pod_uid", "")).removeprefix("uid-")
        if isinstance(body, GroupPlanned):
            which = ",".join(planned.pod_name for planned in body.members)
        elif isinstance(body, PlanDropped):
            which = body.reason
        elif isinstance(body, RequestRefused):
            which += f" {body.reasons[0].reason}"
        result.append(((event.wall_us - START_US) // SECOND_US, what, which))
    return result


def held(played: Played, name: str) -> tuple[str, list[int], dict[str, object]]:
    """Return node and GPUs of a Pod, and the group's annotation."""
    (found,) = [
        outcome
        for outcome in played.outcomes
        if isinstance(outcome, Placed) and outcome.placement.request.name == name
    ]
    annotation = found.annotations.get("topology.scheduling.koordinator.sh/gpu", "{}")
    minors = [share.minor for share in found.placement.shares]
    return found.placement.node_name, minors, json.loads(annotation)


def test_a_member_that_comes_later_takes_the_place_that_was_kept_for_it() -> None:
    """GPU-topology proposal, main steps: the GPUs are those pre-allocated with the first member."""
    arrivals = [arrival(member("w0")), arrival(gpu_pod("other")), arrival(member("w1"), 30)]
    played = over([2, 1], arrivals)

    assert story(played) == [
        (0, "planned", "w0,w1"),
        (0, "reserved", "w0"),
        (0, "reserved", "other"),
        (30, "reserved", "w1"),
    ]
    assert [played.node_of(name) for name in ("w0", "w1", "other")] == ["a", "a", "b"]


def test_the_plan_and_the_first_reservation_are_one_commit() -> None:
    """A crash leaves both or neither."""
    played = over([2], [arrival(member("w0")), arrival(member("w1"), 30)])

    commits = [[type(event.event) for event in commit] for commit in played.ledger.commits[1:]]
    assert commits == [[RequestDescribed, GroupPlanned, PodReserved], [PodReserved]]


def test_every_member_sees_the_gpus_that_the_group_has_on_its_node() -> None:
    """`visibleGPUs` is the whole group's, kept places included; `allocatedGPUs` the container's."""
    arrivals = [arrival(member("w0", 2)), arrival(member("w1", 1), 30)]
    played = over([4], arrivals)

    assert held(played, "w0")[2] == {
        "allocatedGPUs": {"0": ["0", "1"]},
        "visibleGPUs": ["0", "1", "2"],
    }
    assert held(played, "w1")[2] == {"allocatedGPUs": {"0": ["2"]}, "visibleGPUs": ["0", "1", "2"]}


@pytest.mark.parametrize("share_visible", [True, False], ids=["shown", "not shown"])
def test_a_card_that_a_member_sees_waits_for_its_end(*, share_visible: bool) -> None:
    """B ends at 10, a stranger asks at 15, and a new member at 20; a, who sees b's card, at 50."""
    arrivals = [
        arrival(member("a", replica=3), 0, 50),
        arrival(member("b", replica=3), 0, 10),
        arrival(member("b2", replica=3), 20, 10),
        arrival(gpu_pod("c"), 15),
    ]
    arrivals.sort(key=lambda one: one.at_us)
    run = run_of([gpu_node("a", 2)], arrivals, timed=True)
    played = play(run, share_visible=share_visible)

    placed = {which: at for at, what, which in story(played) if what == "reserved"}
    shown = {
        new.event.pod_name: new.event.annotations.get("tenure.sh/shown")
        for new in played.ledger.of_type(PodReserved)
        if isinstance(new.event, PodReserved)
    }
    if share_visible:
        assert placed == {"a": 0, "b": 0, "b2": 20, "c": 50}
        assert shown == {**dict.fromkeys(("a", "b", "b2"), "GPU-a-0,GPU-a-1"), "c": None}
        [refusal] = played.ledger.of_type(RequestRefused)
        assert isinstance(refusal.event, RequestRefused)
        assert refusal.event.reasons[0].reason == "GPUVisibleToGroup"
    else:
        assert placed == {"a": 0, "b": 0, "c": 15, "b2": 50}
        assert set(shown.values()) == {None}


def test_a_dead_gpu_ends_the_plan_and_a_scheduled_group_is_not_planned_again() -> None:
    """Other members are scheduled: only a suitable node for this Pod is looked for."""
    arrivals = [arrival(member("w0")), arrival(member("w1"), 30)]
    played = over([2, 2], arrivals, health(10, 0, 1, healthy=False))

    assert story(played) == [
        (0, "planned", "w0,w1"),
        (0, "reserved", "w0"),
        (10, "dropped", "PlannedDeviceUnusable"),
        (30, "reserved", "w1"),
    ]
    assert held(played, "w1")[0] == "b"
    assert held(played, "w1")[2] == {"allocatedGPUs": {"0": ["0"]}, "visibleGPUs": ["0"]}


def test_a_lone_member_sees_what_its_group_has_on_the_node() -> None:
    """Found alone on the node of the others, its containers see theirs beside its own."""
    arrivals = [arrival(member("w0")), arrival(member("w1"), 30)]
    played = over([3], arrivals, health(10, 0, 1, healthy=False))

    assert held(played, "w1")[1:] == (
        [2],
        {"allocatedGPUs": {"0": ["2"]}, "visibleGPUs": ["0", "2"]},
    )


ANEW = {
    "their node has room": ((), "a"),
    "their node is full": ((arrival(gpu_pod("other", 2), 12),), "b"),
    "a GPU there is dead": ((health(12, 0, 7, healthy=False),), "b"),
}


@pytest.mark.parametrize(("more", "expected"), ANEW.values(), ids=ANEW)
def test_a_worker_made_anew_comes_to_its_peers(
    more: Sequence[Arrival | HealthChange], expected: str
) -> None:
    """Goal 4 and Story 2: b has faster links, and is taken only if the peers' node can't be."""
    links = {"a": EIGHT_GPU_NVLINK, "b": DGX_A100}
    workers = [arrival(member(f"w{place}", 2, replica=4), 0) for place in range(3)]
    ends = arrival(member("w3", 2, replica=4), 0, 10)
    anew = arrival(member("w3-anew", 2, replica=4), 20)
    first = [arrival(gpu_pod("elsewhere", 8), 0, 15)]  # keeps b from the group at first
    others = [one for one in more if isinstance(one, Arrival)]
    changes = [one for one in more if isinstance(one, HealthChange)]
    played = over([8, 8], [*first, *workers, ends, *others, anew], *changes, **links)

    assert {played.node_of(f"w{place}") for place in range(4)} == {"a"}
    assert 7 in held(played, "w3")[1]
    assert played.node_of("w3-anew") == expected


def test_what_a_dropped_plan_kept_is_free_for_others() -> None:
    """Who waits is tried at once."""
    arrivals = [
        arrival(member("w0", 1)),
        arrival(gpu_pod("other"), 5),
        arrival(member("w1", 2), 30),
    ]
    played = over([3], arrivals, health(10, 0, 1, healthy=False))

    assert (10, "reserved", "other") in story(played)
    assert [what for _, what, which in story(played) if which.startswith("w1")] == ["refused"]


def test_a_group_of_which_nobody_is_scheduled_is_planned_again() -> None:
    """The first member ended before the second came, its plan was dropped: whole again."""
    arrivals = [
        arrival(member("w0", replica=3), 0, 5),
        arrival(member("w1", replica=3), 30),
        arrival(member("w2", replica=3), 40),
    ]
    played = over([3, 1], arrivals, health(10, 0, 1, healthy=False))

    assert [entry for entry in story(played) if entry[1] == "planned"] == [
        (0, "planned", "w0,w1,w2"),
        (30, "planned", "w1,w2"),
    ]
    assert [played.node_of(name) for name in ("w1", "w2")] == ["a", "a"]
    assert held(played, "w2")[1] == [2]


def test_a_group_that_does_not_fit_whole_takes_what_there_is() -> None:
    """Non-Goals: some members run while others wait; no GPU is kept for who is not there."""
    arrivals = [
        arrival(member("w0", 2, replica=3)),
        arrival(member("w1", 2, replica=3), 10),
        arrival(gpu_pod("other"), 5),
        arrival(member("w2", 2, replica=3), 10),
    ]
    arrivals.sort(key=lambda one: one.at_us)
    played = over([2, 2], arrivals)

    assert [entry[1:] for entry in story(played)[:3]] == [
        ("planned", "w0"),
        ("reserved", "w0"),
        ("reserved", "other"),
    ]
    assert [played.node_of(name) for name in ("w1", "w2")] == [None, None]


def test_a_second_group_does_not_take_what_waits_for_the_first() -> None:
    """Both want the fast pair; the first planned has it, though its second member comes later."""
    fast = LinkMatrix(rows=((1.0, 90.0, 9.0), (90.0, 1.0, 9.0), (9.0, 9.0, 1.0)))
    arrivals = [
        arrival(member("w0")),
        arrival(member("x0", job="late"), 10),
        arrival(member("w1"), 20),
        arrival(member("x1", job="late"), 30),
    ]
    played = over([3, 2], arrivals, a=fast)

    assert [held(played, name)[:2] for name in ("w0", "w1")] == [("a", [0]), ("a", [1])]
    assert [held(played, name)[0] for name in ("x0", "x1")] == ["b", "b"]


def test_an_incomplete_gang_gives_everything_back_at_its_deadline() -> None:
    """`waiting-time`: members that are not bound are voided, the plan is dropped, with a reason."""
    arrivals = [arrival(of_gang("g0", wait=60), 0, 10), arrival(of_gang("g1", wait=60), 100, 10)]
    played = over([2], arrivals)

    assert story(played) == [
        (0, "planned", "g0,g1"),
        (0, "reserved", "g0"),
        (60, "voided", "g0"),
        (60, "dropped", "GangDeadlinePassed"),
        (60, "refused", "g0 GangDeadlinePassed"),
        (60, "planned", ""),
        (60, "refused", "g0 GangMembersMissing"),
        (100, "planned", "g0,g1"),
        (100, "reserved", "g0"),
        (100, "reserved", "g1"),
        (110, "released", "g0"),
        (110, "released", "g1"),
    ]
    assert len(played.ledger.commits[2]) == 2  # voided and dropped together
    keys = [event.idempotency_key for event in played.ledger.events]
    assert len(set(keys)) == len(keys)


def test_nothing_is_kept_for_a_gang_of_which_nobody_present_fits() -> None:
    """A plan begins with a reservation; the small members start when the first of them is there."""
    arrivals = [
        arrival(of_gang("g0", 4), 0),
        arrival(of_gang("g1"), 10),
        arrival(gpu_pod("other"), 5, 10),
        arrival(of_gang("g2"), 20),
    ]
    arrivals.sort(key=lambda one: one.at_us)
    played = over([3], arrivals)

    assert [entry[1:] for entry in story(played) if entry[0] < 20] == [
        ("planned", ""),
        ("refused", "g0 GangUnfit"),
        ("reserved", "other"),
        ("planned", "g1,g2"),
        ("reserved", "g1"),
        ("refused", "g0 Insufficient gpu devices"),
        ("released", "other"),
    ]
    assert played.node_of("g2") == "a"


def test_a_late_member_of_a_gang_that_started_is_refused_for_its_own_reasons() -> None:
    """The others go on; it waits like any Pod."""
    played = over([2], [arrival(of_gang(f"g{i}"), 5 * i, 100) for i in range(3)])

    refused = [entry for entry in story(played) if entry[1] == "refused"]
    assert refused == [(10, "refused", "g2 Insufficient gpu devices")]
    assert (105, "reserved", "g2") in story(played)


def test_members_of_a_gang_start_together() -> None:
    """Lifetimes run from the moment when enough members hold their devices."""
    arrivals = [arrival(of_gang("g0"), 0, 10), arrival(of_gang("g1"), 40, 10)]
    played = over([2], arrivals)

    assert [entry for entry in story(played) if entry[1] == "released"] == [
        (50, "released", "g0"),
        (50, "released", "g1"),
    ]


def test_a_complete_gang_has_no_deadline() -> None:
    """Two of three are enough; one that ends later does not take the others with it."""
    arrivals = [
        arrival(of_gang("g0"), 0, 500),
        arrival(of_gang("g1"), 0, 10),
        arrival(of_gang("g2"), 300, 10),
    ]
    played = over([3], arrivals)

    assert not played.ledger.of_type(PodVoided)
    assert not played.ledger.of_type(PlanDropped)
    assert [entry[0] for entry in story(played) if entry[1] == "released"] == [10, 310, 500]


def test_a_gang_at_its_deadline_makes_room_for_the_one_that_waits() -> None:
    """Two gangs want all cards: the older plan stands until its deadline, then the other starts."""
    arrivals = [
        arrival(of_gang("g0", 2, wait=60)),
        arrival(of_gang("h0", 2, wait=60), 10),
        arrival(of_gang("h1", 2, wait=60), 20),
        arrival(of_gang("g1", 2, wait=60), 500),
    ]
    played = over([4], arrivals)

    assert [played.node_of(name) for name in ("h0", "h1", "g0", "g1")] == ["a", "a", None, None]
    assert [entry[0] for entry in story(played) if entry[2] in {"h0", "h1"}] == [60, 60]
    lost = [outcome for outcome in played.outcomes if isinstance(outcome, Unplaced)]
    assert [outcome.request.name for outcome in lost] == ["g0", "g1"]
    assert (played.simulator.tally.placed, played.simulator.tally.failed) == (2, 2)


def test_groups_that_wait_are_planned_in_the_order_of_their_oldest_member() -> None:
    """When room appears the gang that came first is planned first, whole or not at all."""
    arrivals = [
        arrival(gpu_pod("full", 4), 0, 50),
        arrival(of_gang("h0", 2), 10),
        arrival(of_gang("g0", 2), 11),
        arrival(of_gang("g1", 2), 12),
        arrival(of_gang("h1", 2), 13),
    ]
    played = over([4], arrivals)

    assert [entry for entry in story(played) if entry[0] == 50] == [
        (50, "released", "full"),
        (50, "planned", "h0,h1"),
        (50, "reserved", "h0"),
        (50, "reserved", "h1"),
    ]


@pytest.mark.parametrize(
    ("dies", "voided"), [(30, ["g0"]), (60, ["g0"])], ids=["before", "at the deadline"]
)
def test_a_gang_whose_plan_is_lost_still_has_its_deadline(dies: int, voided: list[str]) -> None:
    """The reservation of the first member does not outlive the wait because the plan did not."""
    arrivals = [arrival(of_gang("g0", wait=60)), arrival(of_gang("g1", wait=60), 100)]
    played = over([2], arrivals, health(dies, 0, 1, healthy=False))

    assert [which for at, what, which in story(played) if what == "voided" and at == 60] == voided
    assert played.simulator.engine.core_percent_allocated == 0


def test_what_is_kept_for_members_to_come_is_not_counted_twice() -> None:
    """After the last member came, the engine holds exactly what was reserved."""
    arrivals = [arrival(member("w0", 2)), arrival(member("w1", 2), 10)]
    played = over([4], arrivals)

    assert played.simulator.engine.core_percent_allocated == 400
