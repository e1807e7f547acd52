"""Rules for reservations and for what they hold of cards: taken once, given back once."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.rules import rule

FIRST_PHASE: Final = """NEW.phase_position = NEW.position
      AND NEW.phase = CASE NEW.kind WHEN 'granted' THEN 'reserved' ELSE 'observed' END"""
NOT_OPENED: Final = rule.Case(
    f"""NOT EXISTS (
      SELECT 1 FROM ledger_events AS e
      WHERE e.position = NEW.position AND $begins(e.event_type,
        NEW.holder || CASE NEW.kind WHEN 'granted' THEN '.reserved.v' ELSE '.observed.v' END)
      AND {FIRST_PHASE}
    )""",
    rule.no_event("opens this reservation"),
)
OPENED_BEFORE: Final = rule.Case(
    "EXISTS (SELECT 1 FROM ledger_reservations WHERE position = NEW.position)",
    NOT_OPENED.refusal,
)
CLOSED_AT_ONCE: Final = rule.Case(
    "NEW.closed_position IS NOT NULL OR NEW.lost_position IS NOT NULL",
    rule.said("a reservation opens before it closes: position {NEW.position}"),
)
NODE_LOST: Final = rule.Case(
    "NEW.kind = 'granted' AND n.lost_position IS NOT NULL",
    rule.said(f"node {{{rule.node_name('NEW')}}} is lost", "the node is lost"),
)
NODE_MOVED: Final = rule.Case(
    """NEW.kind = 'granted' AND EXISTS (
      SELECT 1 FROM ledger_nodes AS m
      WHERE m.machine_no = n.machine_no AND m.moved_position IS NOT NULL AND EXISTS (
        SELECT 1 FROM ledger_reservations AS r WHERE r.closed_position IS NULL
          AND r.node_no = m.node_no AND r.position < m.moved_position
      )
    )""",
    rule.said(
        f"node {{{rule.node_name('NEW')}}} has holders from another machine",
        "the node has holders from another machine",
    ),
)
_OPENS: Final = rule.rule(
    "ledger_reservations_insert",
    "ledger_reservations",
    "INSERT",
    OPENED_BEFORE,
    NOT_OPENED,
    CLOSED_AT_ONCE,
    NODE_LOST,
    NODE_MOVED,
    reads=("ledger_nodes", "n", ("node_no",)),
)

FIXED: Final = (
    *("position", "pod_uid", "attempt", "namespace", "pod_name", "owner", "labels", "priority"),
    *("qos", "dialect", "policy", "source", "node_no", "cpu_milli", "memory_bytes"),
    *("gpu_core_percent", "gpu_count", "device_count", "cpuset", "cpu_count", "kind"),
    *("created_at_us", "opened_at_us", "decided_on", "holder"),
)
"""The columns of a reservation that never change."""
ONLY_ENDS: Final = rule.said(
    "a reservation only ends, it does not change: position {OLD.position},"
    " {OLD.holder} {OLD.namespace}/{OLD.pod_name}"
)
# A witness spoke after the loss, and of the machine on which the Pod got what it holds.
_CLEARED: Final = f"""{rule.event_is("node.cleared")} AND NEW.phase = 'released'
          AND NEW.end_reason = 'cleared: ' || $text(e.body, evidence) AND EXISTS (
            SELECT 1 FROM ledger_nodes AS n
            LEFT JOIN ledger_nodes AS w ON w.machine_no = n.machine_no AND w.lost_position IS NULL
              AND w.node_uid = $text(e.body, witness_uid)
              AND OLD.position > coalesce(n.moved_position, 0)
            LEFT JOIN ledger_stands AS s ON s.node_no = w.node_no AND s.machine_no = w.machine_no
              AND s.fact_position > OLD.lost_position
            WHERE n.node_no = OLD.node_no AND $says(e.body, node_uid, n.node_uid)
              AND CASE $text(e.body, evidence)
                WHEN 'act' THEN true
                WHEN 'agent' THEN s.by_agent = 1
                WHEN 'boot' THEN s.boot_id <> '' AND OLD.lost_boot_id <> ''
                  AND s.boot_id <> OLD.lost_boot_id AND NOT EXISTS (
                    SELECT 1 FROM ledger_stands AS a
                    WHERE a.machine_no = n.machine_no AND a.by_agent = 1
                  )
                ELSE false
              END
          )"""
ENDED: Final = f"""EXISTS (
      SELECT 1 FROM ledger_events AS e $body(e)
      WHERE e.position = NEW.closed_position AND e.position > OLD.position
        AND e.at_us = NEW.closed_at_us AND CASE
          WHEN OLD.lost_position IS NOT NULL THEN {_CLEARED}
          ELSE NEW.phase IN ('released', 'voided')
            AND $begins(e.event_type, OLD.holder || '.' || NEW.phase || '.v')
            AND {rule.says_holder("OLD")}
            AND $says(e.body, reason, NEW.end_reason)
        END
    )"""
"""That an event ends the reservation."""
NOT_ENDED: Final = rule.no_event(
    "ends the reservation of {OLD.holder} {OLD.namespace}/{OLD.pod_name}",
    "ends this reservation",
    at="NEW.closed_position",
)
# The newest boot of the machine of the Node `n`, whoever told it and wherever he stands now.
_NEWEST_BOOT: Final = """(
        SELECT s.boot_id FROM ledger_stands AS s
        WHERE s.machine_no = n.machine_no ORDER BY s.fact_position DESC LIMIT 1
      )"""
_LOST: Final = f"""EXISTS (
    SELECT 1 FROM ledger_events AS e $body(e) JOIN ledger_nodes AS n ON n.node_no = OLD.node_no
    WHERE e.position = NEW.lost_position AND e.position > OLD.position
      AND {rule.event_is("node.lost")} AND e.at_us = NEW.counted_until_us
      AND $says(e.body, node_uid, n.node_uid) AND NEW.lost_boot_id = {_NEWEST_BOOT}
  )"""
IN_PHASE: Final = f"""NEW.phase IN ('bound', 'assigned') AND EXISTS (
      SELECT 1 FROM ledger_events AS e $body(e) JOIN ledger_nodes AS n ON n.node_no = OLD.node_no
      WHERE e.position = NEW.phase_position
        AND $begins(e.event_type, OLD.holder || '.' || NEW.phase || '.v')
        AND {rule.says_holder("OLD")}
        AND $says(e.body, node_uid, n.node_uid)
    )"""
"""That an event says the phase."""
NO_PHASE: Final = rule.no_event(
    "says that {OLD.holder} {OLD.namespace}/{OLD.pod_name} is {NEW.phase}",
    "says this phase",
    at="NEW.phase_position",
)
_CHANGES: Final = (
    rule.rule(
        "ledger_reservations_update",
        "ledger_reservations",
        "UPDATE",
        rule.Case("OLD.closed_position IS NOT NULL", ONLY_ENDS),
        rule.Case(f"NEW.closed_position IS NOT NULL AND NOT {ENDED}", NOT_ENDED),
    ),
    # Apart from the rule for endings, which name none of these columns.
    rule.rule(
        "ledger_reservations_fixed",
        "ledger_reservations",
        "UPDATE",
        rule.Case(f"NOT {rule.unchanged(FIXED)}", ONLY_ENDS),
        columns=FIXED,
    ),
    rule.rule(
        "ledger_reservations_lost",
        "ledger_reservations",
        "UPDATE",
        rule.Case(
            "OLD.lost_position IS NOT NULL OR OLD.closed_position IS NOT NULL"
            f" OR NEW.phase <> 'lost' OR NOT {_LOST}",
            rule.no_event(
                "loses the node of {OLD.holder} {OLD.namespace}/{OLD.pod_name}",
                "loses the node of this reservation",
                at="coalesce(NEW.lost_position, 0)",
            ),
        ),
        columns=("lost_position", "counted_until_us", "lost_boot_id"),
    ),
    # What is lost or ended keeps the position: another rule asks for the event that says so.
    rule.rule(
        "ledger_reservations_phase",
        "ledger_reservations",
        "UPDATE",
        rule.Case(
            f"""NOT CASE
    WHEN NEW.closed_position IS NOT NULL THEN NEW.phase_position = OLD.phase_position
    WHEN NEW.lost_position IS NOT NULL
    THEN NEW.phase = 'lost' AND NEW.phase_position = OLD.phase_position
    ELSE NEW.phase_position > OLD.phase_position AND {IN_PHASE}
  END""",
            NO_PHASE,
        ),
        columns=("phase", "phase_position"),
    ),
)


def _not_asked(more: str = "") -> rule.Case:
    return rule.Case(
        f"""NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      JOIN ledger_devices AS d ON d.machine_no = n.machine_no
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.opened_at_us = NEW.opened_at_us AND d.device_no = NEW.device_no
        AND coalesce(n.moved_position, 0) < r.position
        AND (d.device_id <> '' OR d.node_no = n.node_no)
        AND (NEW.kind <> 'granted' OR NEW.minor = d.minor)
        AND r.device_count >= (
          SELECT count(*) FROM ledger_holdings AS h WHERE h.position = NEW.position
        ){more}
    )""",
        rule.said(
            "no reservation at position {NEW.position} asks for this card",
            "no reservation asks for this card",
        ),
    )


NOT_ASKED: Final = _not_asked()


def share_of(card: str, minor: str, value: str = "s.value", at: str = "") -> str:
    """Return the condition that a share names the card of this row, at this minor."""
    return f"""$says({value}, {at}device_type, {card}.device_type)
        AND $says({value}, {at}minor, {minor}) AND ($says({value}, {at}device_id, {card}.device_id)
          OR {minor} = {card}.minor AND '' IN ({card}.device_id, $text({value}, {at}device_id)))"""


def _as_shared(value: str, at: str) -> str:
    names = ("core_percent", "memory_bytes", "memory_ratio_percent", "instances", "exclusive")
    same = " AND ".join(f"$says({value}, {at}{each}, NEW.{each})" for each in names)
    return f"{same} AND {share_of('d', 'NEW.minor', value, at)}"


# On SQLite alone, where nobody can ask at a commit; of a single card without a list made of it.
_AS_SHARED: Final = f""" AND EXISTS (
          SELECT 1 FROM ledger_events AS e WHERE e.position = r.position AND CASE r.device_count
            WHEN 1 THEN {_as_shared("e.body", "shares[0].")}
            ELSE EXISTS (
              SELECT 1 FROM $each(e.body, shares, s) WHERE {_as_shared("s.value", "")}
            ) END
        )"""
FIXED_HOLDING: Final = (
    *("position", "device_no", "minor", "core_percent", "memory_bytes", "memory_ratio_percent"),
    *("exclusive", "instances", "kind", "opened_at_us"),
)
"""The columns of a holding that never change."""
_LEFT: Final = "(d.core_reported - d.core_used - d.core_observed)"
_HELD_CARD: Final = f"""(
      SELECT {rule.card_of("d")} || ' has ' || {_LEFT} || ' of ' || d.core_reported
        || ' percent core left, ' || NEW.core_percent || ' asked'
      FROM ledger_devices AS d WHERE d.device_no = NEW.device_no
    )"""


def not_with_reservation(what: str) -> rule.Case:
    """Return the case of a holding that doesn't end with its reservation."""
    return rule.Case(
        """NOT EXISTS (
    SELECT 1 FROM ledger_reservations AS r
    WHERE r.position = NEW.position AND r.closed_position = NEW.closed_position
      AND r.closed_at_us = NEW.closed_at_us
  )""",
        rule.said(f"{what} only ends with its reservation: position {{OLD.position}}"),
    )


def only_closes(table: str, columns: tuple[str, ...], what: str) -> rule.TableRule:
    """Return the rule that lets a holding end with its reservation, and change no more."""
    condition, refusal = not_with_reservation(what)
    changed = f"OLD.closed_position IS NOT NULL OR NOT {rule.unchanged(columns)}"
    return rule.rule(
        f"{table}_update", table, "UPDATE", rule.Case(f"{changed} OR {condition}", refusal)
    )


_HOLDINGS: Final = (
    rule.rule(
        "ledger_holdings_insert",
        "ledger_holdings",
        "INSERT",
        rule.Case(
            "NEW.core_percent < 0 OR NEW.memory_bytes < 0",
            rule.said(
                "a holding is never less than nothing: position {NEW.position},"
                " core_percent={NEW.core_percent}, memory_bytes={NEW.memory_bytes}"
            ),
        ),
        rule.Case(
            """NEW.closed_position IS NOT NULL OR NEW.closed_at_us IS NOT NULL OR EXISTS (
      SELECT 1 FROM ledger_holdings
      WHERE position = NEW.position AND device_no = NEW.device_no
    )""",
            rule.said(f"a holding opens once: position {{NEW.position}}, {{{_HELD_CARD}}}"),
        ),
    ),
    # Asked once the row is there, for what it takes may not be there.
    rule.rule("ledger_holdings_take", "ledger_holdings", "INSERT", _not_asked(_AS_SHARED)),
    only_closes("ledger_holdings", FIXED_HOLDING, "a holding"),
)

_CORE_ASKED: Final = "(NEW.core_used - OLD.core_used)"
_MEMORY_ASKED: Final = "(NEW.memory_used - OLD.memory_used)"
_CORE_LEFT: Final = "(OLD.core_reported - OLD.core_used - OLD.core_observed)"
_MEMORY_LEFT: Final = "(OLD.memory_reported - OLD.memory_used - OLD.memory_observed)"
_BY_OTHERS: Final = "OLD.observed_holders > 0"
_MEMORY_FULL: Final = f"(OLD.memory_reported > 0 AND {_MEMORY_LEFT} <= 0)"
ASKS_NOTHING: Final = f"NEW.tenants > OLD.tenants AND {_CORE_ASKED} = 0 AND {_MEMORY_ASKED} = 0"


def full_card(fact: str, card: str = "") -> rule.RefusalWords:
    """Return the words for a card that takes no more."""
    return rule.said(f"{{{card or rule.card_of('OLD')}}} {fact}", "the card is full")


def _core(more: str = "") -> rule.RefusalWords:
    """Return the words for a card whose core is short, or that is closed by who is on it."""
    return full_card(
        f"has {{{_CORE_LEFT}}} of {{OLD.core_reported}} percent core left,"
        f" {{{_CORE_ASKED}}} asked{more}"
    )


def _memory(more: str = "") -> rule.RefusalWords:
    return full_card(
        f"has {{{_MEMORY_LEFT}}} of {{OLD.memory_reported}} bytes memory left,"
        f" {{{_MEMORY_ASKED}}} asked{more}"
    )


_WHY: Final = "{CASE WHEN OLD.exclusive_holders > 0 THEN ' (held exclusively)' ELSE '' END}"
_HOLDERS: Final = " ({(OLD.tenants + OLD.observed_holders)} holders, an exclusive one was asked)"

# An id that is unique in the world is on two machines: one of them is wrong, or has not let go yet.
_CLAIMS: Final = """c.device_type = {row}.device_type AND c.device_id = {row}.device_id
        AND c.device_id <> '' AND c.machine_no <> {row}.machine_no
        AND (c.present = 1 OR c.tenants > 0 OR c.observed_holders > 0)"""
_CLAIMED_BY: Final = f"""(
      SELECT n.node_name || '/' || c.device_type || '/' || c.minor
      FROM ledger_devices AS c JOIN ledger_nodes AS n ON n.node_no = c.node_no
      WHERE {_CLAIMS.format(row="OLD")}
      ORDER BY c.device_no LIMIT 1
    )"""


def claimed(row: str) -> str:
    """Return the condition that another machine has, or is held on by, a device of this id."""
    return f"""{row}.unique_id = 1 AND EXISTS (
      SELECT 1 FROM ledger_devices AS c
      WHERE {_CLAIMS.format(row=row)}
    )"""


def unnamed_holder(row: str) -> str:
    """
    Return the condition that the node had a device without an id there, which is held: maybe this.

    It is another row only where another Node of the machine told the id first.
    """
    return f"""{row}.device_id <> '' AND EXISTS (
      SELECT 1 FROM ledger_devices AS c
      WHERE c.machine_no = {row}.machine_no AND c.device_type = {row}.device_type
        AND c.minor = {row}.minor AND c.device_id = '' AND c.node_no = {row}.node_no
        AND (c.tenants > 0 OR c.observed_holders > 0)
    )"""


def clouded(row: str) -> str:
    """Return the condition that a Pod on an unknown card of this type may hold the card."""
    return f"""EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.machine_no = {row}.machine_no AND s.slot = 'unknown/' || {row}.device_type
        AND s.closed_position IS NULL
    )"""


CLOUDED: Final = "may be held by a Pod on an unknown card"
GRANTS: Final = (
    rule.Case("OLD.present <> 1", full_card("is gone")),
    rule.Case("OLD.healthy <> 1", full_card("is unhealthy")),
    rule.Case(f"{_CORE_ASKED} > {_CORE_LEFT}", _core(_WHY)),
    rule.Case(f"{_MEMORY_ASKED} > {_MEMORY_LEFT}", _memory(_WHY)),
    rule.Case("OLD.exclusive_holders > 0", _core(_WHY)),
    rule.Case(
        f"{_BY_OTHERS} AND OLD.core_observed >= OLD.core_reported", _core(" (held by others)")
    ),
    rule.Case(
        f"{_BY_OTHERS} AND OLD.memory_reported > 0 AND OLD.memory_observed >= OLD.memory_reported",
        _memory(" (held by others)"),
    ),
    rule.Case(f"{ASKS_NOTHING} AND {_CORE_LEFT} <= 0", _core()),
    rule.Case(f"{ASKS_NOTHING} AND {_MEMORY_FULL}", _memory()),
    rule.Case(
        "NEW.exclusive_holders > OLD.exclusive_holders AND OLD.tenants + OLD.observed_holders > 0",
        _core(_HOLDERS),
    ),
    rule.Case(clouded("OLD"), full_card(CLOUDED)),
    rule.Case(claimed("OLD"), full_card(f"is also {{{_CLAIMED_BY}}}")),
    rule.Case(unnamed_holder("OLD"), full_card("may be held from before it had an id")),
)
"""A grant is compared with what the card had left before it, whoever takes it."""


def _sum(column: str, kind: str) -> str:
    """Return the sum of a column over holdings of a kind, as the numbers that it is made of."""
    return f"CAST(coalesce(sum(h.{column}) FILTER (WHERE h.kind {kind}), 0) AS bigint)"


_GRANTED: Final = "= 'granted'"
_OBSERVED: Final = "<> 'granted'"
SUMS: Final = f"""{_sum("core_percent", _GRANTED)} AS core_used,
      {_sum("memory_bytes", _GRANTED)} AS memory_used,
      count(*) FILTER (WHERE h.kind {_GRANTED}) AS tenants,
      {_sum("exclusive", _GRANTED)} AS exclusive_holders,
      {_sum("core_percent", _OBSERVED)} AS core_observed,
      {_sum("memory_bytes", _OBSERVED)} AS memory_observed,
      count(*) FILTER (WHERE h.kind {_OBSERVED}) AS observed_holders"""
"""What the holdings `h` use of a card, by the names of its counters."""
_COUNTERS: Final = (
    *("core_used", "memory_used", "tenants", "exclusive_holders", "core_observed"),
    *("memory_observed", "observed_holders"),
)
NOT_THE_SUM: Final = rule.Case(
    f"""NEW.core_cap <> $max(NEW.core_reported, NEW.core_used)
      OR NEW.memory_cap <> $max(NEW.memory_reported, NEW.memory_used)
      OR ({", ".join(f"NEW.{each}" for each in _COUNTERS)}) <> (
        SELECT {SUMS}
        FROM ledger_holdings AS h WHERE h.device_no = NEW.device_no AND h.closed_at_us IS NULL
      )""",
    rule.said(
        f"what is used of a card is the sum of its holdings: {{{rule.node_name('OLD')}}}"
        "/{OLD.device_type}/{OLD.minor}"
    ),
)
_DEVICES_COUNTERS: Final = rule.rule(
    "ledger_devices_counters",
    "ledger_devices",
    "UPDATE",
    rule.Case(
        "NEW.tenants <= OLD.tenants AND NEW.core_used <= OLD.core_used"
        " AND NEW.memory_used <= OLD.memory_used",
        None,
    ),
    *GRANTS,
    columns=("core_cap", "memory_cap", *_COUNTERS),
    besides=NOT_THE_SUM,
)

RULES: Final = (_OPENS, *_CHANGES, *_HOLDINGS, _DEVICES_COUNTERS)
"""These rules in the order in which they are made."""
