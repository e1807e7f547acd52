from __future__ import annotations

from msgspec import structs

from ledger.domain.request.requests import PodRequest, PodSnapshot
from scheduler.cluster.model import Holder
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.releases import fewest_endings
from scheduler.whatif.what_if import WhatIf
from tests.support.clusters import gpu_node, held, pod, running, share

DECISIONS = 10_000


def full_node(gpus: int, *, priorities: tuple[int, ...] = ()) -> WhatIf:
    """Return one node whose every card is held whole, by Pods p0, p1 and so on."""
    holders = []
    for minor in range(gpus):
        pod_held = running(f"p{minor}", held(minor, 100), cpu_milli=0)
        if priorities:
            pod_held = structs.replace(pod_held, snapshot=PodSnapshot(priority=priorities[minor]))
        holders.append(Holder(node=0, held=pod_held))
    return WhatIf((gpu_node("n", gpus),), holders, SchedulingSettings())


def wants(cards: int) -> PodRequest:
    """Return a request for whole cards."""
    return pod("w", share(100, cards), cpu_milli=0, memory_bytes=0)


def test_no_pod_ends_in_vain_where_the_search_is_not_exact_any_more() -> None:
    """Four of six must end: three do not do, which was tried, so that four is exact."""
    found = fewest_endings(wants(4), full_node(6), decisions_max=DECISIONS)

    assert found is not None
    assert (len(found.holders), found.exact) == (4, True)


def test_of_equal_pods_the_one_of_lowest_priority_ends() -> None:
    """The others stay, whatever their names."""
    what_if = full_node(3, priorities=(9000, 5000, 9500))

    found = fewest_endings(wants(1), what_if, decisions_max=DECISIONS)

    assert found is not None
    assert [holder.path for holder in found.holders] == ["default/p1"]


def test_a_bound_makes_the_answer_inexact() -> None:
    """What was found so far is given, and not called the fewest."""
    found = fewest_endings(wants(2), full_node(3), decisions_max=4)

    assert found is not None
    assert (len(found.holders), found.exact) == (2, False)
