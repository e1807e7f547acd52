"""Members of a gang that are bound in one moment, while the ledger's feed is behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from ledger.domain.errors import StaleStreamError
from ledger.domain.log.events import PodReleased, PodReserved
from ledger.store.writing.commands import Command, Outcome, Refused
from scheduler.service.binding import UNDER_WAY
from tests.support.grouped import Scene
from tests.support.live import MemoryLedger

GANG_GATE = {"name": "tenure.sh/gang"}
QUOTA = {"name": "example.org/quota"}
GONE = PodReleased(pod_uid="x", attempt=1, node_uid="uid-zz", reason="deleted")


class Stale(MemoryLedger):
    """A ledger that refuses one command, as its node has changed; `changed` is called then."""

    changed: Callable[[], None] | None = None

    async def record(self, command: Command) -> Outcome:
        """Record a command, or refuse it."""
        if self.changed is None:
            return await super().record(command)
        self.changed()
        self.changed = None
        return Refused(error=StaleStreamError(stream="node/uid-a", expected_version=1))


class Calls:
    """Binds of a scene whose sleeping calls go on when they are told to."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.sleeping: list[asyncio.Event] = []
        scene.live.clock.sleep = self._sleep  # type: ignore[assignment]

    async def _sleep(self, _seconds: float) -> None:
        self.sleeping.append(asyncio.Event())
        await self.sleeping[-1].wait()

    async def bind(self, name: str) -> str:
        """Bind a Pod; return why not."""
        body = {"PodNamespace": "ml", "PodName": name, "PodUID": f"pod-{name}", "Node": "a"}
        return str(json.loads(await self.scene.extender.bind(json.dumps(body).encode()))["Error"])

    async def begin(self, *names: str) -> list[asyncio.Task[str]]:
        """Begin to bind Pods, and come back once all of the calls sleep."""
        calls = [asyncio.ensure_future(self.bind(name)) for name in names]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(self.sleeping) == len(names)
        return calls

    def catch_up(self) -> None:
        """Let the feed tell of everything."""
        self.scene.books.take(len(self.scene.live.ledger.log) - 1, GONE)

    async def end(self, calls: list[asyncio.Task[str]]) -> list[str]:
        """Let the sleeping calls go on, and return what all of them came to."""
        for one in self.sleeping:
            one.set()
        answers = await asyncio.gather(*calls)
        await self.scene.tasks.all_done()
        return answers


def fall_behind(scene: Scene) -> None:
    """Let the ledger have an event before one that is known."""
    log = scene.live.ledger.log
    log += [GONE, GONE]
    scene.books.take(len(log), GONE)


def with_two_late(gpus: int, ledger: MemoryLedger | None = None) -> Scene:
    """Return a gang that has begun, and two members that were behind somebody else's gate."""
    scene = Scene(gpus=gpus, ledger=ledger)
    scene.gang(2, 2, gpus=1, schedulingGates=[GANG_GATE])
    annotations = scene.pods["gang-0"]["metadata"]["annotations"]
    for name in ("late-0", "late-1"):
        scene.create(name, 1, schedulingGates=[GANG_GATE, QUOTA], annotations=annotations)
    scene.settle()
    for name in ("gang-0", "gang-1"):
        scene.passing(name)
        assert not scene.bind(name, "a")
    for name in ("late-0", "late-1"):
        pod = scene.pods[name]
        scene.tell({**pod, "spec": {**pod["spec"], "schedulingGates": [GANG_GATE]}})
    for _ in range(3):
        scene.settle()
    for name in ("late-0", "late-1"):
        assert scene.passing(name) == ["a"]
    return scene


@pytest.mark.parametrize("gpus", [8, 4], ids=["room for more", "no room for more"])
def test_a_member_that_waits_is_bound_by_what_another_chose_for_it(gpus: int) -> None:
    """Chosen for once more, it would count twice."""
    scene = with_two_late(gpus)
    fall_behind(scene)

    async def both() -> list[str]:
        calls = Calls(scene)
        begun = await calls.begin("late-0", "late-1")
        calls.catch_up()
        return await calls.end(begun)

    assert asyncio.run(both()) == ["", ""]
    assert len(scene.said(PodReserved)) == 4


def test_a_gang_that_begins_is_bound_whole() -> None:
    """The others wait for the plan that the first records."""
    scene = Scene()
    scene.gang(3, 3)
    names = ("gang-0", "gang-1", "gang-2")
    for name in names:
        scene.passing(name)
    fall_behind(scene)

    async def whole() -> list[str]:
        calls = Calls(scene)
        begun = await calls.begin(*names)
        calls.catch_up()
        return await calls.end(begun)

    assert asyncio.run(whole()) == ["", "", ""]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_member_whose_try_again_waits_is_not_chosen_for_again(*, gives_up: bool) -> None:
    """Another member chose for it meanwhile, and that may have been given up."""
    ledger = Stale()
    scene = with_two_late(8, ledger)
    ledger.changed = lambda: fall_behind(scene)

    async def both() -> list[str]:
        calls = Calls(scene)
        [begun] = await calls.begin("late-0")
        calls.catch_up()
        assert await calls.bind("late-1") == ""
        if gives_up:
            scene.binder.give_up("pod-late-0", "the gang gave up")
        return await calls.end([begun])

    assert asyncio.run(both()) == [UNDER_WAY]
    assert len(scene.said(PodReserved)) == 4
