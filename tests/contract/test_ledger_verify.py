"""Tampering that the database could not refuse is found, and the finding names the position."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from ledger.domain.errors import (
    CorruptLedgerError,
    InputError,
    LedgerError,
    TenureError,
    UnknownEventError,
)
from ledger.domain.log.events import (
    EpochStarted,
    PodObserved,
    PodReserved,
    RequestRefused,
    encode_event,
)
from ledger.domain.proofs.hashing import GENESIS, chain_hash
from ledger.domain.request.requests import PodSnapshot
from ledger.store.ddl.sqlite_triggers import TRIGGERS, named
from ledger.store.projections import project
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.damage import MADE, digest_of, made_by_migrations, was_a_ledger
from ledger.store.proving.verify import FINDINGS_MAX, VerifyReport, verify
from ledger.store.reading.read import envelope_of
from tenure.cli import app
from tenure.exits import NO, UNREADABLE, run
from tests.support.log_proofs import leaf_hash
from tests.support.recorded import Recorded
from tests.support.stores import (
    ORIGIN,
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    bound,
    health,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

EVENTS = 12


def tell(store: Store) -> None:
    """Record an event of most kinds."""
    with store.open() as ledger:
        start(ledger).append(
            Clock().all(
                node(gpus=2, cpus=4),
                reserved("a", share(0, 60), cpus=(0, 1)),  # position 3
                reserved("b", share(1, 40, vf_bus_ids=("0000:3b:00.2",))),
                bound("a"),
                refused("c"),
                health(1, healthy=False),
                observed("x", share(0, 10), unknown_types=("fpga",)),
                released("b"),
                released("a", reason="evicted"),
                reserved("d", share(0, 90)),
                released("x"),
            )
        )


@pytest.fixture(scope="module")
def told_once(empty_ledger: SqliteStore, tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A file with an event of most kinds, which nobody changes."""
    store = empty_ledger.copy(tmp_path_factory.mktemp("told") / "ledger.db")
    tell(store)
    return store


@pytest.fixture
def told(told_once: SqliteStore, tmp_path: Path) -> SqliteStore:
    """A copy of it, which a test may do anything to."""
    return told_once.copy(tmp_path / "ledger.db")


def tampered(store: SqliteStore, *statements: str) -> VerifyReport:
    """Run SQL without the rules of the database, put them back, and verify."""
    with store.raw() as raw:
        rules = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("BEGIN")
        for name, _ in rules:
            raw.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            raw.execute(statement)
        for _, sql in rules:
            raw.execute(sql)
        raw.execute("COMMIT")
    with store.open("read") as ledger:
        return verify(ledger)


def positions(report: VerifyReport) -> set[int | None]:
    """Return the positions that the findings name."""
    return {finding.position for finding in report.findings}


def test_an_untouched_ledger_is_proved(store: Store) -> None:
    """No findings, every event counted, and progress on the way."""
    tell(store)
    steps: list[tuple[int, int]] = []
    with store.open("read") as ledger:
        report = verify(ledger, lambda done, total: steps.append((done, total)))
        head = ledger.head()

    assert report.ok
    assert (report.events, report.chain_hash) == (EVENTS, head.chain_hash)
    assert steps[-1] == (EVENTS, EVENTS)


def test_an_empty_ledger_is_proved(store: Store) -> None:
    """Nothing recorded, nothing wrong."""
    with store.open("read") as ledger:
        assert verify(ledger).ok


COLUMNS = {
    "stream": "stream = 'x' || substr(stream, 2)",
    "stream_version": "stream_version = stream_version + 1",
    "event_type": "event_type = replace(event_type, '.v1', '.v2')",
    "body": "body = replace(body, '\"attempt\":1', '\"attempt\":2')",
    "actor": "actor = 'Test'",
    "epoch": "epoch = epoch + 1",
    "causation_position": "causation_position = 1",
    "correlation_id": "correlation_id = 'd'",
    "idempotency_key": "idempotency_key = idempotency_key || 'x'",
    "args_hash": "args_hash = zeroblob(32)",
    "at_us": "at_us = at_us + 1",
    "wall_us": "wall_us = wall_us + 1",
    "leaf_hash": "leaf_hash = zeroblob(32)",
    "chain_hash": "chain_hash = zeroblob(32)",
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("position", [3, EVENTS])
def test_a_changed_column_of_an_event_is_named(
    told: SqliteStore, column: str, position: int
) -> None:
    """Whichever column of whichever event, the first finding is that event."""
    report = tampered(
        told, f"UPDATE ledger_events SET {COLUMNS[column]} WHERE position = {position}"
    )

    assert report.findings[0].position == position
    assert "event" in report.findings[0].text or "chain" in report.findings[0].text


@pytest.mark.parametrize("position", [1, 3, EVENTS])
def test_a_deleted_event_is_named(told: SqliteStore, position: int) -> None:
    """A hole in the middle, a lost beginning and a lost end are each found where they are."""
    report = tampered(told, f"DELETE FROM ledger_events WHERE position = {position}")

    assert report.findings[0].position == position


def test_swapped_events_are_named(told: SqliteStore) -> None:
    """Two events that changed places are both not what was recorded there."""
    report = tampered(
        told,
        "UPDATE ledger_events SET position = 99 WHERE position = 3",
        "UPDATE ledger_events SET position = 3 WHERE position = 4",
        "UPDATE ledger_events SET position = 4 WHERE position = 99",
    )

    assert {3, 4} <= positions(report)
    assert report.findings[0].position == 3


def test_a_history_that_was_written_again_does_not_reach_the_head(told: SqliteStore) -> None:
    """An end that was cut off, with the head moved back to it, breaks what the projections say."""
    with told.raw() as raw:
        chain = raw.execute(
            "SELECT hex(chain_hash) FROM ledger_events WHERE position = 9"
        ).fetchone()
        at_us = raw.execute("SELECT at_us FROM ledger_events WHERE position = 9").fetchone()
    report = tampered(
        told,
        "DELETE FROM ledger_events WHERE position > 9",
        f"UPDATE ledger_head SET position = 9, at_us = {at_us[0]}, chain_hash = x'{chain[0]}'",
    )

    assert 11 in positions(report)  # a reservation that no event explains
    assert not report.ok


@pytest.mark.parametrize(
    ("statement", "position"),
    [
        pytest.param(
            "UPDATE ledger_reservations SET pod_uid = 'uid-me' WHERE position = 3",
            3,
            id="another Pod",
        ),
        pytest.param(
            "UPDATE ledger_reservations SET closed_position = NULL, closed_at_us = NULL"
            " WHERE position = 3",
            3,
            id="an ending taken back",
        ),
        pytest.param(
            "UPDATE ledger_holdings SET core_percent = 1 WHERE position = 11",
            11,
            id="a smaller share",
        ),
        pytest.param("DELETE FROM ledger_holdings WHERE position = 4", 4, id="a lost share"),
        pytest.param(
            "INSERT INTO ledger_holdings SELECT 11, 2, 1, 0, 0, 0, 0, 1, 'granted', 0, NULL, NULL",
            11,
            id="a share too many",
        ),
        pytest.param(
            "UPDATE ledger_holdings SET closed_at_us = 0 WHERE position = 3", 3, id="another end"
        ),
        pytest.param("DELETE FROM ledger_cpu_holdings WHERE cpu = 1", 3, id="a lost CPU"),
        pytest.param("DELETE FROM ledger_slot_holdings WHERE position = 4", 4, id="a lost slot"),
        pytest.param("UPDATE ledger_refusals SET message = 'fits'", 6, id="another refusal"),
        pytest.param("DELETE FROM ledger_device_health", 7, id="a death forgotten"),
        pytest.param("UPDATE ledger_devices SET healthy = 1", None, id="a healthy card"),
        pytest.param("UPDATE ledger_devices SET core_used = 0", None, id="counters emptied"),
        pytest.param("UPDATE ledger_cpus SET ref_used = 1 WHERE cpu = 3", None, id="a CPU held"),
        pytest.param("UPDATE ledger_nodes SET node_name = 'n-2'", None, id="another node"),
        pytest.param("UPDATE ledger_streams SET version = 3", None, id="another version"),
    ],
)
def test_a_changed_projection_is_found_and_made_again(
    told: SqliteStore, statement: str, position: int | None
) -> None:
    """Fold and tables must be equal; rebuild makes them so, and says what was wrong."""
    report = tampered(told, statement)
    assert position in positions(report)

    with told.open() as ledger:
        rebuilt = rebuild(ledger)
        assert not rebuilt.equal
        assert rebuilt.differences
        assert verify(ledger).findings == ()
        again = rebuild(ledger)
    assert again.equal
    assert again.digest == rebuilt.digest


def test_what_the_database_finds_in_its_own_pages_is_told_before_the_rest(
    sqlite_store: SqliteStore,
) -> None:
    """None of its findings gives its place to another, and none beyond the report is uncounted."""
    with sqlite_store.open() as ledger:
        start(ledger).append(Clock().all(node(gpus=2, cpus=60)))
    *told, last = tampered(sqlite_store, "DELETE FROM ledger_machines").findings

    assert {finding.text.split(":")[0] for finding in told} == {"foreign_key_check"}
    assert len(told) == FINDINGS_MAX
    with sqlite_store.raw() as raw:
        broken = len(raw.execute("PRAGMA foreign_key_check").fetchall())
    lacking = 1  # ledger_machines lacks a row
    assert last.text == f"and {broken + lacking - FINDINGS_MAX} more findings"


@pytest.mark.parametrize("usual", [700, 0], ids=["as it is", "turned off"])
def test_a_proof_leaves_the_collector_of_garbage_as_it_was(told: SqliteStore, usual: int) -> None:
    """Whether the ledger is proved or damaged."""
    before = gc.get_threshold()
    gc.set_threshold(usual, *before[1:])
    try:
        with told.open("read") as ledger:
            assert verify(ledger).ok
        assert gc.get_threshold() == (usual, *before[1:])
        assert not tampered(told, "DELETE FROM ledger_events WHERE position = 5").ok
        assert gc.get_threshold() == (usual, *before[1:])
    finally:
        gc.set_threshold(*before)


def test_rebuilding_what_is_right_changes_nothing(told: SqliteStore) -> None:
    """The projections of an untouched ledger are, row for row, what the events make."""
    with told.raw() as raw:
        before = list(raw.iterdump())
    with told.open() as ledger:
        report = rebuild(ledger)
    with told.raw() as raw:
        assert list(raw.iterdump()) == before

    assert (report.equal, report.differences, report.events) == (True, (), EVENTS)


def test_a_rebuild_makes_the_same_rows_on_every_database(
    sqlite_store: SqliteStore, postgres_store: PostgresStore
) -> None:
    """What the events make is what was there, and has the same digest on each database."""
    reports = []
    for store in (sqlite_store, postgres_store):
        tell(store)
        with store.open() as ledger:
            reports.append(rebuild(ledger))
        with store.open("read") as ledger:
            assert verify(ledger).findings == ()

    assert (reports[0].equal, reports[0].differences, reports[0].events) == (True, (), EVENTS)
    assert reports[0] == reports[1]


def test_a_rebuild_stops_at_an_altered_event(told: SqliteStore) -> None:
    """Nothing is made again from events that are not what was recorded."""
    tampered(told, "UPDATE ledger_events SET actor = 'me' WHERE position = 3")
    with told.open() as ledger, pytest.raises(CorruptLedgerError, match="position=3"):
        rebuild(ledger)


def test_reading_stops_at_an_altered_event(told: SqliteStore) -> None:
    """A reader gets every event before the first bad one, and then its position."""
    tampered(told, "UPDATE ledger_events SET body = '{}' WHERE position = 3")
    with told.open("read") as ledger:
        events = ledger.read_events()
        assert [next(events).envelope.position, next(events).envelope.position] == [1, 2]
        with pytest.raises(CorruptLedgerError, match=r"the event was altered.*position=3"):
            next(events)


@pytest.mark.parametrize("position", [1, 5, EVENTS])
def test_reading_stops_at_a_gap(told: SqliteStore, position: int) -> None:
    """A missing position is corruption, never concurrency; so is an end before the head."""
    tampered(told, f"DELETE FROM ledger_events WHERE position = {position}")
    with (
        told.open("read") as ledger,
        pytest.raises(CorruptLedgerError, match=f"an event is missing.*position={position}$"),
    ):
        list(ledger.read_events())


def test_an_event_of_a_newer_version_stops_readers(told: SqliteStore) -> None:
    """A type this release does not know is neither skipped nor guessed."""
    with told.raw() as raw:  # a newer release made this rule again
        rule = raw.execute("SELECT sql FROM sqlite_master WHERE name = 'ledger_events_known'")
        (text,) = rule.fetchone()
        raw.execute("DROP TRIGGER ledger_events_known")
    with told.open() as ledger:
        new = Clock().new(refused("z"), key="newer")
        kind = type("Newer", (RequestRefused,), {"event_type": "request.refused.v2"})
        words = {each.name: getattr(new.event, each.name) for each in structs.fields(new.event)}
        start(ledger).append([structs.replace(new, event=kind(**words))])
    with told.raw() as raw:
        raw.execute(text)
    with told.open("read") as ledger:
        with pytest.raises(UnknownEventError, match="newer version"):
            list(ledger.read_events())
        report = verify(ledger)

    assert [finding.position for finding in report.findings] == [EVENTS + 2, None]


def flipped(store: SqliteStore, path: Path, offset: int, bit: int) -> TenureError | VerifyReport:
    """Flip one bit of a copy of the file and verify the copy."""
    data = bytearray(store.path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    try:
        with SqliteStore(path=path).open("read") as ledger:
            return verify(ledger)
    except InputError as error:
        return error


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(lambda row: row[1].encode(), id="the body"),
        pytest.param(lambda row: row[2], id="the leaf hash"),
        pytest.param(lambda row: row[3], id="the chain hash"),
        pytest.param(lambda row: row[4], id="the hash of the arguments"),
    ],
)
def test_one_flipped_bit_of_an_event_in_the_file_is_named(
    told: SqliteStore, tmp_path: Path, words: Callable[[tuple[object, ...]], bytes]
) -> None:
    """Any bit of any event's words or hashes, flipped in a copy of the file, is that position."""
    told = told.copy(tmp_path / "whole.db")
    data = told.path.read_bytes()
    rng = random.Random(1)
    with told.raw() as raw:
        rows = raw.execute(
            "SELECT position, body, leaf_hash, chain_hash, args_hash FROM ledger_events"
            " WHERE position < 12"  # the head has the last chain hash too
        ).fetchall()
    for row in rows:
        needle = words(row)
        at = data.find(needle)
        assert at > 0
        report = flipped(told, tmp_path / "flipped.db", at + rng.randrange(32), rng.randrange(8))
        assert isinstance(report, VerifyReport)
        assert report.findings[0].position == row[0]


@pytest.mark.parametrize(
    "flips",
    [
        pytest.param(50, id="50 flips", marks=pytest.mark.campaign_sample),
        pytest.param(500, id="500 flips", marks=pytest.mark.slow),
    ],
)
def test_no_flipped_bit_of_the_file_goes_unnoticed_or_unexplained(
    told: SqliteStore, tmp_path: Path, flips: int
) -> None:
    """
    Wherever a bit flips, there is a finding or one clear error.

    Where there is neither, it changed nothing that the ledger says: room that no row uses.
    """
    told = told.copy(tmp_path / "whole.db")
    size = told.path.stat().st_size
    with told.raw() as raw:
        whole = list(raw.iterdump())
    rng = random.Random(2)
    silent = 0
    for _ in range(flips):
        path = tmp_path / "flipped.db"
        report = flipped(told, path, rng.randrange(size), rng.randrange(8))
        if isinstance(report, VerifyReport) and report.ok:
            silent += 1
            with SqliteStore(path=path).raw() as raw:
                assert list(raw.iterdump()) == whole
    assert silent < flips


def test_a_page_of_noise_is_a_finding(told: SqliteStore, tmp_path: Path) -> None:
    """A page that was overwritten is told from an event that was altered, and is no traceback."""
    told = told.copy(tmp_path / "whole.db")
    data = told.path.read_bytes()
    with told.raw() as raw:
        root = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ledger_events'")
        page = root.fetchone()[0]
    for number in (page, page + 1):
        broken = bytearray(data)
        broken[(number - 1) * 4096 : number * 4096] = random.Random(number).randbytes(4096)
        (tmp_path / "noise.db").write_bytes(broken)
        with SqliteStore(path=tmp_path / "noise.db").open("read") as ledger:
            report = verify(ledger)
        assert any("damaged" in f.text or "integrity" in f.text for f in report.findings)


def record_offsets(store: SqliteStore) -> list[int]:
    """Return where in the file the headers of the records of `ledger_events` stand."""
    data = store.path.read_bytes()
    with store.raw() as raw:
        rows = raw.execute("SELECT DISTINCT stream, event_type FROM ledger_events").fetchall()
    found: list[int] = []
    for stream, kind in rows:
        at = -1
        while (at := data.find(stream.encode(), at + 1)) > 0:
            end = at + len(stream.encode())
            if kind.encode() in data[end : end + 2 + len(kind)]:  # the record, not an index
                found += range(max(0, at - 16), at)  # the words begin where the header ends
    return sorted(set(found))


@pytest.mark.parametrize(
    "flips",
    [
        pytest.param(60, id="60 flips", marks=pytest.mark.campaign_sample),
        pytest.param(500, id="500 flips", marks=pytest.mark.slow),
    ],
)
def test_a_flipped_byte_in_a_record_header_is_no_traceback(
    told: SqliteStore, tmp_path: Path, flips: int
) -> None:
    """
    A header names each column's type: flipped, text comes back as NULL or a number.

    Whatever it is read as: a finding, one clear error, or a ledger that says the same as before.
    """
    told = told.copy(tmp_path / "whole.db")
    data = told.path.read_bytes()
    rng = random.Random(3)
    places = [(at, 1 << rng.randrange(8)) for at in rng.choices(record_offsets(told), k=flips)]
    places += [(rng.randrange(len(data)), rng.randrange(1, 256)) for _ in range(flips // 2)]
    with told.raw() as raw:
        whole = list(raw.iterdump())
    path = tmp_path / "flipped.db"
    ill_typed = 0
    for at, mask in places:
        broken = bytearray(data)
        broken[at] ^= mask
        path.write_bytes(broken)
        try:
            with SqliteStore(path=path).open("read") as ledger:
                report = verify(ledger)
        except InputError:
            continue
        ill_typed += any("another type" in finding.text for finding in report.findings)
        if report.ok:
            with SqliteStore(path=path).raw() as raw:
                assert list(raw.iterdump()) == whole
    assert ill_typed >= 3


@pytest.mark.parametrize(
    ("words", "position"),
    [
        pytest.param("epoch = 9", None, id="another epoch"),
        pytest.param("holder = 'me'", None, id="another holder"),
        pytest.param("origin = 'ledger/mine'", None, id="another origin"),
        pytest.param("id = 2", None, id="another id"),
        pytest.param("position = 5", 6, id="an earlier position"),
        pytest.param("at_us = at_us + 1", EVENTS, id="another time"),
    ],
)
def test_a_changed_head_is_found(told: SqliteStore, words: str, position: int | None) -> None:
    """All that the head says follows from the last event and the last epoch that was started."""
    report = tampered(told, f"UPDATE ledger_head SET {words}")

    assert [finding.position for finding in report.findings][:1] == [position]
    assert "head" in report.findings[0].text or "beyond" in report.findings[0].text


def test_a_lost_head_is_found_and_stops_everyone_else(told: SqliteStore) -> None:
    """Nobody goes on from a ledger that does not say where it stands."""
    report = tampered(told, "DELETE FROM ledger_head")
    assert any("head must be one row: rows=0" in finding.text for finding in report.findings)

    with told.open("read") as ledger:
        with pytest.raises(CorruptLedgerError, match="head must be one row"):
            ledger.head()
        with pytest.raises(CorruptLedgerError, match="head must be one row"):
            list(ledger.read_events())
    with told.open() as ledger, pytest.raises(CorruptLedgerError, match="head must be one row"):
        rebuild(ledger)


def test_a_rebuild_stops_where_the_head_is_ahead(told: SqliteStore) -> None:
    """A lost end of the log is not made the truth: the rows that knew of it stay."""
    tampered(told, "DELETE FROM ledger_events WHERE position > 9")
    with told.raw() as raw:
        before = list(raw.iterdump())
    stops = pytest.raises(CorruptLedgerError, match="do not end at the head")
    with told.open() as ledger, stops as caught:
        rebuild(ledger)
    with told.raw() as raw:
        assert list(raw.iterdump()) == before
    assert "restore a copy" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        pytest.param(
            "CREATE TRIGGER sqlitexevil AFTER INSERT ON ledger_refusals BEGIN SELECT 1; END",
            "trigger=sqlitexevil",
            id="a trigger almost like the database's own",
        ),
        pytest.param(
            "CREATE TRIGGER ledger_events AFTER INSERT ON ledger_refusals BEGIN SELECT 1; END",
            "trigger=ledger_events",
            id="a trigger with the name of a table",
        ),
        pytest.param(
            "CREATE UNIQUE INDEX one_only ON ledger_refusals (stage, pod_uid)",
            "index=one_only",
            id="an index that refuses",
        ),
        pytest.param("DROP VIEW audit_node", "view=audit_node", id="a view that was dropped"),
        pytest.param("DELETE FROM alembic_version", "revisions=[]", id="a forgotten revision"),
        pytest.param(
            "INSERT INTO alembic_version VALUES ('0000')",
            "schema=0000",
            id="a second revision",
        ),
    ],
)
def test_a_changed_rule_is_found(told: SqliteStore, statement: str, words: str) -> None:
    """What the migrations made is all there is that can refuse or change a write."""
    with told.raw() as raw:
        views = raw.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
        view = min(views)[0]
        raw.execute(statement.replace("audit_node", view))
    words = words.replace("audit_node", view)
    try:
        with told.open("read") as ledger:
            facts = [finding.text for finding in verify(ledger).findings]
    except InputError as error:
        facts = [str(error)]
    assert any(words in fact for fact in facts)


def test_tables_and_views_of_ones_own_are_left_alone(told: SqliteStore) -> None:
    """They change nothing that is recorded."""
    with told.raw() as raw:
        raw.execute("CREATE TABLE mine (a, b)")
        raw.execute("CREATE INDEX mine_b ON mine (b)")
        raw.execute("CREATE VIEW my_pods AS SELECT pod_name FROM ledger_reservations")
    with told.open("read") as ledger:
        assert verify(ledger).ok


def test_the_reference_is_what_the_migrations_make() -> None:
    """Triggers and views come from the migrations alone; the tables' metadata has neither."""
    kinds = {kind for kind, _ in made_by_migrations()}

    assert kinds == {"table", "index", "trigger", "view"}
    assert ("table", "alembic_version") in made_by_migrations()


def test_the_digest_is_of_what_the_migrations_make() -> None:
    """A ledger of this digest is compared with nothing else; any other word has another."""
    made = made_by_migrations()

    assert digest_of(made) == MADE
    assert digest_of(dict(reversed(made.items()))) == MADE
    for key, (table, text) in made.items():
        assert digest_of({**made, key: (table, text + " ")}) != MADE, key
        assert digest_of({**made, key: (table + " ", text)}) != MADE, key
        assert digest_of({name: made[name] for name in made.keys() - {key}}) != MADE, key
    assert digest_of({**made, ("view", "mine"): ("mine", "CREATE VIEW mine AS SELECT 1")}) != MADE


def test_nothing_is_written_without_a_revision(told: SqliteStore) -> None:
    """A writer has to know the schema that it writes."""
    with told.raw() as raw:
        raw.execute("DELETE FROM alembic_version")
    with pytest.raises(InputError, match="revision must be one"):
        told.open()


def rewritten(store: SqliteStore, position: int, **changes: str | int) -> VerifyReport:
    """Put other words into the event at `position`, hash the chain again, and verify."""
    with store.raw() as raw:
        rows = raw.execute("SELECT * FROM ledger_events ORDER BY position").fetchall()
    chain, statements = GENESIS, []
    for row in rows:
        envelope = envelope_of(row)
        if envelope.position == position:
            envelope = structs.replace(envelope, **changes)
        leaf = leaf_hash(envelope)
        chain = chain_hash(chain, leaf)
        statements.append(
            f"UPDATE ledger_events SET leaf_hash = x'{leaf.hex()}', chain_hash = x'{chain.hex()}'"
            f" WHERE position = {row[0]}"
        )
    for column, value in changes.items():
        words = str(value).replace("'", "''")
        statements.append(
            f"UPDATE ledger_events SET {column} = '{words}' WHERE position = {position}"
        )
    statements.append(f"UPDATE ledger_head SET chain_hash = x'{chain.hex()}'")
    return tampered(store, *statements)


def body_with(**changes: object) -> str:
    """Return the body of a reservation with some fields of another kind."""
    fields: dict[str, object] = json.loads(encode_event(reserved("a", share(0, 60))))
    return json.dumps(fields | changes)


def share_with(**changes: object) -> list[object]:
    """Return the shares of a reservation, a field of another kind."""
    fields = json.loads(encode_event(reserved("a", share(0, 60))))["shares"]
    return [fields[0] | changes]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda: body_with(pod_uid=["a"]), id="a list of Pod UIDs"),
        pytest.param(lambda: body_with(attempt={}), id="an object for a number"),
        pytest.param(lambda: body_with(attempt=True), id="a truth value for a number"),
        pytest.param(lambda: body_with(shares=share_with(core_percent="9")), id="text for core"),
        pytest.param(lambda: body_with(shares=share_with(core_percent=0.5)), id="half a percent"),
        pytest.param(
            lambda: body_with(shares=share_with(memory_bytes=float("nan"))), id="not a number"
        ),
        pytest.param(lambda: body_with(snapshot={"labels": []}), id="a list of labels"),
        pytest.param(lambda: body_with(snapshot={"labels": {"a": 1}}), id="a label of a number"),
        pytest.param(lambda: body_with(cpuset="1-0"), id="no CPU list"),
        pytest.param(lambda: "[" * 100_000, id="100,000 arrays"),
        pytest.param(lambda: body_with(pod_uid=json.loads("[" * 900 + "]" * 900)), id="900 arrays"),
    ],
)
def test_a_body_that_is_not_its_type_is_named(told: SqliteStore, body: Callable[[], str]) -> None:
    """The chain may hold over words that no writer of ours records; they are still found."""
    report = rewritten(told, 3, body=body())

    assert report.findings[0].position == 3
    assert "can't be read" in report.findings[0].text
    with told.open() as ledger, pytest.raises(CorruptLedgerError, match="position=3"):
        rebuild(ledger)


def test_an_inventory_that_names_a_cpu_twice_is_named(told: SqliteStore) -> None:
    """What can't be replayed is a finding at its position, and stops a rebuild there."""
    twice = node(gpus=2, cpus=4)
    twice = structs.replace(twice, cpus=(twice.cpus[0], *twice.cpus))
    report = rewritten(told, 2, body=encode_event(twice))

    assert report.findings[0].position == 2
    assert "contradicts" in report.findings[0].text


@pytest.mark.parametrize(
    ("column", "change", "words"),
    [
        ("stream_version", 1, "the stream has a gap"),
        ("at_us", -(10**15), "time or epoch run backwards"),
        ("epoch", -1, "time or epoch run backwards"),
        ("at_us", 10**18, "a time is out of its bounds"),
        ("wall_us", 10**18, "a time is out of its bounds"),
    ],
)
def test_an_event_out_of_its_order_or_bounds_is_named(
    told: SqliteStore, column: str, change: int, words: str
) -> None:
    """The chain may hold over them, too; those behind it are looked at all the same."""
    with told.raw() as raw:
        (value,) = raw.execute(f"SELECT {column} FROM ledger_events WHERE position = 3").fetchone()
    report = rewritten(told, 3, **{column: value + change})

    assert report.findings[0].position == 3
    assert words in report.findings[0].text
    assert report.events == EVENTS


def test_how_far_times_are_ahead_of_their_clock_is_told(told: SqliteStore) -> None:
    """The most of it, and where; an event that no clock gave a time is left out."""
    with told.raw() as raw:
        times = dict(raw.execute("SELECT position, at_us FROM ledger_events").fetchall())
    report = rewritten(told, 3, wall_us=times[3] - 7)
    assert (report.ahead_us, report.ahead_position) == (7, 3)

    report = rewritten(told, 4, wall_us=0)
    assert (report.ahead_us, report.ahead_position) == (7, 3)


def test_an_epoch_that_was_never_started_is_named(told: SqliteStore) -> None:
    """The second event names another epoch than the one that the first started."""
    body = encode_event(EpochStarted(epoch=7, holder="test", origin=ORIGIN, tenure_version="0.1.0"))
    report = rewritten(told, 1, body=body)

    assert report.findings[0].position == 1
    assert "epoch" in report.findings[0].text


def test_the_projection_is_held_against_the_domains_fold(
    told: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of the writer's own code is not repeated by the proof: the fold differs."""
    tampered(told, "UPDATE ledger_reservations SET phase = 'bound' WHERE position = 11")
    honest = project.reservation_row

    def hasty(
        position: int, at_us: int, event: PodReserved | PodObserved, node_no: int
    ) -> tuple[object, ...]:
        words = honest(position, at_us, event, node_no)
        return tuple("bound" if word == "reserved" else word for word in words)

    monkeypatch.setattr(project, "reservation_row", hasty)
    with told.open("read") as ledger:
        report = verify(ledger)

    assert positions(report) == {11}
    assert "fold" in report.findings[0].text


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_file_that_was_a_ledger_is_told_from_one_that_never_was(
    told: SqliteStore, tmp_path: Path, cut: int
) -> None:
    """Cut off, or without its first words, its schema can still be seen."""
    data = bytearray(told.copy(tmp_path / "whole.db").path.read_bytes())
    if cut == 1:
        data[3] ^= 1
    elif cut == 2:
        data = data[: len(data) // 2]
    else:
        data[100] = 0xFF
    path = tmp_path / "cut.db"
    path.write_bytes(data)
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0, or so it says")

    assert was_a_ledger(path)
    assert not was_a_ledger(tmp_path / "other.db")
    assert not was_a_ledger(tmp_path / "none.db")
    assert run(app, ["verify", "--ledger", str(path)]) == NO
    assert run(app, ["verify", "--ledger", str(tmp_path / "other.db")]) == UNREADABLE


def test_a_dropped_table_is_worded_once(told: SqliteStore) -> None:
    """Whatever was asked of a ledger without one of its tables ends in the ledger's words."""
    with told.raw() as raw:
        raw.execute("DROP TABLE ledger_refusals")
    with (
        pytest.raises(LedgerError, match="can't be read: no such table") as caught,
        told.open("read") as ledger,
        ledger.connection.begin(),
    ):
        ledger.connection.exec_driver_sql("SELECT * FROM ledger_refusals")

    assert caught.value.__notes__ == ["run `tenure verify` for every finding"]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM ledger_head", "DROP TABLE ledger_devices", "DROP TABLE ledger_head"]
)
@pytest.mark.parametrize("command", ["who", "why", "usage", "status", "map", "report", "verify"])
def test_no_question_to_a_damaged_ledger_is_an_internal_error(
    told: SqliteStore, tmp_path: Path, command: str, statement: str
) -> None:
    """One clear message, or the findings, whichever command was asked."""
    with told.raw() as raw:
        for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute(statement)
    words = {
        "who": ["n-1"],
        "why": ["team-a/a"],
        "report": ["--out", str(tmp_path / "report.html")],
    }
    code = run(app, [command, *words.get(command, []), "--ledger", str(told.path)])

    assert code in ({NO} if command == "verify" else {NO, UNREADABLE, 0})


def test_a_locked_ledger_is_said_to_be_locked(told: SqliteStore) -> None:
    """Not a word of damage: the file is only in use."""
    with told.raw() as raw:
        raw.execute("PRAGMA journal_mode = DELETE")
    with told.open("read") as ledger, told.raw() as raw:
        ledger.connection.exec_driver_sql("PRAGMA busy_timeout = 10")
        ledger.connection.rollback()
        raw.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="another process writes this ledger"):
            ledger.head()


def test_a_second_holder_of_an_lse_pods_cpu_is_found(sqlite_store: SqliteStore) -> None:
    """CPU proposal, QoS principle 2: where the database's rule was away when it was recorded."""
    lse = PodSnapshot(qos="LSE")
    with sqlite_store.open() as ledger:
        it = Recorded(ledger, node(cpus=4, refs=2), reserved("a", cpus=(0, 1), snapshot=lse))
        with sqlite_store.raw() as raw:
            raw.execute("DROP TRIGGER ledger_cpu_holdings_insert")
        it.add(reserved("b", cpus=(1,)), reserved("c", cpus=(2,)), reserved("d", cpus=(2,)))
    with sqlite_store.raw() as raw:
        raw.execute(next(t for t in TRIGGERS if named(t) == "ledger_cpu_holdings_insert"))

    with sqlite_store.open("read") as ledger:
        found = [str(finding) for finding in verify(ledger).findings]
    assert len(found) == 1
    assert "cpu n-1/cpu/1 of an LSE Pod was promised to a second holder" in found[0]
