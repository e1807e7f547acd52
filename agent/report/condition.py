"""A condition of the Node that says one thing of the agent: kept as it is to be, and taken away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.report.reporter import Applier, path_of_node

LOOK_SECONDS: Final = 60.0
"""What somebody else made of the condition is repaired within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a condition says; `reason` tells it from others, `message` is as it was said first."""

    status: str
    reason: str
    message: str


@dataclass(slots=True, kw_only=True)
class NodeCondition:
    """
    Keeps one condition of a Node.

    Attributes:
        kind: its type, which nobody else writes.
        manager: the field manager that owns it, and nothing else of the Node.
        clock: seconds that only grow; `now`: the time of day, RFC 3339.
        by_message: another message is another thing to say.
    """

    objects: Applier
    node: str
    kind: str
    manager: str
    clock: Callable[[], float]
    now: Callable[[], str]
    by_message: bool = False
    _said: Condition | None = None
    _since: str = ""
    _looked: float = float("-inf")

    async def tell(self, want: Condition | None) -> None:
        """
        Have the Node say this; None = it says nothing of the kind.

        The Node is read where something else is to be said than before, and once in a while.

        Raises:
            ApiError, ConflictError: it is not said; say it again.
        """
        if want and self._said and not self.by_message and _alike(want, self._said):
            want = self._said
        time = self.clock()
        if want == self._said and time - self._looked < LOOK_SECONDS:
            return
        node = await self.objects.read(path_of_node(self.node))
        if node is None:
            return
        there = self._there(node)
        if want is None:
            if there is not None:
                # What others edited of it is theirs, and would stay: it is taken back first.
                await self._apply([there])
                await self._apply([])
        else:
            said = Condition(**{key: str((there or {}).get(key, "")) for key in _FIELDS})
            if there is None or said.status != want.status or not self._since:
                self._since = self.now()
            if said != want:
                body = {"type": self.kind, "lastTransitionTime": self._since}
                await self._apply([{**body, **{key: getattr(want, key) for key in _FIELDS}}])
        self._said, self._looked = want, time

    def _there(self, node: Mapping[str, Any]) -> dict[str, Any] | None:
        conditions = (node.get("status") or {}).get("conditions") or ()
        return next((dict(one) for one in conditions if one.get("type") == self.kind), None)

    async def _apply(self, conditions: list[dict[str, Any]]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.node},
            "status": {"conditions": conditions},
        }
        path = path_of_node(self.node, "status")
        await self.objects.apply(path, body, manager=self.manager, force=True)


_FIELDS: Final = ("status", "reason", "message")


def _alike(one: Condition, other: Condition) -> bool:
    return (one.status, one.reason) == (other.status, other.reason)
