"""The writer's lane: one task, one transaction for all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from ledger.domain.errors import (
    CorruptLedgerError,
    FencedError,
    LedgerError,
    OverloadedError,
    UnknownOutcomeError,
)
from ledger.domain.log.clock import SteadyClock
from ledger.store import schema
from ledger.store.failures import unreachable
from ledger.store.service import Service, let_go
from ledger.store.threaded import Connected
from ledger.store.writing.append import Head, Writer, read_head, start_epoch
from ledger.store.writing.commands import Command, Outcome

_T = TypeVar("_T")
COMMANDS_PER_COMMIT: Final = 256
WAITING_MAX: Final = 1_024
PATIENCE_SECONDS: Final = 10.0
_ENDED: Final = (FencedError, CorruptLedgerError)
"""After these the lane is no writer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """
    Who takes the ledger over, in the words of `Ledger.start_epoch`.

    `clock` is what this process may believe of its wall clock, from when it was compared.
    """

    holder: str
    origin: str
    version: str
    wall_us: int = 0
    clock: SteadyClock | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    command: Command
    answer: asyncio.Future[Outcome]


Act = Callable[[Writer], object]
Prepare = Callable[[int], Awaitable[Act | None]]


@dataclass(frozen=True, slots=True)
class _Alone:
    """Something that is done while nothing else is: prepared at a head that stands still."""

    prepare: Prepare
    answer: asyncio.Future[bool]


class Lane:
    """
    Hands commands to the one writer, as many together as wait. Made by `open_lane`.

    While one transaction is on its way to the disk the next one gathers, so no command waits for
    company.
    """

    def __init__(
        self,
        service: Service,
        connection: Connected,
        writer: Writer,
        *,
        clock: SteadyClock | None,
        waiting_max: int,
        patience_seconds: float,
    ) -> None:
        self._service = service
        self._connection: Connected | None = connection
        self._writer = writer
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._queue: asyncio.Queue[_Asked | _Alone | None] = asyncio.Queue(waiting_max)
        self._ended: LedgerError | None = None
        self._task = asyncio.create_task(self._run(), name="ledger-lane")

    @property
    def epoch(self) -> int:
        """The epoch that this lane writes in."""
        return self._writer.head.epoch

    @property
    def position(self) -> int:
        """The last position that this lane knows to be durable."""
        return self._writer.head.position

    @property
    def head(self) -> Head:
        """The head that this lane knows to be durable."""
        return self._writer.head

    async def record(self, command: Command) -> Outcome:
        """
        Record a command and return its answer once that is durable.

        Rule: design section 4, "One fenced writer with group commit".

        Raises:
            OverloadedError: too many wait; at once, so that the caller can answer in time.
            FencedError: another writer took over; so for every later call.
            UnknownOutcomeError: it may be recorded or not; the same command again tells.
            LedgerError: the database failed, or the lane is closed; nothing was recorded.
        """
        if self._ended is not None:
            raise self._ended
        asked = _Asked(command, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(asked)
        except asyncio.QueueFull:
            raise OverloadedError(
                f"too many commands wait to be recorded: waiting={self._queue.qsize()}"
            ) from None
        try:
            # The lane answers within two patiences for each batch ahead; this is the last resort.
            async with asyncio.timeout(4 * self._patience_seconds):
                return await asked.answer
        except TimeoutError as error:
            raise UnknownOutcomeError(
                f"no answer from the ledger: seconds={4 * self._patience_seconds}"
            ) from error

    async def alone(self, prepare: Prepare) -> bool:
        """
        Let something be recorded that is made from the very head; commands wait as long.

        Args:
            prepare: the head's position -> what is done there, None for nothing; it has as long as
                a commit has.

        Returns:
            Whether it was done.

        Raises:
            OverloadedError, FencedError, LedgerError: as `record`.
        """
        if self._ended is not None:
            raise self._ended
        asked = _Alone(prepare, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(asked)
        except asyncio.QueueFull:
            raise OverloadedError("too many commands wait to be recorded") from None
        return await asked.answer

    async def watch(self) -> None:
        """
        Wait until it records no more; a lane that was closed ends without a word.

        Raises:
            FencedError, CorruptLedgerError: it is no writer any more.
            Exception: a mistake of ours ended it, and nobody else hears of that.
        """
        await asyncio.wait({self._task})
        self._task.result()
        if isinstance(self._ended, _ENDED):
            raise self._ended

    async def close(self) -> None:
        """Record what waits, then end; a second call does nothing."""
        if self._ended is None:
            self._ended = LedgerError("the ledger is closed for writing")
            await self._queue.put(None)
        await self._task

    async def _run(self) -> None:
        try:
            going_on = True
            while going_on:
                batch, alone, going_on = await self._next_batch()
                if batch:
                    await self._answer(batch)
                if alone is not None:
                    await self._stand_still(alone)
        except _ENDED as error:
            self._ended = error
        finally:
            self._ended = self._ended or LedgerError("the lane ended before its time")
            self._refuse_waiting(self._ended)
            await self._disconnect(broken=False)

    async def _next_batch(self) -> tuple[list[_Asked], _Alone | None, bool]:
        """
        Wait for a command, take all that wait with it, and tell whether more may come.

        What wants to be alone ends a batch, and is done behind it.
        """
        batch: list[_Asked] = []
        asked = await self._queue.get()
        while asked is not None:
            if isinstance(asked, _Alone):
                return batch, asked, True
            if not asked.answer.done():  # nobody waits for it any more
                batch.append(asked)
            if len(batch) == COMMANDS_PER_COMMIT or self._queue.empty():
                return batch, None, True
            asked = self._queue.get_nowait()
        return batch, None, False

    async def _stand_still(self, alone: _Alone) -> None:
        """Do what wants to be alone; what goes wrong is its own, unless we are no writer."""
        try:
            done = await self._do_alone(alone.prepare)
        except (SQLAlchemyError, OSError, LedgerError) as error:  # TimeoutError is an OSError
            found = error if isinstance(error, LedgerError) else unreachable(error)
            await self._disconnect()  # the next one begins where the ledger really is
            _fail([alone], found)
            if isinstance(found, _ENDED):
                raise found from error
        except BaseException:
            _fail([alone], UnknownOutcomeError("the lane ended meanwhile"))
            raise
        else:
            if not alone.answer.done():
                alone.answer.set_result(done)
            await self._service.tell()

    async def _do_alone(self, prepare: Prepare) -> bool:
        async with asyncio.timeout(self._patience_seconds):
            act = await prepare(self._writer.head.position)
        if act is None:
            return False
        await self._ask(act)
        return True

    async def _ask(self, act: Callable[[Writer], _T]) -> _T:
        """Have something done by the writer, which is made again where it was let go."""
        async with asyncio.timeout(self._patience_seconds):
            if self._connection is None:
                self._connection, self._writer = await self._resumed()
            writer = self._writer
            return await self._connection.run_sync(lambda _: act(writer))

    async def _answer(self, batch: Sequence[_Asked]) -> None:
        try:
            outcomes = await self._record([asked.command for asked in batch])
        except LedgerError as error:
            _fail(batch, error)
            if isinstance(error, _ENDED):
                raise
            return
        except BaseException:  # cancelled, or an error of ours: whoever waits must hear so
            _fail(batch, UnknownOutcomeError("the lane ended while the command was recorded"))
            raise
        for asked, outcome in zip(batch, outcomes, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(outcome)
        await self._service.tell()

    async def _record(self, commands: Sequence[Command]) -> list[Outcome]:
        """
        Record a batch; after a failure once more, on a new connection.

        The commands' keys make the second attempt safe. Where it can't ask, an outcome that the
        first one left unknown stays unknown.
        """
        try:
            return await self._attempt(commands)
        except _ENDED:
            raise
        except LedgerError as error:
            first = error
            await self._disconnect()
        try:
            return await self._attempt(commands)
        except _ENDED:
            raise
        except LedgerError as error:
            await self._disconnect()
            if isinstance(first, UnknownOutcomeError):
                raise UnknownOutcomeError(f"{first}; then: {error}") from error
            raise

    async def _attempt(self, commands: Sequence[Command]) -> list[Outcome]:
        try:
            return await self._ask(lambda writer: writer.record(commands))
        except TimeoutError as error:
            raise UnknownOutcomeError(
                f"no answer from the database: seconds={self._patience_seconds}"
            ) from error
        except (SQLAlchemyError, OSError) as error:  # the driver's own words
            found = unreachable(error)
            if self._connection is None:  # nothing was asked yet
                raise found from error
            raise UnknownOutcomeError(f"the answer was lost: {found}") from error

    async def _resumed(self) -> tuple[Connected, Writer]:
        connection = await self._service.connect()
        try:
            return connection, await connection.run_sync(_resume, self._writer.head, self._clock)
        except BaseException:  # the time is up, above all: nobody else knows this connection
            await let_go(connection, self._patience_seconds, broken=True)
            raise

    async def _disconnect(self, *, broken: bool = True) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await let_go(connection, self._patience_seconds, broken=broken)

    def _refuse_waiting(self, error: LedgerError) -> None:
        while not self._queue.empty():
            asked = self._queue.get_nowait()
            if asked is not None:
                _fail([asked], error)


@asynccontextmanager
async def open_lane(
    service: Service,
    turn: Turn,
    *,
    waiting_max: int = WAITING_MAX,
    patience_seconds: float = PATIENCE_SECONDS,
) -> AsyncIterator[Lane]:
    """
    Take the ledger over and yield its lane; at the end record what waits, then let go.

    Raises:
        InputError: the ledger has another origin.
        LedgerError: it can't be taken over now.
    """
    try:
        async with asyncio.timeout(patience_seconds):
            connection = await service.connect()
            try:
                writer = await connection.run_sync(
                    start_epoch,
                    holder=turn.holder,
                    origin=turn.origin,
                    version=turn.version,
                    wall_us=turn.wall_us,
                    clock=turn.clock,
                    place=service.url,
                )
            except BaseException:  # the time is up, above all: nobody else knows this connection
                await let_go(connection, patience_seconds, broken=True)
                raise
    except (SQLAlchemyError, OSError) as error:  # TimeoutError is an OSError
        raise unreachable(error) from error
    lane = Lane(
        service,
        connection,
        writer,
        clock=turn.clock,
        waiting_max=waiting_max,
        patience_seconds=patience_seconds,
    )
    try:
        await service.tell()
        yield lane
    finally:
        await lane.close()


def _resume(connection: Connection, known: Head, clock: SteadyClock | None) -> Writer:
    """
    Return the writer of a running epoch, standing where the ledger really is.

    The head is locked before it is read: a commit on its way holds the same lock, so the outcome is
    read. A ledger that lacks `known`, the last durable head, is a copy, or a server that was
    behind.
    """
    events = schema.ledger_events.c
    with connection.begin():
        connection.execute(select(schema.ledger_head.c.id).with_for_update())
        head = read_head(connection)
        chain = select(events.chain_hash).where(events.position == known.position)
        there = connection.execute(chain).scalar()
    if head.epoch > known.epoch:
        raise FencedError(f"another writer took over: epoch={known.epoch}")
    is_behind = (head.epoch, head.position) < (known.epoch, known.position)
    if is_behind or there not in {None, known.chain_hash}:
        fact = "the ledger lacks what was recorded in it, it was put back"
        raise CorruptLedgerError(fact, position=min(head.position + 1, known.position))
    return Writer(connection, head, clock)


def _fail(batch: Sequence[_Asked | _Alone], error: LedgerError) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(error)
            asked.answer.exception()  # a caller who left is no fault
