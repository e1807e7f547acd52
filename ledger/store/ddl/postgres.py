"""
The rules that Postgres itself enforces, whoever connects.

Each rule of the table is asked of each row, or of all rows of a statement at once
(`postgres_holdings`, `postgres_log`). Triggers are ENABLE ALWAYS: `session_replication_role` does
not silence them.

One rule waits for the end of a transaction, because the head moves first, then come events, then
rows. The head stops where the events stop; an event that opens a holding has exactly its rows,
value by value; an event that ends one leaves nothing open that it ends. SQLite has no such rule:
`verify` names what was left (docs/operations.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.devices import GPU, WHOLE_PERCENT
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
_HOLDER: Final = "coalesce(j.b->>'pod_uid', j.b->>'claim_uid')"


# Of what an event has no field, columns have this.
_BODY: Final = """CROSS JOIN LATERAL (
        SELECT '{"cpu_milli": 0, "memory_bytes": 0, "dialect": "dra", "policy": "", "source": "",
          "decided_on": null}'::jsonb || e.body::jsonb AS b OFFSET 0
      ) AS j"""


def _pairs(names: str) -> str:
    return ", ".join(f"'{name}', r.{name}" for name in names.split())


_FIELDS: Final = "attempt namespace cpu_milli memory_bytes cpuset dialect policy source decided_on"
_ROW: Final = f"""jsonb_build_object(
        r.holder || '_uid', r.pod_uid, r.holder || '_name', r.pod_name, {_pairs(_FIELDS)},
        'snapshot', jsonb_build_object({_pairs("owner priority qos created_at_us")})
      )"""
_OTHER_FIELD: Final = """(
      SELECT k.key FROM jsonb_each(o.row - 'snapshot' || (o.row->'snapshot')) AS k
      WHERE NOT (j.b || (j.b->'snapshot')) @> jsonb_build_object(k.key, k.value) LIMIT 1
    )"""
_SHARE: Final = """jsonb_build_object('device_type', d.device_type, 'minor', h.minor,
        'core_percent', h.core_percent, 'memory_bytes', h.memory_bytes, 'memory_ratio_percent',
        h.memory_ratio_percent, 'exclusive', h.exclusive = 1, 'instances', h.instances)"""
_CARDS: Final = """FROM ledger_holdings AS h JOIN ledger_devices AS d ON d.device_no = h.device_no
      WHERE h.position = e.position"""
_CARDS_OF_ALL: Final = f"""(
      SELECT count(*) AS cards, count(*) FILTER (WHERE d.device_type = '{GPU}') AS gpus,
        jsonb_agg({_SHARE} || jsonb_build_object('device_id', d.device_id)) AS shares,
        coalesce(sum(CASE h.core_percent WHEN 0 THEN h.memory_ratio_percent ELSE h.core_percent END)
          FILTER (WHERE d.device_type = '{GPU}'), 0) AS percent {_CARDS}
    )"""
# What a card is called can be another thing by now, through an inventory behind the grant.
_NO_SHARE: Final = f"""EXISTS (SELECT {_CARDS} AND NOT EXISTS (
        SELECT FROM jsonb_array_elements(j.b->'shares') AS s
        WHERE s @> {_SHARE} AND (s->>'device_id' = d.device_id OR d.fact_position > e.position
          OR '' IN (s->>'device_id', d.device_id) AND h.minor = d.minor)
      ))"""
# Who holds cards that nobody can name holds them whole: as many as are counted, or at least one.
_UNNAMED: Final = f"""CASE WHEN {event_is("pod.observed")} AND j.b->'unknown_types' ? '{GPU}'
        THEN coalesce(
          nullif((j.b->'counted'->'{GPU}')::bigint, 0), greatest(1, r.gpu_count - g.gpus)
        ) ELSE 0 END"""


def _rows(table: str) -> str:
    return f"(SELECT count(*) FROM {table} AS h WHERE h.position = e.position)"


# Numbers have no gap: a machine that no Node stands on is the last one, or beside one that came.
_FOUND: Final = {
    "ledger_machines": """n.fact_position = e.position AND EXISTS (
          SELECT FROM ledger_machines AS m WHERE m.machine_no IN (
            n.machine_no - 1, n.machine_no + 1, (SELECT max(machine_no) FROM ledger_machines)
          ) AND NOT EXISTS (SELECT FROM ledger_stands AS s WHERE s.machine_no = m.machine_no)
        )""",
    "ledger_stands": """n.fact_position = e.position AND NOT EXISTS (
          SELECT FROM ledger_stands AS s WHERE s.fact_position = e.position
            AND (s.node_no, s.machine_no) = (n.node_no, n.machine_no)
        )""",
}
_OPEN_PLACE: Final = """EXISTS (
      SELECT FROM ledger_planned_cards AS p
      WHERE p.closed_position IS NULL AND p.position < e.position"""
_OPENED: Final = {
    "ledger_reservations": "r.position IS NULL",
    f"ledger_reservations.' || {_OTHER_FIELD} || '": "NOT j.b @> o.row",
    "ledger_reservations.labels": """j.b->'snapshot'->'labels' <> r.labels::jsonb
        OR strpos(e.body, '"labels":' || r.labels || ',') = 0""",
    "ledger_reservations.node_no": "j.b->>'node_uid' <> n.node_uid",
    "ledger_reservations.opened_at_us": "r.opened_at_us <> e.at_us",
    **_FOUND,
    "ledger_machines.fact_position": """n.fact_position = e.position AND e.position <> (
          SELECT m.fact_position FROM ledger_machines AS m WHERE m.machine_no = n.machine_no
        )""",
    "ledger_holdings": f"""g.cards <> jsonb_array_length(j.b->'shares')
        OR NOT j.b->'shares' @> g.shares AND {_NO_SHARE}""",
    "ledger_reservations.device_count": "r.device_count <> g.cards",
    "ledger_reservations.gpu_count": f"r.gpu_count <> g.gpus + {_UNNAMED}",
    "ledger_reservations.gpu_core_percent": f"""r.gpu_core_percent
        <> g.percent + {WHOLE_PERCENT} * (r.gpu_count - g.gpus)""",
    "ledger_reservations.cpu_count": """r.cpu_count <> CASE r.cpuset WHEN '' THEN 0 ELSE (
        SELECT sum(p.last - p.first + 1) FROM $ranges(r.cpuset, p)
      ) END""",
    "ledger_cpu_holdings": f"r.cpu_count <> {_rows('ledger_cpu_holdings')}",
    # Each slot was looked for in the event when its row came.
    "ledger_slot_holdings": f"""{_rows("ledger_slot_holdings")} <> (
        SELECT coalesce(sum(jsonb_array_length(s->'vf_bus_ids')), 0)
        FROM jsonb_array_elements(j.b->'shares') AS s
      ) + coalesce(jsonb_array_length(j.b->'unknown_types'), 0)""",
    "ledger_planned_cards": f"""{event_is("pod.reserved")} AND {_OPEN_PLACE}
        AND p.pod_uid = r.pod_uid AND p.node_no = r.node_no)""",
}
"""What is not as an event says that opens a reservation, and when."""


def _asked(cases: Mapping[str, str], event: str, rows: str, refusal: str) -> str:
    """Return the statements that refuse what is not as an event between two heads says."""
    named = "".join(f"\n      WHEN {case} THEN '{what}'" for what, case in cases.items())
    return f"""
    SELECT f.* INTO wrong FROM (
      SELECT e.position, CASE{named} END AS what FROM ledger_events AS e {rows}
      WHERE e.position > OLD.position AND e.position <= NEW.position AND {event} OFFSET 0
    ) AS f WHERE f.what IS NOT NULL LIMIT 1;
    IF FOUND THEN
      {fail(said(f"{refusal}: position {{wrong.position}}, {{wrong.what}}"))}
    END IF;"""


_GRANTED: Final = _asked(
    _OPENED,
    event_is("pod.reserved", "pod.observed", "claim.reserved", "claim.observed"),
    f"""{_BODY} LEFT JOIN ledger_reservations AS r ON r.position = e.position
      LEFT JOIN ledger_nodes AS n ON n.node_no = r.node_no
      LEFT JOIN LATERAL (SELECT {_ROW} AS row WHERE r.holder IS NOT NULL OFFSET 0) AS o ON true
      CROSS JOIN LATERAL {_CARDS_OF_ALL} AS g""",
    "an event that grants has its rows",
)
_OWN: Final = "FROM ledger_devices AS d WHERE d.machine_no = n.machine_no"
_NAMES: Final = """d.device_type = {s}->>'device_type'
        AND (d.device_id <> '' AND d.device_id = {s}->>'device_id'
          OR d.node_no = n.node_no AND d.minor = ({s}->'minor')::bigint
            AND '' IN (d.device_id, {s}->>'device_id'))"""
_LACKING: Final = {
    "ledger_refusals": f"{event_is('request.refused')} AND {_rows('ledger_refusals')} = 0",
    "ledger_planned_cards": f"""{event_is("group.planned", "group.plan_dropped")} AND ({_OPEN_PLACE}
        AND p.group_name = j.b->>'group') OR {_rows("ledger_planned_cards")} <> (
          SELECT coalesce(sum(jsonb_array_length(m->'whole')), 0)
          FROM jsonb_array_elements(j.b->'members') AS m
        ))""",
    "ledger_nodes": f"""{event_is("node.inventoried")}
        AND coalesce(n.fact_position, 0) < e.position""",
    **_FOUND,
    # What changed once more behind the event is asked of the later one.
    "ledger_devices": f"""n.fact_position = e.position AND EXISTS (
          SELECT FROM jsonb_array_elements(j.b->'devices') AS s WHERE NOT EXISTS (
            SELECT {_OWN} AND {_NAMES.format(s="s")} AND (d.fact_position > e.position
              OR (d.present, d.node_no) = (1, n.node_no) AND s @> jsonb_build_object(
                'minor', d.minor, 'model', d.model, 'healthy', d.healthy = 1, 'unique_id',
                d.unique_id = 1, 'core_percent', d.core_reported, 'memory_bytes', d.memory_reported
              ))
          )
        ) OR (n.fact_position = e.position OR n.lost_position = e.position) AND EXISTS (
          SELECT {_OWN} AND d.node_no = n.node_no AND d.present = 1
            AND d.fact_position <= e.position AND NOT EXISTS (
              SELECT FROM jsonb_array_elements(j.b->'devices') AS s WHERE {_NAMES.format(s="s")}
            )
        )""",
    "ledger_cpus": """n.fact_position = e.position AND (
          SELECT count(*) FILTER (WHERE u.fact_position >= e.position)
              < jsonb_array_length(j.b->'cpus')
            OR bool_or((u.node_no, u.present) = (n.node_no, 1) AND u.fact_position < e.position)
          FROM ledger_cpus AS u WHERE u.machine_no = n.machine_no
        )""",
    "ledger_device_health": f"""{event_is("device.health_changed")}
          AND {_rows("ledger_device_health")} = 0 AND EXISTS (
            SELECT {_OWN} AND d.fact_position <= e.position AND {_NAMES.format(s="j.b")}
          )
        OR {event_is("node.inventoried", "node.lost")} AND EXISTS (
          SELECT {_OWN} AND d.fact_position = e.position AND d.healthy * d.present <> coalesce((
            SELECT h.healthy FROM ledger_device_health AS h
            WHERE h.device_no = d.device_no ORDER BY h.position DESC LIMIT 1
          ), 1)
        )""",
}
"""The table in which a row lacks of what an event tells of machines, plans and refusals, if so."""
_RECORDED: Final = _asked(
    _LACKING,
    event_is(
        *("request.refused", "group.planned", "group.plan_dropped"),
        *("node.inventoried", "node.lost", "device.health_changed"),
    ),
    "$body(e) LEFT JOIN ledger_nodes AS n ON n.node_uid = j.b->>'node_uid'",
    "what an event tells is in its rows",
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
_ENDED: Final = _asked(
    {
        "ledger_reservations": f"""CASE WHEN ({_ENDED_BY}) THEN false
          ELSE {_NODE_THERE} OR EXISTS ({_STILL}) END"""
    },
    event_is(
        *("pod.released", "pod.voided", "node.lost", "node.cleared"),
        *("claim.released", "claim.voided"),
    ),
    "CROSS JOIN LATERAL (SELECT e.body::json AS b OFFSET 0) AS j",
    "an event that ends has ended it",
)
# One row by its key, and no query for what did not move. Of several moves in one transaction each
# leaves an event behind; none is beyond the last one, for the rules of the log refuse events in
# front of the head.
_SETTLED: Final = f"""
  IF NEW.position <> OLD.position THEN
    PERFORM FROM ledger_events
    WHERE position = NEW.position AND chain_hash = NEW.chain_hash AND at_us = NEW.at_us;
    IF NOT FOUND THEN
      {_NO_EVENT}
    END IF;{_GRANTED}{_RECORDED}{_ENDED}
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
    function(_NAME, written(_SETTLED, OF_RULES, "postgresql"), variables="wrong record;"),
    f"REVOKE ALL ON FUNCTION {_NAME}() FROM PUBLIC",
    (
        f'CREATE CONSTRAINT TRIGGER {_NAME} AFTER UPDATE OF "position", epoch ON ledger_head'
        f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {_NAME}()"
    ),
    f"ALTER TABLE ledger_head ENABLE ALWAYS TRIGGER {_NAME}",
)
"""A head that moved stands on its event, a new epoch has its event, and rows follow the events."""
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
