"""
The auditor on Postgres, by its own rights alone: `default_transaction_read_only` is its to switch.

Everybody may run most of what the server brings. A new version of it brings more: what may act, and
is not looked at yet, is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import create_engine, make_url

from tests.support.postgres import Server
from tests.support.postgres_roles import apply_roles
from tests.support.stores import PostgresStore

Raw = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def roles(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger with its roles."""
    store = empty_postgres.copy()
    engine = create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        apply_roles(connection)
    engine.dispose()
    yield store
    postgres.drop(store.database)


@contextmanager
def auditing(store: PostgresStore) -> Iterator[Raw]:
    """Connect as the auditor, who lets its transactions write."""
    with store.raw() as raw:
        raw.execute("SET SESSION AUTHORIZATION ledger_auditor")
        raw.execute("SET default_transaction_read_only = off")
        raw.execute("SET transaction_read_only = off")
        yield raw


ACTS = {
    "a large object": "SELECT lo_create(0)",
    "a large object, by the old name": "SELECT lo_creat(-1)",
    "a large object with something in it": "SELECT lo_from_bytea(0, 'x')",
    "a large object out of a file": "SELECT lo_import('/etc/hostname')",
    "a file out of a large object": "SELECT lo_export(1, '/tmp/x')",
    "more of a large object": "SELECT lo_put(1, 0, 'x')",
    "a large object by its handle": "SELECT lowrite(lo_open(1, 131072), 'x')",
    "no large object": "SELECT lo_unlink(1)",
    "a file": "SELECT pg_read_file('/etc/hostname')",
    "a folder": "SELECT pg_ls_dir('/')",
    "a program": "COPY (SELECT 1) TO PROGRAM 'cat'",
    "a file of rows": "COPY (SELECT 1) TO '/tmp/x'",
    "a lock that an upgrade waits for": "SELECT pg_advisory_lock(1)",
    "a shared lock": "SELECT pg_try_advisory_lock_shared(1)",
    "a lock of the transaction": "SELECT pg_advisory_xact_lock(1, 2)",
    "readers' ears": "SELECT pg_notify('tenure_ledger', '9')",
    "another session": "SELECT pg_terminate_backend(1)",
    "another session's query": "SELECT pg_cancel_backend(1)",
    "a replication slot": "SELECT pg_create_physical_replication_slot('mine')",
    "the server's settings": "SELECT pg_reload_conf()",
    "the server's statistics": "SELECT pg_stat_reset()",
    "a table": "CREATE TABLE public.mine (id int)",
    "a schema": "CREATE SCHEMA mine",
    "a row": "INSERT INTO ledger_checkpoints VALUES (1, 'x')",
    "a lock of a table": ("DO $$ BEGIN LOCK TABLE ledger_head IN EXCLUSIVE MODE; END $$"),
    "a locked row": "SELECT * FROM ledger_head FOR UPDATE",
    "another role": "SET ROLE ledger_writer",
    "a function of ours": "SELECT ledger_add_partition(10000000)",
    "an extension": "CREATE EXTENSION dblink",
}


@pytest.mark.parametrize("sql", ACTS.values(), ids=ACTS)
def test_the_auditor_reaches_nothing(roles: PostgresStore, sql: str) -> None:
    """It lacks the right, also in a session that may write."""
    refused = (errors.InsufficientPrivilege, errors.FeatureNotSupported)
    with auditing(roles) as raw, pytest.raises(refused) as refusal:
        raw.execute(sql.encode())
    assert "permission denied" in str(refusal.value) or "must be superuser" in str(refusal.value)


LOOKS = {
    "clocks, chance, sizes, and where the server's log is": """
        clock_timestamp timeofday random gen_random_uuid current_query txid_status
        pg_database_size pg_indexes_size pg_relation_size pg_table_size pg_tablespace_size
        pg_total_relation_size pg_partition_ancestors pg_partition_tree pg_collation_actual_version
        pg_database_collation_actual_version pg_control_checkpoint pg_control_init
        pg_control_recovery pg_control_system pg_current_wal_flush_lsn pg_current_wal_insert_lsn
        pg_current_wal_lsn pg_get_multixact_members pg_get_wal_replay_pause_state
        pg_get_wal_resource_managers pg_is_in_recovery pg_is_wal_replay_paused pg_jit_available
        pg_last_committed_xact pg_last_wal_receive_lsn pg_last_wal_replay_lsn
        pg_last_xact_replay_timestamp pg_notification_queue_usage pg_prepared_xact
        pg_xact_commit_timestamp pg_xact_commit_timestamp_origin pg_xact_status amvalidate
        currtid2""",
    "who waits for whom": """
        pg_blocking_pids pg_isolation_test_session_is_blocked pg_lock_status
        pg_safe_snapshot_blocking_pids""",
    "statistics, and one's own copy of them": """
        pg_stat_clear_snapshot pg_stat_force_next_flush pg_stat_get_recovery_prefetch
        pg_stat_get_xact_blocks_fetched pg_stat_get_xact_blocks_hit pg_stat_get_xact_function_calls
        pg_stat_get_xact_function_self_time pg_stat_get_xact_function_total_time
        pg_stat_get_xact_numscans pg_stat_get_xact_tuples_deleted pg_stat_get_xact_tuples_fetched
        pg_stat_get_xact_tuples_hot_updated pg_stat_get_xact_tuples_inserted
        pg_stat_get_xact_tuples_returned pg_stat_get_xact_tuples_updated""",
    "a setting of one's own session, which SET sets, too": "set_config setseed",
    "a text that is run with the rights of who asks": """
        cursor_to_xml cursor_to_xmlschema query_to_xml query_to_xml_and_xmlschema query_to_xmlschema
        ts_rewrite ts_stat""",
    "to wait, as every long query does": "pg_sleep pg_sleep_for pg_sleep_until",
    "one's own snapshot": "pg_export_snapshot",
    "what asks for a right on the sequence or index": """
        currval lastval nextval pg_sequence_last_value setval brin_desummarize_range
        brin_summarize_new_values brin_summarize_range gin_clean_pending_list""",
    "what asks for the right to replicate": """
        pg_copy_logical_replication_slot pg_copy_physical_replication_slot
        pg_create_logical_replication_slot pg_create_physical_replication_slot
        pg_drop_replication_slot pg_logical_slot_get_binary_changes pg_logical_slot_get_changes
        pg_logical_slot_peek_binary_changes pg_logical_slot_peek_changes
        pg_replication_slot_advance""",
    "a word in the server's log, no row (a dump with this right restores on no other version)": (
        "pg_logical_emit_message"
    ),
    "what asks for a superuser, or the script of an extension": """
        pg_extension_config_dump pg_import_system_collations pg_nextoid pg_read_file_old
        pg_rotate_logfile_old pg_stop_making_pinned_objects""",
}
"""What may act by the catalog's word, is everybody's, and was looked at: why it stays so."""
MAY_CALL = """
SELECT DISTINCT p.proname::text FROM pg_proc AS p
WHERE p.provolatile = 'v' AND has_function_privilege('ledger_auditor', p.oid, 'EXECUTE')
  AND NOT starts_with(p.proname, 'binary_upgrade_') -- for a server that is being upgraded
  AND NOT 'internal'::regtype = ANY (p.proargtypes::oid[]) -- these no query can call
  AND NOT p.prorettype = ANY
    ('{internal,trigger,event_trigger,language_handler,tsm_handler,index_am_handler}'::regtype[])
"""


def test_what_the_auditor_may_call_was_looked_at(roles: PostgresStore) -> None:
    """Of all functions that may act, it may call those that were found to do no harm."""
    with roles.raw() as raw:
        found = {name for (name,) in raw.execute(MAY_CALL)}
    looked_at = {name for names in LOOKS.values() for name in names.split()}
    assert found - looked_at - {"plpgsql_validator"} == set()


def test_nothing_acts_without_its_name(roles: PostgresStore) -> None:
    """No operator, cast, aggregate or reading of a literal calls a function that may act."""
    with roles.raw() as raw:
        found = raw.execute(
            """SELECT p.proname::text, where_it_is FROM pg_proc AS p JOIN (
              SELECT oprcode::oid, 'operator' FROM pg_operator UNION
              SELECT castfunc, 'cast' FROM pg_cast UNION
              SELECT aggtransfn::oid, 'aggregate' FROM pg_aggregate UNION
              SELECT aggfinalfn::oid, 'aggregate' FROM pg_aggregate UNION
              SELECT typinput::oid, 'type' FROM pg_type UNION
              SELECT typoutput::oid, 'type' FROM pg_type
            ) AS used (oid, where_it_is) USING (oid) WHERE p.provolatile = 'v'"""
        ).fetchall()
    assert found == []


def test_owner_and_writer_have_what_they_need(roles: PostgresStore) -> None:
    """An upgrade takes its lock, and whoever moves the head tells readers."""
    for role, sql in (
        ("ledger_owner", "SELECT pg_advisory_xact_lock(1)"),
        ("ledger_owner", "SELECT pg_notify('tenure_ledger', '9')"),
        ("ledger_writer", "SELECT pg_notify('tenure_ledger', '9')"),
    ):
        with roles.raw() as raw:
            raw.execute(f"SET SESSION AUTHORIZATION {role}".encode())
            raw.execute(sql.encode())
    with roles.raw() as raw:
        raw.execute("SET SESSION AUTHORIZATION ledger_writer")
        with pytest.raises(errors.InsufficientPrivilege):
            raw.execute("SELECT lo_create(0)")
