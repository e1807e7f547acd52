from __future__ import annotations

from msgspec import structs

from ledger.domain.request.requests import PodRequest, PodSnapshot
from scheduler.cluster.model import Holder
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.releases import smallest_ending
from scheduler.whatif.what_if import WhatIf
from tests.support.clusters import gpu_node, held, pod, running, share

DECISIONS = 10_000


def full_node(gpus: int, *, priorities: tuple[int, ...] = (), nodes: int = 1) -> WhatIf:
    """Return nodes of which the first has all cards held whole, by Pods p0, p1 and so on."""
    holders = []
    for minor in range(gpus):
        pod_held = running(f"p{minor}", held(minor, 100), cpu_milli=0)
        if priorities:
            pod_held = structs.replace(pod_held, snapshot=PodSnapshot(priority=priorities[minor]))
        holders.append(Holder(node=0, held=pod_held))
    machines = [gpu_node(f"n{number}", gpus) for number in range(nodes)]
    return WhatIf(machines, holders, SchedulingSettings())


def wants(cards: int) -> PodRequest:
    """Return a request for whole cards."""
    return pod("w", share(100, cards), cpu_milli=0, memory_bytes=0)


def test_no_pod_ends_in_vain() -> None:
    """Four of six must end, and no fifth one does."""
    found, was_cut = smallest_ending(wants(4), full_node(6), decisions_max=DECISIONS)

    assert found is not None
    assert (len(found.holders), was_cut) == (4, False)


def test_of_equal_pods_the_one_of_lowest_priority_ends() -> None:
    """The others stay, whatever their names."""
    what_if = full_node(3, priorities=(9000, 5000, 9500))

    found, _ = smallest_ending(wants(1), what_if, decisions_max=DECISIONS)

    assert found is not None
    assert [holder.path for holder in found.holders] == ["default/p1"]


def test_a_bound_is_told() -> None:
    """The second node was not looked at; what the first one gives is the answer."""
    what_if = full_node(3, nodes=2)

    found, was_cut = smallest_ending(wants(2), what_if, decisions_max=4)

    assert found is not None
    assert (len(found.holders), found.node, was_cut) == (2, 0, True)


def test_one_that_makes_room_alone_ends_in_place_of_several() -> None:
    """Two halves of a card, and another card's one half, which is as large as either."""
    halves = [("a", 0), ("b", 0), ("c", 1)]
    holders = [
        Holder(node=0, held=running(name, held(minor, 50), cpu_milli=0)) for name, minor in halves
    ]
    what_if = WhatIf([gpu_node("n0", 2)], holders, SchedulingSettings())

    found, _ = smallest_ending(wants(1), what_if, decisions_max=DECISIONS)

    assert found is not None
    assert [holder.path for holder in found.holders] == ["default/c"]
    assert [holder.path for holder in what_if.on(0)] == ["default/a", "default/b", "default/c"]


def test_who_keeps_a_place_for_others_is_not_named() -> None:
    """A reservation Pod of KAI's goes with those who use its card (docs/contracts/kai.md)."""
    named = running("gpu-reservation-n0-a", held(0, 100), cpu_milli=0)
    keepers = [
        structs.replace(named, source="kai"),
        structs.replace(named, namespace="kai-resource-reservation"),
    ]
    for keeper, is_never in [*((one, True) for one in keepers), (named, False)]:
        what_if = WhatIf([gpu_node("n0", 1)], [Holder(node=0, held=keeper)], SchedulingSettings())
        found = smallest_ending(wants(1), what_if, decisions_max=DECISIONS)
        assert (found == (None, False)) is is_never
