"""
Packing quality and speed of `tenure simulate` on the openb trace, every decision recorded.

    python benchmarks/simulate.py --openb DIR [--rounds 5]

DIR holds the published files `openb_node_list_gpu_node.csv` and `openb_pod_list_default.csv`, and
for the exact order of seed 42 `reference_default_seed42_arrivals.csv` and `..._node_rank.csv`. They
are not part of the project. Figures are printed as a Markdown table: medians of the rounds, each
beside the reference it is a ratio of, measured in the same run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SEEDS = range(42, 52)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openb", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    directory, rounds = arguments.openb, arguments.rounds
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n"
    )
    print("| measure | ours | reference |\n| --- | --- | --- |")
    for policy, expected in (("fgd", (95.14, 95.29)), ("bestfit", (92.94, 93.13))):
        at = simulate(directory, "--compare", policy, *reference(directory))
        fact = f"published {expected[0]} / {expected[1]}"
        show(f"{policy}, reference arrivals, at 100 / 130 %", f"{at['100']} / {at['130']}", fact)
    means = [quality(directory, seed) for seed in SEEDS]
    fact = "published 95.23, LP bound 96.92"
    show("fgd, mean of seeds 42 to 51 at 100 %", f"{statistics.mean(means):.2f}", fact)
    speed(directory, rounds)


def show(measure: str, ours: str, against: str) -> None:
    """Print one row."""
    print(f"| {measure} | {ours} | {against} |", flush=True)


def reference(directory: Path) -> list[str]:
    """Return the options of the exact order of seed 42."""
    stem = directory / "reference_default_seed42"
    return [f"--openb-arrivals={stem}_arrivals.csv", f"--openb-node-rank={stem}_node_rank.csv"]


def quality(directory: Path, seed: int) -> float:
    """Return allocated % at 100 % arrived for one seed of the published method."""
    return simulate(directory, "--compare", "fgd", "--inflate", "1.3", "--seed", str(seed))["100"]


def simulate(directory: Path, *options: str) -> dict[str, float]:
    """Run one policy; return allocated % by arrived %, as published."""
    done = subprocess.run(
        command(directory, *options, "-o", "json"), capture_output=True, check=True, text=True
    )
    rows: list[dict[str, dict[str, float]]] = json.loads(done.stdout)
    return rows[0]["allocated_at_arrived_percent"]


def command(directory: Path, *options: str) -> list[str]:
    """Return the command line of one run."""
    return [
        str(Path(sys.executable).with_name("tenure")),
        "simulate",
        f"--openb-nodes={directory / 'openb_node_list_gpu_node.csv'}",
        f"--openb-pods={directory / 'openb_pod_list_default.csv'}",
        *options,
    ]


def speed(directory: Path, rounds: int) -> None:
    """Time batches and single commits in turn, beside what the database alone can do."""
    batched: list[float] = []
    single: list[float] = []
    bare: list[float] = []
    fsyncs: list[float] = []
    for _ in range(rounds):
        bare.append(bare_inserts())
        fsyncs.append(durable_inserts())
        batched.append(decisions_per_second(directory, "--batch", "500"))
        single.append(decisions_per_second(directory, "--batch", "1"))
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    rate = statistics.median(batched)
    limit = statistics.median(bare)
    fact = f"{rate / 15.5:,.0f} x the published simulator's 15.5/s; bar 1,500, aim 8,000"
    show("fgd, decisions/s, --batch 500, recorded", f"{rate:,.0f}", fact)
    fact = f"bare inserts, 500 a commit: {limit:,.0f} rows/s (ours {rate / limit:.2f} of it)"
    show("the same, against the database alone", f"{rate:,.0f}", fact)
    rate, limit = statistics.median(single), statistics.median(fsyncs)
    fact = f"bare durable inserts: {limit:,.0f}/s (ours {rate / limit:.2f} of it)"
    show("fgd, decisions/s, a durable commit each", f"{rate:,.0f}", fact)
    show("peak memory of any run, JSON output included", f"{peak_mib:,.0f} MiB", "simulator 2.5 GB")


def decisions_per_second(directory: Path, *options: str) -> float:
    """Return arrivals by second of one recorded run of the reference order, as the command says."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = ("--ledger", str(Path(folder) / "ledger.db"))
        order = (*reference(directory), "--policy", "fgd", *options, *ledger)
        done = subprocess.run(
            command(directory, *order), capture_output=True, check=True, text=True
        )
    found = re.search(r"decisions in [\d.]+ s, ([\d,]+)/s", done.stdout)
    assert found is not None, done.stdout
    return float(found[1].replace(",", ""))


def bare_inserts() -> float:
    """Return rows by second of the plainest possible insert, 500 a durable commit."""
    return _inserts(batch=500, rows=20_000)


def durable_inserts() -> float:
    """Return rows by second of the plainest possible insert, each a durable commit."""
    return _inserts(batch=1, rows=2_000)


def _inserts(*, batch: int, rows: int) -> float:
    body = "x" * 600
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE bare (position INTEGER PRIMARY KEY, body TEXT, hash BLOB)")
        started = time.perf_counter()
        for first in range(0, rows, batch):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO bare VALUES (?, ?, ?)",
                [(first + i, body, hashlib.sha256(body.encode()).digest()) for i in range(batch)],
            )
            connection.execute("COMMIT")
        seconds = time.perf_counter() - started
        connection.close()
    return rows / seconds


if __name__ == "__main__":
    main()
