from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import pytest

from ledger.domain.errors import FencedError, LedgerError, OverloadedError
from ledger.domain.log.events import SettingsChanged
from ledger.domain.log.recorded import NewEvent
from ledger.store.open import open_ledger
from ledger.store.service import open_service
from ledger.store.writing.commands import Command, Outcome, Recorded
from ledger.store.writing.lane import Lane, Turn
from scheduler.service.freshness import Freshness
from tenure.kube.lease import Leadership, LeaseSettings
from tenure.serving.background import tasks_of_process
from tenure.serving.scheduling.ledger import ProbedLane
from tests.support.certs import Clock, MemoryObjects
from tests.support.loops import run_in_virtual_time

COMMAND = Command(
    events=(
        NewEvent(
            stream="sys",
            event=SettingsChanged(settings_hash="1", settings="{}", tenure_version="0"),
            actor="test",
            idempotency_key="k",
            wall_us=1,
        ),
    )
)


class FakeLane:
    """Fails with what a test puts in."""

    def __init__(self) -> None:
        self.error: LedgerError | None = None

    async def record(self, command: Command) -> Outcome:
        """Record, or fail."""
        del command
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return Recorded(first=1, last=1)


def test_a_ledger_that_fails_is_away_until_it_answers_again(tmp_path: Path) -> None:
    """A probe finds it back, for nobody binds while filters say that it is away."""
    path = tmp_path / "a.db"
    open_ledger(str(path), mode="create").close()

    async def main() -> None:
        lane, fresh = FakeLane(), Freshness()
        async with open_service(str(path), write=True) as service:
            now = 0.0
            probed = ProbedLane(service, fresh, lambda: now, cast("Lane", lane))
            lane.error = OverloadedError("too many wait")
            with pytest.raises(OverloadedError):
                await probed.record(COMMAND)
            assert not fresh.away, "it answers, only not everybody"
            lane.error = LedgerError("the database is away")
            with pytest.raises(LedgerError):
                await probed.record(COMMAND)
            assert fresh.away
            assert not probed.is_away(10.0)
            now = 10.0
            assert probed.is_away(10.0), "another replica may try"
            path.rename(tmp_path / "b.db")
            with pytest.raises(LedgerError):
                await probed.probe()
            assert fresh.away
            (tmp_path / "b.db").rename(path)
            await probed.probe()
            assert not fresh.away
            assert not probed.is_away(0.0)

    asyncio.run(main())


def test_what_a_passing_task_raises_ends_the_process() -> None:
    """A fault of ours is not lost; what ends well ends nothing."""
    ended = []

    async def fine() -> None:
        await asyncio.sleep(0)
        ended.append("fine")

    async def faulty() -> None:
        await asyncio.sleep(0.01)
        raise LedgerError("a fault of ours")

    async def main() -> None:
        async with tasks_of_process() as tasks:
            tasks.run(fine())
            tasks.run(faulty())
            await asyncio.sleep(60)

    with pytest.raises(LedgerError, match="a fault of ours"):
        asyncio.run(main())
    assert ended == ["fine"]


def test_a_task_that_ends_by_itself_ends_the_process() -> None:
    """However it ends: a process that goes on without one of its tasks does half of its work."""

    async def returns() -> None:
        await asyncio.sleep(0)

    async def is_cancelled_by_nobody() -> None:
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(waits.cancel)
        await waits

    async def main(act: Callable[[], Coroutine[None, None, None]], *, passing: bool) -> None:
        async with tasks_of_process() as tasks:
            if passing:
                tasks.run(act())
            else:
                tasks.append(act())
                tasks.start()
            await asyncio.sleep(60)

    for act, passing in ((returns, False), (is_cancelled_by_nobody, False)):
        with pytest.raises(AssertionError, match=act.__name__):
            asyncio.run(main(act, passing=passing))
    with pytest.raises(AssertionError, match=is_cancelled_by_nobody.__name__):
        asyncio.run(main(is_cancelled_by_nobody, passing=True))


def test_a_process_that_ends_by_a_fault_lets_others_lead_at_once() -> None:
    """The Lease is given up before requests in flight have had their time to finish."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        objects = MemoryObjects()
        settings = LeaseSettings(namespace="n", name="l", identity="a")
        leadership = Leadership(objects, settings, Clock(), loop.time)
        path = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"

        async def fails() -> None:
            await asyncio.sleep(5)
            raise LedgerError("a fault of ours")

        async def lead() -> None:
            await asyncio.Event().wait()

        holders = []

        async def serve() -> None:
            async with tasks_of_process() as tasks:
                tasks += [leadership.run(lead), fails()]
                tasks.start()
                await asyncio.sleep(4)
                holders.append(objects.objects[path]["spec"]["holderIdentity"])
                try:
                    await asyncio.sleep(60)
                finally:
                    await asyncio.sleep(25)  # as a listener does that closes
                    holders.append(objects.objects[path]["spec"]["holderIdentity"])

        with pytest.raises(LedgerError, match="a fault of ours"):
            await serve()
        assert holders == ["a", ""]

    run_in_virtual_time(run())


@pytest.mark.parametrize("alone", [True, False], ids=["beside commands", "with a command"])
def test_a_lane_that_ends_is_told_of_to_who_watches(tmp_path: Path, *, alone: bool) -> None:
    """By what ended it, once; one that was closed is no fault."""
    path = str(tmp_path / "a.db")
    open_ledger(path, mode="create").close()

    async def fails(_position: int) -> None:
        raise ZeroDivisionError("a mistake of ours")

    async def main() -> None:
        turn = Turn(holder="a", origin="ledger/test", version="0", wall_us=1)
        async with open_service(path, write=True) as service:
            probed = ProbedLane(service, Freshness(), lambda: 0.0)
            await probed.open(turn)
            watching = asyncio.ensure_future(probed.watch())
            assert probed.lane is not None
            if alone:
                with pytest.raises(LedgerError, match="ended meanwhile"):
                    await probed.lane.alone(fails)
            else:
                with pytest.raises(LedgerError, match="ended while"):
                    await probed.record(cast("Command", None))
            with pytest.raises((ZeroDivisionError, AttributeError)):
                await watching
            with pytest.raises(LedgerError):
                await probed.record(COMMAND)
            with pytest.raises((ZeroDivisionError, AttributeError)):
                await probed.close()

            another = ProbedLane(service, Freshness(), lambda: 0.0)
            await another.open(turn)
            watching = asyncio.ensure_future(another.watch())
            await asyncio.sleep(0)
            await another.close()
            await watching

    asyncio.run(main())


def test_a_lane_that_was_deposed_is_told_of_though_nothing_is_recorded(tmp_path: Path) -> None:
    """Whoever watches hears what its callers hear."""
    path = str(tmp_path / "a.db")
    open_ledger(path, mode="create").close()

    async def main() -> None:
        turn = Turn(holder="a", origin="ledger/test", version="0", wall_us=1)
        async with open_service(path, write=True) as service:
            old, new = (ProbedLane(service, Freshness(), lambda: 0.0) for _ in range(2))
            await old.open(turn)
            watching = asyncio.ensure_future(old.watch())
            await new.open(turn)
            with pytest.raises(FencedError):
                await old.record(COMMAND)
            with pytest.raises(FencedError):
                await watching
            await old.close()
            await new.close()

    asyncio.run(main())
