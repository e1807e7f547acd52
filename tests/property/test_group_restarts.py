"""What a plan promised is kept over a restart: from every prefix of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.log.events import (
    DeviceHealthChanged,
    LedgerEvent,
    PodReleased,
    PodReserved,
    PodVoided,
)
from ledger.domain.request.requests import GangRef, GroupRef, PodRequest
from scheduler.cluster.model import HealthChange
from scheduler.decide.engine import Engine
from scheduler.decide.group.life import (
    DEVICE_UNUSABLE,
    ClusterFacts,
    GroupLife,
    take_again,
    why_invalid,
)
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from tenure.simulate.model import Arrival, Run
from tests.support.group_lives import lives_of
from tests.support.links import TWO_BY_FOUR_PCIE
from tests.support.runs import arrival, gpu_node, gpu_pod, health, play, run_of

CARDS = 4


def member(number: int, group: int, kind: str, cards: int, least: int) -> PodRequest:
    """Return a Pod of a topology group, of a gang, of both, or of nothing."""
    request = gpu_pod(f"p{number}", cards, 100 if cards > 1 or number % 3 else 50)
    name = f"{kind}-{group}"
    both = 2 if kind == "both" else least
    if kind in {"group", "both"}:
        request = replace(request, group=GroupRef(name=name, replica=both))
    if kind in {"gang", "both"}:
        gang = GangRef(name=name, min_available=both, waiting_seconds=20)
        request = replace(request, gang=gang)
    return request


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Return Pods of a few groups and gangs, and some without, over a minute."""
    kinds = draw(
        st.lists(st.sampled_from(["group", "gang", "both", "none"]), min_size=2, max_size=4)
    )
    least = draw(st.integers(1, 3))
    moments = sorted(draw(st.lists(st.integers(0, 60), min_size=4, max_size=12)))
    result = []
    for number, at in enumerate(moments):
        group = draw(st.integers(0, len(kinds) - 1))
        cards = draw(st.integers(1, 3))
        lifetime = draw(st.sampled_from([5, 30, None]))
        request = member(number, group, kinds[group], cards, least)
        result.append(arrival(request, at, lifetime))
    return result


def run_of_groups(pods: Sequence[Arrival], changes: Sequence[tuple[int, int, int, bool]]) -> Run:
    """Return a run on two nodes."""
    nodes = [replace(gpu_node(name, CARDS), links=TWO_BY_FOUR_PCIE) for name in "ab"]
    health_changes = [
        health(at, node, minor, healthy=healthy) for at, node, minor, healthy in sorted(changes)
    ]
    return run_of(nodes, pods, changes=_alternating(health_changes), timed=True)


CHANGES = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 1), st.integers(0, CARDS - 1), st.booleans()),
    max_size=4,
)


def _alternating(changes: Sequence[HealthChange]) -> list[HealthChange]:
    """Return the changes that change something."""
    healthy: dict[tuple[int, int], bool] = {}
    kept = []
    for change in changes:
        key = (change.node, change.minor)
        if healthy.get(key, True) != change.healthy:
            healthy[key] = change.healthy
            kept.append(change)
    return kept


def made_anew(run: Run, events: Sequence[LedgerEvent], requests: dict[str, PodRequest]) -> Engine:
    """Return an engine with what these events say is held and unhealthy."""
    engine = Engine(run.nodes, SchedulingSettings())
    numbers = {node.uid: number for number, node in enumerate(run.nodes)}
    for event in events:
        match event:
            case PodReserved():
                placement = Placement(
                    request=requests[event.pod_uid],
                    node=numbers[event.node_uid],
                    node_uid=event.node_uid,
                    node_name=event.node_name,
                    shares=event.shares,
                    cpuset=event.cpuset,
                )
                engine.reserve(placement)
            case PodReleased() | PodVoided():
                engine.release(event.pod_uid)
            case DeviceHealthChanged():
                facts = engine.view(numbers[event.node_uid]).facts
                engine.put_node(
                    facts.with_health(event.device_type, event.minor, healthy=event.healthy)
                )
            case _:
                pass
    return engine


def facts_of(run: Run, engine: Engine, life: GroupLife) -> ClusterFacts:
    """Return what is known of the cluster beside the ledger."""
    usable = {
        facts.uid: frozenset(
            card.record.minor for card in engine.view(node).cards if not card.closed
        )
        for node, facts in enumerate(run.nodes)
    }
    return ClusterFacts(groups=dict.fromkeys(life.places, life.name), usable=usable)


@given(pods=arrivals(), changes=CHANGES)
def test_places_survive_a_restart_after_any_commit(
    pods: list[Arrival], changes: list[tuple[int, int, int, bool]]
) -> None:
    """
    Every plan folded from a prefix can be taken again, and its members get just these places.

    The run goes on with the places it planned; whoever starts from the ledger has the same ones,
    until the member takes its place or the plan is dropped.
    """
    run = run_of_groups(pods, changes)
    played = play(run)
    requests = {one.pod.uid: one.pod for one in pods if isinstance(one.pod, PodRequest)}
    numbers = {node.uid: number for number, node in enumerate(run.nodes)}
    commits = played.ledger.commits
    promised: dict[str, Placement] = {}
    past: list[tuple[LedgerEvent, int]] = []
    for commit in commits:
        for new in commit:
            if isinstance(new.event, PodReserved) and new.event.pod_uid in promised:
                place = promised[new.event.pod_uid]
                assert (place.node_uid, place.shares) == (new.event.node_uid, new.event.shares)
        past += [(new.event, new.wall_us) for new in commit]
        lives = lives_of(past)
        engine = made_anew(run, [event for event, _ in past], requests)
        promised = {}
        for life in lives.values():
            taken = take_again(life, requests, numbers, engine)
            if taken is None:  # its end is the next event
                assert why_invalid(life, facts_of(run, engine, life))[0] == DEVICE_UNUSABLE
            promised |= taken or {}


@given(pods=arrivals(), changes=CHANGES)
def test_the_ledger_says_of_groups_what_the_run_knows(
    pods: list[Arrival], changes: list[tuple[int, int, int, bool]]
) -> None:
    """Folded from the events, every group's life is the one that the run went by."""
    played = play(run_of_groups(pods, changes))

    lives = lives_of([(new.event, new.wall_us) for new in played.ledger.events])
    known = played.simulator.groups.lives
    assert lives == {name: life for name, life in known.items() if life.plans or life.held_at_once}


@given(pods=arrivals(), changes=CHANGES)
def test_gangs_start_whole_or_hold_nothing_after_their_deadline(
    pods: list[Arrival], changes: list[tuple[int, int, int, bool]]
) -> None:
    """At the end of a run no gang is stuck with fewer members than its minimum ever together."""
    played = play(run_of_groups(pods, changes))

    for name, life in played.simulator.groups.lives.items():
        if life.held:
            assert played.simulator.groups.is_complete(name), life
        assert not life.places, "every member came, so no place is left waiting"
    engine = played.simulator.engine
    for node in range(2):
        assert all(card.core_free >= 0 for card in engine.view(node).cards)
