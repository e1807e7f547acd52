"""Who waits for room that only memory kept hears of it when that room is free."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Final

from ledger.domain.resources import ANNOTATION_TENURE_RELEASED_AT
from scheduler.service.ending import WAKE_SECONDS
from tests.support.fake_api import Json
from tests.support.pausing import run_with_processes
from tests.support.replicas import Replicated, Standby

LARGEST: Final = 19
"""A seed that draws a Pod of two cards."""
TIMES: Final = 8
"""Holds that begin and end within a second."""


class Waiting(Replicated):
    """A Pod has both cards of a node promised, is never bound, and goes; another one waits."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0, folder, rate=0)
        self.marks: list[tuple[float, str]] = []
        self.passing: list[list[str]] = []

    def _changed(self, kind: str, value: Json) -> None:
        super()._changed(kind, value)
        mark = value["metadata"].get("annotations", {}).get(ANNOTATION_TENURE_RELEASED_AT, "")
        if value["kind"] == "Node" and value["metadata"]["name"] == "a" and mark:
            self.marks.append((asyncio.get_running_loop().time(), mark))

    def _filter(self, one: Standby, name: str) -> list[str]:
        pod = self.server.read(f"/api/v1/namespaces/ml/pods/{name}")
        body = json.dumps({"Pod": pod, "NodeNames": ["a"]}).encode()
        return list(json.loads(one.extender.filter(body))["NodeNames"] or [])

    def _put(self, name: str) -> None:
        self.rng.seed(LARGEST)
        self.put_pod(name)

    async def run(self) -> None:
        """Let it happen, and then often within a second."""
        self.server.delete("/api/v1/namespaces/ml/pods/older")
        self.start()
        await asyncio.sleep(10.0)
        [one] = self.replicas
        self.marks.clear()
        for _ in range(TIMES):
            self._put("p0")
            self._put("p1")
            await asyncio.sleep(0.05)
            self.passing.append(self._filter(one, "p0") + self._filter(one, "p1"))
            self.server.delete("/api/v1/namespaces/ml/pods/p0")
            await asyncio.sleep(0.05)
        await asyncio.sleep(5.0)
        self.passing.append(self._filter(one, "p1"))
        one.crash()
        await self.tasks.all_done()


def test_a_hold_that_ends_wakes_who_waits_at_most_once_a_second(tmp_path: Path) -> None:
    """The Node is annotated, which makes kube-scheduler look again; not for every hold."""
    world = Waiting(tmp_path)
    run_with_processes(world.run())
    assert world.passing == [["a"]] * (TIMES + 1)
    times = [at for at, _ in world.marks]
    assert 1 <= len(times) <= 3
    assert all(later - at >= WAKE_SECONDS for at, later in itertools.pairwise(times))
