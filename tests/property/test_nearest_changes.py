from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.nearest import alternatives, nearest
from scheduler.whatif.obstacles import find_reasons
from scheduler.whatif.smaller import dimensions
from scheduler.whatif.what_if import WhatIf
from tests.support.clusters import fleets, requests, requests_of_any_dialect, running
from tests.support.examples import examples

SETTINGS = SchedulingSettings()
ANY_POD = st.one_of(requests(), requests_of_any_dialect())


def filled(nodes: tuple[NodeFacts, ...], pods: list[PodRequest]) -> list[Holder]:
    """Return the holders after these Pods came one by one."""
    engine = Engine(nodes, SETTINGS)
    holders = []
    for number, pod in enumerate(pods):
        request = replace(pod, uid=f"p{number}", name=f"p{number}")
        answer = engine.decide(request)
        if isinstance(answer, Placement):
            engine.reserve(answer)
            held = running(
                request.uid,
                *answer.shares,
                cpu_milli=request.cpu_milli,
                memory_bytes=request.memory_bytes,
                cpuset=answer.cpuset,
            )
            holders.append(Holder(node=answer.node, held=held, request=request))
    return holders


def fits(request: PodRequest, nodes: tuple[NodeFacts, ...], holders: list[Holder]) -> bool:
    """Tell whether a fresh engine with just these holders places the request."""
    return isinstance(WhatIf(nodes, holders, SETTINGS).decide(request), Placement)


@settings(max_examples=examples(150), deadline=None)
@given(nodes=fleets(3), pods=st.lists(ANY_POD, max_size=6), pod=ANY_POD)
def test_every_change_that_is_named_makes_the_request_fit(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest], pod: PodRequest
) -> None:
    """
    Every kind of change is tried on a fresh engine.

    Smaller requests fit and the next larger number does not; other wishes fit; the Pods named for
    ending make room, and none of them ends in vain.
    """
    holders = filled(nodes, pods)
    request = replace(pod, uid="wanted")
    what_if = WhatIf(nodes, holders, SETTINGS)

    found = nearest(request, what_if)

    assert (found.fits is not None) == fits(request, nodes, holders)
    by_name = {dimension.name: dimension for dimension in dimensions(request)}
    for smaller in found.smaller:
        dimension = by_name[smaller.name]
        assert 0 < smaller.fits < dimension.asked
        assert fits(dimension.apply(smaller.fits), nodes, holders)
        if dimension.counted or smaller.fits + 1 < dimension.asked:
            larger = dimension.apply(smaller.fits + 1)
            assert smaller.fits + 1 == dimension.asked or not fits(larger, nodes, holders)
    wishes = dict(alternatives(request, nodes))
    for other in found.others:
        if other.text in wishes:
            assert fits(wishes[other.text], nodes, holders)
    if found.ending is not None:
        ended = set(found.ending.holders)
        assert fits(request, nodes, [h for h in holders if h not in ended])
        for back in ended:
            assert not fits(request, nodes, [h for h in holders if h not in ended - {back}])


@settings(max_examples=examples(100), deadline=None)
@given(nodes=fleets(3), pods=st.lists(ANY_POD, max_size=6), pod=ANY_POD)
def test_searching_leaves_the_bench_as_it_was(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest], pod: PodRequest
) -> None:
    """After a search every node has the same left, and the same question the same answer."""
    what_if = WhatIf(nodes, filled(nodes, pods), SETTINGS)
    request = replace(pod, uid="wanted")
    before = [what_if.view(node) for node in range(len(nodes))]

    first = nearest(request, what_if)

    assert [what_if.view(node) for node in range(len(nodes))] == before
    assert nearest(request, what_if) == first


@settings(max_examples=examples(100), deadline=None)
@given(nodes=fleets(4), pods=st.lists(ANY_POD, max_size=6), pod=ANY_POD)
def test_every_node_says_what_it_lacks(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest], pod: PodRequest
) -> None:
    """Each node of a refusal has a finding; what is insufficient is less than what is asked."""
    what_if = WhatIf(nodes, filled(nodes, pods), SETTINGS)
    request = replace(pod, uid="wanted")
    answer = what_if.decide(request)
    if not isinstance(answer, Unplaced):
        return

    found = list(find_reasons(request, answer, what_if))

    assert {finding.node for finding in found} == set(range(len(nodes)))
    for finding in found:
        if finding.reason.startswith("Insufficient") and finding.available is not None:
            assert finding.asked is not None
            assert finding.available < finding.asked, finding


@settings(max_examples=examples(200), deadline=None)
@given(nodes=fleets(3), pods=st.lists(ANY_POD, max_size=6), pod=ANY_POD)
def test_nobody_is_told_to_release_what_would_never_do(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest], pod: PodRequest
) -> None:
    """
    What is released is on a node that has all of it, by plain counting.

    What never fits does not fit an empty cluster either whose devices are all healthy.
    """
    request = replace(pod, uid="wanted")
    answer = WhatIf(nodes, filled(nodes, pods), SETTINGS).decide(request)
    if isinstance(answer, Placement):
        return
    by_name = {node.name: node for node in nodes}
    for reason in answer.reasons:
        if reason.remedy.startswith("release "):
            assert not answer.never
            assert has_all(by_name[reason.nearest_node], request), reason
    if answer.never:
        healed = tuple(
            replace(node, devices=tuple(replace(each, healthy=True) for each in node.devices))
            for node in nodes
        )
        assert not fits(request, healed, [])


def has_all(node: NodeFacts, request: PodRequest) -> bool:
    """Tell whether a node has what a request asks for, whoever holds it."""
    sizes = ((request.cpu_milli, node.cpu_milli), (request.memory_bytes, node.memory_bytes))
    if any(there is not None and asked > there for asked, there in sizes):
        return False
    for demand in request.devices:
        large = [
            each
            for each in node.devices
            if each.device_type == demand.device_type
            and each.core_percent >= demand.core_percent
            and each.memory_bytes >= demand.memory_bytes
        ]
        if len(large) < demand.count:
            return False
    return True
