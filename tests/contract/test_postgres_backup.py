"""The ways of copying a ledger that the Postgres page names make a ledger that proves itself."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, make_url

from ledger.domain.errors import InputError
from ledger.domain.log.events import TimeCorrected
from ledger.store.mending.correcting import check_correction, correct
from ledger.store.open import Ledger, Mode, open_ledger
from ledger.store.proving.verify import verify
from ledger.store.reading.report_queries import device_holders
from tests.support.pg_copies import Form, dumped, give_roles
from tests.support.postgres import Server, own_server
from tests.support.postgres_roles import apply_roles
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


def test_a_dump_of_a_ledger_whose_clock_was_corrected_proves_itself(
    filled: PostgresStore, newest_postgres: Server
) -> None:
    """Its views tell true times there too, in the words of whichever server."""
    words = TimeCorrected(first=2, last=2, shift_seconds=1, reason="a test")
    with filled.open() as ledger:
        check_correction(ledger, words)
        correct(start(ledger, "correct"), words, wall_us=0)
    give_roles(filled.server, newest_postgres)
    for server in (filled.server, newest_postgres):
        copy = dumped(filled, server, "plain")
        proves_itself(copy)
        server.drop(copy.database)


def test_the_migrator_corrects_times_and_the_writer_may_not(filled: PostgresStore) -> None:
    """Views are the owner's; who may read them may read them still."""
    url = make_url(filled.url)
    words = TimeCorrected(first=2, last=2, shift_seconds=1, reason="a test")

    def opened_as(role: str, mode: Mode) -> Ledger:
        named = url.update_query_dict({"options": f"-c role={role}"})
        return open_ledger(named.render_as_string(hide_password=False), mode=mode)

    with (
        opened_as("ledger_writer", "write") as ledger,
        pytest.raises(InputError, match="this role may not correct times"),
    ):
        check_correction(ledger, words)
    with opened_as("ledger_migrator", "write") as ledger:
        check_correction(ledger, words)
        correct(start(ledger, "correct"), words, wall_us=0)
    with opened_as("ledger_auditor", "read") as ledger, ledger.connection.begin():
        assert [each.pod_name for each in device_holders(ledger.connection)] == ["a"]
    with opened_as("ledger_migrator", "read") as ledger:
        assert verify(ledger).findings == ()


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
