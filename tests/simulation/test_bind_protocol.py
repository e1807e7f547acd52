"""
The bind protocol searched: two schedulers, two Pods, one card, and everything that can fail.

Rule: design section 5.3. Each weaker protocol is one that somebody runs, or that we once thought
enough; each is found out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from scheduler.bind import protocol
from scheduler.bind.protocol import (
    UNSETTLED,
    Bind,
    Effect,
    Next,
    NoAnswer,
    PatchFence,
    ReadPod,
    RecordVoided,
    Stage,
)
from tests.support.bind_world import RESERVED, Held, Rules, World, search

WORLDS_MAX: Final = 400_000
WORLDS: Final = [
    pytest.param(World(patches=0), 9_000, id="an answer is lost, a leader is deposed"),
    pytest.param(World(patches=0, deletions=1), 59_000, id="a Pod is deleted too"),
    pytest.param(World(losses=0, patches=1, deletions=1), 30_000, id="patched and deleted"),
    pytest.param(World(losses=2, takeovers=0, patches=1), 4_000, id="one leader, two answers lost"),
]
DEEP: Final = [
    pytest.param(World(), 80_000, id="and a Pod is patched"),
    pytest.param(World(takeovers=2, patches=0), 130_000, id="two leaders are deposed"),
    pytest.param(World(deletions=1), 300_000, id="all of it once"),
    pytest.param(World(losses=2, patches=1), 150_000, id="two answers are lost"),
]


@pytest.mark.parametrize(("world", "least"), WORLDS)
def test_no_card_is_given_twice_and_none_is_left_held(world: World, least: int) -> None:
    """In every world that can come, and once all goes well again nothing is held for nobody."""
    found = search(world, Rules(), WORLDS_MAX)

    assert found.fault == ""
    assert found.worlds >= least
    assert {(True, False), (False, True)} <= found.bound, "each of the two can win"


@pytest.mark.parametrize(
    ("world", "least"),
    [
        pytest.param(World(patches=0), 2_000, id="an answer is lost, a leader is deposed"),
        pytest.param(World(losses=0, deletions=1), 5_000, id="patched and deleted"),
    ],
)
def test_a_reservation_that_waited_for_its_bind_is_no_other(world: World, least: int) -> None:
    """As of a gang: reserved with another member, nothing sent, and the version may have moved."""
    state, act = protocol.reserved_ahead(node="n", attempt=1, resource_version="1")
    leader = replace(world.schedulers[0], pod=0, state=state, act=act)
    ahead = replace(
        world,
        held=(Held(attempt=1, version=1, phase=RESERVED), Held()),
        schedulers=(leader, world.schedulers[1]),
    )
    found = search(ahead, Rules(), WORLDS_MAX)

    assert found.fault == ""
    assert found.worlds >= least
    assert {(True, False), (False, True)} <= found.bound


@pytest.mark.slow
@pytest.mark.parametrize(("world", "least"), DEEP)
def test_nor_in_a_larger_world(world: World, least: int) -> None:
    """The same with more that fails."""
    found = search(world, Rules(), 10 * WORLDS_MAX)

    assert found.fault == ""
    assert found.worlds >= least


def void_at_once(state: Bind, told: Effect) -> Next:
    """Take a Binding without an answer for one that failed."""
    if state.stage is Stage.BINDING and isinstance(told, NoAnswer):
        return replace(state, stage=Stage.VOIDING, error=UNSETTLED), RecordVoided(
            state.attempt, UNSETTLED
        )
    return protocol.step(state, told)


def only_look(state: Bind, told: Effect) -> Next:
    """Read the Pod after a Binding without an answer, and believe it: no fence."""
    after, act = protocol.step(state, told)
    if isinstance(act, PatchFence):
        return replace(after, stage=Stage.READING, fenced=True), ReadPod()
    return after, act


def settle_by_looking(*, node: str, attempt: int, resource_version: str) -> Next:
    """Take over by reading alone."""
    state, _ = protocol.settle(node=node, attempt=attempt, resource_version=resource_version)
    return replace(state, stage=Stage.READING, fenced=True), ReadPod()


def give_up(*, node: str, attempt: int, resource_version: str) -> Next:
    """Take over and leave what is open as it is."""
    state, _ = protocol.settle(node=node, attempt=attempt, resource_version=resource_version)
    return replace(state, stage=Stage.ANSWERED), protocol.Answer("")


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(Rules(holds=False), id="A: check, then bind"),
        pytest.param(Rules(step=void_at_once), id="B: void on a timeout"),
        pytest.param(Rules(version_when_sent=True), id="C: the version when it is sent"),
        pytest.param(Rules(step=only_look), id="no fence before the void"),
        pytest.param(Rules(settle=settle_by_looking), id="no fence at a takeover"),
        pytest.param(Rules(fences=False), id="no epoch in the ledger"),
    ],
)
def test_each_weaker_protocol_gives_a_card_twice(rules: Rules) -> None:
    """Some world has two Pods running on the one card."""
    found = search(World(takeovers=2, patches=0), rules, WORLDS_MAX, only_doubles=True)

    assert found.fault == "double allocation"


def test_a_hold_that_nobody_settles_is_found() -> None:
    """The search sees what is left behind, not only what is given twice."""
    found = search(World(patches=0), Rules(settle=give_up), WORLDS_MAX)

    assert found.fault == "nobody settles pod 0"
