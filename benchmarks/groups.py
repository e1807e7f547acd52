"""
How long the plan of a whole group takes, and how that grows with the cluster.

    .venv/bin/python benchmarks/groups.py                   # 100, 1,000 and 10,000 nodes
    .venv/bin/python benchmarks/groups.py --sizes 1000 --limits

A group is 8 Pods of 8 GPUs each. `first`: the first decision of an engine that was just made, on
nodes that nobody uses. `busy`: groups of 2 to 16 Pods of 1 to 8 GPUs in turn, half of them with
two kinds of Pods, each planned and placed on nodes of which three in four GPUs are held. `links`
says whether nodes report one matrix per model or each its own, as measured; `cut` how many of the
busy plans met a bound of the search. Times are CPU milliseconds of one process. With `--limits`
the exit status is 1 when the first group over 1,000 nodes takes more than 50 ms.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, GroupRef, PodRequest
from ledger.domain.topology import LinkMatrix
from scheduler.decide.engine import Engine
from scheduler.decide.group.groups import plan
from scheduler.decide.settings import SchedulingSettings

SEED: Final = 11
LIMIT_MS: Final = 50.0
LIMIT_NODES: Final = 1000
GPUS: Final = 8
GIB: Final = 2**30
NOISE: Final = 0.02
RINGS: Final = (96.4, 48.4, 48.4, 96.4, 16.0, 16.0, 96.4, 16.0)


def main() -> None:
    """Measure every size and print a line for each."""
    options = _options()
    over = False
    head = ("first p50", "first p99", "busy p50", "busy p99", "cut")
    print(f"{'nodes':>8}{'links':>12}" + "".join(f"{name:>12}" for name in head))
    for size in options.sizes:
        for own in (False, True):
            nodes = _nodes(size, own_links=own)
            gc.collect()
            gc.freeze()  # as a run of the simulation does: the inventory is no garbage
            first = sorted(_first(nodes, max(3, min(options.rounds, 20_000 // size))))
            busy, cut = _busy(nodes, options.groups)
            figures = [_at(first, 50), _at(first, 99), _at(busy, 50), _at(busy, 99)]
            over |= size == LIMIT_NODES and figures[0] > LIMIT_MS
            links = "per node" if own else "per model"
            columns = "".join(f"{figure:>12.1f}" for figure in figures)
            print(f"{size:>8}{links:>12}{columns}{cut:>12}")
    if options.limits and over:
        sys.exit(f"a plan over {LIMIT_NODES} nodes takes more than {LIMIT_MS} ms")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[100, 1000, 10_000],
    )
    parser.add_argument("--rounds", type=int, default=20, help="new engines per size")
    parser.add_argument("--groups", type=int, default=100, help="groups on busy nodes")
    parser.add_argument("--limits", action="store_true")
    return parser.parse_args()


def _first(nodes: Sequence[NodeFacts], rounds: int) -> list[float]:
    """Return how long the first plan of a new engine takes; one round to warm up."""
    times = []
    for number in range(rounds + 1):
        engine = Engine(nodes, SchedulingSettings())
        members = _group(number, [8] * 8)
        start = time.process_time()
        answer = plan(members, engine)
        times.append(1000 * (time.process_time() - start))
        assert answer.whole
        assert not answer.search_cut
    return times[1:]


def _busy(nodes: Sequence[NodeFacts], groups: int) -> tuple[list[float], int]:
    """Return how long plans take while the cluster changes, ascending, and how many were cut."""
    rng = random.Random(SEED)
    engine = Engine(nodes, SchedulingSettings())
    for node in range(len(nodes)):
        for minor in range(GPUS):
            if rng.random() < 0.75:
                engine.try_place(_pod(f"tenant-{node}-{minor}", 1), node, frozenset({minor}))
    times, cut = [], 0
    for number in range(groups):
        gpus = [rng.choice((1, 2, 4, 8))] * rng.randint(2, 16)
        if number % 2:
            gpus[: len(gpus) // 2] = [rng.choice((1, 2, 4))] * (len(gpus) // 2)
        members = _group(number, gpus)
        start = time.process_time()
        answer = plan(members, engine)
        times.append(1000 * (time.process_time() - start))
        cut += answer.search_cut
        for placement in answer.placements:
            if placement is not None:
                engine.reserve(placement)
    return sorted(times), cut


def _at(times: Sequence[float], percent: int) -> float:
    return times[min(len(times) - 1, len(times) * percent // 100)]


def _nodes(count: int, *, own_links: bool) -> list[NodeFacts]:
    rng = random.Random(SEED)
    shared = _links(None)
    return [
        NodeFacts(
            uid=f"uid-{number}",
            name=f"n{number}",
            cpu_milli=96_000,
            memory_bytes=1024 * GIB,
            pods_max=110,
            devices=tuple(
                DeviceRecord(
                    device_type="gpu",
                    minor=minor,
                    device_id=f"GPU-{number}-{minor}",
                    model="H100",
                    memory_bytes=80 * GIB,
                )
                for minor in range(GPUS)
            ),
            links=_links(rng) if own_links else shared,
        )
        for number in range(count)
    ]


def _links(rng: random.Random | None) -> LinkMatrix:
    """Return a matrix of three speeds, each link measured with noise if `rng` is given."""
    return LinkMatrix(
        rows=tuple(
            tuple(
                RINGS[(a ^ b) % len(RINGS)] * (1 + (rng.uniform(-NOISE, NOISE) if rng else 0.0))
                for b in range(GPUS)
            )
            for a in range(GPUS)
        )
    )


def _group(number: int, gpus: Sequence[int]) -> list[PodRequest]:
    demands = {count: _demand(count) for count in set(gpus)}
    group = GroupRef(name=f"job-{number}", replica=len(gpus))
    return [
        _pod(f"job-{number}-{place}", count, demands[count], group)
        for place, count in enumerate(gpus)
    ]


def _pod(
    name: str, gpus: int, demand: DeviceDemand | None = None, group: GroupRef | None = None
) -> PodRequest:
    return PodRequest(
        uid=f"uid-{name}",
        namespace="ml",
        name=name,
        cpu_milli=1000 * gpus,
        memory_bytes=8 * gpus * GIB,
        dialect=Dialect.KOORDINATOR,
        devices=(demand or _demand(gpus),),
        group=group,
    )


def _demand(gpus: int) -> DeviceDemand:
    return DeviceDemand(
        device_type="gpu",
        count=gpus,
        core_percent=100,
        memory_ratio_percent=100,
        exclusive=True,
    )


if __name__ == "__main__":
    main()
