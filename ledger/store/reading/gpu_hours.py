"""
GPU-hours of a window, and what became of the GPUs over time.

A holder counts what it was given, and no card counts more than it is (docs/audit.md, GPU-hours).
Sums are of integers, percent times microseconds, and become hours last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from sqlalchemy import Connection, text

from ledger.store.ddl import audit_views
from ledger.store.ddl.words import Database
from ledger.store.mending.acts import is_corrected

PERCENT_HOUR_US: Final = 360_000_000_000
"""Percent times microseconds in one GPU-hour."""
_PARTS: Final = ("used", "stranded", "idle", "closed", "unknown")
_SPLIT: Final = 1_000_000
"""Sums are made in two parts, so that those of years of a large cluster fit 64 bits."""

GpuGroup = Literal["namespace", "owner", "labels", "model"]


class CapacityChange(NamedTuple):
    """By how much the parts of all GPUs together changed at a moment, in percent of a card."""

    at_us: int
    used: int
    stranded: int
    idle: int
    closed: int
    unknown: int


class GpuUse(NamedTuple):
    """What a group used: Pods, and percent times microseconds."""

    key: str
    pods: int
    amount: int


def gpu_use(
    connection: Connection,
    by: GpuGroup,
    since_us: int,
    until_us: int,
    *,
    namespace: str | None = None,
) -> list[GpuUse]:
    """Return what each group used in [since, until), by group, of GPUs that an inventory has."""
    begin, end = f"CAST({since_us:d} AS bigint)", f"CAST({until_us:d} AS bigint)"
    pieces = f"""
  SELECT h.position, h.device_no, h.card_no, h.machine_no, h.percent, 0 AS part,
    $greatest(h.from_us, {begin}) AS from_us, $least(coalesce(h.until_us, {end}), {end}) AS until_us
  FROM ({audit_views.HELD}
  ) AS h WHERE h.from_us < {end} AND (h.until_us IS NULL OR h.until_us > {begin})"""
    marks = f"SELECT {begin} AS at_us UNION SELECT {end}"
    key = f"r.{by}"
    if by == "model":
        key = f"coalesce(d.model, {_MODEL_OF_MACHINE}, '')"
    held = f"$least(coalesce(z.until_us, {end}), {end}) - $greatest(z.from_us, {begin})"
    query = f"""
WITH {audit_views.not_counted(pieces, marks)},
amounts AS (
  SELECT z.position, z.device_no, z.percent * ({held}) AS amount
  FROM ({_ALL_HELD}
  ) AS z WHERE z.from_us < {end} AND (z.until_us IS NULL OR z.until_us > {begin})
  UNION ALL
  SELECT c.position, c.device_no, -c.amount FROM not_counted AS c
)
SELECT {key} AS key, count(DISTINCT r.pod_uid) AS pods,
  CAST(sum(a.amount / {_SPLIT}) AS bigint) AS high, CAST(sum(a.amount % {_SPLIT}) AS bigint) AS low
FROM amounts AS a JOIN ledger_reservations AS r ON r.position = a.position
LEFT JOIN ledger_devices AS d ON d.device_no = a.device_no
LEFT JOIN ledger_nodes AS n ON n.node_no = r.node_no
WHERE r.namespace = coalesce(:namespace, r.namespace)
GROUP BY {key}
ORDER BY {key}"""
    found = connection.execute(text(_asked(connection, query)), {"namespace": namespace})
    return [GpuUse(key, pods, high * _SPLIT + low) for key, pods, high, low in found]


_MODEL_OF_MACHINE: Final = """(
    SELECT CASE WHEN min(t.model) = max(t.model) THEN max(t.model) END FROM ledger_devices AS t
    WHERE t.machine_no = n.machine_no AND t.device_type = 'gpu' AND t.present = 1)"""
_ALL_HELD: Final = f"""
    SELECT h.position, h.device_no, {audit_views.PERCENT} AS percent, h.opened_at_us AS from_us,
      coalesce(r.counted_until_us, h.closed_at_us) AS until_us
    FROM ledger_holdings AS h JOIN ledger_devices AS x ON x.device_no = h.device_no
    JOIN ledger_reservations AS r ON r.position = h.position
    WHERE x.device_type = 'gpu'
    UNION ALL
    SELECT u.position, NULL, u.percent, u.from_us, u.until_us FROM unnamed AS u"""


def capacity_changes(connection: Connection) -> Iterator[CapacityChange]:
    """Yield every change of the parts of all GPUs together that an inventory has, by time."""
    parts = ", ".join(f"{name}_percent" for name in _PARTS)
    less = ", ".join(f"-{name}_percent" for name in _PARTS)
    sums = ", ".join(f"CAST(sum({name}_percent) AS bigint)" for name in _PARTS)
    query = f"""WITH c AS (
  SELECT opened_at_us, closed_at_us, {parts} FROM audit_capacity WHERE unknown_because IS NULL
)
SELECT at_us, {sums} FROM (
  SELECT c.opened_at_us AS at_us, {parts} FROM c
  UNION ALL
  SELECT c.closed_at_us, {less} FROM c WHERE c.closed_at_us IS NOT NULL
) AS x GROUP BY at_us ORDER BY at_us"""
    for row in connection.execute(text(query)):
        yield CapacityChange._make(row)


def others_there(connection: Connection) -> dict[str, tuple[int, int | None]]:
    """
    Return from when to when cards were there that no inventory has, by UID of their node.

    From the first description of the machine's Nodes to the loss of the last; None = still there.
    """
    query = f"""
WITH {audit_views.OTHERS}
SELECT n.node_uid, o.from_us, {audit_views.LOST_US.format("o")} AS until_us
FROM others AS o JOIN ledger_nodes AS n ON n.machine_no = o.machine_no"""
    found = connection.execute(text(_asked(connection, query)))
    return {uid: (from_us, until_us) for uid, from_us, until_us in found}


def times_of(connection: Connection, positions: Sequence[int]) -> list[int]:
    """Return when the events at these positions, which ascend, were recorded."""
    query = text("SELECT position, at_us FROM audit_events ORDER BY position")
    found, at_us, times = iter(connection.execute(query)), 0, []
    ahead = next(found, None)
    for position in positions:
        while ahead is not None and ahead.position <= position:
            at_us, ahead = ahead.at_us, next(found, None)
        times.append(at_us)
    return times


def _asked(connection: Connection, query: str) -> str:
    """Return a query in the words of the database, with true times where the clock was wrong."""
    database: Database = "postgresql" if connection.dialect.name == "postgresql" else "sqlite"
    asked = audit_views.asked(query, database, corrected=is_corrected(connection))
    return asked.replace("::", r"\:\:").replace('":', r'"\:')  # no names of values
