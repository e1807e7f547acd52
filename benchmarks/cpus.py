"""
How long it takes to pick CPUs, and to filter a whole cluster for a Pod that asks for its own.

    .venv/bin/python benchmarks/cpus.py
    .venv/bin/python benchmarks/cpus.py --picks 20000 --calls 300 --limits

Picks are from machines of 64, 104 and 256 CPUs (two threads a core), part of them held. The peer
is the released allocator (`takeCPUs`, Go) on 64 CPUs: its published benchmark gave the frozen
figures on the quiet machine of the goals, where parsing a JSON list of 5,000 names takes 0.25 ms;
they are scaled by what that takes here. The filter judges 5,000 nodes for Pods of varied sizes and
policies, from fresh state: before each call a Pod was placed and another one released. All times
are CPU times. With `--limits` the exit status is 1 when a pick is slower than the peer's, or the
filter's 99th percentile is over 20 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand, PodRequest
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cpusets.layout import CpuLayout, layout_of
from scheduler.decide.cpusets.picker import PickRequest, pick
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings

SEED: Final = 11
NODES: Final = 5000
QUIET_CALIBRATION_MS: Final = 0.25
FILTER_LIMIT_MS: Final = 20.0
NAMES: Final = json.dumps([f"node-{number:05d}" for number in range(5000)])

PEER_US: Final = {
    ("FullPCPUs", 2): 25.6,
    ("FullPCPUs", 16): 22.6,
    ("FullPCPUs", 32): 26.5,
    ("SpreadByPCPUs", 4): 21.8,
    ("SpreadByPCPUs", 24): 29.6,
    ("SpreadByPCPUs", 32): 31.7,
}
"""The release's own benchmark on 64 CPUs, microseconds per pick, two processors, quiet."""

MACHINES: Final = {64: (2, 1, 16), 104: (2, 1, 26), 256: (2, 4, 16)}
"""CPUs -> sockets, NUMA nodes per socket, cores per NUMA node."""


def main() -> None:
    """Print a line per pick and one for the filter."""
    options = _options()
    calibration = _calibration()
    scale = calibration / QUIET_CALIBRATION_MS
    print(f"calibration {calibration:.3f} ms, {scale:.2f} of the quiet machine's")
    slow = _picks(options.picks, scale)
    p99 = _filter(options.calls)
    if options.limits and (slow or p99 > FILTER_LIMIT_MS):
        sys.exit("over a limit")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--picks", type=int, default=4000, help="per line")
    parser.add_argument("--calls", type=int, default=200, help="filters of the whole cluster")
    parser.add_argument("--limits", action="store_true")
    return parser.parse_args()


def _calibration() -> float:
    """Return the milliseconds of parsing 5,000 names."""
    return statistics.median(_cpu_us(lambda: json.loads(NAMES), 20) for _ in range(15)) / 1000


def _cpu_us(act: Callable[[], object], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - started) / times * 1e6


# --- Picks --------------------------------------------------------------------------------------


def _machine(cpus: int) -> CpuTopology:
    sockets, numas, cores = MACHINES[cpus]
    count = sockets * numas * cores
    return cpu_topology_of(
        Cpu(
            id=thread * count + core,
            core=core,
            socket=core // (numas * cores),
            numa=core // cores,
        )
        for thread in range(2)
        for core in range(count)
    )


def _picks(times: int, scale: float) -> bool:
    """Measure every pick of the peer's on every machine; tell whether one is slower than it."""
    print(f"{'CPUs':>5} {'policy':<14}{'n':>4}{'held':>6}{'us':>9}{'peer us':>9}{'ratio':>7}")
    slow = False
    for cpus in MACHINES:
        layout = layout_of(_machine(cpus))
        for (policy, count), peer in PEER_US.items():
            for held in (0, 40):
                us = _pick_us(layout, policy, count, held, times)
                peers = peer * scale
                slow |= cpus == 64 and us > peers
                print(
                    f"{cpus:>5} {policy:<14}{count:>4}{held:>5}%{us:>9.1f}{peers:>9.1f}"
                    f"{us / peers:>7.2f}"
                )
    return slow


def _pick_us(layout: CpuLayout, policy: str, count: int, held: int, times: int) -> float:
    """Return the median microseconds of a pick over states with that share of cores held."""
    chance = random.Random(SEED)
    request = PickRequest(count=count, full_cores=policy == "FullPCPUs", most_allocated=True)
    rounds = []
    for _ in range(9):
        taken = sum(core.cpus for core in layout.cores if chance.randrange(100) < held)
        available = layout.cpus & ~taken
        rounds.append(_cpu_us(partial(pick, layout, request, available), max(1, times // 9)))
    return statistics.median(rounds)


# --- The filter ---------------------------------------------------------------------------------


def _filter(calls: int) -> float:
    """Measure one filter over all nodes with CPU-set Pods; return its 99th percentile in ms."""
    chance = random.Random(SEED)
    machine = _machine(104)
    nodes = [
        NodeFacts(
            uid=f"uid-{number}",
            name=f"node-{number:05d}",
            cpu_milli=104_000,
            memory_bytes=1 << 40,
            cpu_topology=machine,
        )
        for number in range(NODES)
    ]
    engine = Engine(nodes, SchedulingSettings())
    places = list(range(NODES))
    running = [pod.request.uid for pod in _filled(engine, chance)]
    times = []
    for number in range(calls):
        request = _pod(f"call-{number}", chance)
        engine.forget()
        started = time.process_time()
        answer = engine.filter(request, places)
        times.append((time.process_time() - started) * 1000)
        assert answer is not None
        placed = engine.decide(request)
        if isinstance(placed, Placement):
            engine.reserve(placed)
            running.append(request.uid)
        engine.release(running.pop(chance.randrange(len(running))))
    times.sort()
    p50, p99 = statistics.median(times), times[len(times) * 99 // 100]
    print(f"filter of {NODES:,} nodes: p50 {p50:.2f} ms, p99 {p99:.2f} ms (limit 20)")
    return p99


def _filled(engine: Engine, chance: random.Random) -> Sequence[Placement]:
    """Fill about half of the cluster."""
    placed = []
    for number in range(4 * NODES):
        answer = engine.decide(_pod(f"running-{number}", chance))
        if isinstance(answer, Placement):
            engine.reserve(answer)
            placed.append(answer)
    return placed


def _pod(uid: str, chance: random.Random) -> PodRequest:
    cpus = chance.choice([2, 4, 6, 8, 12, 16, 24, 32])
    demand = CpuSetDemand(
        cpus=cpus,
        bind_policy=chance.choice(["FullPCPUs", "SpreadByPCPUs"]),
        required=chance.random() < 0.5,
        exclusive_policy=chance.choice(["None", "None", "PCPULevel", "NUMANodeLevel"]),
    )
    return PodRequest(
        uid=uid,
        namespace="bench",
        name=uid,
        cpu_milli=cpus * 1000,
        memory_bytes=cpus << 30,
        cpuset=demand,
    )


if __name__ == "__main__":
    main()
