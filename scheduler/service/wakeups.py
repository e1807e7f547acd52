"""
The topics by which the parts of one live scheduler wake each other.

Rule: docs/adr/0037. Each part is given the bus, publishes to its topics and subscribes its own
methods. A topic declares both sides, and in which order its subscribers are called. `assemble`
refuses a scheduler whose subscriptions differ from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVarTuple

from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.state import Holding
from scheduler.gate.claims import Allocated
from scheduler.record.events import DecidedBy

Payload = TypeVarTuple("Payload")


@dataclass(slots=True, eq=False)
class Topic(Generic[*Payload]):
    """
    One kind of change that wakes others.

    Attributes:
        carries: what its payload is.
        publishers: classes.
        subscribers: methods, as `Class.method`, in the order in which they are called.
    """

    when: str
    carries: str = "name of the node"
    _: KW_ONLY
    publishers: tuple[str, ...]
    subscribers: tuple[str, ...]
    _handlers: tuple[Callable[[*Payload], None], ...] = ()

    @property
    def subscribed(self) -> tuple[str, ...]:
        """Return the methods that are called, in order."""
        return tuple(handler.__qualname__ for handler in self._handlers)

    def subscribe(self, handler: Callable[[*Payload], None]) -> None:
        """Call a method at every publication, at its declared place; an undeclared one last."""
        self._handlers = tuple(sorted((*self._handlers, handler), key=self._place))

    def publish(self, *payload: *Payload) -> None:
        """Call every subscriber before returning; what one raises is raised here."""
        for handler in self._handlers:
            handler(*payload)

    def _place(self, handler: Callable[[*Payload], None]) -> int:
        declared = self.subscribers
        name = handler.__qualname__
        return declared.index(name) if name in declared else len(declared)


class Wakeups:
    """The bus of one live scheduler: every topic there is."""

    def __init__(self) -> None:
        self.event_folded: Topic[int, LedgerEvent, Holding | None] = Topic(
            "the view has folded an event of the ledger",
            "position, event, the holding that it is about as it was before",
            publishers=("ClusterView",),
            subscribers=(
                "LiveGroups._take_event",
                "Agents._take_event",
                "NodeLog._take_event",
                "Inventory._take_event",
                "Releasing._take_event",
                "Refusing._take_event",
                "Saying._take_event",
                "Templates._take_event",
                "Preempting._take_event",
                "ClaimBook._take_event",
                "Reconciling._take_event",
            ),
        )
        self.node_changed: Topic[str] = Topic(
            "an object that describes a node changed, or the node is to be read again",
            publishers=("NodeBook",),
            subscribers=("Inventory.wake",),
        )
        self.node_fault_changed: Topic[str] = Topic(
            "a node can't be read or recorded, for another reason than before or no more",
            publishers=("Inventory",),
            subscribers=("Reconciling._look_soon",),
        )
        self.node_due: Topic[str] = Topic(
            "a node is to be looked at for ends and adoptions",
            publishers=("Releasing",),
            subscribers=("Reconciling._look_soon",),
        )
        self.node_dropped: Topic[Sequence[str]] = Topic(
            "the engine gave back soft holds and places of plans with their node",
            "UIDs of the Pods",
            publishers=("ClusterView",),
            subscribers=("Holds.dropped", "LiveGroups.node_gone"),
        )
        self.pools_changed: Topic[Collection[str]] = Topic(
            "pools of ResourceSlices changed",
            "names of the nodes that have devices of them",
            publishers=("SliceBook",),
            subscribers=("NodeBook.note", "ClusterView.modes_changed"),
        )
        self.kubelet_ready_changed: Topic[str] = Topic(
            "a Node became Ready, or is so no more",
            publishers=("Ready",),
            subscribers=("Releasing.look_at", "Gate.look_again"),
        )
        self.agent_appeared: Topic[str] = Topic(
            "the agent of a node reports for the first time",
            publishers=("Agents",),
            subscribers=("NodeBook.note_one",),
        )
        self.pod_moved: Topic[str] = Topic(
            "a Pod came to a node, left it, has ended or is gone",
            publishers=("PodBook",),
            subscribers=("Releasing.look_at", "Gate.look_again"),
        )
        self.pod_started: Topic[str] = Topic(
            "a Pod has a node and has not ended, by the API",
            "UID of the Pod",
            publishers=("PodBook",),
            subscribers=("ClaimEnds.ran",),
        )
        self.pod_holders_changed: Topic[str] = Topic(
            "a Pod that holds devices or CPUs came to a node, or left it",
            publishers=("PodBook",),
            subscribers=("ClusterView._open_or_close",),
        )
        self.pod_annotations_changed: Topic[str] = Topic(
            "annotations of a Pod with a node give it something else",
            publishers=("PodBook",),
            subscribers=("Reconciling._look_soon",),
        )
        self.agent_reported: Topic[str] = Topic(
            "an agent reports that a Pod ended on its node, or has other devices than recorded",
            publishers=("Agents",),
            subscribers=("Releasing.look_at",),
        )
        self.room_freed: Topic[str] = Topic(
            "room came free, other shares can be cut, a node opens, or a change of it counts now",
            publishers=(
                "ClusterView",
                "Holds",
                "Inventory",
                "LiveBooks",
                "Plans",
                "Preempting",
                "Releasing",
                "Templates",
            ),
            subscribers=("Announcing.freed",),
        )
        self.member_planned: Topic[str] = Topic(
            "a plan is to be made for a member of a group",
            "UID of the Pod",
            publishers=("LiveGroups", "Plans"),
            subscribers=("Holds.planned",),
        )
        self.member_given_up: Topic[str, str] = Topic(
            "a member of a group has gone, or its gang missed its deadline",
            "UID of the Pod, why",
            publishers=("LiveGroups", "Plans"),
            subscribers=("Binder.give_up", "Permits.give_up"),
        )
        self.settings_decided: Topic[DecidedBy] = Topic(
            "other templates of shares are recorded and decided by",
            "what events repeat from then on",
            publishers=("Templates",),
            subscribers=("LiveBooks.decide_by",),
        )
        self.claim_end_asked: Topic[str] = Topic(
            "a node is asked whether nothing of a claim is left",
            "UID of the node",
            publishers=("ClaimEnds",),
            subscribers=("NodeLog._wake",),
        )
        self.claim_end_answered: Topic[str] = Topic(
            "a node has confirmed the end of a claim, or its agent can't",
            "UID of the node",
            publishers=("ClaimEnds",),
            subscribers=("Gate.node_answered",),
        )
        self.allocation_refused: Topic[Allocated] = Topic(
            "the gate refused an allocation for want of room",
            "the allocation",
            publishers=("Gate",),
            subscribers=("Tainting.refused",),
        )
        self.device_exchanged: Topic[()] = Topic(
            "the gate stored a claim with another device than was written",
            "nothing",
            publishers=("Gate",),
            subscribers=("Waking.exchanged",),
        )

    def topics(self) -> Mapping[str, Topic[*tuple[object, ...]]]:
        """Return the topics by name, as they are declared."""
        return vars(self)

    def check(self) -> None:
        """Raise AssertionError if a subscription is missing, or one is not declared."""
        wrong = {
            name: topic.subscribed
            for name, topic in self.topics().items()
            if topic.subscribed != topic.subscribers
        }
        assert not wrong, f"subscriptions differ from the declaration: {wrong}"
