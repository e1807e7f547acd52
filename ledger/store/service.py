"""How a service opens the ledger: for one event loop, whatever the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from ledger.domain.errors import LedgerError
from ledger.store import profile, profile_postgres
from ledger.store.open import open_ledger
from ledger.store.place import is_postgres, sqlite_path
from ledger.store.threaded import Connected, connect, in_thread
from ledger.store.writing.append import read_head

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


class Service:
    """
    An open ledger for asyncio. Made by `open_service`.

    The lane of this process notifies `moved` after every commit, `moves` times so far.
    """

    def __init__(
        self, *, url: str, engine: AsyncEngine | Engine, reading: Engine | None = None
    ) -> None:
        """Make one; `reading` is for connections that must not keep a writer waiting."""
        self.url = url
        self.engine = engine
        self._reading = reading
        self.moved = asyncio.Condition()
        self.moves = 0

    @property
    def is_postgres(self) -> bool:
        """Whether the database tells readers by itself that something was recorded."""
        return self.engine.dialect.name == "postgresql"

    async def connect(self, *, reads: bool = False) -> Connected:
        """
        Return a connection of its own; there is no pool. The caller closes it.

        On SQLite a connection that not only `reads` takes the write lock with each transaction.
        """
        if isinstance(self.engine, Engine):
            return await connect((reads and self._reading) or self.engine)
        return await self.engine.connect()

    async def probe(self, seconds: float) -> None:
        """
        Read the head on a connection of its own.

        Raises:
            LedgerError: the database does not answer, or not in time.
        """
        try:
            async with asyncio.timeout(seconds):
                connection = await self.connect()
                try:
                    await connection.run_sync(read_head)
                finally:
                    await let_go(connection, seconds, broken=self.is_postgres)
        except (SQLAlchemyError, OSError) as error:  # TimeoutError is an OSError
            fact = str(error) or type(error).__name__
            raise LedgerError(f"the database can't be reached: {fact}") from error

    async def tell(self) -> None:
        """Wake every reader of this process."""
        async with self.moved:
            self.moves += 1
            self.moved.notify_all()


@asynccontextmanager
async def open_service(url: str, *, write: bool = False) -> AsyncIterator[Service]:
    """
    Open the ledger at `url` and close it at the end.

    Raises:
        InputError, LedgerError: as `open_ledger`.
    """
    await in_thread(_expect_ledger, url, write=write)
    if is_postgres(url):
        engine = _postgres_engine(url, write=write)
        try:
            yield Service(url=url, engine=engine)
        finally:
            await engine.dispose()
    else:
        path = sqlite_path(url)
        cache = profile.SERVICE_CACHE_KIB
        reading = profile.sqlite_engine(path, write=False, cache_kib=cache)
        writing = profile.sqlite_engine(path, write=True, cache_kib=cache) if write else reading
        yield Service(url=url, engine=writing, reading=reading)


async def let_go(connection: Connected, seconds: float, *, broken: bool) -> None:
    """Close a connection; a broken one without a word that it would have to answer."""
    with suppress(SQLAlchemyError, OSError):  # TimeoutError is an OSError
        async with asyncio.timeout(seconds):
            if broken:
                await connection.invalidate()
            await connection.close()


def _expect_ledger(url: str, *, write: bool) -> None:
    """Tell whether it is one of ours, which takes as long as the database takes to answer."""
    open_ledger(url, mode="write" if write else "read").close()


def _postgres_engine(url: str, *, write: bool) -> AsyncEngine:
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - it loads the ORM

    given = profile_postgres.postgres_url(url).set(drivername="postgresql+asyncpg")
    settings = profile_postgres.settings(write=write)
    return create_async_engine(
        given.difference_update_query(["options", "application_name", "connect_timeout"]),
        poolclass=NullPool,
        connect_args={
            "server_settings": {"application_name": profile_postgres.APPLICATION, **settings},
            "timeout": profile_postgres.CONNECT_SECONDS,
        },
    )
