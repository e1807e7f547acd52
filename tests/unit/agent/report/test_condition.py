"""A condition of the Node is written where it differs, repaired, and taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.report.condition import LOOK_SECONDS, Condition, NodeCondition

Json = dict[str, Any]
KIND: Final = "TenureServiceAway"
COPY: Final = Condition(status="True", reason="ByCopy", message="first words")


@dataclass(slots=True)
class Api:
    """An API server that takes the conditions of node `a` as they stand."""

    conditions: list[Json] = field(default_factory=list)
    written: int = 0
    reads: int = 0
    is_absent: bool = False

    async def read(self, path: str) -> Mapping[str, Any] | None:
        """Return the Node."""
        assert path == "/api/v1/nodes/a"
        self.reads += 1
        return None if self.is_absent else {"status": {"conditions": list(self.conditions)}}

    async def apply(
        self, path: str, body: Mapping[str, Any], *, manager: str, force: bool
    ) -> Mapping[str, Any]:
        """Take the conditions of one manager, who has those of the kind."""
        assert (path, manager, force) == ("/api/v1/nodes/a/status", "m", True)
        self.written += 1
        others = [one for one in self.conditions if one["type"] != KIND]
        self.conditions = [*others, *body["status"]["conditions"]]
        return body

    def said(self) -> list[str]:
        """Return the messages of the kind."""
        return [one["message"] for one in self.conditions if one["type"] == KIND]


class World:
    """A Node, who keeps its condition, and a clock."""

    def __init__(self, *there: Json) -> None:
        self.api = Api(conditions=list(there))
        self.seconds = 0.0
        self.kept = self.begin()

    def begin(self) -> NodeCondition:
        """Return who keeps it, as after a start of the process."""
        return NodeCondition(
            objects=self.api,
            node="a",
            kind=KIND,
            manager="m",
            clock=lambda: self.seconds,
            now=lambda: f"at {self.seconds}",
        )

    def tell(self, want: Condition | None) -> None:
        """Say it."""
        asyncio.run(self.kept.tell(want))


def test_it_is_written_once_beside_the_conditions_of_others() -> None:
    """Other words for the same reason are no other condition; another reason is."""
    world = World({"type": "Ready", "status": "True"})
    world.tell(COPY)
    world.tell(COPY)
    world.tell(Condition(status="True", reason="ByCopy", message="other words"))
    assert (world.api.written, world.api.reads, world.api.said()) == (1, 1, ["first words"])
    world.seconds = 5.0
    world.tell(Condition(status="True", reason="ByAnnotation", message="no copy"))
    assert world.api.said() == ["no copy"]
    assert [one["type"] for one in world.api.conditions] == ["Ready", KIND]
    assert world.api.conditions[1]["lastTransitionTime"] == "at 0.0", "its status is as before"


def test_what_somebody_made_of_it_is_repaired() -> None:
    """Within a minute; the Node is not read more often than that."""
    world = World()
    world.tell(COPY)
    for edited in ([], [{"type": KIND, "status": "False", "reason": "Mine", "message": ""}]):
        world.api.conditions = list(edited)
        world.seconds += LOOK_SECONDS - 1
        reads = world.api.reads
        world.tell(COPY)
        assert (world.api.reads, world.api.said()) == (reads, [one["message"] for one in edited])
        world.seconds += 1
        world.tell(COPY)
        assert world.api.said() == ["first words"]


def test_it_is_taken_away_also_by_the_next_process() -> None:
    """Nothing is written where there is nothing to take away, nor of a Node that is not there."""
    world = World({"type": "Ready", "status": "True"})
    world.tell(COPY)
    world.tell(None)
    assert [one["type"] for one in world.api.conditions] == ["Ready"]
    world.tell(COPY)
    world.kept = world.begin()
    world.tell(None)
    written = world.api.written
    assert [one["type"] for one in world.api.conditions] == ["Ready"]
    world.kept = world.begin()
    world.tell(None)
    world.api.is_absent = True
    world.kept = world.begin()
    world.tell(COPY)
    assert world.api.written == written
