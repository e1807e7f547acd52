"""What an agent writes of what it sees: the Device object's annotation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.report.reporter import DEVICES
from ledger.domain.annotations.checkpoints import DeviceCheckpoint, read_devices_checkpoints
from tenure.serving.agent_witness import (
    GIVEN_SECONDS,
    HISTORY_SECONDS,
    MANAGER,
    GivenOnDevice,
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


def test_another_ledger_is_noticed_within_ten_seconds_of_its_first_answer() -> None:
    """One question tells it (`test_confirmer`); should one fail, the next is still in time."""
    assert 2 * HISTORY_SECONDS < 10
