"""What the live scheduler needs of the world; a simulation hands in virtual ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from certs.ports import Object
from ledger.domain.log.events import PodObserved, PodReserved
from ledger.domain.log.recorded import NewEvent
from ledger.store.writing.commands import Command, Outcome


class Recorder(Protocol):
    """The one writer of the ledger; see `ledger.store.writing.lane.Lane`."""

    @property
    def epoch(self) -> int:
        """Return the epoch that is written in."""

    @property
    def position(self) -> int:
        """Return the last position that is known to be durable."""

    async def record(self, command: Command) -> Outcome:
        """
        Record a command and return its answer once that is durable.

        Raises:
            FencedError: another writer took over; so for every later call.
            UnknownOutcomeError: it may be recorded or not; the same command again tells.
            OverloadedError: too many wait.
            LedgerError: nothing was recorded.
        """


class Clock(Protocol):
    """Time, and waiting for it."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""

    def wall_us(self) -> int:
        """Return the wall clock in microseconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Come back after that many seconds."""


Start = Callable[[Awaitable[None]], None]
"""Starts a task of the process's own; what it raises ends the process."""
WhyNot = Callable[[], str]
"""Returns why nothing may be decided, recorded or given out now; empty when it may."""
Attempts = Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]
"""Asks the ledger for the numbers of the newest holdings of Pods or claims, ended or not."""
PendingPod = Callable[[str], Mapping[str, Any] | None]
"""Returns a Pod that has no node, by UID; None where none is known."""
TakeRecorded = Callable[[Sequence[NewEvent], int], None]
"""Takes events that are durable, the first at that position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindCall:
    """What kube-scheduler asks to be bound, in the words of its ExtenderBindingArgs."""

    namespace: str
    pod_name: str
    pod_uid: str
    node_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The newest reservation of a Pod that has not ended; `resource_version` is the Pod's then."""

    namespace: str
    pod_name: str
    pod_uid: str
    node_name: str
    node_uid: str
    attempt: int
    resource_version: str
    is_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """
    What a Pod is to get on its node.

    Attributes:
        reservation: its annotations are the Binding's, but for what tells its position.
        events: the reservation is the last; before it what must be recorded first.
        others: reservations among these, of members of its gang that are not bound yet.
        after: keys of the events that were counted, and were on their way into the ledger.
    """

    reservation: PodReserved
    events: tuple[NewEvent, ...]
    others: tuple[PodReserved, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def reservations(self) -> tuple[PodReserved, ...]:
        """Return all that is reserved."""
        return (*self.others, self.reservation)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChosen:
    """Why a Pod gets nothing on its node, in words for kube-scheduler."""

    message: str


class Books(Protocol):
    """What is held, as this process knows it, with what is on its way into the ledger."""

    def standing(self, pod_uid: str) -> Standing | None:
        """Return what is reserved for a Pod, None where nothing is."""

    def is_named(self, call: BindCall) -> bool:
        """Tell whether a Pod has the name of a call, or is not known by any."""

    def version(self, pod_uid: str) -> str | None:
        """Return the resourceVersion of a Pod that was seen unbound; None without such a Pod."""

    def attempts(self, pod_uid: str) -> int:
        """Return the number of the Pod's newest reservation, ended or not; 0 without one."""

    def is_behind(self, call: BindCall) -> bool:
        """Tell whether nothing is chosen for a call, as the ledger has more than is known of it."""

    def choose(
        self, call: BindCall, attempt: int, resource_version: str, pod: Object | None
    ) -> Chosen | NotChosen:
        """
        Choose from what the ledger holds alone, without soft holds, and count it as held at once.

        Args:
            pod: as it was read at that version; None = as it was seen last.
        """

    def by_number(self, call: BindCall) -> tuple[PodObserved, tuple[NewEvent, ...]] | None:
        """Count cards that a node gives by number as held at once; None where cards have names."""

    def unbound(self, counted: PodObserved) -> None:
        """Give back what was counted: the Pod is not bound, or nothing of it is recorded."""

    def refused(self, chosen: Chosen) -> None:
        """Give back what was chosen: the ledger has not recorded it, and will not."""

    def used(self, chosen: Chosen) -> None:
        """Number Pods on from what was chosen: the ledger has others of these numbers."""

    def recorded(self, events: Sequence[NewEvent], first: int) -> None:
        """Take note of events that are durable, the first at that position."""
