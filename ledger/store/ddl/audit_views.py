"""
The audit views: one text for every database, in the words of `words.OF_VIEWS`.

Names, columns, their order and units are an interface (docs/audit.md); a column is only ever added
at the end. Amounts are summed as integers and become hours last, so that every database gives the
same number to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ledger.domain.annotations.volcano_vgpu import VGPU_NAMES
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.resources import AMD_GPU, DCU_GPU, MIG_PREFIX, NVIDIA_GPU
from ledger.store import schema
from ledger.store.ddl.rules.holdings import claimed, unnamed_holder
from ledger.store.ddl.words import OF_VIEWS, Database, written

DAY_US: Final = 86_400_000_000
PERCENT_HOUR: Final = 360_000_000_000.0
"""Core percent times microseconds in one GPU-hour."""
CPU_HOUR: Final = 3_600_000_000.0
"""CPUs times microseconds in one CPU-hour."""

_AT: Final = {"at_us": "position"}
_OPENED: Final = {"opened_at_us": "position", "closed_at_us": "closed_position"}
_TIMES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "ledger_holdings": _OPENED,
        "ledger_cpu_holdings": _OPENED,
        "ledger_slot_holdings": _OPENED,
        "ledger_reservations": {**_OPENED, "counted_until_us": "lost_position"},
        "ledger_device_health": _AT,
        "ledger_refusals": _AT,
        "ledger_events": _AT,
        "ledger_head": _AT,
    }
)
"""The tables with times of the ledger's clock: of which event, by its position, each time is."""
_READ: Final = re.compile(rf"\b(FROM|JOIN) ({'|'.join(_TIMES)})\b( AS \w+)?")


def _interval(row: str) -> str:
    return f"$iso({row}opened_at_us) AS opened_at, $iso({row}closed_at_us) AS closed_at"


def _of_type(event_type: str, alias: str = "e") -> str:
    return f"{alias}.event_type = '{event_type}'"


def _is_valid(alias: str) -> str:
    """Return that no event declares this one void; numbers as text, for nobody may have read it."""
    return f"""NOT EXISTS (
    SELECT 1 FROM ledger_events AS v WHERE {_of_type("position.voided.v1", "v")}
      AND CAST($text(v.body, position) AS text) = CAST({alias}.position AS text)
  )"""


# One row per holder, a Pod or a claim, and device, with its interval.
#
# What a question about a moment asks (card, minor, from, to) is `i`: all of it is in one index,
# so a long history is searched there, and only the rows that fit are looked up as `h`.
_HOLDINGS: Final = f"""
SELECT i.position, r.pod_uid, r.attempt, r.namespace, r.pod_name, r.owner, n.node_uid,
  n.node_name, d.device_type, i.minor, d.device_id, d.model, h.core_percent, h.memory_bytes,
  h.memory_ratio_percent, h.exclusive, h.kind, r.phase, r.dialect, i.opened_at_us, i.closed_at_us,
  h.closed_position, r.end_reason, {_interval("i.")},
  coalesce(r.counted_until_us, i.closed_at_us) AS counted_until_us, i.device_no, r.holder
FROM ledger_holdings AS i
JOIN ledger_holdings AS h ON h.position = i.position AND h.device_no = i.device_no
JOIN ledger_reservations AS r ON r.position = i.position
JOIN ledger_devices AS d ON d.device_no = i.device_no
JOIN ledger_stands AS s ON s.machine_no = d.machine_no AND s.node_no = r.node_no
JOIN ledger_nodes AS n ON n.node_no = s.node_no
"""

# One row per Pod and logical CPU, with its interval.
_CPU_HOLDINGS: Final = f"""
SELECT c.position, r.pod_uid, r.attempt, r.namespace, r.pod_name, n.node_uid, n.node_name, c.cpu,
  c.opened_at_us, c.closed_at_us, r.end_reason, {_interval("c.")}
FROM ledger_cpu_holdings AS c
JOIN ledger_reservations AS r ON r.position = c.position
JOIN ledger_stands AS s ON s.machine_no = c.machine_no AND s.node_no = r.node_no
JOIN ledger_nodes AS n ON n.node_no = s.node_no
"""

# Devices and CPUs in one: which unit, which Pod, from, to, why it ended.
_INTERVALS: Final = f"""
SELECT h.position, d.device_type AS unit_type, h.minor AS unit_number,
  CASE WHEN d.device_type = 'gpu' THEN n.node_name || '/' || h.minor
    ELSE n.node_name || '/' || d.device_type || '/' || h.minor END AS unit_name,
  r.pod_uid, r.attempt, r.namespace, r.pod_name, n.node_uid, n.node_name, h.kind, h.opened_at_us,
  h.closed_at_us, r.end_reason, {_interval("h.")}
FROM ledger_holdings AS h
JOIN ledger_reservations AS r ON r.position = h.position
JOIN ledger_devices AS d ON d.device_no = h.device_no
JOIN ledger_stands AS s ON s.machine_no = d.machine_no AND s.node_no = r.node_no
JOIN ledger_nodes AS n ON n.node_no = s.node_no
UNION ALL
SELECT c.position, 'cpu', c.cpu, n.node_name || '/cpu/' || c.cpu, r.pod_uid, r.attempt,
  r.namespace, r.pod_name, n.node_uid, n.node_name, c.kind, c.opened_at_us, c.closed_at_us,
  r.end_reason, $iso(c.opened_at_us), $iso(c.closed_at_us)
FROM ledger_cpu_holdings AS c
JOIN ledger_reservations AS r ON r.position = c.position
JOIN ledger_stands AS s ON s.machine_no = c.machine_no AND s.node_no = r.node_no
JOIN ledger_nodes AS n ON n.node_no = s.node_no
"""

# One row per reservation of a Pod or a claim and per observed holder.
_RESERVATIONS: Final = f"""
SELECT r.position, r.pod_uid, r.attempt, r.namespace, r.pod_name, r.owner, r.labels, r.priority,
  r.qos, r.dialect, r.policy, r.source, n.node_uid, n.node_name, r.cpu_milli, r.memory_bytes,
  r.gpu_core_percent, r.gpu_count, r.cpuset, r.kind, r.phase, r.created_at_us, r.opened_at_us,
  r.closed_at_us, r.closed_position, r.end_reason, {_interval("r.")},
  coalesce(r.counted_until_us, r.closed_at_us) AS counted_until_us, r.decided_on, r.holder
FROM ledger_reservations AS r
JOIN ledger_nodes AS n ON n.node_no = r.node_no
"""

# When a device was closed to grants or opened again.
_DEVICE_HEALTH: Final = """
SELECT x.position, x.at_us, n.node_uid, n.node_name, d.device_type, d.minor, x.healthy, x.reason,
  $iso(x.at_us) AS at
FROM ledger_device_health AS x
JOIN ledger_devices AS d ON d.device_no = x.device_no
JOIN ledger_nodes AS n ON n.node_no = d.node_no
"""

# The Pods that were refused.
_REFUSALS: Final = """
SELECT position, at_us, pod_uid, namespace, pod_name, stage, message, shape, gpu_core_percent,
  policy, owner, $iso(at_us) AS at
FROM ledger_refusals
"""

# The Bindings of managed Pods that someone else tried.
_TAKEOVERS: Final = """
SELECT position, at_us, pod_uid, namespace, pod_name, message, owner, $iso(at_us) AS at
FROM ledger_refusals
WHERE stage = 'takeover'
"""

# The log itself.
_EVENTS: Final = """
SELECT position, at_us, stream, stream_version, event_type, actor, correlation_id, body,
  $iso(at_us) AS at
FROM ledger_events
"""

_DEVICE_ID: Final = "$text(x.value, device_id)"

# The devices of every inventory, each with the number that its row has.
_INVENTORIES: Final = f"""
  SELECT e.position, e.at_us, $number(x.value, core_percent) AS core_percent,
    $number(x.value, memory_bytes) AS memory_bytes,
    $number(x.value, healthy) AS healthy,
    (SELECT d.device_no FROM ledger_devices AS d
     WHERE d.machine_no = n.machine_no AND d.device_type = $text(x.value, device_type)
       AND CASE WHEN {_DEVICE_ID} <> '' THEN d.device_id = {_DEVICE_ID}
         ELSE d.node_no = n.node_no AND d.minor = $number(x.value, minor) END
     ORDER BY d.device_id, d.device_no LIMIT 1) AS device_no
  FROM ledger_events AS e
  JOIN ledger_nodes AS n ON n.node_uid = $text(e.body, node_uid)
  CROSS JOIN $elements(e.body, devices, x)
  WHERE {_of_type("node.inventoried.v1")}"""

# Every change of a device: inventoried, closed, opened, held, freed.
_DEVICE_TIMELINE: Final = f"""
WITH changes AS (
  SELECT h.position, h.opened_at_us AS at_us, h.device_no, 'held' AS change, r.namespace,
    r.pod_name, r.pod_uid, h.core_percent, h.memory_bytes, h.kind AS reason
  FROM ledger_holdings AS h JOIN ledger_reservations AS r ON r.position = h.position
  UNION ALL
  SELECT h.closed_position, h.closed_at_us, h.device_no, 'freed', r.namespace, r.pod_name,
    r.pod_uid, h.core_percent, h.memory_bytes, r.end_reason
  FROM ledger_holdings AS h JOIN ledger_reservations AS r ON r.position = h.position
  WHERE h.closed_position IS NOT NULL
  UNION ALL
  SELECT x.position, x.at_us, x.device_no, CASE WHEN x.healthy = 1 THEN 'opened' ELSE 'closed' END,
    NULL, NULL, NULL, NULL, NULL, x.reason
  FROM ledger_device_health AS x
  UNION ALL
  SELECT i.position, i.at_us, i.device_no, 'inventoried', NULL, NULL, NULL, i.core_percent,
    i.memory_bytes, ''
  FROM ({_INVENTORIES}
  ) AS i
)
SELECT c.position, c.at_us, n.node_uid, n.node_name, d.device_type, d.minor, d.device_id, c.change,
  c.namespace, c.pod_name, c.pod_uid, c.core_percent, c.memory_bytes, c.reason,
  $iso(c.at_us) AS at
FROM changes AS c
JOIN ledger_devices AS d ON d.device_no = c.device_no
JOIN ledger_nodes AS n ON n.node_no = d.node_no
"""

# The ranges that recoveries named, and the time between the last event and each.
_UNKNOWN: Final = f"""
  SELECT e.position, $number(e.body, lost_from) AS lost_from, $number(e.body, lost_to) AS lost_to,
    $text(e.body, lost_incarnation) AS lost_incarnation,
    $text(e.body, incarnation) AS incarnation,
    coalesce((SELECT l.at_us FROM ledger_events AS l
      WHERE l.position = coalesce($number(e.body, began_at), $number(e.body, lost_from)) - 1),
      (SELECT a.at_us FROM ledger_archived AS a
      WHERE a.position = coalesce($number(e.body, began_at), $number(e.body, lost_from)) - 1),
      e.at_us) AS opened_at_us,
    e.at_us AS closed_at_us
  FROM ledger_events AS e
  WHERE {_of_type("ledger.recovered.v1")}"""

# What a ledger that was restored does not know.
_UNKNOWN_RANGES: Final = f"""
SELECT u.position, u.lost_from, u.lost_to, u.lost_incarnation, u.incarnation, u.opened_at_us,
  u.closed_at_us, {_interval("u.")}
FROM ({_UNKNOWN}
) AS u
"""

_PLUGGED: Final = """(d.body LIKE '%"dialects":[]%' OR d.body LIKE '%"dialects":["nvidia"]%')"""
"""A node `d` has device plugins alone."""


def is_card_name(name: str) -> str:
    """Return that a resource is one of cards, or of parts of them, but NVIDIA's whole ones."""
    words = ("accelerator", "dcu", "gcu", "gpu", "i915", "ipu", "npu", "ppu", "tpu", "xe", "xpu")
    bare = f"rtrim({(low := f'lower({name})')}, '0123456789')"
    vendors = (
        *(f"{low} LIKE '%/{word}'" for word in (*words, "neuron", "neuroncore", "neurondevice")),
        *(f"{bare} LIKE '%/{word}'" for word in ("gaudi", "mlu")),
        f"{low} LIKE '%/ascend_%' AND {low} NOT LIKE '%/ascend%-%'",
    )
    slices = f"{name} LIKE '{NVIDIA_GPU}.shared' OR {name} LIKE '{MIG_PREFIX}_g.%gb%'"
    vgpus = f"{name} IN ({', '.join(repr(each) for each in VGPU_NAMES)})"
    return f"({name} <> '{NVIDIA_GPU}' AND ({slices} OR {vgpus} OR {' OR '.join(vendors)}))"


_OFFERS: Final = "$elements(d.body, facts.systems.offers, x)"
_OF_AMD: Final = f"""(e.body LIKE '%.{AMD_GPU}":"%' OR e.body LIKE '%.{DCU_GPU}":"%')
      AND e.body NOT LIKE '%.{NVIDIA_GPU}":"%'"""
# Machines of which a Node's last description tells cards that no inventory has: those of claims or
# annotations, other vendors', parts of cards. Where `is_cut`, NVIDIA's units are parts as well.
#
# Rule: docs/adr/0022; `has_others` of scheduler/usage/others.py says the same of one node.
OTHERS: Final = f"""described (machine_no, body, from_us, is_cut) AS MATERIALIZED (
  SELECT d.machine_no, d.body, d.from_us, CASE WHEN {_PLUGGED} AND (EXISTS (
      SELECT 1 FROM $pairs(d.labels, x) WHERE CASE
        WHEN x.key = '{NVIDIA_GPU}.replicas' AND rtrim(x.value, '0123456789') = ''
          AND length(x.value) BETWEEN 1 AND 9 THEN CAST(x.value AS bigint) > 1
        ELSE x.key = '{NVIDIA_GPU}.product' AND x.value LIKE '%-MIG-_g.%gb%' END)
    OR EXISTS (SELECT 1 FROM {_OFFERS} WHERE $item(x.value, 0) = '{NVIDIA_GPU}.shared')
    ) THEN 1 ELSE 0 END
  FROM (
    SELECT n.machine_no, n.labels, l.body, t.from_us
    FROM (
      SELECT e.stream, max(e.position) AS position, min(e.at_us) AS from_us
      FROM ledger_events AS e
      WHERE {_of_type("node.described.v1")} AND {_is_valid("e")}
      GROUP BY e.stream
    ) AS t
    JOIN ledger_events AS l ON l.position = t.position
    JOIN ledger_nodes AS n ON 'node/' || n.node_uid = t.stream
    WHERE l.body LIKE '%"systems":{{%'
  ) AS d
),
others (machine_no, is_cut, from_us) AS MATERIALIZED (
  SELECT d.machine_no, max(d.is_cut), min(d.from_us) FROM described AS d
  WHERE d.is_cut = 1 OR d.body LIKE '%"systems":{{%"cards":[{{%'
    OR ({_PLUGGED} AND EXISTS (SELECT 1 FROM {_OFFERS} WHERE {is_card_name("$item(x.value, 0)")}))
    OR EXISTS (
      SELECT 1 FROM $elements(d.body, facts.systems.claims, x)
      CROSS JOIN $elements(x.value, parts, p) WHERE coalesce($number(p.value, is_card), 1) = 1)
  GROUP BY d.machine_no
)"""
# Who ever held such cards, or may have, where the event is in an archive.
_OF_OTHERS: Final = f"""of_others (position) AS MATERIALIZED (
  SELECT r.position FROM others AS o
  JOIN ledger_nodes AS n ON n.machine_no = o.machine_no
  JOIN ledger_reservations AS r ON r.node_no = n.node_no
  LEFT JOIN ledger_events AS e ON e.position = r.position
  WHERE (e.position IS NULL AND r.kind = 'observed') OR e.body LIKE '%"is_card":true%'
    OR (o.is_cut = 1 AND EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.position = r.position AND s.slot = 'unknown/gpu'))
    OR EXISTS (
      SELECT 1 FROM described AS d CROSS JOIN {_OFFERS}
      WHERE d.machine_no = o.machine_no AND {_PLUGGED} AND {is_card_name("$item(x.value, 0)")}
        AND e.body LIKE '%.' || $item(x.value, 0) || '":"%')
)"""
_NOT_KNOWN: Final = "cards that no inventory has, which `tenure usage` counts"
"""Why a view has no hours."""
# When the last Node of a machine was lost; NULL while one is there.
LOST_US: Final = """(
    SELECT CASE WHEN count(*) = count(n.lost_position) THEN max(coalesce(e.at_us, a.at_us)) END
    FROM ledger_nodes AS n LEFT JOIN ledger_events AS e ON e.position = n.lost_position
    LEFT JOIN ledger_archived AS a ON a.position = n.lost_position
    WHERE n.machine_no = {0}.machine_no)"""
# Cards that NVIDIA's plugin knows and does not offer: closed ones, of a machine together.
_ILL: Final = f"""ill (machine_no, percent, from_us, until_us) AS MATERIALIZED (
  SELECT d.machine_no, {WHOLE_PERCENT} * (CAST($item(x.value, 1) AS bigint) - coalesce((
      SELECT CAST($item(y.value, 1) AS bigint) FROM $elements(d.body, facts.systems.offers, y)
      WHERE $item(y.value, 0) = '{NVIDIA_GPU}'), 0)),
    d.from_us, {LOST_US.format("d")}
  FROM described AS d CROSS JOIN $elements(d.body, facts.systems.capacity, x)
  WHERE {_PLUGGED} AND $item(x.value, 0) = '{NVIDIA_GPU}'
    AND d.is_cut = 0
)"""

PERCENT: Final = "CASE WHEN h.core_percent > 0 THEN h.core_percent ELSE h.memory_ratio_percent END"
"""What a holding `h` counts as, of a card: `ledger.domain.devices.level_percent`."""
# The GPUs by number. One without an id has a row for every Node of its machine that lists it: the
# newest of these stands for all, so that the card is there once.
_CARDS: Final = f"""{OTHERS},
{_ILL},
inventories AS MATERIALIZED ({_INVENTORIES}
),
card_numbers (device_no, card_no, machine_no) AS (
  SELECT d.device_no, CAST(CASE WHEN d.device_id <> '' THEN d.device_no ELSE (
      SELECT max(t.device_no) FROM ledger_devices AS t
      WHERE t.machine_no = d.machine_no AND t.device_type = d.device_type AND t.minor = d.minor
        AND t.device_id = '') END AS bigint), d.machine_no
  FROM ledger_devices AS d WHERE d.device_type = 'gpu'
)"""
# A row of `ledger_device_health` says nothing of a card that another Node still lists.
_LISTED_ELSEWHERE: Final = """EXISTS (
    SELECT 1 FROM ledger_devices AS d JOIN ledger_devices AS t ON t.machine_no = d.machine_no
      AND t.device_type = d.device_type AND t.minor = d.minor AND t.device_id = ''
      AND t.device_no <> d.device_no AND t.present = 1
    JOIN ledger_nodes AS n ON n.node_no = t.node_no AND n.lost_position IS NULL
    WHERE d.device_no = x.device_no AND d.device_id = '' AND x.reason IN ('gone', 'lost'))"""
# Pods on GPUs that nobody can name: as many whole ones as they hold beside those that are named.
_UNNAMED: Final = f"""unnamed (position, machine_no, percent, from_us, until_us) AS MATERIALIZED (
  SELECT r.position, s.machine_no, {WHOLE_PERCENT} * (r.gpu_count - (
      SELECT count(*) FROM ledger_holdings AS h
      JOIN ledger_devices AS d ON d.device_no = h.device_no
      WHERE h.position = r.position AND d.device_type = 'gpu')),
    r.opened_at_us, coalesce(r.counted_until_us, r.closed_at_us)
  FROM ledger_slot_holdings AS s JOIN ledger_reservations AS r ON r.position = s.position
  WHERE s.slot = 'unknown/gpu'
    AND NOT EXISTS (
      SELECT 1 FROM others AS o WHERE o.machine_no = s.machine_no AND (o.is_cut = 1 OR EXISTS (
        SELECT 1 FROM ledger_events AS e WHERE e.position = s.position AND {_OF_AMD})))
)"""


# Every moment at which something about a GPU changed, and by how much.
_STEPS: Final = f"""
  SELECT i.device_no, i.at_us, i.core_percent AS capacity, i.healthy, 0 AS held,
    0 AS tenants, 0 AS blocked, 0 AS lost
  FROM inventories AS i
  UNION ALL
  SELECT x.device_no, x.at_us,
    CASE WHEN x.reason IN ('gone', 'lost')
      AND coalesce(e.event_type, '') <> 'device.health_changed.v1'
      THEN 0 END, x.healthy, 0, 0, 0, 0
  FROM ledger_device_health AS x LEFT JOIN ledger_events AS e ON e.position = x.position
  WHERE NOT {_LISTED_ELSEWHERE}
  UNION ALL
  SELECT h.device_no, h.from_us, NULL, NULL, h.percent, 1, 0, 0 FROM held AS h
  UNION ALL
  SELECT h.device_no, h.until_us, NULL, NULL, -h.percent, -1, 0, 0
  FROM held AS h WHERE h.until_us IS NOT NULL
  UNION ALL
  SELECT h.device_no, h.lost_us, NULL, NULL, 0, 0, 1, 0 FROM held AS h WHERE h.lost_us IS NOT NULL
  UNION ALL
  SELECT h.device_no, h.closed_us, NULL, NULL, 0, 0, -1, 0
  FROM held AS h WHERE h.lost_us IS NOT NULL AND h.closed_us IS NOT NULL
  UNION ALL
  SELECT d.device_no, u.opened_at_us, NULL, NULL, 0, 0, 0, 1
  FROM ({_UNKNOWN}
  ) AS u CROSS JOIN ledger_devices AS d
  UNION ALL
  SELECT d.device_no, u.closed_at_us, NULL, NULL, 0, 0, 0, -1
  FROM ({_UNKNOWN}
  ) AS u CROSS JOIN ledger_devices AS d"""
_COUNTED: Final = ("held", "tenants", "blocked", "lost")
_SUMS_OF_STEPS: Final = ", ".join(f"CAST(sum(s.{n}) AS bigint) AS {n}" for n in _COUNTED)
_SUMS_OF_MOMENTS: Final = ", ".join(f"CAST(sum(m.{n}) OVER w AS bigint) AS {n}" for n in _COUNTED)


def _cards(of: str = "card_numbers", marks: str = "") -> str:
    """
    Return `cards`: what a GPU has and what became of it, from each change to the next.

    Args:
        of: the cards that count, with the columns of `card_numbers`.
        marks: moments at which nothing changes and a stretch shall end, `SELECT device_no, at_us`.
    """
    marked = f"""
  UNION ALL SELECT y.device_no, y.at_us, NULL, NULL, 0, 0, 0, 0 FROM ({marks}) AS y""" * bool(marks)
    return f"""held (device_no, percent, from_us, until_us, lost_us, closed_us) AS MATERIALIZED (
  SELECT h.device_no, {PERCENT}, h.opened_at_us, coalesce(r.counted_until_us, h.closed_at_us),
    r.counted_until_us, h.closed_at_us
  FROM {of} AS k JOIN ledger_holdings AS h ON h.device_no = k.device_no
  JOIN ledger_reservations AS r ON r.position = h.position
),
steps AS ({_STEPS}{marked}
),
moments AS (
  SELECT c.card_no, c.machine_no, s.at_us, max(s.capacity) AS capacity, min(s.healthy) AS healthy,
    {_SUMS_OF_STEPS}
  FROM {of} AS c JOIN steps AS s ON s.device_no = c.device_no
  GROUP BY c.card_no, c.machine_no, s.at_us
),
levels AS (
  SELECT m.card_no, m.machine_no, m.at_us AS from_us, lead(m.at_us) OVER w AS until_us, m.capacity,
    m.healthy, count(m.capacity) OVER w AS inventory, count(m.healthy) OVER w AS verdict,
    {_SUMS_OF_MOMENTS}
  FROM moments AS m
  WINDOW w AS (PARTITION BY m.card_no ORDER BY m.at_us)
),
states AS (
  SELECT l.card_no, l.machine_no, l.from_us, l.until_us, l.held, l.tenants, l.blocked, l.lost,
    coalesce(max(l.capacity) OVER (PARTITION BY l.card_no, l.inventory), 0) AS capacity,
    coalesce(max(l.healthy) OVER (PARTITION BY l.card_no, l.verdict), 1) AS healthy
  FROM levels AS l
),
cards AS (
  SELECT t.card_no, t.machine_no, t.from_us, t.until_us, t.held, t.capacity, t.used,
    CASE WHEN t.state = 'idle' THEN t.capacity - t.used ELSE 0 END AS idle,
    CASE WHEN t.state = 'stranded' THEN t.capacity - t.used ELSE 0 END AS stranded,
    CASE WHEN t.state = 'closed' THEN t.capacity - t.used ELSE 0 END AS closed,
    CASE WHEN t.state = 'unknown' THEN t.capacity - t.used ELSE 0 END AS unknown
  FROM (
    SELECT s.card_no, s.machine_no, s.from_us, s.until_us, s.held, s.capacity,
      $least(s.held, s.capacity) AS used,
      CASE WHEN s.lost > 0 THEN 'unknown' WHEN s.healthy = 0 OR s.blocked > 0 THEN 'closed'
        WHEN s.tenants > 0 THEN 'stranded' ELSE 'idle' END AS state
    FROM states AS s
  ) AS t
)"""


_PARTS: Final = ("capacity", "used", "idle", "stranded", "closed", "unknown")
# Machines on which somebody holds GPUs that nobody can name, their cards added up.
_MACHINES: Final = f"""changes AS (
  SELECT c.machine_no, c.from_us AS at_us, {", ".join(f"c.{name}" for name in _PARTS)},
    0 AS unnamed
  FROM cards AS c WHERE c.machine_no IN (SELECT machine_no FROM unnamed)
  UNION ALL
  SELECT c.machine_no, c.until_us, {", ".join(f"-c.{name}" for name in _PARTS)}, 0
  FROM cards AS c
  WHERE c.until_us IS NOT NULL AND c.machine_no IN (SELECT machine_no FROM unnamed)
  UNION ALL
  SELECT i.machine_no, i.from_us, i.percent, 0, 0, 0, i.percent, 0, 0
  FROM ill AS i WHERE i.machine_no IN (SELECT machine_no FROM unnamed)
  UNION ALL
  SELECT i.machine_no, i.until_us, -i.percent, 0, 0, 0, -i.percent, 0, 0 FROM ill AS i
  WHERE i.until_us IS NOT NULL AND i.machine_no IN (SELECT machine_no FROM unnamed)
  UNION ALL
  SELECT u.machine_no, u.from_us, {", ".join("0" for _ in _PARTS)}, u.percent FROM unnamed AS u
  UNION ALL
  SELECT u.machine_no, u.until_us, {", ".join("0" for _ in _PARTS)}, -u.percent
  FROM unnamed AS u WHERE u.until_us IS NOT NULL
),
together AS (
  SELECT c.machine_no, c.at_us,
    {", ".join(f"sum(c.{name}) AS {name}" for name in (*_PARTS, "unnamed"))}
  FROM changes AS c GROUP BY c.machine_no, c.at_us
),
machines AS (
  SELECT t.machine_no, t.at_us AS from_us, lead(t.at_us) OVER w AS until_us,
    {", ".join(f"CAST(sum(t.{name}) OVER w AS bigint) AS {name}" for name in (*_PARTS, "unnamed"))}
  FROM together AS t
  WINDOW w AS (PARTITION BY t.machine_no ORDER BY t.at_us)
)"""

_NODE: Final = "(SELECT max(t.node_no) FROM ledger_nodes AS t WHERE t.machine_no = {}.machine_no)"
# What each GPU could give and what became of it, from each change to the next.
#
# Cards that nobody can name are no particular ones, so a machine where somebody holds such has one
# row for all of its cards: they are idle ones as far as there are, then what is left of others.
_CAPACITY: Final = f"""
WITH {_CARDS},
{_UNNAMED},
{_cards()},
{_MACHINES},
taken AS (
  SELECT m.*, $least(m.unnamed, m.capacity - m.used) AS taken FROM machines AS m
),
from_idle AS (
  SELECT t.*, $least(t.taken, t.idle) AS of_idle FROM taken AS t
),
from_stranded AS (
  SELECT f.*, $least(f.taken - f.of_idle, f.stranded) AS of_stranded FROM from_idle AS f
),
from_closed AS (
  SELECT f.*, $least(f.taken - f.of_idle - f.of_stranded, f.closed) AS of_closed
  FROM from_stranded AS f
),
all_of_them AS (
  SELECT c.card_no AS device_no, c.machine_no, c.from_us, c.until_us, c.capacity, c.used, c.idle,
    c.stranded, c.closed, c.unknown
  FROM cards AS c WHERE c.machine_no NOT IN (SELECT machine_no FROM unnamed)
  UNION ALL
  SELECT NULL, i.machine_no, i.from_us, i.until_us, i.percent, 0, 0, 0, i.percent, 0
  FROM ill AS i WHERE i.machine_no NOT IN (SELECT machine_no FROM unnamed)
  UNION ALL
  SELECT (SELECT max(d.device_no) FROM ledger_devices AS d
      WHERE d.machine_no = f.machine_no AND d.device_type = 'gpu'),
    f.machine_no, f.from_us, f.until_us, f.capacity, f.used + f.taken, f.idle - f.of_idle,
    f.stranded - f.of_stranded, f.closed - f.of_closed,
    f.unknown - (f.taken - f.of_idle - f.of_stranded - f.of_closed)
  FROM from_closed AS f
)
SELECT n.node_uid, n.node_name, n.machine_no,
  CASE WHEN n.machine_no IN (SELECT machine_no FROM unnamed) THEN NULL ELSE d.minor END AS minor,
  {", ".join(f"a.{name} AS {name}_percent" for name in _PARTS)},
  a.from_us AS opened_at_us, a.until_us AS closed_at_us, $iso(a.from_us) AS opened_at,
  $iso(a.until_us) AS closed_at, CAST(NULL AS text) AS unknown_because
FROM all_of_them AS a
LEFT JOIN ledger_devices AS d ON d.device_no = a.device_no
JOIN ledger_nodes AS n ON n.node_no = coalesce(d.node_no, {_NODE.format("a")})
WHERE a.capacity > 0
  AND n.machine_no NOT IN (SELECT o.machine_no FROM others AS o WHERE o.is_cut = 1)
UNION ALL
SELECT n.node_uid, n.node_name, n.machine_no, NULL, {", ".join("NULL" for _ in _PARTS)}, t.from_us,
  t.until_us, $iso(t.from_us), $iso(t.until_us), '{_NOT_KNOWN}'
FROM (SELECT o.machine_no, o.from_us, {LOST_US.format("o")} AS until_us FROM others AS o) AS t
JOIN ledger_nodes AS n ON n.node_no = {_NODE.format("t")}
"""

# Cards whose holders ever counted more together than the card has, or may have. What was granted by
# core alone, on a card that always had as much, the database let in; the rest is added up here, and
# cards that changed or that nobody can name are looked at moment by moment.
_CONTESTED: Final = f"""mixed (device_no) AS (
  SELECT h.device_no FROM ledger_holdings AS h WHERE h.core_percent = 0 OR h.kind = 'observed'
  GROUP BY h.device_no
),
asked (card_no, at_us, percent) AS (
  SELECT x.card_no, h.opened_at_us, {PERCENT} FROM mixed AS m
  JOIN ledger_holdings AS h ON h.device_no = m.device_no
  JOIN card_numbers AS x ON x.device_no = m.device_no
  UNION ALL
  SELECT x.card_no, h.closed_at_us, -{PERCENT} FROM mixed AS m
  JOIN ledger_holdings AS h ON h.device_no = m.device_no
  JOIN card_numbers AS x ON x.device_no = m.device_no WHERE h.closed_at_us IS NOT NULL
),
often (node_no) AS (
  SELECT n.node_no FROM ledger_events AS e
  JOIN ledger_nodes AS n ON e.stream = 'node/' || n.node_uid
  WHERE {_of_type("node.inventoried.v1")} GROUP BY n.node_no HAVING count(*) > 1
),
contested AS MATERIALIZED (
  SELECT c.device_no, c.card_no, c.machine_no FROM card_numbers AS c WHERE c.card_no IN (
    SELECT x.card_no FROM card_numbers AS x WHERE x.device_no <> x.card_no
    UNION SELECT x.card_no FROM unnamed AS u JOIN card_numbers AS x ON x.machine_no = u.machine_no
    UNION SELECT g.device_no FROM ledger_device_health AS g WHERE g.reason = 'gone'
    UNION SELECT i.device_no FROM inventories AS i
    WHERE EXISTS (SELECT 1 FROM often)
    GROUP BY i.device_no HAVING min(i.core_percent) < max(i.core_percent)
    UNION SELECT a.card_no FROM (
      SELECT s.card_no, sum(s.percent) OVER (PARTITION BY s.card_no ORDER BY s.at_us) AS level
      FROM asked AS s
    ) AS a JOIN ledger_devices AS d ON d.device_no = a.card_no WHERE a.level > d.core_reported
  )
)"""


def not_counted(pieces: str, marks: str) -> str:
    """
    Return `not_counted`, what holders are not counted for: position, device_no, part, amount.

    Where those who hold a card count more together than the card has, each counts for his part of
    it: time goes as much slower for all of them, rounded down to microseconds. `short_us` is how
    much of it did not count up to a moment. Those on cards that nobody can name have together what
    the others leave of their machine. `amount` is percent times microseconds.

    Args:
        pieces: `SELECT position, device_no, card_no, machine_no, percent, part, from_us, until_us`
            of what is in `HELD`, cut.
        marks: `SELECT at_us`: where pieces begin or end but by the holding's own ends.
    """
    on_all = f"SELECT k.device_no, e.at_us FROM ({marks}) AS e CROSS JOIN contested AS k"
    late = "coalesce(sum({}) OVER w, 0)"
    gone = "CASE WHEN {0} > {1} THEN ({2}) - ({2}) * {1} / {0} ELSE 0 END"
    card = gone.format("c.held", "c.capacity", "c.until_us - c.from_us")
    room = gone.format("m.unnamed", "(m.capacity - m.used)", "m.until_us - m.from_us")
    rows = "ORDER BY {} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    return f"""{_CARDS},
{_UNNAMED},
{_CONTESTED},
{_cards("contested", on_all)},
{_MACHINES},
of_cards AS (
  SELECT c.card_no, c.from_us AS at_us, CAST({late.format(card)} AS bigint) AS short_us
  FROM cards AS c WINDOW w AS (PARTITION BY c.card_no {rows.format("c.from_us")})
),
of_machines AS (
  SELECT m.machine_no, m.from_us AS at_us, CAST({late.format(room)} AS bigint) AS short_us
  FROM machines AS m WINDOW w AS (PARTITION BY m.machine_no {rows.format("m.from_us")})
),
pieces AS ({pieces}
),
ends AS (
  SELECT p.position, p.device_no, p.card_no, p.machine_no, p.part, -p.percent AS percent,
    p.from_us AS at_us, CAST(NULL AS bigint) AS short_us
  FROM pieces AS p
  UNION ALL
  SELECT p.position, p.device_no, p.card_no, p.machine_no, p.part, p.percent, p.until_us, NULL
  FROM pieces AS p
  UNION ALL
  SELECT NULL, NULL, c.card_no, NULL, NULL, NULL, c.at_us, c.short_us FROM of_cards AS c
  UNION ALL
  SELECT NULL, NULL, NULL, m.machine_no, NULL, NULL, m.at_us, m.short_us FROM of_machines AS m
),
not_counted AS (
  SELECT e.position, e.device_no, e.part, e.percent * e.short_us AS amount
  FROM (
    SELECT x.position, x.device_no, x.part, x.percent,
      max(x.short_us) OVER (PARTITION BY x.card_no, x.machine_no, x.at_us) AS short_us
    FROM ends AS x
  ) AS e
  WHERE e.position IS NOT NULL AND e.short_us > 0
)"""


HELD: Final = f"""
  SELECT h.position, h.device_no, k.card_no, NULL AS machine_no, {PERCENT} AS percent,
    h.opened_at_us AS from_us, coalesce(r.counted_until_us, h.closed_at_us) AS until_us
  FROM contested AS k JOIN ledger_holdings AS h ON h.device_no = k.device_no
  JOIN ledger_reservations AS r ON r.position = h.position
  UNION ALL
  SELECT u.position, NULL, NULL, u.machine_no, u.percent, u.from_us, u.until_us
  FROM unnamed AS u"""
"""Every holding of a contested GPU, with its card, and of those that nobody can name, with its
machine; `until_us` NULL = still."""
_HEAD_US: Final = "(SELECT at_us FROM ledger_head)"
_CUT: Final = f"""
  SELECT d.position, d.device_no, d.card_no, d.machine_no, d.percent, d.part, d.from_us,
    $least(d.until_us, (d.part + 1) * {DAY_US}) AS until_us
  FROM days AS d WHERE d.until_us > d.from_us"""
_DAYS: Final = f"""days (
  position, device_no, card_no, machine_no, percent, part, from_us, until_us
) AS (
  SELECT h.position, h.device_no, h.card_no, h.machine_no, h.percent, h.from_us / {DAY_US},
    h.from_us, coalesce(h.until_us, {_HEAD_US})
  FROM ({HELD}
  ) AS h
  UNION ALL
  SELECT d.position, d.device_no, d.card_no, d.machine_no, d.percent, d.part + 1,
    (d.part + 1) * {DAY_US}, d.until_us
  FROM days AS d WHERE (d.part + 1) * {DAY_US} < d.until_us
)"""
_MIDNIGHTS: Final = f"""
  SELECT DISTINCT d.from_us AS at_us FROM days AS d WHERE d.from_us % {DAY_US} = 0
  UNION SELECT {_HEAD_US}"""

# `parts`: every reservation, cut at midnight.
_PARTS_OF_DAYS: Final = f"""parts (position, day, from_us, until_us) AS (
  SELECT r.position, r.opened_at_us / {DAY_US}, r.opened_at_us,
    coalesce(r.counted_until_us, r.closed_at_us, $greatest(r.opened_at_us, {_HEAD_US}))
  FROM ledger_reservations AS r
  UNION ALL
  SELECT p.position, p.day + 1, (p.day + 1) * {DAY_US}, p.until_us
  FROM parts AS p WHERE (p.day + 1) * {DAY_US} < p.until_us
)"""
_LASTED: Final = f"($least(p.until_us, (p.day + 1) * {DAY_US}) - p.from_us)"


def _usage_days(columns: str, source: str, keys: str) -> str:
    before, _, behind = not_counted(_CUT, _MIDNIGHTS).partition("held (")
    return f"""
WITH RECURSIVE {_PARTS_OF_DAYS},
{before}{_OF_OTHERS},
{_DAYS},
held ({behind},
amounts AS (
  SELECT p.position, p.day, r.gpu_core_percent * {_LASTED} AS gpu, r.cpu_milli * {_LASTED} AS cpu,
    CASE WHEN p.position IN (SELECT o.position FROM of_others AS o) THEN 1 ELSE 0 END AS apart
  FROM parts AS p JOIN ledger_reservations AS r ON r.position = p.position
  UNION ALL
  SELECT n.position, n.part, -n.amount, 0, 0 FROM not_counted AS n
)
SELECT {columns}, $date(a.day) AS day,
  CASE WHEN max(a.apart) = 0
    THEN CAST(sum(a.gpu) AS double precision) / {PERCENT_HOUR} END AS gpu_hours,
  CAST(sum(a.cpu / 1000) AS double precision) / {CPU_HOUR} AS cpu_hours,
  CASE WHEN max(a.apart) = 1 THEN 'held of {_NOT_KNOWN}' END AS unknown_because
FROM amounts AS a
JOIN ledger_reservations AS r ON r.position = a.position{source}
GROUP BY {keys}, a.day
"""


# Hours of GPU and CPU by namespace and day.
_USAGE_DAYS: Final = _usage_days("r.namespace", "", "r.namespace")
# Hours of GPU and CPU by label, its value, namespace and day.
_USAGE_LABELS_DAYS: Final = _usage_days(
    "x.key AS label, x.value AS label_value, r.namespace",
    "\nCROSS JOIN $pairs(r.labels, x)",
    "x.key, x.value, r.namespace",
)

_GPU_HOURS: Final = ",\n  ".join(
    f"CASE WHEN max(p.unknown_because) IS NULL"
    f" THEN CAST(sum(p.{name} * {_LASTED}) AS double precision) / {PERCENT_HOUR} END"
    f" AS {name}_gpu_hours"
    for name in _PARTS
)
# What the GPUs of a node could have given, and what became of it, by day.
_CAPACITY_DAYS: Final = f"""
WITH RECURSIVE parts (
  node_uid, day, from_us, until_us, unknown_because, {", ".join(_PARTS)}
) AS (
  SELECT t.node_uid, t.from_us / {DAY_US}, t.from_us, t.until_us, t.unknown_because,
    {", ".join(f"t.{name}" for name in _PARTS)}
  FROM (
    SELECT c.node_uid, c.unknown_because, c.opened_at_us AS from_us,
      coalesce(c.closed_at_us, (SELECT at_us FROM ledger_head)) AS until_us,
      {", ".join(f"c.{name}_percent AS {name}" for name in _PARTS)}
    FROM audit_capacity AS c
  ) AS t
  WHERE t.until_us > t.from_us
  UNION ALL
  SELECT p.node_uid, p.day + 1, (p.day + 1) * {DAY_US}, p.until_us, p.unknown_because,
    {", ".join(f"p.{name}" for name in _PARTS)}
  FROM parts AS p WHERE (p.day + 1) * {DAY_US} < p.until_us
)
SELECT n.node_uid, n.node_name, $date(p.day) AS day,
  {_GPU_HOURS},
  max(p.unknown_because) AS unknown_because
FROM parts AS p
JOIN ledger_nodes AS n ON n.node_uid = p.node_uid
GROUP BY n.node_uid, n.node_name, p.day
"""

# Disagreements of the witnesses, with their end.
_DRIFT: Final = f"""
WITH both_ends AS (
  SELECT e.position, e.at_us, e.event_type, e.body, $text(e.body, drift_id) AS drift_id,
    min(CASE WHEN {_of_type("drift.resolved.v1")} THEN e.position END)
      OVER (PARTITION BY $text(e.body, drift_id) ORDER BY e.position
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS closed_position
  FROM ledger_events AS e
  WHERE {_of_type("drift.found.v1")} OR {_of_type("drift.resolved.v1")}
)
SELECT f.position, f.drift_id, $text(f.body, kind) AS kind,
  $text(f.body, node_uid) AS node_uid, n.node_name,
  $text(f.body, device_type) AS device_type,
  nullif($number(f.body, minor), -1) AS minor,
  $text(f.body, pod_uid) AS pod_uid, $text(f.body, detail) AS detail,
  f.at_us AS opened_at_us, r.at_us AS closed_at_us, f.closed_position,
  $text(r.body, how) AS end_reason, $iso(f.at_us) AS opened_at,
  $iso(r.at_us) AS closed_at
FROM both_ends AS f
LEFT JOIN ledger_events AS r ON r.position = f.closed_position
LEFT JOIN ledger_nodes AS n ON n.node_uid = $text(f.body, node_uid)
WHERE f.event_type = 'drift.found.v1'
"""

# The settings of deciding, from which event on, and who changed them.
_SETTINGS: Final = f"""
SELECT e.position, e.at_us, e.actor, $text(e.body, settings_hash) AS settings_hash,
  $text(e.body, settings) AS settings,
  $text(e.body, tenure_version) AS tenure_version, $iso(e.at_us) AS at
FROM ledger_events AS e
WHERE {_of_type("settings.changed.v1")}
"""

# Who wrote when.
_EPOCHS: Final = f"""
WITH starts AS (
  SELECT e.position, e.at_us AS opened_at_us, e.body, lead(e.position) OVER w AS next_position,
    lead(e.at_us) OVER w AS closed_at_us
  FROM ledger_events AS e
  WHERE {_of_type("epoch.started.v1")}
  WINDOW w AS (ORDER BY e.position)
)
SELECT s.position, $number(s.body, epoch) AS epoch,
  $text(s.body, holder) AS holder, $text(s.body, origin) AS origin,
  $text(s.body, tenure_version) AS tenure_version, s.opened_at_us, s.closed_at_us,
  coalesce(s.next_position - 1, (SELECT position FROM ledger_head)) AS last_position,
  {_interval("s.")}
FROM starts AS s
"""

# The members of planned groups and the devices that wait for them.
_PLANS: Final = f"""
WITH both_ends AS (
  SELECT e.position, e.at_us, e.event_type, e.body, $text(e.body, group) AS group_name,
    lead(e.position) OVER w AS closed_position, lead(e.at_us) OVER w AS closed_at_us,
    lead(CASE WHEN {_of_type("group.planned.v1")} THEN 'planned again'
      ELSE $text(e.body, reason) END) OVER w AS end_reason
  FROM ledger_events AS e
  WHERE {_of_type("group.planned.v1")} OR {_of_type("group.plan_dropped.v1")}
  WINDOW w AS (PARTITION BY $text(e.body, group) ORDER BY e.position)
),
members AS (
  SELECT b.position, b.group_name, $text(x.value, pod_uid) AS pod_uid,
    $text(x.value, namespace) AS namespace,
    $text(x.value, pod_name) AS pod_name,
    $text(x.value, node_uid) AS node_uid,
    $json(x.value, minors) AS minors, b.at_us AS opened_at_us, b.closed_at_us,
    b.closed_position, b.end_reason
  FROM both_ends AS b
  CROSS JOIN $elements(b.body, members, x)
  WHERE b.event_type = 'group.planned.v1'
),
ends AS (
  SELECT m.position, m.group_name, m.pod_uid, m.namespace, m.pod_name, m.node_uid, n.node_name,
    m.minors, m.opened_at_us, coalesce(t.opened_at_us, m.closed_at_us) AS closed_at_us,
    coalesce(t.position, m.closed_position) AS closed_position,
    CASE WHEN t.position IS NULL THEN m.end_reason ELSE 'taken' END AS end_reason
  FROM members AS m
  LEFT JOIN ledger_nodes AS n ON n.node_uid = m.node_uid
  LEFT JOIN ledger_reservations AS t ON t.position = (
    SELECT min(r.position) FROM ledger_reservations AS r
    WHERE r.namespace = m.namespace AND r.pod_name = m.pod_name AND r.pod_uid = m.pod_uid
      AND r.node_no = n.node_no AND r.kind = 'granted' AND r.position > m.position
      AND r.position < coalesce(m.closed_position, r.position + 1))
)
SELECT z.position, z.group_name, z.pod_uid, z.namespace, z.pod_name, z.node_uid, z.node_name,
  z.minors, z.opened_at_us, z.closed_at_us, z.closed_position, z.end_reason,
  {_interval("z.")}
FROM ends AS z
"""

# The signed checkpoints, up to which moment each speaks, and which are withdrawn.
_CHECKPOINTS: Final = f"""
SELECT c.size, c.note, c.at_us, $iso(c.at_us) AS at, (
    SELECT min(w.position) FROM ledger_events AS w
    WHERE {_of_type("checkpoint.withdrawn.v1", "w")} AND {_is_valid("w")}
      AND CAST($text(w.body, size) AS text) = CAST(c.size AS text)
  ) AS withdrawn_position
FROM (
  SELECT k.size, k.note, coalesce(e.at_us, a.at_us) AS at_us
  FROM ledger_checkpoints AS k
  LEFT JOIN ledger_events AS e ON e.position = k.size
  LEFT JOIN ledger_archived AS a ON a.position = k.size
) AS c
"""

# The true times of the events that a correction of the clock concerns.
#
# That is of the first corrected one and all behind it, and of the one before, whose own is right.
# An event that no clock gave a time has the one before it.
_TRUE_TIMES: Final = f"""
WITH corrections AS (
  SELECT e.position, $number(e.body, first) AS first_position,
    $number(e.body, last) AS last_position, $number(e.body, shift_seconds) * 1000000 AS shift_us
  FROM ledger_events AS e
  WHERE {_of_type("time.corrected.v1")} AND {_is_valid("e")}
),
shifts AS (
  SELECT e.position, e.at_us, e.wall_us, f.first_position, (
    SELECT c.shift_us FROM corrections AS c
    WHERE e.position BETWEEN c.first_position AND c.last_position
    ORDER BY c.position DESC LIMIT 1
  ) AS shift_us
  FROM (SELECT min(first_position) AS first_position FROM corrections) AS f
  JOIN ledger_events AS e ON e.position >= f.first_position - 1
)
SELECT s.position, s.at_us AS recorded_at_us, max(CASE
    WHEN s.position < s.first_position THEN s.at_us
    WHEN s.shift_us IS NOT NULL
      THEN CASE WHEN s.wall_us > 0 THEN s.wall_us ELSE s.at_us END + s.shift_us
    WHEN s.wall_us > 0 THEN $least(s.at_us, s.wall_us)
  END) OVER (ORDER BY s.position ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS at_us
FROM shifts AS s
"""

# The devices as they are now, and why one is closed to grants.
_DEVICES: Final = f"""
SELECT n.node_uid, n.node_name, d.device_type, d.minor, d.device_id, d.model,
  d.core_reported AS core_capacity_percent, d.memory_reported AS memory_capacity_bytes,
  d.core_used AS core_used_percent, d.memory_used AS memory_used_bytes, d.tenants,
  d.core_observed AS core_observed_percent, d.memory_observed AS memory_observed_bytes,
  d.observed_holders, d.healthy,
  CASE
    WHEN n.lost_position IS NOT NULL THEN 'lost'
    WHEN d.present = 0 THEN 'gone'
    WHEN d.healthy = 0 THEN 'unhealthy'
    WHEN d.core_used + d.core_observed > d.core_reported
      OR d.memory_used + d.memory_observed > d.memory_reported THEN 'over-full'
    WHEN d.observed_holders > 0 AND (d.core_observed >= d.core_reported
      OR (d.memory_reported > 0 AND d.memory_observed >= d.memory_reported)) THEN 'held by others'
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.machine_no = d.machine_no AND s.slot = 'unknown/' || d.device_type
        AND s.closed_position IS NULL
    ) THEN 'unknown holder'
    WHEN {claimed("d")} THEN 'claimed twice'
    WHEN {unnamed_holder("d")} THEN 'held before its id'
  END AS closed_reason, d.device_no
FROM ledger_devices AS d
JOIN ledger_nodes AS n ON n.node_no = d.node_no
"""

# The nodes as they are now, each on its machine.
_NODES: Final = """
SELECT n.node_uid, n.node_name, n.cpu_milli, n.memory_bytes, n.machine_id, n.labels,
  n.system_uuid, s.boot_id, n.machine_no, n.lost_position
FROM ledger_nodes AS n
JOIN ledger_stands AS s ON s.node_no = n.node_no AND s.machine_no = n.machine_no
"""

VIEWS: Final = {
    "audit_devices": _DEVICES,
    "audit_nodes": _NODES,
    "audit_times": _TRUE_TIMES,
    "audit_holdings": _HOLDINGS,
    "audit_cpu_holdings": _CPU_HOLDINGS,
    "audit_intervals": _INTERVALS,
    "audit_reservations": _RESERVATIONS,
    "audit_device_health": _DEVICE_HEALTH,
    "audit_device_timeline": _DEVICE_TIMELINE,
    "audit_refusals": _REFUSALS,
    "audit_takeovers": _TAKEOVERS,
    "audit_capacity": _CAPACITY,
    "audit_usage_days": _USAGE_DAYS,
    "audit_usage_labels_days": _USAGE_LABELS_DAYS,
    "audit_capacity_days": _CAPACITY_DAYS,
    "audit_unknown_ranges": _UNKNOWN_RANGES,
    "audit_drift": _DRIFT,
    "audit_settings": _SETTINGS,
    "audit_epochs": _EPOCHS,
    "audit_plans": _PLANS,
    "audit_checkpoints": _CHECKPOINTS,
    "audit_events": _EVENTS,
}
"""Every view with its query, in an order in which they can be made."""
_UNTIMED: Final = ("audit_devices", "audit_nodes", "audit_times")
"""The views without a time that could be corrected, and the one that corrects."""


def create_views(database: Database) -> tuple[str, ...]:
    """Return the statements that make every view."""
    return tuple(f"CREATE VIEW {name} AS{text}" for name, text in _texts(database))


def corrected_views(database: Database) -> Mapping[str, str]:
    """
    Return the statements that make the views of a ledger whose clock was corrected, by name.

    Rule: docs/adr/0012. They read every time through `audit_times`; those of a ledger without a
    correction do not, so that the database looks for a moment in the rows' own indexes.
    """
    texts = ((name, text) for name, text in _texts(database) if name not in _UNTIMED)
    made = ((name, f"CREATE VIEW {name} AS{_READ.sub(_corrected, text)}") for name, text in texts)
    return {name: text for name, text in made if "audit_times" in text}


def asked(query: str, database: Database, *, corrected: bool) -> str:
    """Return a query in the words of a database, which reads true times if the clock was wrong."""
    text = written(query, OF_VIEWS, database)
    return _READ.sub(_corrected, text) if corrected else text


def _texts(database: Database) -> Iterator[tuple[str, str]]:
    return ((name, written(text, OF_VIEWS, database).rstrip()) for name, text in VIEWS.items())


def _corrected(read: re.Match[str]) -> str:
    """Return what to read in the place of a table: the same columns, with true times."""
    how, table, alias = read.groups()
    of = _TIMES[table]
    columns = ", ".join(
        f"coalesce({name}_true.at_us, x.{name}) AS {name}" if name in of else f"x.{name}"
        for name in (column.name for column in schema.METADATA.tables[table].columns)
    )
    joins = " ".join(
        f"LEFT JOIN audit_times AS {name}_true ON {name}_true.position = x.{position}"
        for name, position in of.items()
    )
    return f"{how} (SELECT {columns} FROM {table} AS x {joins}){alias or f' AS {table}'}"
