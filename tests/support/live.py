"""The live scheduler's view with a ledger in memory: nodes by a call, and who holds what."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ledger.domain.annotations.tenure import encode_shown
from ledger.domain.dialects.dra.drivers import LookedAt
from ledger.domain.errors import LedgerError, NotAfterError
from ledger.domain.log.events import (
    DriftFound,
    DriftResolved,
    GroupPlanned,
    LedgerEvent,
    NodeDescribed,
    NodeInventoried,
    PlanDropped,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
    PreemptionDecided,
)
from ledger.domain.log.state import Folding
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from ledger.store.writing.commands import Command, Outcome, Recorded, Refused
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.service.beginning import Beginning, Said
from scheduler.service.books import LiveBooks
from scheduler.service.groups import LiveGroups
from scheduler.service.inventory import Inventory
from scheduler.service.leading import Leading
from scheduler.service.slices import NodeModes, SliceBook
from scheduler.service.view import ClusterView
from scheduler.service.wakeups import Wakeups
from tests.support.objects import Json, device, gpu_device, node

ABOUT_GROUPS = (
    *(GroupPlanned, PlanDropped),
    *(PodReserved, PodObserved, PodBound, PodReleased, PodVoided),
)
START_US: Final = 1_800_000_000_000_000
WORDS = DecidedBy(policy="binpack", settings_hash="", tenure_version="test")


@dataclass(slots=True)
class MemoryLedger:
    """
    A `Recorder` without a database.

    Attributes:
        log: what was recorded; the first has position 1.
        actors: whose doing it was, of what was recorded by commands.
        away: why nothing can be recorded now.
        refuses: what it refuses, by UID of the node.
    """

    log: list[LedgerEvent] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    actors: list[str] = field(default_factory=list)
    away: LedgerError | None = None
    refuses: dict[str, str] = field(default_factory=dict)
    epoch: int = 1

    @property
    def position(self) -> int:
        """The last position."""
        return len(self.log)

    async def record(self, command: Command) -> Outcome:
        """Record a command whole or not at all."""
        await asyncio.sleep(0)
        if self.away is not None:
            raise self.away
        about = [getattr(new.event, "node_uid", "") for new in command.events]
        why = next((self.refuses[uid] for uid in about if uid in self.refuses), None)
        if why is not None:
            return Refused(error=LedgerError(why))
        missing = [key for key in command.after if key not in self.keys]
        if missing:
            return Refused(error=NotAfterError(missing[0]))
        for new in command.events:
            assert new.idempotency_key not in self.keys, new.idempotency_key
            self.keys.append(new.idempotency_key)
            self.actors.append(new.actor)
            self.log.append(new.event)
        return Recorded(first=len(self.log) - len(command.events) + 1, last=len(self.log))

    async def attempts(self, uids: Sequence[str]) -> dict[str, int]:
        """Return the number of the newest that these Pods ever held."""
        held = [one for one in self.log if isinstance(one, PodReserved | PodObserved)]
        return {
            uid: max(numbers)
            for uid in uids
            if (numbers := [one.attempt for one in held if one.pod_uid == uid])
        }

    def take_over(self) -> None:
        """Let another process write from now on."""
        self.epoch += 1

    def beginning(self) -> Beginning:
        """Return what a process that starts now is told."""
        fold, opened, said = Folding(), {}, dict[str, Said]()
        for position, event in enumerate(self.log, start=1):
            fold.add(position, event)
            if isinstance(event, PodReserved | PodObserved):
                opened[position] = event
        for event in self.log:
            if isinstance(event, NodeInventoried):
                said.setdefault(event.node_uid, Said()).inventory = event
            elif isinstance(event, NodeDescribed):
                said.setdefault(event.node_uid, Said()).described = event
        groups = [(event, START_US) for event in self.log if isinstance(event, ABOUT_GROUPS)]
        drifts: dict[str, DriftFound] = {}
        for event in self.log:
            if isinstance(event, DriftFound):
                drifts[event.drift_id] = event
            elif isinstance(event, DriftResolved):
                del drifts[event.drift_id]
        return Beginning(
            position=len(self.log),
            state=fold.state,
            opened=opened,
            said=said,
            drifts=list(drifts.values()),
            groups=groups,
            preemptions=[one for one in self.log if isinstance(one, PreemptionDecided)],
            attempts={
                event.pod_uid: event.attempt for event in self.log if isinstance(event, PodReserved)
            },
        )


class StillClock:
    """A `Clock` that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return seconds."""
        return self.now

    def wall_us(self) -> int:
        """Return microseconds."""
        return START_US + int(self.now * 1e6)

    async def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.now += seconds
        await asyncio.sleep(0)


def view_of(
    settings: SchedulingSettings, wakeups: Wakeups, drivers: Sequence[str] = ()
) -> ClusterView:
    """Return a view of nodes, where these drivers give devices by claims."""
    looked_at = LookedAt(frozenset(drivers))
    return ClusterView(settings, wakeups, NodeModes(looked_at, SliceBook(looked_at, wakeups)))


def no_holds(_pod_uid: str, _node_name: str) -> AbstractContextManager[Placement | None]:
    """Lift nothing, as where there are no soft holds."""
    return nullcontext()


class Live:
    """A view, its inventory and the ledger under both."""

    def __init__(
        self,
        ledger: MemoryLedger | None = None,
        *,
        policy: str = "binpack",
        all_or_nothing: bool = False,
        drivers: Sequence[str] = (),
        share_visible: bool = False,
        slot_mode: str = "env",
    ) -> None:
        self.ledger = ledger or MemoryLedger()
        self.settings = SchedulingSettings(
            node_policy=policy,
            share_visible=share_visible,
            vocabulary=replace(DEFAULT_VOCABULARY, slot_mode=slot_mode),
        )
        self.wakeups = Wakeups()
        self.view = view_of(self.settings, self.wakeups, drivers)
        self.clock = StillClock()
        self.synced = True
        self.reported: set[str] = set()
        self.ledger.epoch += 1
        begun = self.ledger.beginning()
        self.view.begin(begun.position, begun.state, begun.opened)
        self.inventory = Inventory(
            self.view,
            self.ledger,
            self.clock,
            begun,
            synced=lambda: self.synced,
            reported=self.reported,
        )
        self.groups = LiveGroups(self.view, self.clock, begun, all_or_nothing=all_or_nothing)
        self._versions = itertools.count(1)

    def books(self, begun: Beginning, *, why_not: Callable[[], str] = str) -> LiveBooks:
        """Return books over the view, without soft holds."""
        return LiveBooks(
            self.view, self.clock, WORDS, begun, self.groups, lifted=no_holds, why_not=why_not
        )

    def settle(self) -> None:
        """Record what changed, and decide by it."""
        asyncio.run(self.inventory.settle())

    def add_node(self, name: str, gpus: int = 2, *, uid: str = "", **spec: Json) -> None:
        """Let a Node come with its Device, or be another than it was."""
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        self.tell("nodes", node(name, allocatable=amounts, **spec), uid=uid or f"uid-{name}")
        cards = [gpu_device(minor, id=f"GPU-{name}-{minor}") for minor in range(gpus)]
        self.tell("devices", device(*cards, name=name), uid=f"device-{name}")

    def tell(self, kind: str, item: dict[str, Any], *, uid: str) -> None:
        """Tell the sink of a kind that an object came or changed."""
        metadata = {**item["metadata"], "uid": uid, "resourceVersion": str(next(self._versions))}
        getattr(self.view.nodes, kind).put(uid, {**item, "metadata": metadata})

    def drop_node(self, name: str, *, uid: str = "") -> None:
        """Let a Node and its Device go."""
        self.view.nodes.nodes.drop(uid or f"uid-{name}")
        self.view.nodes.devices.drop(f"device-{name}")

    def reserve(
        self, placement: Placement, *, attempt: int = 1, shown: tuple[str, ...] = ()
    ) -> PodReserved:
        """Record a reservation, and tell the view."""
        said, now = encode_shown(shown), self.clock.wall_us()
        new = events.reserved(WORDS, placement, said, now, digest="", arrival=0, attempt=attempt)
        event = new.event
        assert isinstance(event, PodReserved)
        self.record(event)
        return event

    def release(self, event: PodReserved) -> None:
        """Record the end of a reservation, and tell the view."""
        self.record(
            PodReleased(
                pod_uid=event.pod_uid,
                attempt=event.attempt,
                node_uid=event.node_uid,
                reason="deleted",
            )
        )

    def record(self, event: LedgerEvent) -> None:
        """Record an event as another writer of this ledger would."""
        self.ledger.log.append(event)
        self.view.take(len(self.ledger.log), event)

    def passing(self, pod: dict[str, Any], *names: str) -> list[str]:
        """Return the names of the nodes that a Pod passes."""
        asked = self.view.requests.read(pod)
        assert isinstance(asked, PodRequest), asked
        judged = self.view.judge(asked, names)
        return [names[number] for number in judged.filtered.passing.tolist()]

    def placement(self, pod: dict[str, Any], name: str) -> Placement:
        """Return what a Pod gets on a node, which it must."""
        self.view.requests.read(pod)
        chosen = self.view.choose(pod["metadata"]["uid"], name)
        assert isinstance(chosen, Placement), chosen
        return chosen


def leads(epoch: int, fresh: Callable[[], str] = str) -> Leading:
    """Return what whoever has Lease and ledger goes by."""
    leading = Leading(now=lambda: 0.0, lease_until=lambda: 1.0, skewed=lambda: False, fresh=fresh)
    leading.took(epoch)
    return leading


def types(log: Sequence[LedgerEvent]) -> list[str]:
    """Return the types of events, without their versions."""
    return [event.event_type.rpartition(".")[0] for event in log]
