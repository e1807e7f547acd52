"""What the live scheduler needs of the world; a simulation hands in virtual ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from certs.ports import Object
from ledger.store.writing.commands import Command, Outcome


class Recorder(Protocol):
    """The one writer of the ledger; see `ledger.store.writing.lane.Lane`."""

    @property
    def epoch(self) -> int:
        """Return the epoch that is written in."""
        ...

    @property
    def position(self) -> int:
        """Return the last position that is known to be durable."""
        ...

    async def record(self, command: Command) -> Outcome:
        """
        Record a command and return its answer once that is durable.

        Raises:
            FencedError: another writer took over; so for every later call.
            UnknownOutcomeError: it may be recorded or not; the same command again tells.
            OverloadedError: too many wait.
            LedgerError: nothing was recorded.
        """
        ...


class Api(Protocol):
    """
    API objects by path; see `certs.ports.Objects`. Every call has a time limit.

    Every method raises ApiError; those that write also ConflictError.
    """

    async def read(self, path: str) -> Object | None:
        """Return an object as the API server has it now; None if there is none."""
        ...

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection at `path`."""
        ...

    async def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Apply a JSON patch whole or not at all; a failing `test` is a conflict."""
        ...


class Clock(Protocol):
    """Time, and waiting for it."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        ...

    def wall_us(self) -> int:
        """Return the wall clock in microseconds since 1970."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Come back after that many seconds."""
        ...


Start = Callable[[Awaitable[None]], None]
"""Starts a task of the process's own; what it raises ends the process."""
