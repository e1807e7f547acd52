"""
Packing quality and speed of `tenure simulate` on the openb trace, every decision recorded.

    python benchmarks/simulate.py --openb DIR [--rounds 5] [--quality] [--seeds 10]

DIR holds the published files `openb_node_list_gpu_node.csv` and `openb_pod_list_default.csv`, and
for the exact order of seed 42 `reference_default_seed42_arrivals.csv` and `..._node_rank.csv`. They
are not part of the project. Figures are printed as a Markdown table: medians of the rounds, each
beside the reference it is a ratio of, measured in the same run.

Quality is of the policies fgd and scarcity, seed by seed, on the trace as it is and on traces made
of it, in which a part of the GPU Pods is tied to models (the column `gpu_spec` of the format,
several models with a bar between them). `--quality` measures nothing else.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import re
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PODS = "openb_pod_list_default.csv"
SEED = 42
POLICIES = ("fgd", "scarcity")
TIED_PERCENT = (10, 20, 25, 33)
LISTS = {
    "T4": 54,
    "V100M16|V100M32": 20,
    "P100": 12,
    "G3": 5,
    "V100M32": 5,
    "G2|P100": 4,
}
"""Lists of models, and of a hundred tied Pods how many have each: most want the smallest cards."""

ONLY_SMALL = {"T4", "P100"}
"""Lists without a node of eight GPUs; Pods that ask for eight are not tied to them."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openb", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quality", action="store_true")
    arguments = parser.parse_args()
    directory, rounds = arguments.openb, arguments.rounds
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n"
    )
    if not arguments.quality:
        print("| measure | ours | reference |\n| --- | --- | --- |")
        for policy, expected in (("fgd", (95.14, 95.29)), ("bestfit", (92.94, 93.13))):
            at = simulate(directory, "--compare", policy, *reference(directory))
            fact = f"published {expected[0]} / {expected[1]}"
            show(
                f"{policy}, reference arrivals, at 100 / 130 %", f"{at['100']} / {at['130']}", fact
            )
        speed(directory, rounds)
    quality(directory, range(SEED, SEED + arguments.seeds))


def show(measure: str, ours: str, against: str) -> None:
    """Print one row."""
    print(f"| {measure} | {ours} | {against} |", flush=True)


def reference(directory: Path) -> list[str]:
    """Return the options of the exact order of seed 42."""
    stem = directory / "reference_default_seed42"
    return [f"--openb-arrivals={stem}_arrivals.csv", f"--openb-node-rank={stem}_node_rank.csv"]


def quality(directory: Path, seeds: range) -> None:
    """Print allocated % at 100 % arrived by the published method, seed by seed."""
    print(f"\n| trace | policy | mean | {' | '.join(map(str, seeds))} |")
    print(f"| --- | --- | --- |{' --- |' * len(seeds)}")
    with tempfile.TemporaryDirectory() as folder:
        traces = {"default": directory / PODS}
        for percent in TIED_PERCENT:
            traces[f"{percent} % tied to models"] = tied(directory, percent, Path(folder))
        for name, pods in traces.items():
            for policy in POLICIES:
                options = ("--compare", policy, "--inflate", "1.3")
                found = [
                    simulate(directory, *options, "--seed", str(seed), pods=pods)["100"]
                    for seed in seeds
                ]
                each = " | ".join(f"{value:.2f}" for value in found)
                print(f"| {name} | {policy} | {statistics.mean(found):.2f} | {each} |", flush=True)


def tied(directory: Path, percent: int, folder: Path) -> Path:
    """Write the trace with `percent` of its GPU Pods tied to models; return the file."""
    rng = random.Random(percent)
    with (directory / PODS).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    on_gpus = [row for row in rows if int(row["num_gpu"])]
    for row in rng.sample(on_gpus, len(on_gpus) * percent // 100):
        models = rng.choices(tuple(LISTS), tuple(LISTS.values()))[0]
        if int(row["num_gpu"]) < 8 or models not in ONLY_SMALL:
            row["gpu_spec"] = models
    path = folder / f"tied_{percent}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def simulate(directory: Path, *options: str, pods: Path | None = None) -> dict[str, float]:
    """Run one policy; return allocated % by arrived %, as published."""
    done = subprocess.run(
        command(directory, *options, "-o", "json", pods=pods),
        capture_output=True,
        check=True,
        text=True,
    )
    rows: list[dict[str, dict[str, float]]] = json.loads(done.stdout)
    return rows[0]["allocated_at_arrived_percent"]


def command(directory: Path, *options: str, pods: Path | None = None) -> list[str]:
    """Return the command line of one run."""
    return [
        str(Path(sys.executable).with_name("tenure")),
        "simulate",
        f"--openb-nodes={directory / 'openb_node_list_gpu_node.csv'}",
        f"--openb-pods={pods or directory / PODS}",
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
