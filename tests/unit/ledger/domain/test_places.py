"""The places of planned groups: what opens one, and the three things that close it."""

from __future__ import annotations

import pytest

from ledger.domain.log.events import (
    GroupPlanned,
    LedgerEvent,
    PlanDropped,
    PlannedMember,
    PodReleased,
    PodReserved,
    decode_event,
)
from ledger.domain.log.planned_cards import PlannedCard, apply_planned_cards


def planned(group: str, **whole: tuple[int, ...]) -> GroupPlanned:
    """Return a plan that gives each Pod these whole cards of `node-1`."""
    members = tuple(
        PlannedMember(
            pod_uid=pod, namespace="ml", pod_name=pod, node_uid="node-1", minors=m, whole=m
        )
        for pod, m in whole.items()
    )
    return GroupPlanned(group=group, members=members)


def reserved(pod: str, node: str = "node-1") -> PodReserved:
    """Return a reservation of nothing."""
    return PodReserved(
        pod_uid=pod,
        attempt=1,
        namespace="ml",
        pod_name=pod,
        node_uid=node,
        node_name=node,
        cpu_milli=0,
        memory_bytes=0,
    )


def places(*events: LedgerEvent) -> list[tuple[str, str, int, int]]:
    """Return (group, Pod, minor, position) of what is open after the events."""
    found: tuple[PlannedCard, ...] = ()
    for position, event in enumerate(events, 1):
        found = apply_planned_cards(found, position, event)
    return [(each.group, each.pod_uid, each.minor, each.opened_position) for each in found]


def test_a_plan_opens_a_place_for_every_whole_card() -> None:
    """Each card of each member waits, in the order of the plan."""
    assert places(planned("g", a=(0, 1), b=(2,))) == [
        ("g", "a", 0, 1),
        ("g", "a", 1, 1),
        ("g", "b", 2, 1),
    ]


@pytest.mark.parametrize(
    ("event", "left"),
    [
        pytest.param(reserved("a"), [("g", "b", 2, 1), ("h", "c", 3, 2)], id="its Pod reserves"),
        pytest.param(PlanDropped(group="g", reason="r"), [("h", "c", 3, 2)], id="the plan is gone"),
        pytest.param(
            planned("g", b=(5,)), [("h", "c", 3, 2), ("g", "b", 5, 3)], id="another plan replaces"
        ),
    ],
)
def test_a_place_closes_with_its_pod_or_its_plan(
    event: LedgerEvent, left: list[tuple[str, str, int, int]]
) -> None:
    """Other groups and other members keep theirs."""
    assert places(planned("g", a=(0, 1), b=(2,)), planned("h", c=(3,)), event) == left


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(reserved("a", "node-2"), id="its Pod on another node"),
        pytest.param(reserved("x"), id="another Pod"),
        pytest.param(PlanDropped(group="h", reason="r"), id="another plan"),
        pytest.param(
            PodReleased(pod_uid="a", attempt=1, node_uid="node-1", reason="deleted"),
            id="a release",
        ),
    ],
)
def test_nothing_else_closes_a_place(event: LedgerEvent) -> None:
    """What is not about the Pod on that node, or about the plan, leaves it open."""
    assert places(planned("g", a=(0,)), event) == [("g", "a", 0, 1)]


def test_a_plan_from_before_there_were_places_opens_none() -> None:
    """Its body names cards, of which some were only shared; it says nothing of whole ones."""
    body = (
        '{"group":"g","members":[{"minors":[3],"namespace":"ml","node_uid":"n","pod_name":"p",'
        '"pod_uid":"u"}]}'
    )
    assert places(decode_event("group.planned.v1", body)) == []
