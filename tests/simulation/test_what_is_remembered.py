"""A scheduler that has run for long knows no more than one that has just started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import fake_api
from tests.support.pausing import run_with_processes
from tests.support.replicas import Replicated

MANY: Final = 20
"""Places in memory that name Pods while there are some: fewer, and the look is blind."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Nobody reads the line of each Pod that is bound."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Rounds(Replicated):
    """Nothing fails: Pods of every kind come, are bound or wait, and go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0, folder, rate=0, groups=True)
        self.known: dict[str, set[str]] = {}
        self.kept: dict[str, set[str]] = {}

    async def run(self) -> None:
        """Let Pods come and go, then look at who leads and who stands by."""
        self.start()
        self.start()
        asking = asyncio.ensure_future(self.kube_scheduler())
        for number in range(9):
            self.put_pod(f"p{number}")
        await asyncio.sleep(20.0)
        self.known = self._ways()
        for pod in self.pods():
            self.server.delete(fake_api.path_of(pod))
        await asyncio.sleep(100.0)
        self.kept = self._ways()
        asking.cancel()
        for one in self.replicas:
            one.crash()
        await self.tasks.all_done()

    def _ways(self) -> dict[str, set[str]]:
        return {
            "leader" if one.answers() else "standby": set(one.ways_to_pods())
            for one in self.replicas
        }


def test_nothing_in_memory_names_a_pod_once_it_is_gone(tmp_path: Path) -> None:
    """Whoever leads and whoever stands by, but for what has a bound of its own."""
    world = Rounds(tmp_path)
    run_with_processes(world.run())
    assert world.kept == {"leader": set(), "standby": set()}
    assert len(world.known["leader"]) > MANY, "the look is blind"
