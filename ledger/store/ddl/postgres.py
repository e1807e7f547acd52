"""
The rules that Postgres itself enforces, whoever connects.

Every rule is one of the table, asked of each row as the table says, or of all rows of a statement
at once, with the table's conditions and words (`postgres_holdings`, `postgres_log`). Triggers are
ENABLE ALWAYS, so that `session_replication_role` does not silence them.

One rule waits for the end of a transaction: the head stops where the events stop, an event that
grants has just the rows that it says, and one that ends leaves nothing open that it ends. The head
moves first, then come the events, and their rows last, so that nobody can tell earlier. SQLite has
no such rule: there `verify` names what was left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.store.ddl import (
    audit_views,
    postgres_append,
    postgres_guard,
    postgres_holdings,
    postgres_log,
)
from ledger.store.ddl.postgres_text import Tuned, fail, function, never_emptied, rows_of
from ledger.store.ddl.rules import table
from ledger.store.ddl.rules.rule import event_is, said
from ledger.store.ddl.words import OF_RULES, written

_NAME: Final = "ledger_head_settled"
_NO_EVENT: Final = fail(
    said("the head is where the events end: position {NEW.position} is not the last event")
)
_NO_EPOCH: Final = fail(said("an epoch begins with its event: no event starts epoch {NEW.epoch}"))
# One row by its key, and no query for what did not move. Of several moves in one transaction each
# leaves an event behind; none is beyond the last one, for the rules of the log refuse events in
# front of the head.
_NOT_ITS_ROWS: Final = fail(said("an event that grants has its rows: position {wrong}"))
_HOLDER: Final = "coalesce(j.b->>'pod_uid', j.b->>'claim_uid')"
_SHARES: Final = """(
      SELECT count(*) FROM ledger_holdings AS h
      JOIN ledger_devices AS d ON d.device_no = h.device_no
      JOIN json_array_elements(j.b->'shares') AS s
        ON s->>'device_type' = d.device_type AND s->>'minor' = h.minor::text
        AND s->>'core_percent' = h.core_percent::text
        AND s->>'memory_bytes' = h.memory_bytes::text
        AND (s->>'exclusive')::boolean = (h.exclusive = 1)
      WHERE h.position = e.position
    )"""
_SLOTS: Final = """(
      SELECT coalesce(sum(json_array_length(s->'vf_bus_ids')), 0)
      FROM json_array_elements(j.b->'shares') AS s
    ) + coalesce(json_array_length(j.b->'unknown_types'), 0)"""
# By its key alone: the body is parsed once, and what it asks for is counted beside what is held.
_ITS_ROWS: Final = f"""EXISTS (
      SELECT FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      WHERE r.position = e.position AND r.pod_uid = {_HOLDER}
        AND r.attempt::text = j.b->>'attempt' AND n.node_uid = j.b->>'node_uid'
        AND r.cpuset = j.b->>'cpuset' AND r.device_count = json_array_length(j.b->'shares')
        AND r.device_count = {_SHARES}
        AND r.cpu_count = (
          SELECT count(*) FROM ledger_cpu_holdings AS c WHERE c.position = e.position
        )
        AND {_SLOTS} = (
          SELECT count(*) FROM ledger_slot_holdings AS s WHERE s.position = e.position
        )
    )"""
_IS_OPENING: Final = event_is("pod.reserved", "pod.observed", "claim.reserved", "claim.observed")
_GRANTED: Final = f"""
    SELECT e.position INTO wrong FROM ledger_events AS e
    CROSS JOIN LATERAL (SELECT e.body::json AS b OFFSET 0) AS j
    WHERE e.position > OLD.position AND e.position <= NEW.position
      AND {_IS_OPENING} AND NOT {_ITS_ROWS}
    LIMIT 1;
    IF FOUND THEN
      {_NOT_ITS_ROWS}
    END IF;"""
_NOT_ITS_END: Final = fail(said("an event that ends has ended it: position {wrong}"))
_ENDS: Final = event_is(
    *("pod.released", "pod.voided", "node.lost", "node.cleared"),
    *("claim.released", "claim.voided"),
)
# What ends a row is asked of the row, by rules of its own; here, of the event, what it left. The
# row that a release closed is found first: as one value, which is never made a join over the whole
# table. What was held when the event came is open now or was closed behind it, in this transaction:
# few rows, by either index. A Node that is inventoried behind its loss is lost no more.
_STILL: Final = f"""
      SELECT FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      WHERE r.position < e.position AND n.node_uid = j.b->>'node_uid'
        AND (r.closed_position IS NULL OR r.closed_position > e.position)
        AND CASE
          WHEN {event_is("node.lost")} THEN r.lost_position IS NULL OR r.lost_position > e.position
          WHEN {event_is("node.cleared")} THEN r.lost_position < e.position
          ELSE r.pod_uid = {_HOLDER} AND r.attempt::text = j.b->>'attempt'
        END"""
_ENDED_BY: Final = f"""
      SELECT true FROM ledger_reservations AS r
      WHERE r.closed_position = e.position AND r.pod_uid = {_HOLDER}
        AND r.attempt::text = j.b->>'attempt'
        AND (SELECT node_uid FROM ledger_nodes WHERE node_no = r.node_no) = j.b->>'node_uid'
      LIMIT 1"""
_NODE_THERE: Final = f"""{event_is("node.lost")} AND EXISTS (
      SELECT FROM ledger_nodes AS n WHERE n.node_uid = j.b->>'node_uid'
        AND n.fact_position < e.position AND coalesce(n.lost_position, 0) < e.position
    )"""
_ENDED: Final = f"""
    SELECT e.position INTO wrong FROM ledger_events AS e
    CROSS JOIN LATERAL (SELECT e.body::json AS b OFFSET 0) AS j
    WHERE e.position > OLD.position AND e.position <= NEW.position AND {_ENDS}
      AND CASE WHEN ({_ENDED_BY}) THEN false ELSE {_NODE_THERE} OR EXISTS ({_STILL}) END
    LIMIT 1;
    IF FOUND THEN
      {_NOT_ITS_END}
    END IF;"""
_SETTLED: Final = f"""
  IF NEW.position <> OLD.position THEN
    PERFORM FROM ledger_events
    WHERE position = NEW.position AND chain_hash = NEW.chain_hash AND at_us = NEW.at_us;
    IF NOT FOUND THEN
      {_NO_EVENT}
    END IF;{_GRANTED}{_ENDED}
  END IF;
  IF NEW.epoch <> OLD.epoch THEN
    PERFORM FROM ledger_events AS e $body(e)
    WHERE e.position = NEW.position + 1 AND {event_is("epoch.started")} AND e.epoch = NEW.epoch
      AND (j.b->'epoch', j.b->'holder', j.b->'origin')
        = (to_jsonb(NEW.epoch), to_jsonb(NEW.holder), to_jsonb(NEW.origin));
    IF NOT FOUND THEN
      {_NO_EPOCH}
    END IF;
  END IF;
  RETURN NULL;"""

HEAD_SETTLED: Final = (
    function(_NAME, written(_SETTLED, OF_RULES, "postgresql"), variables="wrong bigint;"),
    f"REVOKE ALL ON FUNCTION {_NAME}() FROM PUBLIC",
    (
        f'CREATE CONSTRAINT TRIGGER {_NAME} AFTER UPDATE OF "position", epoch ON ledger_head'
        f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {_NAME}()"
    ),
    f"ALTER TABLE ledger_head ENABLE ALWAYS TRIGGER {_NAME}",
)
"""
A head that moved stands on an event of its values, an epoch that moved has its own event; what was
granted on the way is held, and what ended is not.
"""
TOGETHER: Final[Mapping[str, str]] = {
    "ledger_events_append": "ledger_events_append",
    "ledger_reservations_insert": "ledger_reservations_open",
    "ledger_reservations_update": "ledger_reservations_close",
    "ledger_reservations_fixed": "ledger_reservations_update",
    "ledger_reservations_phase": "ledger_reservations_close",
    "ledger_holdings_place": "ledger_holdings_take",
    "ledger_holdings_take": "ledger_holdings_take",
    "ledger_holdings_update": "ledger_holdings_give_back",
    "ledger_cpu_holdings_update": "ledger_cpu_holdings_give_back",
    "ledger_slot_holdings_update": "ledger_slot_holdings_end",
}
"""The rules that are asked of all rows of a statement, and the function that does."""
_TUNED: Final[Mapping[str, Tuned]] = {
    **postgres_holdings.TUNED,
    "ledger_head_forward": postgres_log.HEAD_FORWARD,
}
_FIRST_PARTITION: Final = "SELECT ledger_add_partition(1)"

RULES: Final[tuple[str, ...]] = (
    postgres_guard.ALLOW,
    *(
        text
        for rule in table.RULES
        if rule.name not in TOGETHER
        for text in rows_of(rule, _TUNED.get(rule.name, Tuned()))
    ),
    *postgres_holdings.RULES,
    *(
        text
        for each, what in (("ledger_events", "events"), *table.KEPT)
        for text in never_emptied(each, what)
    ),
    *postgres_log.RULES,
    _FIRST_PARTITION,
    *audit_views.create_views("postgresql"),
    *HEAD_SETTLED,
    *postgres_append.APPEND,
    *postgres_guard.RULES,
)
"""Functions, triggers and views, in the order in which they are made."""
