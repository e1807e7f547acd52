"""`who held it then`: one card at one moment, out of many holdings."""

from __future__ import annotations

import random
import sqlite3
import statistics
import time
from pathlib import Path
from typing import Final

from sqlalchemy import text

from benchmarks.ledger.work import CARDS, NODES, ORIGIN, Work
from benchmarks.measure import say, spent_by
from ledger.store.open import Ledger, open_ledger

QUESTIONS: Final = 2_000
FIRST: Final = 1_000
"""Positions of the holdings begin here, behind those of the inventories."""
WHO_HELD: Final = text(
    "SELECT namespace, pod_name, core_percent FROM audit_holdings WHERE node_name = :node"
    " AND device_type = 'gpu' AND minor = :minor AND opened_at_us <= :at"
    " AND (closed_at_us IS NULL OR closed_at_us > :at)"
)
_RESERVATIONS: Final = """
WITH RECURSIVE numbers (i) AS (
  SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < :holdings
)
INSERT INTO ledger_reservations (position, pod_uid, attempt, namespace, pod_name, owner, labels,
  priority, qos, dialect, policy, source, node_no, cpu_milli, memory_bytes, gpu_core_percent,
  gpu_count, device_count, cpuset, cpu_count, kind, phase, phase_position, created_at_us,
  opened_at_us, closed_at_us, closed_position, end_reason)
SELECT :first + i, 'pod-' || i, 1, 'team-' || i % 7, 'train-' || i, '', '{}', 0, '',
  'koordinator', 'binpack', '', 1 + i % :cards / :per_node, 4000, 0, 100, 1, 1, '', 0, 'granted',
  'released', :first + i, 0, 1000000 * (i / :cards), 1000000 * (i / :cards + 1),
  :first + i + :cards, 'completed'
FROM numbers
"""
_HOLDINGS: Final = """
WITH RECURSIVE numbers (i) AS (
  SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < :holdings
)
INSERT INTO ledger_holdings (position, device_no, minor, core_percent, memory_bytes,
  memory_ratio_percent, exclusive, instances, kind, opened_at_us, closed_at_us, closed_position)
SELECT :first + i, 1 + i % :cards, i % :per_node, 100, 0, 100, 1, 0, 'granted',
  1000000 * (i / :cards), 1000000 * (i / :cards + 1), :first + i + :cards
FROM numbers
"""


def who_held(path: Path, holdings: int) -> None:
    """Ask about random cards and moments, with as many past holdings loaded past the rules."""
    with open_ledger(str(path), mode="create") as ledger:
        ledger.start_epoch("benchmark", ORIGIN, "0").append(Work().inventories())
    loaded = spent_by(lambda: _load(path, holdings))
    with open_ledger(str(path), mode="read") as ledger:
        spent = _ask(ledger, holdings)
    seconds, cpu_seconds = zip(*spent, strict=True)
    say(
        what="who held it then",
        holdings=holdings,
        loaded_seconds=round(loaded.seconds, 1),
        questions=QUESTIONS,
        p50_ms=round(1_000 * statistics.median(seconds), 3),
        p99_ms=round(1_000 * statistics.quantiles(seconds, n=100)[-1], 3),
        cpu_p50_ms=round(1_000 * statistics.median(cpu_seconds), 3),
        cpu_p99_ms=round(1_000 * statistics.quantiles(cpu_seconds, n=100)[-1], 3),
    )


def _ask(ledger: Ledger, holdings: int) -> list[tuple[float, float]]:
    """Return how long each question took, and how much of the processor's time."""
    rng = random.Random(42)
    turns = holdings // (NODES * CARDS)
    spent: list[tuple[float, float]] = []
    for _ in range(QUESTIONS):
        values = {
            "node": f"node-{rng.randrange(NODES)}",
            "minor": rng.randrange(CARDS),
            "at": 1_000_000 * rng.randrange(1, turns),
        }
        started, cpu_started = time.perf_counter(), time.process_time()
        with ledger.connection.begin():
            found = ledger.connection.execute(WHO_HELD, values).all()
        spent.append((time.perf_counter() - started, time.process_time() - cpu_started))
        assert len(found) == 1, found
    return spent


def _load(path: Path, holdings: int) -> None:
    """Load closed holdings, one after the other on every card, with the rules taken off."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -262144")
    rules = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in rules:
        connection.execute(f"DROP TRIGGER {name}")
    indexes = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        " AND tbl_name IN ('ledger_reservations', 'ledger_holdings')"
    ).fetchall()
    values = {"holdings": holdings, "first": FIRST, "cards": NODES * CARDS, "per_node": CARDS}
    connection.execute("BEGIN")
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}")
    connection.execute(_RESERVATIONS, values)
    connection.execute(_HOLDINGS, values)
    for _, statement in indexes:  # made at the end they are sorted once
        connection.execute(statement)
    connection.execute("COMMIT")
    connection.close()
