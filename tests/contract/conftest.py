"""The databases that the ledger's contract is run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores import SqliteStore


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events, made once."""
    store = SqliteStore(path=tmp_path_factory.mktemp("ledger") / "empty.db")
    store.open("create").close()
    return store


@pytest.fixture(params=["sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, empty_ledger: SqliteStore) -> SqliteStore:
    """A ledger without events of its own, on each database."""
    assert request.param == "sqlite", request.param
    return empty_ledger.copy(tmp_path / "ledger.db")
