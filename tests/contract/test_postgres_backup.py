"""The ways of copying a ledger that the Postgres page names make a ledger that proves itself."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, make_url

from ledger.store.ddl.postgres_roles import apply_roles
from ledger.store.verify import verify
from tests.support.pg_copies import Form, dumped, give_roles
from tests.support.postgres import Server, own_server
from tests.support.stores import Clock, PostgresStore, node, reserved, share, start


def fill(store: PostgresStore) -> None:
    """Make a holder, and the roles."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(cpus=2), reserved("a", share(0, 60), cpus=(0,))))
    engine = create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        apply_roles(connection)
    engine.dispose()


def proves_itself(copy: PostgresStore) -> None:
    """Say that nothing is found in the copy, and that it takes the next holder."""
    with copy.open("read") as ledger:
        assert verify(ledger).findings == ()
    with copy.open() as ledger:
        writer = start(ledger, "next")
        writer.append([Clock().new(reserved("b", share(0, 40)), key="next")])
        assert verify(ledger).findings == ()


@pytest.fixture
def filled(postgres_store: PostgresStore) -> PostgresStore:
    """A ledger with a holder and with roles."""
    fill(postgres_store)
    return postgres_store


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_a_dump_of_a_ledger_proves_itself(filled: PostgresStore, form: Form) -> None:
    """Nothing is said of a copy, nor of a copy of the copy, and it goes on as a ledger."""
    copy = dumped(filled, filled.server, form)
    again = dumped(copy, filled.server, form)
    for each in (copy, again):
        proves_itself(each)
        filled.server.drop(each.database)


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_a_dump_on_the_newest_server_proves_itself(
    filled: PostgresStore, newest_postgres: Server, form: Form
) -> None:
    """An upgrade of the server is a dump into the new one, after its roles."""
    give_roles(filled.server, newest_postgres)
    copy = dumped(filled, newest_postgres, form)
    proves_itself(copy)
    newest_postgres.drop(copy.database)


def test_a_base_backup_proves_itself() -> None:
    """A copy of the server's files, taken while it runs, is the same ledger."""
    with own_server() as own:
        store = PostgresStore(server=own.server, database=own.server.new_database())
        store.open("create").close()
        fill(store)
        own.put_back()
        proves_itself(store)
