from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import cast

import pytest

from tenure.serving import scheduler
from tenure.serving.memory import give_back, look_seldom, trim
from tenure.serving.scheduling.options import SchedulerOptions


def test_cycles_are_looked_for_seldom_until_a_start_is_over() -> None:
    """And then more often, but seldom beside many who wait, and no more in what the start made."""
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        look_seldom()
        at_start = gc.get_threshold()[0]
        assert at_start > 1_000 * usual[0]
        there = [[number] for number in range(1000)]

        give_back()

        assert 50 * usual[0] < gc.get_threshold()[0] < at_start
        assert gc.get_freeze_count() > frozen
        assert len(there) == 1000
    finally:
        gc.set_threshold(*usual)


def test_few_connections_that_ended_are_given_back() -> None:
    """Each is a cycle with a large buffer, and too few objects make the interpreter look."""

    class Ended:
        def __init__(self) -> None:
            self.protocol, self.buffer = self, bytearray(256 << 10)

    usual = gc.get_threshold()
    try:
        gc.set_threshold(50_000)
        left = weakref.ref(Ended())
        assert left() is not None
        trim()
        assert left() is None
    finally:
        gc.set_threshold(*usual)


def test_a_start_that_waits_for_its_ledger_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster, which stays, is read later."""
    over: list[str] = []

    async def started(*_: object) -> object:
        return SimpleNamespace(stopping=asyncio.Event())

    async def found(*_: object) -> None:
        await asyncio.sleep(0.1)

    for name, value in (
        ("START_SECONDS", 0.0),
        ("look_seldom", lambda: None),
        ("give_back", lambda: over.append("over")),
        ("ServingFolder", lambda *_: None),
        ("_settings_of", lambda _: (None, frozenset())),
        ("_started", started),
        ("_found", found),
    ):
        monkeypatch.setattr(scheduler, name, value)
    asyncio.run(scheduler.serve_scheduler(cast("SchedulerOptions", None)))
    assert over == []
