"""
What a change of one node costs an engine that runs, against an engine made anew.

    .venv/bin/python benchmarks/nodes.py                          # 5,000 nodes with 20,000 Pods
    .venv/bin/python benchmarks/nodes.py --sizes 500,5000 --policy binpack --limits

Nodes have 8 GPUs of one of three models, 2 NICs and 128 CPUs, and on average four Pods that hold
GPUs in part or whole. Each kind of change happens to nodes at random, in turn with the others:
`change` is the call of `put_node` or `drop_node`, `next` the decision after it, for a Pod of a kind
that was asked before. Milliseconds, CPU time and by the clock, p50 / p99. `anew` is an engine made
of the same nodes that adopts the same Pods, in the same run. With `--limits` the exit status is 1
when the 99th percentile of a kind of change takes more than 2 ms of CPU at 5,000 nodes.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.requests import DeviceDemand, PlacementRules, PodRequest
from ledger.domain.topology import Cpu, cpu_topology_of
from scheduler.decide.engine import Engine
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import POLICIES, SchedulingSettings

SEED: Final = 11
LIMIT_NODES: Final = 5000
LIMIT_MS: Final = 2.0
GIB: Final = 2**30
GPUS: Final = 8
MODELS: Final = (("L40S", 48 * GIB), ("A100", 80 * GIB), ("T4", 16 * GIB))
MACHINE: Final = cpu_topology_of(
    Cpu(id=cpu, core=cpu % 64, socket=cpu % 64 // 32, numa=cpu % 64 // 32) for cpu in range(128)
)
ASKED: Final = ((10, 1), (25, 1), (33, 1), (50, 1), (75, 1), (100, 1), (100, 2), (100, 4))


@dataclass(slots=True)
class Times:
    """Seconds of one kind of change."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    following: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Cluster:
    """An engine, its nodes and its Pods by node."""

    nodes: list[NodeFacts]
    pods: list[list[PodObserved]]
    settings: SchedulingSettings
    typical: Sequence[PodRequest]

    def engine(self) -> Engine:
        """Return an engine made anew."""
        engine = Engine(self.nodes, self.settings, workload=workload_of(self.typical))
        for number, pods in enumerate(self.pods):
            for pod in pods:
                engine.adopt(number, pod)
        return engine


def main() -> None:
    """Measure every size and print a line for each kind of change."""
    options = _options()
    over = False
    for size in options.sizes:
        cluster = _cluster(size, options.policy)
        gc.collect()
        gc.freeze()  # as a service does: the inventory is no garbage
        anew_ms = 1000 * min(_timed(cluster.engine)[0] for _ in range(2))
        holders = sum(map(len, cluster.pods))
        print(f"\n{size} nodes, {holders} Pods, {options.policy}; anew: {anew_ms:.0f} ms of CPU")
        head = ("CPU p50", "CPU p99", "clock p50", "clock p99", "next p50", "next p99", "anew/p50")
        print(f"{'change':>22}" + "".join(f"{name:>11}" for name in head))
        for name, times in _measure(cluster, options.rounds).items():
            figures = [
                1000 * _at(some, percent)
                for some in (times.cpu, times.wall, times.following)
                for percent in (50, 99)
            ]
            over |= size == LIMIT_NODES and figures[1] > LIMIT_MS
            columns = "".join(f"{figure:>11.3f}" for figure in figures)
            print(f"{name:>22}{columns}{anew_ms / figures[0]:>11.0f}")
    if options.limits:
        sys.exit(over)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--policy", choices=POLICIES, default="scarcity")
    parser.add_argument("--rounds", type=int, default=300, help="changes of each kind")
    parser.add_argument(
        "--sizes", type=lambda text: [int(x) for x in text.split(",")], default=[LIMIT_NODES]
    )
    parser.add_argument("--limits", action="store_true")
    return parser.parse_args()


def _measure(cluster: Cluster, rounds: int) -> dict[str, Times]:
    """Return the times of every kind of change."""
    rng = random.Random(SEED)
    engine = cluster.engine()
    kinds: dict[str, Times] = {}
    for pod in cluster.typical:
        engine.decide(pod)
    for number in range(rounds):
        place = rng.randrange(len(cluster.nodes))
        for name, change in _changes(cluster.nodes[place], cluster.pods[place], engine, number):
            times = kinds.setdefault(name, Times())
            cpu, wall = _timed(change)
            times.cpu.append(cpu)
            times.wall.append(wall)
            asked = replace(rng.choice(cluster.typical), uid="next")
            times.following.append(_timed(partial(engine.decide, asked))[0])
    return kinds


def _changes(
    node: NodeFacts, pods: Sequence[PodObserved], engine: Engine, number: int
) -> list[tuple[str, Callable[[], object]]]:
    """Return changes of one node, one after the other; then it is as it was."""
    first, *rest = node.devices
    taint = Taint(key="repair", value="", effect="NoSchedule")
    again = replace(node, uid=f"{node.uid}-again-{number}")

    def put(**facts: object) -> Callable[[], object]:
        return lambda: engine.put_node(replace(node, **facts))  # type: ignore[arg-type]

    def adopted() -> None:
        place = engine.put_node(node)
        for pod in pods:
            engine.adopt(place, pod)

    return [
        ("relabelled", put(labels={**node.labels, "rack": f"r{number % 50}"})),
        ("tainted", put(taints=(taint,))),
        ("cordoned", put(unschedulable=True)),
        ("resized", put(cpu_milli=96_000)),
        ("a card fails", put(devices=(replace(first, healthy=False), *rest))),
        ("a card shrinks", put(devices=(replace(first, memory_bytes=8 * GIB), *rest))),
        ("a card is renamed", put(devices=(replace(first, device_id="GPU-new"), *rest))),
        ("a card goes", put(devices=tuple(rest))),
        ("its topology changes", put(cpu_topology=None)),
        ("it is lost", put(lost=True)),
        ("it is as before", put()),
        ("it goes", lambda: engine.drop_node(node.uid)),
        ("another UID comes", lambda: engine.put_node(again)),
        ("that goes", lambda: engine.drop_node(again.uid)),
        ("it comes, with its Pods", adopted),
    ]


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that this takes, of CPU and by the clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def _at(times: Sequence[float], percent: int) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


# --- The cluster ------------------------------------------------------------------------------


def _cluster(size: int, policy: str) -> Cluster:
    rng = random.Random(SEED)
    nodes = [_node(number) for number in range(size)]
    return Cluster(
        nodes=nodes,
        pods=[_pods(node, rng) for node in nodes],
        settings=SchedulingSettings(node_policy=policy),
        typical=[_request(*asked, model) for asked in ASKED for model in ("", "A100", "T4")],
    )


def _node(number: int) -> NodeFacts:
    model, size = MODELS[number % len(MODELS)]
    gpus = [
        DeviceRecord(
            device_type="gpu",
            minor=minor,
            device_id=f"GPU-{number:05d}-{minor}",
            model=model,
            memory_bytes=size,
            unique_id=True,
        )
        for minor in range(GPUS)
    ]
    nics = [
        DeviceRecord(device_type="rdma", minor=minor, device_id=f"0000:3b:0{minor}")
        for minor in range(2)
    ]
    return NodeFacts(
        uid=f"uid-{number}",
        name=f"node-{number:05d}",
        labels={"zone": f"z{number % 3}"},
        cpu_milli=128_000,
        memory_bytes=1024 * GIB,
        pods_max=110,
        devices=(*gpus, *nics),
        cpu_topology=MACHINE,
    )


def _pods(node: NodeFacts, rng: random.Random) -> list[PodObserved]:
    """Return the running Pods of a node: one on whole GPUs, others on parts."""
    whole = rng.choice((0, 0, 1, 2, 4, 8))
    held = [(range(whole), 100)] if whole else []
    held += [
        (range(minor, minor + 1), rng.randint(1, 99))
        for minor in range(whole, GPUS)
        if rng.random() < 0.57
    ]
    return [_running(node, number, *each) for number, each in enumerate(held)]


def _running(node: NodeFacts, number: int, minors: Sequence[int], percent: int) -> PodObserved:
    return PodObserved(
        pod_uid=f"{node.uid}-{number}",
        attempt=1,
        namespace="ml",
        pod_name=f"{node.name}-{number}",
        node_uid=node.uid,
        node_name=node.name,
        source="device-allocated",
        cpu_milli=4000,
        memory_bytes=16 * GIB,
        shares=tuple(
            DeviceShare(
                device_type="gpu",
                minor=minor,
                device_id=node.devices[minor].device_id,
                core_percent=percent,
                memory_bytes=percent * node.devices[minor].memory_bytes // 100,
                memory_ratio_percent=percent,
                exclusive=percent == 100,
            )
            for minor in minors
        ),
    )


def _request(percent: int, count: int, model: str) -> PodRequest:
    return PodRequest(
        uid="p",
        namespace="ml",
        name="p",
        cpu_milli=4000,
        memory_bytes=8 * GIB,
        dialect=Dialect.KOORDINATOR,
        devices=(
            DeviceDemand(
                device_type="gpu",
                count=count,
                core_percent=percent,
                memory_ratio_percent=percent,
                exclusive=percent == 100,
                model_names=(model,) if model else (),
            ),
        ),
        placement=PlacementRules(),
    )


if __name__ == "__main__":
    main()
