from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from ledger.domain.errors import LedgerError, OverloadedError
from ledger.domain.log.events import SettingsChanged
from ledger.domain.log.recorded import NewEvent
from ledger.store.open import open_ledger
from ledger.store.service import open_service
from ledger.store.writing.commands import Command, Outcome, Recorded
from ledger.store.writing.lane import Lane
from scheduler.service.freshness import Freshness
from tenure.serving.background import tasks_of_process
from tenure.serving.scheduling.ledger import ProbedLane

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
