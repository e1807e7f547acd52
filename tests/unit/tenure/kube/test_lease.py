"""Who leads: taken when free, given up in time, never held by two for long."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from certs.ports import ApiError
from tenure.kube.lease import Leadership, LeaseSettings
from tests.support.certs import Clock, MemoryObjects
from tests.support.loops import run_in_virtual_time

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"


def settings(identity: str) -> LeaseSettings:
    """Return a Lease with the usual times."""
    return LeaseSettings(namespace="n", name="l", identity=identity)


class Leaders:
    """Replicas that compete, and which of them act."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.acting: set[str] = set()
        self.together = 0
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, identity: str, objects: MemoryObjects | None = None) -> None:
        """Let one more compete."""
        loop = asyncio.get_running_loop()
        leadership = Leadership(objects or self.objects, settings(identity), Clock(), loop.time)

        async def lead() -> None:
            self.acting.add(identity)
            self.together = max(self.together, len(self.acting))
            try:
                await asyncio.sleep(3_600)
            finally:
                self.acting.discard(identity)

        self.tasks[identity] = asyncio.create_task(leadership.run(lead))

    async def stop(self, identity: str) -> None:
        """Stop one as a process that is told to."""
        task = self.tasks.pop(identity)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def until(self, acting: set[str]) -> None:
        """Wait until exactly these act."""
        for _ in range(60):
            if self.acting == acting:
                return
            await asyncio.sleep(1)
        raise AssertionError((self.acting, acting))

    @property
    def holder(self) -> str:
        """Who holds the Lease, as everybody can read."""
        return str(self.objects.objects[PATH]["spec"]["holderIdentity"])


def test_one_leads_and_the_next_follows_when_it_leaves() -> None:
    """Leaving gives the Lease back, so nobody waits for it to lapse."""

    async def run() -> None:
        leaders = Leaders()
        leaders.start("a")
        await leaders.until({"a"})
        leaders.start("b")
        await asyncio.sleep(20)
        assert (leaders.acting, leaders.holder) == ({"a"}, "a")
        await leaders.stop("a")
        await leaders.until({"b"})
        assert leaders.objects.objects[PATH]["spec"]["leaseTransitions"] == 1
        assert leaders.together == 1
        await leaders.stop("b")
        assert leaders.holder == ""

    run_in_virtual_time(run())


def test_a_leader_that_can_not_renew_stops_before_another_starts() -> None:
    """Its own deadline is shorter than what the others wait."""

    async def run() -> None:
        leaders = Leaders()
        cut_off = MemoryObjects(objects=leaders.objects.objects)
        leaders.start("a", cut_off)
        await leaders.until({"a"})
        leaders.start("b")

        async def fail(_method: str, _path: str) -> None:
            raise ApiError("away")

        cut_off.before = fail
        await leaders.until({"b"})
        assert leaders.together == 1
        await leaders.stop("a")
        await leaders.stop("b")

    run_in_virtual_time(run())


def test_a_call_that_hangs_is_given_up() -> None:
    """An API that takes a call and never answers is as bad as one that is away."""

    async def run() -> None:
        leaders = Leaders()
        hung = MemoryObjects(objects=leaders.objects.objects)
        leaders.start("a", hung)
        await leaders.until({"a"})

        async def hang(_method: str, _path: str) -> None:
            await asyncio.sleep(3_600)

        hung.before = hang
        await leaders.until(set())
        task = leaders.tasks.pop("a")
        task.cancel()
        hung.before = _at_once
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(run())


async def _at_once(_method: str, _path: str) -> None:
    """Let a call go through."""


def test_a_lease_that_somebody_took_ends_the_lead_at_once() -> None:
    """Whoever finds another name in it does not wait for its own deadline."""

    async def run() -> None:
        leaders = Leaders()
        leaders.start("a")
        await leaders.until({"a"})
        spec = leaders.objects.objects[PATH]["spec"]
        spec["holderIdentity"] = "thief"
        leaders.objects.objects[PATH]["metadata"]["resourceVersion"] = "999"
        await leaders.until(set())
        await leaders.stop("a")
        assert leaders.holder == "thief"

    run_in_virtual_time(run())


def test_whoever_has_a_wrong_clock_does_not_lead() -> None:
    """What a leader writes down is read by the next one, so it lets go as soon as it learns."""

    async def run() -> None:
        objects, skew = MemoryObjects(), timedelta(seconds=6)
        acting = 0

        async def lead() -> None:
            nonlocal acting
            acting += 1
            try:
                await asyncio.sleep(3_600)
            finally:
                acting -= 1

        loop = asyncio.get_running_loop()
        leadership = Leadership(objects, settings("a"), Clock(), loop.time, lambda: skew)
        task = asyncio.create_task(leadership.run(lead))
        await asyncio.sleep(10)
        assert acting == 0
        skew = timedelta(seconds=5)
        await asyncio.sleep(10)
        assert acting == 0
        skew = timedelta(seconds=-4.9)
        await asyncio.sleep(10)
        assert acting == 1
        skew = timedelta(seconds=-5)
        await asyncio.sleep(10)
        assert acting == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(run())


def test_a_lead_ends_by_its_own_clock_before_another_begins() -> None:
    """`until` says so without anybody being asked, and a pause shows at once."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        objects = MemoryObjects()
        one = Leadership(objects, settings("a"), Clock(), loop.time)
        assert one.until < loop.time(), "it is not ours before it was taken"
        task = asyncio.create_task(one.run(_forever))
        await asyncio.sleep(5)
        began = loop.time()
        assert began < one.until <= began + 10

        async def hang(_method: str, _path: str) -> None:
            await asyncio.sleep(3_600)

        objects.before = hang
        await asyncio.sleep(10)
        assert one.until <= loop.time()
        objects.before = _at_once
        await asyncio.sleep(5)
        assert one.until > loop.time(), "it was nobody else's meanwhile"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert one.until < loop.time()

    run_in_virtual_time(run())


def test_whoever_can_not_lead_lets_others() -> None:
    """At once, where it held the Lease; and it does not compete."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        objects, able = MemoryObjects(), True
        one = Leadership(objects, settings("a"), Clock(), loop.time, able=lambda: able)
        task = asyncio.create_task(one.run(_forever))
        await asyncio.sleep(5)
        assert objects.objects[PATH]["spec"]["holderIdentity"] == "a"
        able = False
        await asyncio.sleep(5)
        assert one.until < loop.time()
        assert objects.objects[PATH]["spec"]["holderIdentity"] == ""
        able = True
        await asyncio.sleep(5)
        assert one.until > loop.time()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(run())


async def _forever() -> None:
    await asyncio.sleep(3_600)
