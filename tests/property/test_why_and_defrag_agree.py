"""
What `why` and `defrag plan` say of one Pod on one cluster can be true together.

The claims, each by its number in the test:

1. `why` names a node that takes the Pod as it is, if and only if no move is needed: that node.
2. Where moves make room, `why` does not say "never", and the Pods of some node would do by ending.
3. Where `why` says "never", no plan exists, no Pods are to end, and nothing is to be released.
4. Where no Pods of any node would do by ending, no plan exists.
5. Where a node would take it once Pods that may be moved have ended, `defrag` does not say that "no
   node takes it even without all Pods that may be moved".
6. With a smaller request that `why` names, no move is needed.
7. Once the moves of a plan are made, `why` names the plan's node.
8. Once the Pods that `why` names have ended, no move is needed.
9. What `why` says to release on a node is held there: empty, that node takes the Pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import ClusterSnapshot, Holder
from scheduler.cluster.rebuilt import held_as_placed
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.defrag import DefragPlan, NoPlan, plan_moves
from scheduler.whatif.prospects import Prospects, prospects_of
from scheduler.whatif.smaller import dimensions
from scheduler.whatif.what_if import WhatIf, what_if_of
from tests.support.clusters import fleets, gpu_node, pod, requests, requests_of_any_dialect, share
from tests.support.examples import examples

SETTINGS = SchedulingSettings()
ANY_POD = st.one_of(requests(), requests_of_any_dialect())
WANTED = "wanted"


def snapshot(
    nodes: tuple[NodeFacts, ...],
    pods: Sequence[tuple[PodRequest, bool, int]],
    wanted: PodRequest,
) -> ClusterSnapshot:
    """
    Return the cluster after these Pods came one by one; some of them may not be moved.

    Each goes to the node of its number, or, where that has no room, nowhere.
    """
    engine = Engine(nodes, SETTINGS)
    holders = []
    for number, (each, fixed, place) in enumerate(pods):
        request = replace(each, uid=f"p{number}", name=f"p{number}")
        answer = engine.try_place(request, place % len(nodes))
        if answer is not None:
            why = "fixed" if fixed else ""
            held = held_as_placed(answer, {})
            holders.append(Holder(node=answer.node, held=held, request=request, fixed=why))
    return ClusterSnapshot(
        nodes=nodes,
        holders=tuple(holders),
        settings=SETTINGS,
        requests={WANTED: replace(wanted, uid=WANTED, name=WANTED)},
    )


@st.composite
def scattered(draw: st.DrawFn) -> ClusterSnapshot:
    """Draw few cards with shares all over them, and a Pod that wants more than what is left."""
    cards = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    nodes = tuple(
        gpu_node(f"n{number}", count, cpu_milli=draw(st.sampled_from((4000, 8000, 64000))))
        for number, count in enumerate(cards)
    )
    pods = [
        (
            pod(
                "p",
                share(draw(st.sampled_from((20, 30, 50, 60, 100)))),
                cpu_milli=draw(st.sampled_from((0, 1000, 3000))),
            ),
            draw(st.integers(0, 3)) == 0,
            draw(st.integers(0, 2)),
        )
        for _ in range(draw(st.integers(3, 7)))
    ]
    wanted = share(draw(st.sampled_from((50, 80, 100))), draw(st.integers(1, 2)))
    cpu_milli = draw(st.sampled_from((0, 3000, 6000)))
    return snapshot(nodes, pods, pod("p", wanted, cpu_milli=cpu_milli))


@st.composite
def any_cluster(draw: st.DrawFn) -> ClusterSnapshot:
    """Draw nodes and Pods of every kind."""
    nodes = draw(fleets(3))
    pods = draw(st.lists(st.tuples(ANY_POD, st.booleans(), st.integers(0, 2)), max_size=6))
    return snapshot(nodes, pods, draw(ANY_POD))


def asked(cluster: ClusterSnapshot) -> tuple[Prospects, DefragPlan | NoPlan]:
    """Return both answers."""
    plan = plan_moves(cluster.requests[WANTED], what_if_of(cluster, WANTED), decisions_max=2000)
    return prospects_of(WANTED, cluster), plan


def without(cluster: ClusterSnapshot, gone: Sequence[Holder]) -> ClusterSnapshot:
    """Return the cluster once these Pods have ended."""
    names = {holder.uid for holder in gone}
    left = tuple(holder for holder in cluster.holders if holder.uid not in names)
    return replace(cluster, holders=left)


def moved(cluster: ClusterSnapshot, plan: DefragPlan) -> ClusterSnapshot:
    """Return the cluster once the moves of a plan are made."""
    now = {holder.uid: holder for holder in cluster.holders}
    for move in plan.moves:
        now[move.holder.uid] = replace(
            now[move.holder.uid], node=move.to.node, held=held_as_placed(move.to, {})
        )
    return replace(cluster, holders=tuple(now.values()))


def fits(cluster: ClusterSnapshot, request: PodRequest) -> bool:
    """Tell whether a request has a place as it is."""
    return isinstance(what_if_of(cluster, WANTED).decide(request), Placement)


@settings(max_examples=examples(120), deadline=None)
@given(cluster=st.one_of(scattered(), any_cluster()))
def test_they_never_contradict_each_other(cluster: ClusterSnapshot) -> None:
    """Every claim above."""
    request = cluster.requests[WANTED]
    why, plan = asked(cluster)
    found = why.nearest
    assert found is not None
    no_move = isinstance(plan, DefragPlan) and not plan.moves

    assert (found.fits is not None) == no_move, "claim 1"
    if isinstance(plan, DefragPlan) and not plan.moves:
        assert plan.place.node == found.fits, "claim 1"
        return
    if isinstance(plan, DefragPlan):
        assert not why.never, "claim 2"
        assert found.ending is not None, "claim 2"
        after = prospects_of(WANTED, moved(cluster, plan)).nearest
        assert after is not None, "claim 7"
        assert after.fits is not None, "claim 7"
    if why.never:
        assert isinstance(plan, NoPlan), "claim 3"
        assert found.ending is None, "claim 3"
    if found.ending is None and not found.cut:
        assert isinstance(plan, NoPlan), "claim 4"
    if isinstance(plan, NoPlan) and "no node takes it even without" in plan.why and found.ending:
        assert any(holder.fixed for holder in found.ending.holders), "claim 5"
    if found.ending is not None:
        assert fits(without(cluster, found.ending.holders), request), "claim 8"
    by_name = {dimension.name: dimension for dimension in dimensions(request)}
    for smaller in found.smaller:
        assert fits(cluster, by_name[smaller.name].apply(smaller.fits)), "claim 6"


@settings(max_examples=examples(300), deadline=None)
@given(cluster=st.one_of(scattered(), any_cluster()))
def test_what_is_to_be_released_would_do(cluster: ClusterSnapshot) -> None:
    """Claims 3 and 9: what frees something is said of a node that takes the Pod when empty."""
    request, nodes = cluster.requests[WANTED], cluster.nodes
    answer = what_if_of(cluster, WANTED).decide(request)
    if not isinstance(answer, Unplaced):
        return
    empty = WhatIf(nodes, (), SETTINGS)
    by_name = {node.name: number for number, node in enumerate(nodes)}
    for reason in answer.reasons:
        if reason.remedy.startswith(("release ", "end ")):
            assert not answer.never, "claim 3"
            assert empty.fits_on(request, by_name[reason.nearest_node]), reason
