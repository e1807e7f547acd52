"""
What an owner of the database did to a ledger's rules: `verify` names every kind of it.

Rule: design section 4, "Append-only by the database, not by habit".

A superuser can do all of this after `SET tenure.migration = 'on'`. That it is done is for `verify`
to say, with the name of what was changed: of the ledger that we made, and of a copy by `pg_dump` on
a newer server, where the rules have other words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, create_engine, make_url

from ledger.store.ddl.postgres_guard import ALLOW
from ledger.store.proving.damage import changed_rules
from tests.support.pg_copies import dumped, give_roles
from tests.support.postgres import Server
from tests.support.postgres_roles import apply_roles
from tests.support.stores import Clock, PostgresStore, node, reserved, share, start

Case = tuple[str, str]


@pytest.fixture(scope="module")
def made(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger with a holder and with roles."""
    store = empty_postgres.copy()
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(cpus=2), reserved("a", share(0, 60), cpus=(0,))))
    engine = create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        apply_roles(connection)
    engine.dispose()
    yield store
    postgres.drop(store.database)


@pytest.fixture(scope="module", params=["as we made it", "restored on a newer server"])
def told(request: pytest.FixtureRequest, made: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger with a holder and with roles, which every test leaves as it was."""
    if request.param == "as we made it":
        yield made
        return
    target = request.getfixturevalue("newest_postgres")
    give_roles(made.server, target)
    copy = dumped(made, target)
    yield copy
    target.drop(copy.database)


@contextmanager
def prompt(store: PostgresStore) -> Iterator[Connection]:
    """Connect as the superuser."""
    engine = create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@pytest.fixture(scope="module")
def superuser(told: PostgresStore) -> Iterator[Connection]:
    """One connection for all statements: a new one reads the whole catalog first."""
    with prompt(told) as connection:
        yield connection


def found(connection: Connection, statement: str = "SELECT 1") -> list[str]:
    """Return what is said of the rules while a statement of the superuser is in force."""
    with connection.begin() as transaction:
        for text in (ALLOW, statement, "SET LOCAL search_path = public, pg_temp"):
            connection.exec_driver_sql(text, execution_options={"no_parameters": True})
        texts = list(changed_rules(connection))
        transaction.rollback()
    return texts


def test_a_ledger_that_nobody_touched_has_no_damage(superuser: Connection) -> None:
    """Tables, rules, views and rights are what the code says."""
    assert found(superuser) == []


CHANGED = "a rule of the database was changed: {}"
MISSING = "a rule of the database is missing: {}"
ADDED = "was added to the database: {}"
NOTHING = "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
FUNCTION = "CREATE OR REPLACE FUNCTION ledger_head_forward() RETURNS trigger LANGUAGE plpgsql {} AS"
TRIGGER = "DROP TRIGGER ledger_events_no_update ON ledger_events; CREATE TRIGGER"
UPDATE = "ledger_events_no_update"

CASES: dict[str, Case] = {
    "a constraint that is gone": (
        "ALTER TABLE ledger_devices DROP CONSTRAINT ck_ledger_devices_core_within_cap",
        MISSING.format("constraint=ledger_devices/ck_ledger_devices_core_within_cap"),
    ),
    "a constraint of another condition": (
        (
            "ALTER TABLE ledger_devices DROP CONSTRAINT ck_ledger_devices_core_within_cap, ADD"
            " CONSTRAINT ck_ledger_devices_core_within_cap CHECK (core_used >= 0)"
        ),
        CHANGED.format("constraint=ledger_devices/ck_ledger_devices_core_within_cap"),
    ),
    "a constraint that old rows are not held to": (
        (
            "ALTER TABLE ledger_devices DROP CONSTRAINT ck_ledger_devices_core_within_cap, ADD"
            " CONSTRAINT ck_ledger_devices_core_within_cap"
            " CHECK (core_used BETWEEN 0 AND core_cap) NOT VALID"
        ),
        CHANGED.format("constraint=ledger_devices/ck_ledger_devices_core_within_cap"),
    ),
    "a constraint on the log of another condition": (
        (
            "ALTER TABLE ledger_events DROP CONSTRAINT ck_ledger_events_leaf_hash_length, ADD"
            " CONSTRAINT ck_ledger_events_leaf_hash_length CHECK (length(leaf_hash) > 0)"
        ),
        CHANGED.format("constraint=ledger_events_0/ck_ledger_events_leaf_hash_length"),
    ),
    "a constraint of one's own": (
        "ALTER TABLE ledger_refusals ADD CONSTRAINT mine CHECK (gpu_core_percent < 1000000)",
        ADDED.format("constraint=mine, table=ledger_refusals"),
    ),
    "a constraint of one's own on a partition": (
        "ALTER TABLE ledger_events_0 ADD CONSTRAINT mine CHECK (position > 0)",
        ADDED.format("constraint=mine, table=ledger_events_0"),
    ),
    "a foreign key that waits": (
        (
            "ALTER TABLE ledger_holdings ALTER CONSTRAINT fk_ledger_holdings_device_no"
            " DEFERRABLE INITIALLY DEFERRED"
        ),
        CHANGED.format("constraint=ledger_holdings/fk_ledger_holdings_device_no"),
    ),
    "a foreign key that deletes": (
        (
            "ALTER TABLE ledger_holdings DROP CONSTRAINT fk_ledger_holdings_device_no, ADD"
            " CONSTRAINT fk_ledger_holdings_device_no FOREIGN KEY (device_no)"
            " REFERENCES ledger_devices"
            " ON DELETE CASCADE"
        ),
        CHANGED.format("constraint=ledger_holdings/fk_ledger_holdings_device_no"),
    ),
    "a foreign key that sleeps": (
        "ALTER TABLE ledger_holdings DISABLE TRIGGER ALL",
        CHANGED.format("foreign key=ledger_holdings/"),
    ),
    "an index that is gone": (
        "DROP INDEX uq_ledger_slot_holdings_granted",
        MISSING.format("index=ledger_slot_holdings/uq_ledger_slot_holdings_granted"),
    ),
    "an index over other rows": (
        (
            "DROP INDEX uq_ledger_slot_holdings_granted; CREATE UNIQUE INDEX"
            " uq_ledger_slot_holdings_granted ON ledger_slot_holdings (machine_no, slot)"
            " WHERE closed_position IS NULL AND kind = 'other'"
        ),
        CHANGED.format("index=ledger_slot_holdings/uq_ledger_slot_holdings_granted"),
    ),
    "an index that is not unique": (
        (
            "DROP INDEX uq_ledger_planned_cards_open; CREATE INDEX uq_ledger_planned_cards_open"
            " ON ledger_planned_cards (device_no) WHERE closed_position IS NULL"
        ),
        CHANGED.format("index=ledger_planned_cards/uq_ledger_planned_cards_open"),
    ),
    "an index that is not ready": (
        (
            "UPDATE pg_index SET indisready = false"
            " WHERE indexrelid = 'uq_ledger_planned_cards_open'::regclass"
        ),
        CHANGED.format("index=ledger_planned_cards/uq_ledger_planned_cards_open"),
    ),
    "an index that is not valid": (
        (
            "UPDATE pg_index SET indisvalid = false"
            " WHERE indexrelid = 'uq_ledger_events_0_idempotency_key'::regclass"
        ),
        CHANGED.format("index=ledger_events_0/uq_ledger_events_idempotency_key"),
    ),
    "a partition without its key": (
        "ALTER TABLE ledger_events_0 DROP CONSTRAINT uq_ledger_events_0_idempotency_key",
        MISSING.format("constraint=ledger_events_0/uq_ledger_events_idempotency_key"),
    ),
    "an index of one's own": (
        "CREATE UNIQUE INDEX mine ON ledger_head (epoch)",
        ADDED.format("index=mine, table=ledger_head"),
    ),
    "an index of one's own on a partition": (
        "CREATE UNIQUE INDEX mine ON ledger_events_0 (actor, position)",
        ADDED.format("index=mine, table=ledger_events_0"),
    ),
    "a view that leaves rows out": (
        (
            "DO $$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW audit_refusals AS SELECT * FROM ('"
            " || rtrim(pg_get_viewdef('audit_refusals'), ';') || ') AS r WHERE false'; END $$"
        ),
        CHANGED.format("view=audit_refusals"),
    ),
    "a view that is gone": ("DROP VIEW audit_refusals", MISSING.format("view=audit_refusals")),
    "a view with the rights of who asks": (
        "ALTER VIEW audit_refusals SET (security_invoker = true)",
        CHANGED.format("view=audit_refusals"),
    ),
    "a view that takes rows": (
        "CREATE RULE mine AS ON INSERT TO audit_refusals DO INSTEAD NOTHING",
        ADDED.format("rule=mine, table=audit_refusals"),
    ),
    "a trigger that is gone": (
        "DROP TRIGGER ledger_head_settled ON ledger_head",
        MISSING.format("trigger=ledger_head/ledger_head_settled"),
    ),
    "a trigger under a condition": (
        (
            f"{TRIGGER} {UPDATE} BEFORE UPDATE ON ledger_events FOR EACH ROW"
            f" WHEN (OLD.position > 9) EXECUTE FUNCTION {UPDATE}();"
            f" ALTER TABLE ledger_events ENABLE ALWAYS TRIGGER {UPDATE}"
        ),
        CHANGED.format(f"trigger=ledger_events/{UPDATE}"),
    ),
    "a trigger for fewer columns": (
        (
            f"{TRIGGER} {UPDATE} BEFORE UPDATE OF body ON ledger_events FOR EACH ROW"
            f" EXECUTE FUNCTION {UPDATE}();"
            f" ALTER TABLE ledger_events ENABLE ALWAYS TRIGGER {UPDATE}"
        ),
        CHANGED.format(f"trigger=ledger_events_0/{UPDATE}"),
    ),
    "a trigger that calls another function": (
        (
            f"{NOTHING} {TRIGGER} {UPDATE} BEFORE UPDATE ON ledger_events FOR EACH ROW"
            f" EXECUTE FUNCTION mine(); ALTER TABLE ledger_events ENABLE ALWAYS TRIGGER {UPDATE}"
        ),
        CHANGED.format(f"trigger=ledger_events/{UPDATE}"),
    ),
    "a deferred trigger that is asked at once": (
        (
            "DROP TRIGGER ledger_head_settled ON ledger_head; CREATE CONSTRAINT TRIGGER"
            ' ledger_head_settled AFTER UPDATE OF "position", epoch ON ledger_head'
            " FOR EACH ROW EXECUTE FUNCTION ledger_head_settled();"
            " ALTER TABLE ledger_head ENABLE ALWAYS TRIGGER ledger_head_settled"
        ),
        CHANGED.format("trigger=ledger_head/ledger_head_settled"),
    ),
    "a trigger that is off": (
        "ALTER TABLE ledger_head DISABLE TRIGGER ledger_head_forward",
        CHANGED.format("trigger=ledger_head/ledger_head_forward"),
    ),
    "a trigger that sleeps on a replica": (
        "ALTER TABLE ledger_head ENABLE TRIGGER ledger_head_forward",
        CHANGED.format("trigger=ledger_head/ledger_head_forward"),
    ),
    "a trigger that is off on a partition": (
        "ALTER TABLE ledger_events_0 DISABLE TRIGGER ledger_events_append",
        CHANGED.format("trigger=ledger_events_0/ledger_events_append"),
    ),
    "a trigger of one's own": (
        (
            f"{NOTHING} CREATE TRIGGER mine BEFORE INSERT ON ledger_refusals"
            " FOR EACH ROW EXECUTE FUNCTION mine()"
        ),
        ADDED.format("trigger=mine, table=ledger_refusals"),
    ),
    "a trigger of one's own on a partition": (
        (
            f"{NOTHING} CREATE TRIGGER mine BEFORE INSERT ON ledger_events_0"
            " FOR EACH ROW EXECUTE FUNCTION mine()"
        ),
        ADDED.format("trigger=mine, table=ledger_events_0"),
    ),
    "a function of other words": (
        FUNCTION.format("SET search_path = pg_catalog, public, pg_temp")
        + " 'BEGIN RETURN NEW; END'",
        CHANGED.format("function=ledger_head_forward"),
    ),
    "a function that is gone": (
        "DROP FUNCTION ledger_add_partition(bigint)",
        MISSING.format("function=ledger_add_partition"),
    ),
    "a function with its owner's rights": (
        "ALTER FUNCTION ledger_head_forward() SECURITY DEFINER",
        CHANGED.format("function=ledger_head_forward"),
    ),
    "a function without its owner's rights": (
        "ALTER FUNCTION ledger_holdings_take() SECURITY INVOKER",
        CHANGED.format("function=ledger_holdings_take"),
    ),
    "a function that looks elsewhere first": (
        "ALTER FUNCTION ledger_head_forward() SET search_path = pg_temp, public",
        CHANGED.format("function=ledger_head_forward"),
    ),
    "a function that looks anywhere": (
        "ALTER FUNCTION ledger_head_forward() RESET search_path",
        CHANGED.format("function=ledger_head_forward"),
    ),
    "a function under other settings": (
        "ALTER FUNCTION ledger_head_forward() SET session_replication_role = replica",
        CHANGED.format("function=ledger_head_forward"),
    ),
    "a function that is taken for constant": (
        "ALTER FUNCTION ledger_head_forward() STABLE",
        CHANGED.format("function=ledger_head_forward"),
    ),
    "a function of the same name": (
        "CREATE FUNCTION ledger_add_partition(text) RETURNS void LANGUAGE sql AS ''",
        "under a name of ours, a function was added to the database: function=ledger_add_partition",
    ),
    "a column of another type": (
        "ALTER TABLE ledger_snapshots ALTER format TYPE varchar(9999)",
        CHANGED.format("column=ledger_snapshots/format"),
    ),
    "a column with a default": (
        "ALTER TABLE ledger_refusals ALTER message SET DEFAULT 'x'",
        CHANGED.format("column=ledger_refusals/message"),
    ),
    "a column that may be empty": (
        "ALTER TABLE ledger_refusals ALTER message DROP NOT NULL",
        CHANGED.format("column=ledger_refusals/message"),
    ),
    "a column of another order": (
        'ALTER TABLE ledger_snapshots ALTER format TYPE text COLLATE "POSIX"',
        CHANGED.format("column=ledger_snapshots/format"),
    ),
    "a column that is gone": (
        "ALTER TABLE ledger_snapshots DROP COLUMN format",
        MISSING.format("column=ledger_snapshots/format"),
    ),
    "a column of one's own": (
        "ALTER TABLE ledger_events ADD COLUMN mine text",
        ADDED.format("column=mine, table=ledger_events"),
    ),
    "a table that a crash empties": (
        "ALTER TABLE ledger_refusals SET UNLOGGED",
        CHANGED.format("table=ledger_refusals"),
    ),
    "a table that hides rows": (
        "ALTER TABLE ledger_refusals ENABLE ROW LEVEL SECURITY",
        CHANGED.format("table=ledger_refusals"),
    ),
    "a policy": (
        "CREATE POLICY mine ON ledger_refusals USING (false)",
        ADDED.format("policy=mine, table=ledger_refusals"),
    ),
    "a table of more rows below": (
        "CREATE TABLE mine () INHERITS (ledger_refusals)",
        ADDED.format("child table=mine, table=ledger_refusals"),
    ),
    "a rule that rewrites": (
        "CREATE RULE mine AS ON INSERT TO ledger_refusals DO INSTEAD NOTHING",
        ADDED.format("rule=mine, table=ledger_refusals"),
    ),
    "a rule that rewrites on a partition": (
        "CREATE RULE mine AS ON DELETE TO ledger_events_0 DO INSTEAD NOTHING",
        ADDED.format("rule=mine, table=ledger_events_0"),
    ),
    "a partition that is detached": (
        "ALTER TABLE ledger_events DETACH PARTITION ledger_events_0",
        MISSING.format("partition=ledger_events_0"),
    ),
    "a partition for everything else": (
        "CREATE TABLE mine PARTITION OF ledger_events DEFAULT",
        CHANGED.format("partition=mine"),
    ),
    "a partition of other bounds": (
        (
            "CREATE TABLE ledger_events_7 PARTITION OF ledger_events"
            " FOR VALUES FROM (30000000) TO (80000000)"
        ),
        CHANGED.format("partition=ledger_events_7"),
    ),
    "an event trigger that is gone": (
        "DROP EVENT TRIGGER ledger_no_ddl",
        MISSING.format("event trigger=ledger_no_ddl"),
    ),
    "all event triggers gone": (
        "DROP EVENT TRIGGER ledger_no_ddl; DROP EVENT TRIGGER ledger_no_drop",
        MISSING.format("event trigger=ledger_no_drop"),
    ),
    "an event trigger that is off": (
        "ALTER EVENT TRIGGER ledger_no_drop DISABLE",
        CHANGED.format("event trigger=ledger_no_drop"),
    ),
    "an event trigger for other commands": (
        (
            "DROP EVENT TRIGGER ledger_no_ddl;"
            " CREATE EVENT TRIGGER ledger_no_ddl ON ddl_command_end"
            " WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION ledger_no_ddl();"
            " ALTER EVENT TRIGGER ledger_no_ddl ENABLE ALWAYS"
        ),
        CHANGED.format("event trigger=ledger_no_ddl"),
    ),
    "the writer may change events": (
        "GRANT UPDATE ON ledger_events TO ledger_writer",
        "role=ledger_writer, may=UPDATE, table=ledger_events",
    ),
    "the writer may change a word of events": (
        "GRANT UPDATE (body) ON ledger_events TO ledger_writer",
        "role=ledger_writer, may=UPDATE, table=ledger_events/body",
    ),
    "the writer may delete events": (
        "GRANT DELETE ON ledger_events_0 TO ledger_writer",
        "role=ledger_writer, may=DELETE, table=ledger_events_0",
    ),
    "the writer may count streams": (
        "GRANT INSERT ON ledger_streams TO ledger_writer",
        "role=ledger_writer, may=INSERT, table=ledger_streams",
    ),
    "the writer may move a counter": (
        "GRANT UPDATE (core_used) ON ledger_devices TO ledger_writer",
        "role=ledger_writer, may=UPDATE, table=ledger_devices/core_used",
    ),
    "the writer may empty a table": (
        "GRANT TRUNCATE ON ledger_refusals TO ledger_writer",
        "role=ledger_writer, may=TRUNCATE, table=ledger_refusals",
    ),
    "the writer may hang triggers": (
        "GRANT TRIGGER ON ledger_head TO ledger_writer",
        "role=ledger_writer, may=TRIGGER, table=ledger_head",
    ),
    "the auditor may write": (
        "GRANT INSERT ON ledger_checkpoints TO ledger_auditor",
        "role=ledger_auditor, may=INSERT, table=ledger_checkpoints",
    ),
    "everyone may write": (
        "GRANT INSERT ON ledger_refusals TO PUBLIC",
        "role=PUBLIC, may=INSERT, table=ledger_refusals",
    ),
    "a stranger may write": (
        "CREATE ROLE tenure_stranger; GRANT UPDATE ON ledger_head TO tenure_stranger",
        "role=tenure_stranger, may=UPDATE, table=ledger_head",
    ),
    "the writer may call what runs as the owner": (
        "GRANT EXECUTE ON FUNCTION ledger_add_partition TO ledger_writer",
        "role=ledger_writer, may=EXECUTE, function=ledger_add_partition",
    ),
    "the writer may make tables": (
        "GRANT CREATE ON SCHEMA public TO ledger_writer",
        "role=ledger_writer, may=CREATE in the schema",
    ),
    "the writer acts as the owner": (
        "GRANT ledger_owner TO ledger_writer",
        "role=ledger_writer, may=member of ledger_owner",
    ),
    "the auditor acts as the writer": (
        "GRANT ledger_writer TO ledger_auditor",
        "role=ledger_auditor, may=member of ledger_writer",
    ),
    "the writer may do anything": (
        "ALTER ROLE ledger_writer SUPERUSER",
        "role=ledger_writer, may=SUPERUSER",
    ),
    "the writer owns a table": (
        "ALTER TABLE ledger_refusals OWNER TO ledger_writer",
        "another owner: role=ledger_writer, name=ledger_refusals",
    ),
    "the writer owns a function": (
        "ALTER FUNCTION ledger_head_forward() OWNER TO ledger_writer",
        "another owner: role=ledger_writer, name=ledger_head_forward",
    ),
}


@pytest.mark.parametrize(("statement", "words"), CASES.values(), ids=CASES)
def test_damage_is_named(superuser: Connection, statement: str, words: str) -> None:
    """One thing that was done to the rules is one thing that is said of them, with its name."""
    texts = found(superuser, statement)

    assert any(words in text for text in texts), texts


UNTOUCHED = {
    "a table beside": "CREATE TABLE mine (id int)",
    "a view beside": "CREATE VIEW mine AS SELECT * FROM audit_refusals",
    "a function beside": "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "the next partition": "SELECT ledger_add_partition(10000000)",
    "a reader more": "CREATE ROLE tenure_guest; GRANT SELECT ON audit_nodes TO tenure_guest",
    "a right less": "REVOKE INSERT ON ledger_refusals FROM ledger_writer",
    "room on a page": "ALTER TABLE ledger_head SET (fillfactor = 50)",
}


@pytest.mark.parametrize("statement", UNTOUCHED.values(), ids=UNTOUCHED)
def test_what_is_beside_the_ledger_is_left_alone(superuser: Connection, statement: str) -> None:
    """What can't change, hide or refuse a row of ours is nobody's business."""
    assert found(superuser, statement) == []


def test_a_ledger_without_roles_has_its_own_rights(postgres_store: PostgresStore) -> None:
    """Who uses no roles of ours gives rights as they please."""
    statement = "CREATE ROLE tenure_guest; GRANT INSERT ON ledger_nodes TO tenure_guest"
    with prompt(postgres_store) as connection:
        assert found(connection, statement) == []


def test_a_database_of_another_order_is_named(postgres: Server) -> None:
    """A ledger whose text is not in the order of its bytes is none that SQLite agrees with."""
    store = PostgresStore(server=postgres, database=f"{postgres.new_database()}_other")
    postgres.run(
        f"CREATE DATABASE {store.database} TEMPLATE template0 ENCODING 'UTF8'"
        " LOCALE_PROVIDER icu ICU_LOCALE 'en' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    store.open("create").close()
    with prompt(store) as connection:
        texts = found(connection)
    postgres.drop(store.database)

    assert texts == ["text is not ordered by its bytes: encoding=UTF8, locale=en"]


def test_the_auditor_compares_too(told: PostgresStore) -> None:
    """A role that reads in read-only transactions sees the same damage as the superuser."""
    url = make_url(told.url).set(drivername="postgresql+psycopg")
    options = "-c role=ledger_auditor -c default_transaction_read_only=on"
    engine = create_engine(url, connect_args={"options": options})
    with engine.connect() as connection:
        assert list(changed_rules(connection)) == []
    engine.dispose()
