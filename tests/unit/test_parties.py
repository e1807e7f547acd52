"""What a live campaign of gangs and groups reckons by itself tells right from wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.kube.parties import (
    ALLOCATED,
    SEEN,
    VISIBLE,
    Party,
    Told,
    begun_in_part,
    in_part,
    script,
    wrongly_seen,
)

PAIR = Party(name="pair", size=2, least=2, replica=2, asks={"nvidia.com/gpu": "1"})
PARTY_OF = {"a": PAIR, "b": PAIR}
CARDS = {"n": {minor: f"GPU-{minor}" for minor in range(4)}}


def log_of(*events: tuple[str, dict[str, Any]]) -> list[Told]:
    """Return a log of these."""
    return [
        Told(position=number, what=what, body=body)
        for number, (what, body) in enumerate(events, start=1)
    ]


def reserved(uid: str, minor: int, seen: Sequence[int], **more: object) -> tuple[str, Any]:
    """Return that a member got a card and is told to see these."""
    annotations = {
        SEEN: json.dumps({"visibleGPUs": [str(each) for each in seen]}),
        VISIBLE: ",".join(f"GPU-{each}" for each in seen),
        ALLOCATED: f"GPU-{minor}",
    }
    about = {"pod_uid": uid, "pod_name": uid, "attempt": 1, "node_uid": "u", "node_name": "n"}
    body = {**about, "group": "g", "shares": [{"minor": minor}], "annotations": annotations}
    return "pod.reserved", {**body, **more}


def of(what: str, uid: str) -> tuple[str, Any]:
    """Return another event of a member."""
    return what, {"pod_uid": uid, "attempt": 1}


PLACES = [
    {"pod_uid": "a", "node_uid": "u", "minors": [0]},
    {"pod_uid": "b", "node_uid": "u", "minors": [1]},
]
PLANNED = ("group.planned", {"group": "g", "members": PLACES})
DROPPED = ("group.plan_dropped", {"group": "g"})
BOTH = (0, 1)


@pytest.mark.parametrize(
    ("log", "wrong"),
    [
        pytest.param([PLANNED, reserved("a", 0, BOTH)], 0, id="a place of the plan counts"),
        pytest.param([PLANNED, reserved("a", 0, [0])], 2, id="a place of the plan is not told"),
        pytest.param(
            [PLANNED, reserved("a", 0, BOTH), reserved("b", 1, BOTH, decided_on=2)],
            0,
            id="what a member holds counts",
        ),
        pytest.param(
            [
                PLANNED,
                reserved("b", 1, BOTH, decided_on=1, beside=["a/1"]),
                reserved("a", 0, BOTH, decided_on=1),
            ],
            0,
            id="the order of a command is another than that of decisions",
        ),
        pytest.param(
            [
                PLANNED,
                reserved("a", 0, BOTH),
                of("pod.released", "a"),
                DROPPED,
                reserved("b", 1, BOTH, decided_on=4),
            ],
            2,
            id="what was released is still told",
        ),
        pytest.param([reserved("a", 2, [2, 3])], 2, id="a card of nobody"),
    ],
)
def test_who_sees_other_cards_than_its_groups_is_told(
    log: list[tuple[str, Any]], wrong: int
) -> None:
    """By the topology's annotation and by UUIDs."""
    found = wrongly_seen(log_of(*log), PARTY_OF, CARDS)
    assert len(found) == wrong, found


def test_a_gang_that_is_bound_before_it_holds_its_cards_is_told() -> None:
    """Once all of it holds them, the order of binds is free."""
    first, second = reserved("a", 0, BOTH), reserved("b", 1, BOTH)
    assert begun_in_part(log_of(first, of("pod.bound", "a"), second), PARTY_OF)
    assert not begun_in_part(log_of(first, second, of("pod.bound", "b")), PARTY_OF)
    given_back = log_of(first, of("pod.voided", "a"), second, of("pod.bound", "b"))
    assert begun_in_part(given_back, PARTY_OF)


def test_a_gang_in_part_is_told_unless_a_member_went_that_began_with_it() -> None:
    """One that was deleted before it held anything had not begun."""
    log = log_of(reserved("a", 0, BOTH), reserved("b", 1, BOTH))
    assert in_part(log, PARTY_OF, {"a"}, {"a", "b"}) == ["pair"]
    assert in_part(log, PARTY_OF, {"a"}, {"a"}) == []
    assert in_part(log[:1], PARTY_OF, {"a"}, {"a"}) == ["pair"]
    assert in_part(log, PARTY_OF, set(), {"a", "b"}) == []
    assert in_part(log, {uid: replace(PAIR, least=0) for uid in PARTY_OF}, {"a"}, {"a"}) == []


def test_a_script_is_its_seeds_alone() -> None:
    """So that a round is played again by its number."""
    first, again, other = (
        script(seed, parties=25, alone=12, kills=3, seconds=24.0) for seed in (1, 1, 2)
    )
    assert first == again != other
