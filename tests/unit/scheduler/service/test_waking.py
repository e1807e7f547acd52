"""Pods that a scheduler turned away while it counted a device twice are tried again."""

from __future__ import annotations

import asyncio

from certs.ports import ApiError, Object
from scheduler.service.slices import CLASSES
from scheduler.service.wakeups import Wakeups
from scheduler.service.waking import WAVES, Waking
from tests.support.fake_api import ApiClient, ApiServer, Json
from tests.support.live import StillClock

PATH = f"{CLASSES}/tenure-exchanged"


class Classes(ApiServer):
    """An API server that may forbid to make classes, and counts who tries."""

    forbids = False
    tries = 0

    def create(self, path: str, body: Object) -> Json:
        """Make a class where that is allowed."""
        self.tries += 1
        if self.forbids:
            raise ApiError("forbidden", status=403)
        return super().create(path, body)


class World:
    """Somebody who wakes Pods, and an API server with its DeviceClasses."""

    def __init__(self) -> None:
        self.server, self.clock = Classes(), StillClock()
        self.clock.now = 100.0
        self.waits, self.why = 1, ""
        self.waking = Waking(
            ApiClient(self.server, StillClock().sleep),
            self.clock,
            Wakeups(),
            waiting=lambda: self.waits,
            why_not=lambda: self.why,
        )

    def after(self, seconds: float) -> int:
        """Let time pass; return how often the class has changed by then."""
        self.clock.now += seconds
        asyncio.run(self.waking.settle())
        return self.server.version


def test_pods_are_woken_a_moment_after_an_exchange_and_once_more() -> None:
    """By a class of ours that selects nothing; then nothing happens any more."""
    world = World()
    assert world.after(10) == 0
    world.waking.exchanged()
    world.after(0)

    before = world.after(WAVES[0])
    assert world.server.objects[PATH]["spec"]["selectors"] == [{"cel": {"expression": "false"}}]
    after = world.after(WAVES[1])

    assert after == before + 1
    assert world.server.objects[PATH]["metadata"]["annotations"]
    assert world.after(100) == after


def test_nobody_is_woken_where_nobody_waits() -> None:
    """Nothing is written."""
    world = World()
    world.waits = 0
    world.waking.exchanged()

    assert [world.after(seconds) for seconds in (0, *WAVES, 10)] == [0, 0, 0, 0]


def test_exchanges_that_never_end_wake_now_and_then() -> None:
    """Each puts the next wave off, and not for ever."""
    world = World()
    for _ in range(100):
        world.waking.exchanged()
        world.after(WAVES[0] / 2)

    assert 5 <= world.server.version <= 20


def test_who_stands_by_wakes_nobody() -> None:
    """The leader does."""
    world = World()
    world.why = "NotLeader"
    world.waking.exchanged()
    assert world.after(10) == 0


def test_what_the_api_forbids_is_tried_ever_later() -> None:
    """After 1, 2, 4 seconds and so on, at last once a minute; and Pods are woken once it may be."""
    world = World()
    world.server.forbids = True
    world.waking.exchanged()
    for _ in range(120):
        world.after(0.5)
    assert 5 <= world.server.tries <= 7
    for _ in range(1_200):
        world.after(0.5)
    assert 14 <= world.server.tries <= 18

    world.server.forbids = False
    for _ in range(140):
        world.after(0.5)
    assert PATH in world.server.objects
