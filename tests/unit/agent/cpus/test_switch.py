"""The Node's labels and condition: what an administrator says, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agent.cpus.switch import MANAGER, Switch
from agent.report.condition import Condition
from ledger.domain.resources import CONDITION_TENURE_CPUS

Json = dict[str, Any]
BOUND = Condition(status="True", reason="Bound", message="all")


class Objects:
    """One Node, and what was applied to it."""

    def __init__(self, **labels: str) -> None:
        self.labels = labels
        self.conditions: list[Json] = []
        self.applied: list[tuple[str, Mapping[str, Any]]] = []

    async def read(self, path: str) -> Json:
        """Return the Node."""
        assert path == "/api/v1/nodes/a"
        labels = {f"tenure.sh/{key.replace('_', '-')}": text for key, text in self.labels.items()}
        metadata = {"labels": labels, "annotations": {"a": "b"}}
        return {"metadata": metadata, "status": {"conditions": self.conditions}}

    async def apply(
        self, path: str, body: Mapping[str, Any], *, manager: str, force: bool
    ) -> Mapping[str, Any]:
        """Take fields."""
        assert force
        self.applied.append((manager, body))
        if path.endswith("/status"):
            self.conditions = body["status"]["conditions"]
        elif body["metadata"].get("labels"):
            self.labels["cpu_managed"] = "true"
        else:
            self.labels.pop("cpu_managed", None)
        return body


def switch_of(objects: Objects) -> Switch:
    """Return what reads and says."""
    return Switch(objects, "a", clock=lambda: 0.0, now=lambda: "now")


def test_the_label_alone_allows_and_only_by_its_one_word() -> None:
    """Before it was read nobody knows."""
    for labels, allowed in (
        ({}, False),
        ({"bind_cpus": "true"}, True),
        ({"bind_cpus": "True"}, False),
        ({"bind_cpus": ""}, False),
        ({"cpu_managed": "true"}, False),
    ):
        switch = switch_of(Objects(**labels))
        assert switch.allowed is None
        asyncio.run(switch.look())
        assert switch.allowed is allowed
        assert switch.annotations == {"a": "b"}


def test_what_is_said_is_written_where_it_is_another_and_taken_away_again() -> None:
    """Label and condition are of two managers, so that one goes without the other."""
    objects = Objects(bind_cpus="true")
    switch = switch_of(objects)

    async def act() -> None:
        await switch.look()
        await switch.say(None, binds=False)
        assert not objects.applied
        for _ in range(2):
            await switch.say(BOUND, binds=True)
        assert [manager for manager, _ in objects.applied] == [MANAGER, f"{MANAGER}-condition"]
        assert objects.labels["cpu_managed"] == "true"
        assert [one["type"] for one in objects.conditions] == [CONDITION_TENURE_CPUS]
        other = Condition(status="True", reason="Bound", message="another Pod")
        await switch.say(other, binds=True)
        assert objects.conditions[0]["message"] == "another Pod"
        await switch.say(None, binds=False)
        assert "cpu_managed" not in objects.labels
        assert objects.conditions == []

    asyncio.run(act())


def test_a_label_that_somebody_took_off_is_said_again_after_the_next_look() -> None:
    """It closes the node until then."""
    objects = Objects(bind_cpus="true")
    switch = switch_of(objects)

    async def act() -> None:
        await switch.look()
        await switch.say(BOUND, binds=True)
        del objects.labels["cpu_managed"]
        await switch.look()
        await switch.say(BOUND, binds=True)
        assert objects.labels["cpu_managed"] == "true"

    asyncio.run(act())
