"""A driver that hangs or speaks holds up nothing: looks are waited for, events come by a thread."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import pytest
from prometheus_client import CollectorRegistry, Counter

from agent.discover.faults import CardFault, Faults
from agent.discover.host_files import HostFiles
from agent.discover.machine import Discovery, Identity, Kind
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import InputError
from tenure.serving.agent_reporting import KeptFaults, Looks, _listening, _rounds, offered
from tests.support.loops import run_in_virtual_time
from tests.support.nvml.driver import TABLE, Driver, loaded

MACHINE = Discovery(identity=Identity(boot_id="b"))


@dataclass
class Hanging:
    """A probe that may hang."""

    goes: threading.Event = field(default_factory=threading.Event)
    looks: int = 0

    def look(self) -> Discovery:
        """Look once it may."""
        self.looks += 1
        self.goes.wait(60)
        return MACHINE


def test_of_a_driver_that_hangs_nothing_is_known() -> None:
    """Which is another thing than gone; one thread waits for it, until it is back."""
    probe = Hanging()

    async def look() -> None:
        looks = Looks(probe=probe, seconds=60.0)
        probe.goes.set()
        assert await looks.look() == MACHINE
        probe.goes.clear()
        looks.seconds = 0.01
        for _ in range(3):
            found = await looks.look()
            assert (found.unknown, found.identity) == (tuple(Kind), MACHINE.identity)
            assert [problem.reason for problem in found.problems] == ["NoAnswer"]
        assert probe.looks == 2
        probe.goes.set()
        looks.seconds = 60.0
        assert await looks.look() == MACHINE

    asyncio.run(look())


def test_a_process_that_is_told_to_end_waits_for_no_round() -> None:
    """Neither for the look that hangs, nor for the time until the next: it has 30 s to live."""

    async def end() -> None:
        failures = Counter("failures", "-", ["what"], registry=CollectorRegistry())
        never = asyncio.Event()

        async def act() -> None:
            await never.wait()

        rounds = asyncio.ensure_future(_rounds(30.0, asyncio.Event(), act, failures))
        await asyncio.sleep(1.0)
        rounds.cancel()
        await asyncio.gather(rounds, return_exceptions=True)
        assert asyncio.get_running_loop().time() == 1.0

    run_in_virtual_time(end())


def test_rounds_go_on_after_one_that_failed_in_their_time() -> None:
    """A round that fails is no reason to begin the next one at once."""
    began: list[float] = []

    async def fail() -> None:
        failures = Counter("failures", "-", ["what"], registry=CollectorRegistry())

        async def act() -> None:
            began.append(asyncio.get_running_loop().time())
            raise InputError("not now")

        rounds = asyncio.ensure_future(_rounds(30.0, asyncio.Event(), act, failures))
        await asyncio.sleep(61.0)
        rounds.cancel()

    run_in_virtual_time(fail())
    assert began == [0.0, 30.0, 60.0]


def test_what_a_card_says_counts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked in one thread alone, which ends with the task."""
    loaded()
    monkeypatch.setenv(TABLE, str(tmp_path / "table"))
    driver = Driver(path=tmp_path / "table")
    driver.add_card(0)
    driver.event(0, 0, pynvml.nvmlEventTypeXidCriticalError, 79)
    kept = KeptFaults(path=tmp_path / "faults.json", faults=Faults(), saved=Faults())

    async def listen() -> None:
        soon = asyncio.Event()
        listening = _listening(HostFiles(root=tmp_path), kept, soon)
        task = asyncio.ensure_future(listening())
        async with asyncio.timeout(60):
            await soon.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(listen())

    (fault,) = kept.faults.kept
    assert fault == CardFault(uuid=fault.uuid, reason="Xid79")
    assert fault.uuid.startswith("GPU-")


def test_what_a_node_offers_beside_koordinators_is_named() -> None:
    """Ways to ask whose amounts a Node can have; a device plugin's and others' are none."""
    assert offered(["mgpu", "gpushare"], "--offers") == {Dialect.MGPU, Dialect.GPUSHARE}
    for name in ("nvidia", "hami", "mGPU"):
        with pytest.raises(InputError, match="--offers: expected one of gpushare, koordinator, m"):
            offered([name], "--offers")
