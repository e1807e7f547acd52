from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec
from ledger.domain.annotations.device_hints import PartitionSpec
from ledger.domain.log.events import (
    DeviceHealthChanged,
    PodReleased,
    PodReserved,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state import node_uid_of
from ledger.domain.request.requests import GangRef
from scheduler.cluster.model import HealthChange
from tenure.simulate.model import Arrival
from tests.support.folding import apply
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
from tests.support.violations import violations


def week(
    arrivals: Sequence[Arrival], *, cards: int = 2, changes: Sequence[HealthChange] = ()
) -> Played:
    """Let time pass on one node."""
    return play(run_of([gpu_node("n", cards)], arrivals, changes=changes, timed=True))


def story(played: Played) -> list[tuple[int, str, str]]:
    """Return what happened to Pods: second, what, and which."""
    words = {PodReserved: "reserved", PodReleased: "released", RequestRefused: "refused"}
    return [
        (
            (event.wall_us - START_US) // SECOND_US,
            words[type(event.event)],
            str(getattr(event.event, "pod_uid", "")).removeprefix("uid-"),
        )
        for event in played.ledger.events
        if type(event.event) in words
    ]


def test_a_pod_leaves_when_its_time_is_over() -> None:
    """Its release carries the virtual time and the reason; the card is free again."""
    played = week([arrival(gpu_pod("a"), 5, 10), arrival(gpu_pod("b"), 20)], cards=1)

    assert story(played) == [(5, "reserved", "a"), (15, "released", "a"), (20, "reserved", "b")]
    (released,) = played.ledger.of_type(PodReleased)
    assert isinstance(released.event, PodReleased)
    assert released.event.reason == "completed"
    assert played.simulator.engine.core_percent_allocated == 100


def test_a_waiting_pod_is_tried_when_something_became_free() -> None:
    """It holds its place from then on, for its whole lifetime."""
    arrivals = [arrival(gpu_pod("a"), 0, 10), arrival(gpu_pod("b"), 3, 10)]

    assert story(week(arrivals, cards=1)) == [
        (0, "reserved", "a"),
        (3, "refused", "b"),
        (10, "released", "a"),
        (10, "reserved", "b"),
        (20, "released", "b"),
    ]


def test_a_pod_that_arrives_never_overtakes_its_like() -> None:
    """At one moment: leave, then those who wait by age, then who arrives."""
    arrivals = [
        arrival(gpu_pod("a"), 0, 10),
        arrival(gpu_pod("b"), 1, 10),
        arrival(gpu_pod("c"), 2, 10),
        arrival(gpu_pod("d"), 10, 10),
    ]
    reserved = [pod for _, what, pod in story(week(arrivals, cards=1)) if what == "reserved"]

    assert reserved == ["a", "b", "c", "d"]


def test_a_smaller_pod_may_pass_one_that_can_not_be_placed() -> None:
    """There is no queue that blocks: kube-scheduler tries the next one too."""
    arrivals = [
        arrival(gpu_pod("a", 1), 0, 10),
        arrival(gpu_pod("big", 2), 1, 10),
        arrival(gpu_pod("small", 1), 2, 10),
    ]
    reserved = [pod for _, what, pod in story(week(arrivals)) if what == "reserved"]

    assert reserved == ["a", "small", "big"]


def test_a_refusal_is_recorded_when_its_reasons_change() -> None:
    """Tried again and refused for the same reasons, a Pod adds nothing to the ledger."""
    arrivals = [
        arrival(gpu_pod("a", 1), 0, 5),
        arrival(gpu_pod("b", 1), 0, 10),
        arrival(gpu_pod("big", 3), 1),
        *(arrival(gpu_pod(f"c{i}", 1), 6 + i, 1) for i in range(5)),
    ]
    played = week(arrivals)

    assert [pod for _, what, pod in story(played) if what == "refused"] == ["big"]


def test_pods_alike_share_one_verdict_and_each_has_its_refusal() -> None:
    """One decision speaks for all requests of a shape until something is freed."""
    arrivals = [arrival(gpu_pod("a", 2), 0, 100)]
    arrivals += [arrival(gpu_pod(f"w{i}", 2), 1 + i) for i in range(50)]
    played = week(arrivals)

    refused = {pod for _, what, pod in story(played) if what == "refused"}
    assert refused == {f"w{i}" for i in range(1, 50)} | {"w0"}
    # a and w0 at first, then w0 when a has left; the others are not asked one by one
    assert played.simulator.tally.decisions == 3


WISHES = {
    "a partition, where there is no table": {"partition": PartitionSpec()},
    "one NUMA node, where there are none": {
        "numa": NumaTopologySpec(policy=NumaPolicy.SINGLE_NUMA_NODE)
    },
    "pools for a burst, where there are none": {"burst_milli": 64_000},
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_a_pod_that_asks_for_less_is_not_refused_with_one_that_asks_for_more(
    wish: dict[str, Any],
) -> None:
    """They share no verdict, in whichever field they differ: the node is empty."""
    picky = replace(gpu_pod("picky"), **wish)
    played = week([arrival(picky), arrival(gpu_pod("plain"))])

    alone = week([arrival(picky)])
    assert played.node_of("plain") == "n"
    assert played.node_of("picky") == alone.node_of("picky")


def test_a_dead_card_takes_no_new_pod_and_keeps_its_holder() -> None:
    """Health closes to grants and never evicts; the card's return wakes who waits."""
    arrivals = [arrival(gpu_pod("a"), 0, 100), arrival(gpu_pod("b"), 20, 10)]
    changes = [health(10, 0, 0, healthy=False), health(10, 0, 1, healthy=False)]
    changes += [health(50, 0, 1, healthy=True)]
    played = week(arrivals, changes=changes)

    assert story(played) == [
        (0, "reserved", "a"),
        (20, "refused", "b"),
        (50, "reserved", "b"),
        (60, "released", "b"),
        (100, "released", "a"),
    ]
    assert len(played.ledger.of_type(DeviceHealthChanged)) == 3


def test_a_gang_waits_and_starts_as_a_whole() -> None:
    """Members that came together are placed together, once all of them fit."""
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    arrivals = [
        arrival(gpu_pod("a"), 0, 10),
        arrival(gpu_pod("g0", gang=gang), 1, 10),
        arrival(gpu_pod("g1", gang=gang), 1, 10),
    ]
    reserved = [(at, pod) for at, what, pod in story(week(arrivals)) if what == "reserved"]

    assert reserved == [(0, "a"), (10, "g0"), (10, "g1")]


def test_who_waits_for_long_is_explained_again() -> None:
    """Reasons change while it waits; once an hour the ledger hears what they are now."""
    changes = [health(0, 0, 1, healthy=False)]
    arrivals = [arrival(gpu_pod("w", 2), 1), arrival(gpu_pod("a"), 2, 20_000)]
    arrivals += [arrival(gpu_pod(f"tick{i}", 0), i * 1000, 1) for i in range(1, 15)]
    told = story(week(arrivals, changes=changes))

    assert [at for at, what, pod in told if (what, pod) == ("refused", "w")] == [1, 4001, 20_002]


def over_held(events: Sequence[NewEvent]) -> list[str]:
    """Return every promise beyond capacity, at any position."""
    found: list[str] = []
    state = None
    for position, event in enumerate(events, start=1):
        if node_uid_of(event.event) is not None:
            state = apply(state, position, event.event)
            if state is not None:
                found += [f"{position}: {violation}" for violation in violations(state)]
    return found


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 60),  # arrival, seconds
        st.integers(1, 30),  # lifetime
        st.integers(0, 3),  # cards
        st.sampled_from([100, 60, 40, 25]),  # percent of each
    ),
    max_size=25,
)


@given(
    drawn=ARRIVALS, died=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.booleans()))
)
def test_whatever_happens_nothing_is_promised_twice_and_all_is_given_back(
    drawn: list[tuple[int, int, int, int]], died: list[tuple[int, int, bool]]
) -> None:
    """No position ever over-holds a card, every Pod that got a place leaves, and it leaves once."""
    arrivals = [
        arrival(gpu_pod(f"p{i}", cards, 100 if cards > 1 else percent), at, lifetime)
        for i, (at, lifetime, cards, percent) in enumerate(sorted(drawn))
    ]
    changes = [health(at, 0, minor, healthy=healthy) for at, minor, healthy in sorted(died)]
    played = week(arrivals, cards=3, changes=changes)

    told = story(played)
    assert over_held(played.ledger.events) == []
    assert sorted(pod for _, what, pod in told if what == "reserved") == sorted(
        pod for _, what, pod in told if what == "released"
    )
    assert played.simulator.engine.core_percent_allocated == 0
    assert [at for at, _, _ in told] == sorted(at for at, _, _ in told)
