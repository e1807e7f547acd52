"""One Pod, one card, a ledger and an API server that answer as they are told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from certs.ports import Object
from ledger.domain.annotations.proof import encode_proof, proof_of
from ledger.domain.errors import UnknownOutcomeError
from ledger.domain.log.events import PodBound, PodObserved, PodReleased, PodReserved, PodVoided
from ledger.domain.log.recorded import NewEvent
from ledger.store.writing.commands import Command, Outcome, Recorded, Refused
from scheduler.record import events
from scheduler.service.binding import Binder
from scheduler.service.ports import BindCall, Chosen, NotChosen, Standing
from scheduler.service.telling import Telling
from scheduler.service.wakeups import Wakeups
from tests.support import fake_api
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.loops import run_in_virtual_time
from tests.support.stores import MONDAY_US, reserved, share

LOST: Final = "lost"
"""Recorded, and the answer did not come."""
CALL: Final = BindCall(namespace="team-a", pod_name="p", pod_uid="uid-p", node_name="n-1")
PATH: Final = "/api/v1/namespaces/team-a/pods/p"


class LoopClock:
    """The loop's own time."""

    def monotonic(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    def wall_us(self) -> int:
        """Return Monday and the loop's time."""
        return MONDAY_US + int(self.monotonic() * 1_000_000)

    async def sleep(self, seconds: float) -> None:
        """Wait as the loop does."""
        await asyncio.sleep(seconds)


class Tasks:
    """Tasks of a process: what one raises, ends it."""

    def __init__(self) -> None:
        self.running: set[asyncio.Future[None]] = set()
        self.failed: list[BaseException] = []

    def start(self, work: Awaitable[None]) -> None:
        """Start a task."""
        task = asyncio.ensure_future(work)
        self.running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(error)

    async def all_done(self) -> None:
        """Wait until none runs."""
        while self.running:
            await asyncio.wait(self.running)


@dataclass(slots=True)
class ScriptedLedger:
    """A recorder; `fates`: errors, refusals or `LOST` for the next commands."""

    fates: deque[Exception | Refused | str] = field(default_factory=deque)
    events: list[NewEvent] = field(default_factory=list)
    asked: list[Command] = field(default_factory=list)
    epoch: int = 3

    @property
    def position(self) -> int:
        """Return how many are recorded."""
        return len(self.events)

    async def record(self, command: Command) -> Outcome:
        """Record a command once, or do as told."""
        self.asked.append(command)
        await asyncio.sleep(0.001)
        fate = self.fates.popleft() if self.fates else None
        if isinstance(fate, Exception):
            raise fate
        if isinstance(fate, Refused):
            return fate
        keys = [each.idempotency_key for each in self.events]
        known = [each.idempotency_key in keys for each in command.events]
        if not any(known):
            self.events += command.events
        first = next(
            number
            for number, each in enumerate(self.events, 1)
            if each.idempotency_key == command.events[0].idempotency_key
        )
        if fate == LOST:
            raise UnknownOutcomeError("the answer was lost")
        return Recorded(first=first, last=first + len(command.events) - 1)


@dataclass(slots=True)
class OneCard:
    """
    Books of one node with one card, which the first has who asks.

    Attributes:
        seen: resourceVersion by UID, as a watch told it.
        open: what is reserved; `by`: who has the card, as far as this process knows.
        counted: what the node gives by number, empty where its card has a name.
    """

    seen: dict[str, str] = field(default_factory=dict)
    open: dict[str, Standing] = field(default_factory=dict)
    by: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    counted: list[PodObserved] = field(default_factory=list)

    def standing(self, pod_uid: str) -> Standing | None:
        """Return what is reserved."""
        return self.open.get(pod_uid)

    def is_named(self, call: BindCall) -> bool:
        """Tell whether it is the one Pod there is, by its name, or another one."""
        return call.pod_uid != CALL.pod_uid or (call.namespace, call.pod_name) == ("team-a", "p")

    def version(self, pod_uid: str) -> str | None:
        """Return the version that was seen."""
        return self.seen.get(pod_uid)

    def attempts(self, pod_uid: str) -> int:
        """Return how many were reserved."""
        return self.numbers.get(pod_uid, 0)

    def is_behind(self, call: BindCall) -> bool:
        """Tell that its ledger has nothing that is not known."""
        del call
        return False

    def choose(
        self, call: BindCall, attempt: int, resource_version: str, pod: Object | None
    ) -> Chosen | NotChosen:
        """Give the card, if nobody has it."""
        del pod
        if self.by:
            return NotChosen(message="Insufficient GPU Devices")
        self.by = call.pod_uid
        self.versions.append(resource_version)
        event = reserved(
            call.pod_name,
            share(0, 100),
            node=call.node_name,
            attempt=attempt,
            resource_version=resource_version,
            annotations={"scheduling.koordinator.sh/device-allocated": "{}"},
        )
        key = f"reserve:{call.pod_uid}:{attempt}"
        new = NewEvent(
            stream=f"node/{event.node_uid}",
            event=event,
            actor="nobody",
            idempotency_key=key,
            wall_us=MONDAY_US,
        )
        return Chosen(reservation=event, events=(new,))

    def by_number(self, call: BindCall) -> tuple[PodObserved, tuple[NewEvent, ...]] | None:
        """Count what the node gives by number."""
        for event in self.counted:
            assert event.pod_uid == call.pod_uid, call
            return event, (events.of_pod(event, MONDAY_US),)
        return None

    def unbound(self, counted: PodObserved) -> None:
        """Take back what was counted."""
        self.counted.remove(counted)

    def refused(self, chosen: Chosen) -> None:
        """Take the card back."""
        assert self.by == chosen.reservation.pod_uid
        self.by = ""

    def used(self, chosen: Chosen) -> None:
        """Number the Pod on."""
        self.numbers[chosen.reservation.pod_uid] = chosen.reservation.attempt

    def recorded(self, events: Sequence[NewEvent], first: int) -> None:
        """Take note."""
        del first
        for new in events:
            event = new.event
            if isinstance(event, PodReserved):
                self.numbers[event.pod_uid] = event.attempt
                self.open[event.pod_uid] = standing_of(event)
            elif isinstance(event, PodBound):
                held = self.open[event.pod_uid]
                self.open[event.pod_uid] = _bound(held)
            elif isinstance(event, PodVoided | PodReleased):
                del self.open[event.pod_uid]
                self.by = ""


def standing_of(event: PodReserved) -> Standing:
    """Return a reservation that is not known to be bound."""
    return Standing(
        namespace=event.namespace,
        pod_name=event.pod_name,
        pod_uid=event.pod_uid,
        node_name=event.node_name,
        node_uid=event.node_uid,
        attempt=event.attempt,
        resource_version=event.resource_version,
        is_bound=False,
    )


def _bound(held: Standing) -> Standing:
    return replace(held, is_bound=True)


class Unsigned:
    """Says on a Pod by which attempt it was bound; what a node would check is not in here."""

    def annotations(
        self, event: PodReserved, *, epoch: int, position: int, at_us: int
    ) -> dict[str, str]:
        """Return a proof with an empty signature."""
        del at_us
        proof = proof_of(
            event,
            cluster="c",
            incarnation="first",
            epoch=epoch,
            position=position,
            machine=("", ""),
        )
        return encode_proof(proof, key="k", sign=lambda _: b"")


async def at_once(_pod_uid: str) -> None:
    """Come back at once: no gang is being let go."""


def always(_node_uid: str, _pod_uid: str) -> bool:
    """Tell that nothing of a Pod is left."""
    return True


@dataclass(slots=True)
class Scene:
    """One process that binds, and all it talks to."""

    server: ApiServer = field(default_factory=ApiServer)
    ledger: ScriptedLedger = field(default_factory=ScriptedLedger)
    books: OneCard = field(default_factory=OneCard)
    tasks: Tasks = field(default_factory=Tasks)
    fates: deque[str | int] = field(default_factory=deque)
    api: ApiClient = field(init=False)
    binder: Binder = field(init=False)

    def __post_init__(self) -> None:
        self.api = ApiClient(
            self.server,
            asyncio.sleep,
            fate=lambda _: self.fates.popleft() if self.fates else fake_api.ANSWERED,
            later=lambda seconds, act: asyncio.get_running_loop().call_later(seconds, act),
        )
        stored = self.server.put(PATH, fake_api.pod("p", "uid-p"))
        self.books.seen["uid-p"] = stored["metadata"]["resourceVersion"]
        self.binder = Binder(
            recorder=self.ledger,
            api=self.api,
            clock=LoopClock(),
            books=self.books,
            proofs=Unsigned(),
            telling=Telling(api=self.api, clock=LoopClock(), reporter="scheduler/test"),
            actor="scheduler/test",
            start=self.tasks.start,
            wakeups=Wakeups(),
            ready=at_once,
            is_gone=always,
            is_awaited=lambda _uid: False,
        )

    @property
    def pod(self) -> dict[str, Any]:
        """Return the Pod as the API server has it."""
        found = self.server.read(PATH)
        assert found is not None
        return found

    @property
    def said(self) -> list[str]:
        """Return the recorded events in short."""
        return [each.event.event_type.removesuffix(".v1") for each in self.ledger.events]

    def touch(self) -> None:
        """Move the Pod's version, as kube-scheduler's patch of the nominated node does."""
        self.server.change(PATH, lambda pod: pod["status"].update(touched=self.server.version))


def play(act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run a scene in virtual time; no task of it may have failed."""

    async def main() -> None:
        scene = Scene()
        await act(scene)
        await scene.tasks.all_done()
        assert not scene.tasks.failed, scene.tasks.failed

    run_in_virtual_time(main())
