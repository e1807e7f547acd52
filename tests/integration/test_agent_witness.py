"""What an agent writes of what it sees: the Device object's annotation."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from agent.https import Answer, Caller, NoAnswerError
from agent.report.condition import NodeCondition
from agent.report.reporter import DEVICES
from agent.service.link import ServiceLink
from agent.witness.confirmer import Historian
from ledger.domain.annotations.checkpoints import DeviceCheckpoint, read_devices_checkpoints
from tenure.serving.agent_witness import (
    CONDITION,
    GIVEN_SECONDS,
    HISTORY_SECONDS,
    MANAGER,
    GivenOnDevice,
    _watched,
)

Json = dict[str, Any]
GIVEN = DeviceCheckpoint(
    pod_uid="u", container_name="main", resource_name="nvidia.com/gpu", device_ids=("GPU-a",)
)


@dataclass(slots=True)
class Objects:
    """An API server with a Device object, or without one."""

    there: Json | None
    written: list[tuple[str, Json, str]] = field(default_factory=list)
    reads: int = 0

    async def read(self, _: str) -> Json | None:
        """Return the object."""
        self.reads += 1
        return self.there

    async def apply(self, path: str, body: Mapping[str, Any], *, manager: str, force: bool) -> Json:
        """Apply its annotations."""
        assert force
        assert self.there is not None
        self.written.append((path, dict(body), manager))
        self.there["metadata"].setdefault("annotations", {}).update(
            body["metadata"].get("annotations", {})
        )
        return self.there


def told_to(objects: Objects, clock: list[float]) -> GivenOnDevice:
    """Return what tells node `a`."""
    return GivenOnDevice(objects=objects, node="a", clock=lambda: clock[0])


def test_what_kubelet_gave_is_on_the_device_object_and_written_where_it_differs() -> None:
    """Nothing is written where nothing was given, nor twice, nor where there is no object."""
    device: Json = {"apiVersion": "x/v1", "kind": "Device", "metadata": {"name": "a"}}
    objects, clock = Objects(device), [0.0]
    told = told_to(objects, clock)
    for given in (None, (), (GIVEN,), (GIVEN,)):
        asyncio.run(told.tell(given))
    [(path, _, manager)] = objects.written
    assert (path, manager) == (f"{DEVICES}/a", MANAGER)
    assert read_devices_checkpoints(device["metadata"]["annotations"]) == (GIVEN,)
    reads = objects.reads
    device["metadata"]["annotations"].clear()
    asyncio.run(told.tell((GIVEN,)))
    assert (len(objects.written), objects.reads) == (1, reads)
    clock[0] = GIVEN_SECONDS
    asyncio.run(told.tell((GIVEN,)))
    assert len(objects.written) == 2
    asyncio.run(told.tell(()))
    assert read_devices_checkpoints(device["metadata"]["annotations"]) == ()
    absent = Objects(None)
    asyncio.run(told_to(absent, clock).tell((GIVEN,)))
    assert absent.written == []


@dataclass(slots=True)
class Service:
    """Answers with what it is given, an error or a checkpoint that nobody signed."""

    answers: list[Answer | NoAnswerError]

    async def call(self, path: str, *, seconds: float, body: bytes | None = None) -> Answer:
        """Answer the next one."""
        assert path.endswith("/checkpoint")
        assert seconds
        assert body
        found = self.answers.pop(0)
        if isinstance(found, NoAnswerError):
            raise found
        return found


def test_a_checkpoint_is_asked_for_as_seldom_as_the_service_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it does not answer, and never more seldom than every 80 s."""

    def shown(**more: int) -> Answer:
        return Answer(status=200, body=json.dumps({"checkpoint": "", **more}).encode())

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    answers: list[Answer | NoAnswerError] = [
        shown(),
        shown(again_seconds=60),
        NoAnswerError("away"),
        shown(again_seconds=9_999),
    ]
    service = cast("Caller", Service([*answers, shown(again_seconds=3), shown()]))
    link = ServiceLink(service, clock=lambda: 0.0, draw=lambda: 0.0)
    keeper = Historian(link, tmp_path / "note", ())
    condition = NodeCondition(
        kind=CONDITION,
        manager=MANAGER,
        objects=Objects(None),
        node="a",
        clock=lambda: 0.0,
        now=str,
    )
    monkeypatch.setattr("tenure.serving.agent_witness.asyncio.sleep", sleep)
    asks = _watched(link, keeper, condition, CollectorRegistry())

    async def ask() -> None:
        for _ in range(6):
            with contextlib.suppress(NoAnswerError):
                await asks()

    asyncio.run(ask())
    assert [HISTORY_SECONDS + one for one in pauses] == [4, 4, 60, 60, 80, 4]


def test_another_ledger_is_noticed_within_ten_seconds_of_its_first_answer() -> None:
    """One question tells it (`test_confirmer`); should one fail, the next is still in time."""
    assert 2 * HISTORY_SECONDS < 10
