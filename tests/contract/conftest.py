"""The databases that the ledger's contract is run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Server, embedded, installed, newest, own_server
from tests.support.stores import PostgresStore, SqliteStore, Store


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events, made once."""
    store = SqliteStore(path=tmp_path_factory.mktemp("ledger") / "empty.db")
    store.open("create").close()
    return store


@pytest.fixture
def sqlite_store(tmp_path: Path, empty_ledger: SqliteStore) -> SqliteStore:
    """A ledger without events of its own, as a file that a test may do anything to."""
    return empty_ledger.copy(tmp_path / "ledger.db")


@pytest.fixture
def postgres_store(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger without events of its own, in a database that a test may do anything to."""
    store = empty_postgres.copy()
    yield store
    postgres.drop(store.database)


@pytest.fixture(scope="session")
def newest_postgres() -> Iterator[Server]:
    """A server of the newest Postgres here, to which a ledger is brought from an older one."""
    with own_server(newest([*installed(), *embedded()]), durable=False) as own:
        yield own.server


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """A ledger without events of its own, on each database."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found
