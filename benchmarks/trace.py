"""
How fast one decision over all nodes is, how that grows with the cluster, and what memory it takes.

    .venv/bin/python benchmarks/trace.py --trace DIR      # the openb trace, where you have it
    .venv/bin/python benchmarks/trace.py                  # a cluster of the same shapes, generated

Each size decides and reserves every arrival (no ledger): the trace's nodes and arrivals, then 4
and 12 times as many, shuffled. Sizes take turns over several rounds, each in a process of its own,
and the median counts. The ratio sets a decision against a calibration taken in the same process:
parsing a JSON list of 5,000 node names.
With the trace's reference arrivals, placements are compared with the reference first.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import POLICIES, SchedulingSettings
from tenure.simulate.model import Run
from tenure.simulate.openb import read_openb
from tenure.simulate.trace.shapes import write_openb_like

SEED = 42
NODES = "openb_node_list_gpu_node.csv"
PODS = "openb_pod_list_default.csv"
ARRIVALS = "reference_default_seed42_arrivals.csv"
RANK = "reference_default_seed42_node_rank.csv"
REFERENCE_COLUMNS = {"fgd": "fgd_node", "bestfit": "bestfit_node"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One size, measured once; times in microseconds."""

    nodes: int
    decisions: int
    mean_us: float
    p50_us: float
    p99_us: float
    refusal_p50_us: float
    allocated_percent: float
    fragmentation_percent: float
    peak_mib: int
    calibration_us: float
    reference: str


def main() -> None:
    """Measure every size in turn, `rounds` times, and print medians and the growth."""
    options = _options()
    if options.one is not None:
        measure = _measure(options.trace, options.policy, options.one)
        print(json.dumps({name: getattr(measure, name) for name in Measure.__slots__}))
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = options.trace
        if trace is None:
            trace = Path(folder)
            write_openb_like(trace, nodes=1213, seed=SEED)
        rounds = [
            [_in_own_process(trace, options.policy, size) for size in options.sizes]
            for _ in range(options.rounds)
        ]
    _report([list(column) for column in zip(*rounds, strict=True)], options.policy)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--trace", type=Path, help="folder with the openb CSV files")
    parser.add_argument("--policy", choices=POLICIES, default="fgd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--sizes", type=lambda text: [int(x) for x in text.split(",")], default=[1, 4, 12]
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_own_process(trace: Path, policy: str, size: int) -> Measure:
    command = [sys.executable, __file__, "--trace", str(trace), "--policy", policy]
    command += ["--one", str(size)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measure(**json.loads(answer.stdout))


def _measure(trace: Path, policy: str, size: int) -> Measure:
    """Decide all arrivals of a cluster `size` times the trace's."""
    run, expected = _read(trace, policy)
    nodes, pods, rank = _scaled(run, size)
    engine = Engine(
        nodes,
        SchedulingSettings(node_policy=policy),
        workload=workload_of(run.typical),
        seed=SEED,
        rank=rank,
    )
    clock = time.perf_counter
    calibration_us = _calibration_us()
    placed: list[float] = []
    refused: list[float] = []
    same = 0
    for number, request in enumerate(pods):
        start = clock()
        answer = engine.decide(request, ordinal=number)
        if isinstance(answer, Placement):
            engine.reserve(answer)
            placed.append(clock() - start)
        else:
            refused.append(clock() - start)
        if size == 1 and expected:
            name = answer.node_name if isinstance(answer, Placement) else ""
            same += name == expected[number]
    times = sorted(placed + refused)
    return Measure(
        nodes=len(nodes),
        decisions=len(pods),
        mean_us=1e6 * sum(times) / len(times),
        p50_us=1e6 * times[len(times) // 2],
        p99_us=1e6 * times[len(times) * 99 // 100],
        refusal_p50_us=1e6 * statistics.median(refused or [0.0]),
        allocated_percent=100 * engine.core_percent_allocated / engine.core_percent_capacity,
        fragmentation_percent=engine.fragmentation_percent(),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        calibration_us=calibration_us,
        reference=f"{same} of {len(expected)}" if size == 1 and expected else "",
    )


def _read(trace: Path, policy: str) -> tuple[Run, list[str]]:
    """Return the run and, where it is the reference's, the node that each arrival should get."""
    if (trace / ARRIVALS).exists():
        run = read_openb(
            nodes_csv=trace / NODES,
            pods_csv=trace / PODS,
            arrivals_csv=trace / ARRIVALS,
            rank_csv=trace / RANK,
        )
        column = REFERENCE_COLUMNS.get(policy)
        with (trace / ARRIVALS).open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        return run, [row[column] for row in rows] if column else []
    names = (NODES, PODS) if (trace / NODES).exists() else ("nodes.csv", "pods.csv")
    run = read_openb(
        nodes_csv=trace / names[0], pods_csv=trace / names[1], inflate=Decimal("1.3"), seed=SEED
    )
    return run, []


def _scaled(
    run: Run, size: int
) -> tuple[Sequence[NodeFacts], list[PodRequest], Sequence[int] | None]:
    """Return `size` copies of nodes and arrivals, shuffled; one copy as it is."""
    pods = [arrival.pod for arrival in run.arrivals if isinstance(arrival.pod, PodRequest)]
    if size == 1:
        return run.nodes, pods, run.rank
    rng = random.Random(SEED)
    copies = range(size)
    nodes = [
        replace(node, uid=f"{node.uid}-{copy}", name=f"{node.name}-{copy}")
        for copy in copies
        for node in run.nodes
    ]
    pods = [replace(pod, uid=f"{pod.uid}-{copy}") for copy in copies for pod in pods]
    rank = list(range(len(nodes)))
    rng.shuffle(pods)
    rng.shuffle(rank)
    return nodes, pods, rank


def _calibration_us() -> float:
    """Return the time to parse 5,000 names, the best of several."""
    body = json.dumps([f"node-{number:05d}" for number in range(5000)])
    best = math.inf
    for _ in range(50):
        start = time.perf_counter()
        json.loads(body)
        best = min(best, time.perf_counter() - start)
    return 1e6 * best


def _report(by_size: list[list[Measure]], policy: str) -> None:
    print(f"policy {policy}, {len(by_size[0])} rounds, medians; times in us per decision")
    head = ("nodes", "decisions", "per s", "mean", "p50", "p99", "refusal", "ratio", "MiB", "GPU %")
    print("".join(f"{name:>11}" for name in head))
    means = []
    for measures in by_size:
        mean = statistics.median(each.mean_us for each in measures)
        means.append((measures[0].nodes, mean))
        ratio = statistics.median(each.mean_us / each.calibration_us for each in measures)
        values = (
            f"{measures[0].nodes}",
            f"{measures[0].decisions}",
            f"{1e6 / mean:,.0f}",
            f"{mean:.1f}",
            f"{statistics.median(each.p50_us for each in measures):.1f}",
            f"{statistics.median(each.p99_us for each in measures):.1f}",
            f"{statistics.median(each.refusal_p50_us for each in measures):.1f}",
            f"{ratio:.3f}",
            f"{max(each.peak_mib for each in measures)}",
            f"{measures[0].allocated_percent:.2f}",
        )
        print("".join(f"{value:>11}" for value in values))
    calibration = statistics.median(each.calibration_us for each in by_size[0])
    print(f"calibration {calibration:.0f} us (ratio = mean / calibration)")
    for (few, before), (many, after) in pairwise(means):
        print(f"growth {few} -> {many} nodes: exponent {_exponent(few, before, many, after):.2f}")
    if len(means) > 2:
        (few, before), (many, after) = means[0], means[-1]
        print(f"growth {few} -> {many} nodes: exponent {_exponent(few, before, many, after):.2f}")
    if by_size[0][0].reference:
        print(f"placements equal to the reference: {by_size[0][0].reference}")


def _exponent(few: int, before: float, many: int, after: float) -> float:
    return math.log(after / before) / math.log(many / few)


if __name__ == "__main__":
    main()
