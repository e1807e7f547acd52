"""The Node's own words on binding CPUs: the administrator's label, and what we say by ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from agent.report.condition import Condition, NodeCondition
from agent.report.reporter import Applier, path_of_node
from ledger.domain import resources
from ledger.domain.kube.object_fields import annotations_of, labels_of

MANAGER: Final = "tenure-cpus"
CONDITION_MANAGER: Final = "tenure-cpus-condition"
TRUE: Final = "true"


class Switch:
    """
    What the Node says, and is told.

    Attributes:
        allowed: an administrator lets us write; None = the Node was not read yet.
        annotations: of the Node, which say what it keeps back.
    """

    def __init__(
        self, objects: Applier, node: str, *, clock: Callable[[], float], now: Callable[[], str]
    ) -> None:
        """Be ready to say something; `clock` and `now` as NodeCondition has them."""
        self.allowed: bool | None = None
        self.annotations: Mapping[str, str] = {}
        self._objects, self._node = objects, node
        self._says: str | None = None
        self._condition = NodeCondition(
            objects=objects,
            node=node,
            kind=resources.CONDITION_TENURE_CPUS,
            manager=CONDITION_MANAGER,
            clock=clock,
            now=now,
            by_message=True,
        )

    async def look(self) -> None:
        """Read the Node. Raises ApiError, InputError: what it said last counts."""
        node = await self._objects.read(path_of_node(self._node))
        if node is not None:
            labels = labels_of(node)
            self.annotations = annotations_of(node)
            self._says = labels.get(resources.LABEL_TENURE_CPU_MANAGED)
            self.allowed = labels.get(resources.LABEL_TENURE_BIND_CPUS) == TRUE

    async def say(self, condition: Condition | None, *, binds: bool) -> None:
        """
        Have the Node say whether containers are bound here, and what is not as it should be.

        Raises:
            ApiError, ConflictError: say it again.
        """
        if (self._says == TRUE) is not binds:
            labels = {"labels": {resources.LABEL_TENURE_CPU_MANAGED: TRUE}} if binds else {}
            metadata = {"name": self._node, **labels}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            await self._objects.apply(path_of_node(self._node), body, manager=MANAGER, force=True)
            self._says = TRUE if binds else None
        await self._condition.tell(condition)
