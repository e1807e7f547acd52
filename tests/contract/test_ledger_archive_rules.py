"""The database lets an event go only into a segment that the log tells of, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import errors
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from ledger.domain.errors import InputError
from ledger.store import schema
from ledger.store.ddl.audit_views import create_views
from ledger.store.open import open_ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from tests.support.archives import afterwards, archive_up_to, history, move
from tests.support.postgres_roles import apply_roles
from tests.support.stores import Clock, PostgresStore, SqliteStore, Store, start

DELETED = "events are append-only: position {} cannot be deleted"
COPY = (
    "INSERT INTO ledger_segments (last, first, position, file_name, digest, root, chain_hash,"
    " state_digest, state, at_us) SELECT {}, {}, {}, file_name, digest, root, chain_hash,"
    " state_digest, state, at_us FROM ledger_segments"
)
KEY = (
    "INSERT INTO ledger_archived (position, idempotency_key, stream, event_type, args_hash, at_us)"
    " SELECT {}, {}, stream, event_type, args_hash, at_us FROM {} WHERE position = {}"
)


def refuses(store: Store, statement: str, words: str) -> None:
    """Expect the database to refuse a statement of its owner, in these words."""
    raw: Any
    with store.raw() as raw, pytest.raises(Exception, match=words):
        raw.execute(statement)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def moved_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A ledger whose first 256 of 300 events moved to a file, on each database, to be copied."""
    folder = tmp_path_factory.mktemp("moved")
    empty: Store = request.getfixturevalue(
        {"sqlite": "empty_ledger", "postgres": "empty_postgres"}[request.param]
    )
    store = empty.copy(folder / "ledger.db")
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
        move(ledger, folder)
    yield store
    dropped(store)


@pytest.fixture
def moved(moved_once: Store, tmp_path: Path) -> Iterator[Store]:
    """A copy of it that a test may do anything to."""
    store = moved_once.copy(tmp_path / "ledger.db")
    yield store
    dropped(store)


def dropped(store: Store) -> None:
    """Drop a database of the server; a file goes with its folder."""
    if isinstance(store, PostgresStore):
        store.server.drop(store.database)


def test_no_event_goes_without_its_segment(store: Store) -> None:
    """Neither before anything was archived, nor all of them at once."""
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
    refuses(store, "DELETE FROM ledger_events WHERE position = 10", DELETED.format(10))
    refuses(store, "DELETE FROM ledger_events", "events are append-only")


def test_what_a_segment_does_not_hold_stays(moved: Store) -> None:
    """Events behind it, and those of it that readers need: the first one starts the epoch."""
    refuses(moved, "DELETE FROM ledger_events WHERE position = 1", DELETED.format(1))
    refuses(moved, "DELETE FROM ledger_events WHERE position = 257", DELETED.format(257))
    refuses(moved, "DELETE FROM ledger_events", "events are append-only")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (COPY.format(512, 1, 304), "segments follow one another up to the head, in whole tiles"),
        (COPY.format(512, 257, 304), "segments follow one another up to the head"),
        (COPY.format(300, 257, 304), "segments follow one another up to the head"),
        ("UPDATE ledger_segments SET file_name = 'x'", "a segment does not change: position 256"),
        ("DELETE FROM ledger_segments", "segments are never deleted"),
        (KEY.format(257, "'k'", "ledger_archived", 20), "no segment holds the event at"),
        (
            KEY.format(258, "idempotency_key", "ledger_events", 258),
            "no segment holds the event at position 258",
        ),
        (KEY.format(1, "idempotency_key", "ledger_events", 1), "no segment holds the event at"),
        ("UPDATE ledger_archived SET stream = 'x'", "an archived key does not change"),
        ("DELETE FROM ledger_archived", "archived keys are never deleted"),
    ],
)
def test_segments_and_keys_are_written_once(moved: Store, statement: str, words: str) -> None:
    """Whoever connects: rows follow the log, and never change."""
    refuses(moved, statement, words)


def test_a_segment_is_written_with_the_event_that_tells_of_it(store: Store) -> None:
    """Without one at the head, with the same words, there is none."""
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
    blob = "zeroblob(32)" if isinstance(store, SqliteStore) else "decode(repeat('00', 32), 'hex')"
    values = f"256, 1, (SELECT position FROM ledger_head), 'x', {', '.join([blob] * 5)}, 1"
    forged = f"INSERT INTO ledger_segments VALUES ({values})"
    refuses(store, forged, "the event at position 30. does not archive this segment")


def test_emptying_the_tables_at_a_stroke_is_refused(
    postgres_store: PostgresStore, tmp_path: Path
) -> None:
    """TRUNCATE fires no rule of a row."""
    with postgres_store.open() as ledger:
        history(ledger, Clock(), events=300)
        move(ledger, tmp_path)
    for table in ("ledger_segments", "ledger_archived", "ledger_events", "ledger_events_0"):
        refuses(postgres_store, f"TRUNCATE {table}", "never deleted")


def test_the_migrator_archives_and_the_writer_may_not(
    postgres_store: PostgresStore, tmp_path: Path
) -> None:
    """The service's role has no DELETE on events, and writes neither segments nor keys."""
    clock = Clock()
    with postgres_store.open() as ledger:
        history(ledger, clock, events=300)
    url = make_url(postgres_store.url)
    engine = create_engine(url.set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        apply_roles(connection)
    engine.dispose()

    def as_role(role: str) -> str:
        named = url.update_query_dict({"options": f"-c role={role}"})
        return named.render_as_string(hide_password=False)

    with (
        open_ledger(as_role("ledger_writer"), mode="write") as ledger,
        pytest.raises(InputError, match="this role may not archive"),
    ):
        archive_up_to(ledger, tmp_path, 300)
    assert list(tmp_path.iterdir()) == []
    with open_ledger(as_role("ledger_owner"), mode="write") as ledger:
        assert archive_up_to(ledger, tmp_path, 300) is not None
    with open_ledger(as_role("ledger_writer"), mode="write") as ledger:
        start(ledger, "writer").append(afterwards(clock))
        assert verify(ledger, segments=tmp_path).findings == ()
    for statement in (
        "DELETE FROM ledger_events WHERE position = 10",
        COPY.format(512, 257, 304),
        KEY.format(258, "idempotency_key", "ledger_events", 258),
    ):
        with postgres_store.raw() as raw:
            raw.execute("SET ROLE ledger_writer")
            with pytest.raises(errors.InsufficientPrivilege):
                raw.execute(statement.encode())
    with open_ledger(as_role("ledger_owner"), mode="write") as ledger:
        assert rebuild(ledger, segments=tmp_path).equal


def test_what_the_audit_views_read_from_the_log_stays_there() -> None:
    """Every type of event that a view looks for is one that does not move."""
    words = "\n".join((*create_views("sqlite"), *create_views("postgresql")))
    looked_for = set(re.findall(r"event_type = '([a-z_.0-9]+)'", words))
    assert len(looked_for) >= 9
    assert looked_for <= set(schema.KEPT)
