"""An engine under which nodes come, go and change, against one made anew from where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ledger.domain.request.requests import GangRef, GroupRef, PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.engine import Engine
from scheduler.decide.group.groups import plan
from scheduler.decide.outcome import Placement
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import POLICIES, CpuSettings, SchedulingSettings
from scheduler.whatif.defrag import plan_moves
from scheduler.whatif.nearest import nearest
from scheduler.whatif.what_if import WhatIf
from tests.property.test_cards_hints import requests as hinted
from tests.property.test_cpu_nodes import pods as pinned
from tests.support.changing import UIDS, Cluster, Renumbered, changed, node_of, seen_on
from tests.support.clusters import requests, requests_of_any_dialect, running
from tests.support.examples import examples

Step = tuple[str, int]

KINDS = ("put", "put", "change", "change", "drop", "arrive", "arrive", "adopt", "leave", "ask")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32)), max_size=14)
PODS = st.lists(
    st.one_of(requests(), requests(), requests_of_any_dialect(), pinned(), hinted()),
    min_size=2,
    max_size=7,
)


def play(
    steps: Sequence[Step],
    pods: Sequence[PodRequest],
    policy: str,
    first: int,
    *,
    ranked: bool,
    by_count: bool,
) -> Cluster:
    """Return the cluster after these steps; "ask" lets the engine remember on the way."""
    rng = Random(first)
    count = rng.randint(0, 4)
    facts = [node_of(rng, uid) for uid in UIDS[:count]]
    order = rng.sample(range(count), count) if ranked else list(range(count))
    binder = CpuSettings(bound_by=rng.choice(("koordlet", "koordlet", "agent")))
    scheduling = SchedulingSettings(node_policy=policy, cpu=binder)
    typical = pods[: rng.randint(0, len(pods))]
    workload = workload_of(typical)
    engine = Engine(facts, scheduling, workload=workload, seed=7, rank=order, by_count=by_count)
    if not ranked and rng.randint(0, 1):  # a process that starts knows of no node
        engine = Engine((), scheduling, workload=workload, seed=7, by_count=by_count)
        assert engine.put_nodes(facts) == order
    cluster = Cluster(
        settings=scheduling,
        typical=typical,
        engine=engine,
        by_count=by_count,
        nodes=dict(enumerate(facts)),
        ranks=dict(enumerate(order)),
    )
    for number, (kind, seed) in enumerate(steps):
        step(cluster, kind, Random(seed), pods, number, ranked=ranked)
    return cluster


def step(
    cluster: Cluster,
    kind: str,
    rng: Random,
    pods: Sequence[PodRequest],
    number: int,
    *,
    ranked: bool,
) -> None:
    """Let one thing happen."""
    there = sorted(cluster.nodes)
    request = replace(rng.choice(pods), uid=f"p{number}", name=f"p{number}")
    match kind:
        case "put":
            ranks = [rank for rank in range(len(there) + 1) if rank not in cluster.ranks.values()]
            cluster.put(node_of(rng, rng.choice(UIDS)), rng.choice(ranks) if ranked else None)
        case "change" if there:
            cluster.put(changed(rng, cluster.nodes[rng.choice(there)]))
        case "drop" if there:
            cluster.drop(cluster.nodes[rng.choice(there)].uid)
        case "arrive":
            answer = cluster.engine.decide(request, ordinal=number)
            if isinstance(answer, Placement):
                cluster.reserve(answer)
        case "adopt" if there:
            node = rng.choice(there)
            cluster.adopt(node, seen_on(rng, f"s{number}", cluster.nodes[node]))
        case "leave" if cluster.held:
            cluster.release(rng.choice(sorted(cluster.held)))
        case "ask":
            cluster.engine.decide(request, ordinal=number)
            cluster.engine.filter(request, there)
            plan([request], cluster.engine)
            cluster.engine.fragmentation_percent()
        case _:
            pass  # there is nothing that it could happen to


def check(cluster: Cluster, pods: Sequence[PodRequest]) -> None:
    """Ask the changed engine and one made anew the same; every answer is equal."""
    there = sorted(cluster.nodes)
    mine, fresh = Renumbered(cluster.engine, there), cluster.anew()
    theirs = Renumbered(fresh, range(len(there)))
    nodes = range(len(there))
    for engine in (cluster.engine, fresh):
        engine._unfit.forget()  # a filter fails nodes that an earlier request was looked at on

    for node in nodes:
        assert mine.view(node) == theirs.view(node)
    assert cluster.engine.core_percent_capacity == fresh.core_percent_capacity
    assert cluster.engine.core_percent_allocated == fresh.core_percent_allocated
    assert cluster.engine.fragmentation_percent() == fresh.fragmentation_percent()
    for number, pod in enumerate(pods):
        request = replace(pod, uid=f"asked-{number}")
        assert mine.decide(request, ordinal=number) == theirs.decide(request, ordinal=number)
        assert mine.filter(request, nodes) == theirs.filter(request, nodes)
        assert mine.candidates(request) == theirs.candidates(request)
        assert mine.has_room(request, nodes) == theirs.has_room(request, nodes)
        for node in nodes:
            placed = mine.try_place(request, node)
            assert placed == theirs.try_place(request, node)
            if placed is not None:
                mine.undo(placed)
                fresh.undo(placed)
    members = [replace(pods[0], uid=f"m{number}") for number in range(3)]
    grouped = [replace(pod, group=GroupRef(name="g", replica=3)) for pod in members]
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    for some in (members, grouped, [replace(pod, gang=gang) for pod in members]):
        assert plan(some, mine) == plan(some, theirs)


ARGUMENTS = {
    "steps": STEPS,
    "pods": PODS,
    "policy": st.sampled_from(POLICIES),
    "first": st.integers(0, 2**32),
    "ranked": st.booleans(),
    "by_count": st.booleans(),
}


@settings(max_examples=examples(250), deadline=None)
@given(**ARGUMENTS)
def test_a_changed_engine_answers_as_one_made_anew(
    steps: list[Step],
    pods: list[PodRequest],
    policy: str,
    first: int,
    *,
    ranked: bool,
    by_count: bool,
) -> None:
    """
    Any sequence of changes, reservations, adoptions and ends leaves what the final state says.

    Every dialect, policy and kind of node; placements with all they hold, refusals with every
    reason and number, ratings, filters, plans of groups.
    """
    check(play(steps, pods, policy, first, ranked=ranked, by_count=by_count), pods)


@settings(max_examples=examples(60), deadline=None)
@given(**ARGUMENTS)
def test_what_if_is_answered_alike(
    steps: list[Step],
    pods: list[PodRequest],
    policy: str,
    first: int,
    *,
    ranked: bool,
    by_count: bool,
) -> None:
    """The nearest changes and the moves that make room are those of a bench made anew."""
    cluster = play(steps, pods, policy, first, ranked=ranked, by_count=by_count)
    there = sorted(cluster.nodes)
    for uid in sorted(cluster.held):  # what is lifted is put back as it is seen to run
        node, what = cluster.held[uid]
        if isinstance(what, Placement):
            cluster.release(uid)
            seen = running(
                uid,
                *what.shares,
                cpu_milli=what.request.cpu_milli,
                memory_bytes=what.request.memory_bytes,
                cpuset=what.cpuset,
            )
            cluster.adopt(node, structs.replace(seen, node_uid=what.node_uid))
    request = replace(pods[0], uid="wanted")
    holders = [
        Holder(node=there.index(node), held=what)
        for node, what in cluster.held.values()
        if not isinstance(what, Placement)
    ]
    mine = what_if(cluster, holders, Renumbered(cluster.engine, there))
    fresh = what_if(cluster, holders, Renumbered(cluster.anew(), range(len(there))))

    assert nearest(request, mine, decisions_max=60) == nearest(request, fresh, decisions_max=60)
    assert plan_moves(request, mine, decisions_max=60) == plan_moves(
        request, fresh, decisions_max=60
    )


def what_if(cluster: Cluster, holders: Sequence[Holder], engine: Renumbered) -> WhatIf:
    """Return a bench of the cluster that stands on this engine."""
    policy = "binpack" if cluster.settings.node_policy == "random" else cluster.settings.node_policy
    nodes = [cluster.nodes[number] for number in sorted(cluster.nodes)]
    made = WhatIf(nodes, holders, replace(cluster.settings, node_policy=policy))
    made._engine = cast("Engine", engine)
    return made


@pytest.mark.slow
@settings(max_examples=6000, deadline=None)
@given(**ARGUMENTS)
def test_changed_engines_hold_over_thousands_of_histories(
    steps: list[Step],
    pods: list[PodRequest],
    policy: str,
    first: int,
    *,
    ranked: bool,
    by_count: bool,
) -> None:
    """The same over more histories."""
    check(play(steps, pods, policy, first, ranked=ranked, by_count=by_count), pods)
