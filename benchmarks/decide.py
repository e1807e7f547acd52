"""
How fast one filter over a whole cluster is, in every dialect, from the question to the answer.

    .venv/bin/python benchmarks/decide.py                     # 500, 5,000 and 50,000 nodes
    .venv/bin/python benchmarks/decide.py --sizes 5000 --calls 1000 --policy spread

Every node has 8 GPUs and 2 NICs; most cards are held in part. One call reads kube-scheduler's
question (the Pod and all node names, from a random start), decodes the Pod, judges every node,
chooses the best with its devices and writes the answer with a reason for every node that fails.
Before each call the Pod of the call before was placed and another one released; shapes vary, and
nothing of an earlier request is remembered (`warm`: what is remembered is kept). Times are CPU
times, for the machine may be shared. First answers are compared with a plain search, node by node.
The calibration is parsing a JSON list of 5,000 names, 0.25 ms on the quiet machine of the goals;
`scaled` is p50 as it would be there.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

import orjson

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import DeviceDemand, PodRequest
from ledger.domain.topology import Cpu, cpu_topology_of
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.engine import Engine
from scheduler.decide.extender import NodeDirectory, arguments_of
from scheduler.decide.settings import SchedulingSettings

SEED: Final = 42
GIB: Final = 2**30
MILLION: Final = 1_000_000
QUIET_CALIBRATION: Final = 0.25
RUNNING_CPU: Final = 4000
RUNNING_MEMORY: Final = 16 * GIB
CHECKED: Final = 12
CHECKED_NODES: Final = 500
KOORDINATOR: Final = "koordinator.sh/"
MGPU: Final = "vke.volcengine.com/mgpu-"
GROUP: Final = "gputopology.scheduling.koordinator.sh/"
MODELS: Final = (("L40S", 48 * GIB), ("A100", 80 * GIB), ("T4", 16 * GIB))
MACHINE: Final = cpu_topology_of(
    Cpu(id=cpu, core=cpu % 64, socket=cpu % 64 // 32, numa=cpu % 64 // 32) for cpu in range(128)
)

NAMES: Final = json.dumps([f"node-{number:05d}" for number in range(5000)])

Resources = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One dialect at one size; times in CPU milliseconds."""

    nodes: int
    dialect: str
    shapes: int
    passing: int
    p50: float
    p99: float
    read: float
    judge: float
    write: float
    prioritize: float
    warm: float
    peak_mib: int
    calibration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """An engine with its nodes, the UIDs of running Pods, and their number per node."""

    engine: Engine
    nodes: list[NodeFacts]
    uids: list[str]
    running: list[int]


def main() -> None:
    """Measure every size in a process of its own and print a table and the growth."""
    options = _options()
    if options.one:
        print(json.dumps([asdict(each) for each in _measure(options)]))
        return
    sizes = [_in_own_process(options, size) for size in options.sizes]
    _report(sizes, options.policy)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--policy", choices=("binpack", "spread"), default="binpack")
    parser.add_argument("--calls", type=int, default=300, help="timed calls per dialect")
    parser.add_argument(
        "--sizes", type=lambda text: [int(x) for x in text.split(",")], default=[500, 5000, 50000]
    )
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_own_process(options: argparse.Namespace, size: int) -> list[Measure]:
    calls = max(30, min(options.calls, options.calls * 10_000 // size))
    command = [sys.executable, __file__, "--one", str(size), "--calls", str(calls)]
    answer = subprocess.run(
        [*command, "--policy", options.policy], check=True, capture_output=True, text=True
    )
    return [Measure(**item) for item in json.loads(answer.stdout)]


# --- The cluster ------------------------------------------------------------------------------


def _node(number: int) -> NodeFacts:
    model, size = MODELS[number % len(MODELS)]
    gpus = tuple(
        DeviceRecord(
            device_type="gpu",
            minor=minor,
            device_id=f"GPU-{number:05d}-{minor}",
            model=model,
            memory_bytes=size,
        )
        for minor in range(8)
    )
    nics = tuple(
        DeviceRecord(device_type="rdma", minor=minor, device_id=f"0000:{number:04x}:{minor}")
        for minor in range(2)
    )
    return NodeFacts(
        uid=f"uid-{number}",
        name=f"gpu-pool-{number % 7}-node-{number:05d}",
        labels={"zone": f"z{number % 3}"},
        cpu_milli=128_000,
        memory_bytes=1024 * GIB,
        pods_max=110,
        devices=gpus + nics,
        cpu_topology=MACHINE,
    )


def _running(number: int, node: NodeFacts, minors: Sequence[int], percent: int) -> PodObserved:
    """Return a running Pod that holds so much of each of these GPUs."""
    size = node.devices[0].memory_bytes
    return PodObserved(
        pod_uid=f"running-{number}",
        attempt=1,
        namespace="ml",
        pod_name=f"running-{number}",
        node_uid=node.uid,
        node_name=node.name,
        source="device-allocated",
        cpu_milli=RUNNING_CPU,
        memory_bytes=RUNNING_MEMORY,
        shares=tuple(
            DeviceShare(
                device_type="gpu",
                minor=minor,
                device_id=node.devices[minor].device_id,
                core_percent=percent,
                memory_bytes=percent * size // 100,
                memory_ratio_percent=percent,
                exclusive=percent == 100,
            )
            for minor in minors
        ),
    )


def _cluster(size: int, settings: SchedulingSettings, rng: random.Random) -> _Cluster:
    """Return nodes with about four running Pods each: parts of cards and whole ones."""
    nodes = [_node(number) for number in range(size)]
    engine = Engine(nodes, settings)
    uids: list[str] = []
    running = []
    for place, node in enumerate(nodes):
        whole = rng.choice((0, 0, 1, 2, 4, 8))
        pods = [(list(range(whole)), 100)] if whole else []
        pods += [([minor], rng.randint(1, 99)) for minor in range(whole, 8) if rng.random() < 0.5]
        for minors, percent in pods:
            pod = _running(len(uids), node, minors, percent)
            assert not engine.adopt(place, pod), pod.pod_uid
            uids.append(pod.pod_uid)
        running.append(len(pods))
    return _Cluster(engine=engine, nodes=nodes, uids=uids, running=running)


# --- The questions ----------------------------------------------------------------------------


def _pod(
    name: str,
    containers: Sequence[Resources],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    cpu: str = "2",
    selector: Mapping[str, str] | None = None,
) -> dict[str, object]:
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-31T14:05:00Z",
            "labels": {"app": "train", **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "containers": [
                {
                    "name": f"c{place}",
                    "image": "registry.example.com/train:1",
                    "resources": {
                        "requests": {"cpu": cpu, "memory": "8Gi", **resources},
                        "limits": resources,
                    },
                }
                for place, resources in enumerate(containers)
            ],
            "nodeSelector": dict(selector or {}),
            "schedulerName": "tenure",
            "tolerations": tolerations,
            "priority": 9500,
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _nvidia(name: str, rng: random.Random) -> dict[str, object]:
    selector = {"zone": f"z{rng.randrange(3)}"} if rng.random() < 0.25 else None
    cpu = str(rng.choice((1, 2, 4, 8, 16, 32)))
    resources = {"nvidia.com/gpu": str(rng.choice((1, 1, 2, 3, 4, 8)))}
    return _pod(name, [resources], cpu=cpu, selector=selector)


def _koordinator(name: str, rng: random.Random) -> dict[str, object]:
    percent, cards = str(rng.randint(1, 99)), rng.randint(1, 8)
    nic = {f"{KOORDINATOR}rdma": str(rng.choice((1, 25, 50, 100)))} if rng.random() < 0.4 else {}
    gpu: Resources = rng.choice(
        (
            {"gpu": percent},
            {"gpu": str(100 * cards)},
            {"gpu-memory-ratio": percent},
            {"gpu-core": percent, "gpu-memory": f"{rng.randint(1, 70)}Gi"},
            {"gpu-memory": f"{rng.randint(1, 70)}Gi"},
            {
                "gpu-core": str(30 * cards),
                "gpu-memory-ratio": str(40 * cards),
                "gpu.shared": str(cards),
            },
        )
    )
    return _pod(name, [{f"{KOORDINATOR}{key}": value for key, value in gpu.items()} | nic])


def _mgpu(name: str, rng: random.Random) -> dict[str, object]:
    if rng.random() < 0.3:
        return _pod(name, [{f"{MGPU}core": str(100 * rng.randint(1, 4))}])
    containers = [
        {f"{MGPU}core": str(rng.randint(1, 90)), f"{MGPU}memory": str(rng.randint(1, 40) * 512)}
        for _ in range(rng.randint(1, 4))
    ]
    return _pod(name, containers)


def _gpushare(name: str, rng: random.Random) -> dict[str, object]:
    return _pod(name, [{"aliyun.com/gpu-mem": str(rng.randint(1, 120) * 512)}])


def _group(name: str, rng: random.Random) -> dict[str, object]:
    labels = {f"{GROUP}name": name, f"{GROUP}replica": "1"}
    cpu = str(rng.choice((1, 2, 4, 8, 16, 32)))
    return _pod(name, [{f"{KOORDINATOR}gpu": str(100 * rng.randint(1, 8))}], labels=labels, cpu=cpu)


def _pinned(name: str, rng: random.Random) -> dict[str, object]:
    labels = {"koordinator.sh/qosClass": "LSR"}
    gpu = {f"{KOORDINATOR}gpu": str(rng.randint(1, 99))}
    pod = _pod(name, [gpu], labels=labels, cpu=str(2 * rng.randint(1, 12)))
    containers = pod["spec"]["containers"]  # type: ignore[index]  # a Pod as JSON
    asked = containers[0]["resources"]["requests"]
    containers[0]["resources"]["limits"] |= {name: asked[name] for name in ("cpu", "memory")}
    return pod


DIALECTS: Final = {
    "nvidia": _nvidia,
    "koordinator": _koordinator,
    "mgpu": _mgpu,
    "gpushare": _gpushare,
    "group": _group,
    "cpu set": _pinned,
}


# --- One size ---------------------------------------------------------------------------------


def _measure(options: argparse.Namespace) -> list[Measure]:
    rng = random.Random(SEED)
    settings = SchedulingSettings(node_policy=options.policy)
    cluster = _cluster(options.one, settings, rng)
    _check(cluster, settings, rng)
    gc.collect()
    gc.freeze()  # as a service does once its state is built
    return [_measure_dialect(cluster, dialect, options.calls) for dialect in DIALECTS]


def _measure_dialect(cluster: _Cluster, dialect: str, calls: int) -> Measure:
    engine, uids = cluster.engine, cluster.uids
    names = [node.name for node in cluster.nodes]
    directory = NodeDirectory(names)
    rng = random.Random(f"{SEED}-{dialect}")
    clock = time.process_time
    cold: list[tuple[float, float, float, float]] = []
    warm: list[float] = []
    shapes: set[tuple[object, ...]] = set()
    passing: list[int] = []
    calibrations = []
    for number in range(-5, 2 * calls):
        calibrations.append(_calibration())
        start = rng.randrange(len(names))
        pod = DIALECTS[dialect](f"{dialect}-{number}", rng)
        asked_names = names[start:] + names[:start]
        question = {"Pod": pod, "Nodes": None, "NodeNames": asked_names}
        body = json.dumps(question).encode()
        is_warm = number >= calls
        if not is_warm:
            engine.forget()
        begun = clock()
        arguments = arguments_of(orjson.loads(body))  # as the service parses
        request = decode_pod(arguments.pod)
        asked = directory.ask(arguments.node_names)
        read = clock()
        filtered = engine.filter(request, asked.nodes)
        judged = clock()
        directory.filter_result(asked, filtered)
        written = clock()
        directory.priorities(asked, filtered)
        times = (read - begun, judged - read, written - judged, clock() - written)
        if number >= 0:
            warm.append(sum(times[:3])) if is_warm else cold.append(times)
            shapes.add((request.cpu_milli, request.devices, request.cpuset, request.placement))
            passing.append(len(filtered.passing))
        if filtered.best is not None:
            engine.reserve(filtered.best)
            uids.append(request.uid)
        engine.release(uids.pop(rng.randrange(len(uids))))
    totals = sorted(sum(times[:3]) for times in cold)
    read, judge, write, prioritize = (
        1e3 * statistics.median(part) for part in zip(*cold, strict=True)
    )
    return Measure(
        nodes=len(names),
        dialect=dialect,
        shapes=len(shapes),
        passing=int(statistics.median(passing)),
        p50=1e3 * totals[len(totals) // 2],
        p99=1e3 * totals[len(totals) * 99 // 100],
        read=read,
        judge=judge,
        write=write,
        prioritize=prioritize,
        warm=1e3 * statistics.median(warm),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        calibration=statistics.median(calibrations),
    )


def _calibration() -> float:
    """Return the CPU milliseconds to parse 5,000 names, once and now."""
    begun = time.process_time()
    json.loads(NAMES)
    return 1e3 * (time.process_time() - begun)


# --- The plain search -------------------------------------------------------------------------


def _check(cluster: _Cluster, settings: SchedulingSettings, rng: random.Random) -> None:
    """Compare answers over some of the nodes with a search that looks at each by itself."""
    engine, count = cluster.engine, len(cluster.nodes)
    some = sorted(rng.sample(range(count), min(CHECKED_NODES, count)))
    for dialect, make in DIALECTS.items():
        for number in range(CHECKED):
            request = decode_pod(make(f"check-{dialect}-{number}", rng))
            engine.forget()
            filtered = engine.filter(request, some)
            rated = {
                node: _rating(cluster, request, node, settings.node_policy)
                for node in some
                if _takes(cluster, request, node, settings)
            }
            passing = {some[place] for place in filtered.passing.tolist()}
            assert set(rated) <= passing, (dialect, "a node that takes the Pod is failed")
            best = max(rated, key=lambda node: (rated[node], -node), default=None)
            found = None if filtered.best is None else filtered.best.node
            assert found == best, (dialect, request, found, best)


def _takes(cluster: _Cluster, request: PodRequest, node: int, settings: SchedulingSettings) -> bool:
    """Tell whether one node takes the Pod; no CPU is pinned yet, so that CPU sets fit."""
    view = cluster.engine.view(node)
    facts, running = view.facts, cluster.running[node]
    assert facts.cpu_milli is not None
    assert facts.memory_bytes is not None
    if any(facts.labels.get(key) != value for key, value in request.placement.node_selector):
        return False
    if request.cpu_milli > facts.cpu_milli - RUNNING_CPU * running:
        return False
    if request.memory_bytes > facts.memory_bytes - RUNNING_MEMORY * running:
        return False
    return isinstance(choose(request, view, settings), Choice)


def _rating(cluster: _Cluster, request: PodRequest, node: int, policy: str) -> int:
    """Return the mean used share after placement, in millionths, with plain integers."""
    view, running = cluster.engine.view(node), cluster.running[node]
    facts = view.facts
    assert facts.cpu_milli is not None
    assert facts.memory_bytes is not None
    shares = [
        _share(facts.cpu_milli, RUNNING_CPU * running + request.cpu_milli),
        _share(
            facts.memory_bytes >> 10,
            (RUNNING_MEMORY * running >> 10) + (request.memory_bytes >> 10),
        ),
    ]
    for demand in request.devices:
        shares += _device_shares(view, demand)
    mean = sum(shares) // len(shares)
    return mean if policy == "binpack" else MILLION - mean


def _device_shares(view: NodeView, demand: DeviceDemand) -> list[int]:
    cards = [card for card in view.cards if card.record.device_type == demand.device_type]
    shares = []
    if demand.core_percent:
        cap = sum(card.record.core_percent for card in cards)
        used = cap - sum(card.core_free for card in cards)
        shares.append(_share(cap, used + demand.count * demand.core_percent))
    if demand.memory_bytes or demand.memory_ratio_percent:
        cap = sum(card.record.memory_bytes for card in cards)
        free = sum(card.memory_free for card in cards) >> 10
        asked = demand.count * demand.memory_bytes_on(cap // len(cards))
        shares.append(_share(cap >> 10, (cap >> 10) - free + (asked >> 10)))
    return shares


def _share(cap: int, used: int) -> int:
    return min(max(used * MILLION // max(cap, 1), 0), MILLION)


# --- The report -------------------------------------------------------------------------------


def _report(sizes: Sequence[Sequence[Measure]], policy: str) -> None:
    print(f"policy {policy}; CPU milliseconds; p50 and p99 from question to answer, cold")
    head = ("nodes", "dialect", "shapes", "pass", "p50", "p99", "p99/p50", "scaled")
    tail = ("read", "judge", "write", "warm p50", "prioritize", "MiB")
    print("".join(f"{name:>12}" for name in (*head, *tail)))
    for measures in sizes:
        for each in measures:
            values = [f"{each.nodes}", each.dialect, f"{each.shapes}", f"{each.passing}"]
            scaled = each.p50 * QUIET_CALIBRATION / each.calibration
            times = (each.p50, each.p99, each.p99 / each.p50, scaled, each.read, each.judge)
            values += [f"{value:.2f}" for value in (*times, each.write, each.warm, each.prioritize)]
            print("".join(f"{value:>12}" for value in (*values, f"{each.peak_mib}")))
    median = statistics.median(each.calibration for measures in sizes for each in measures)
    print(f"calibration {median:.2f} ms, taken between the calls: a list of 5,000 names parsed")
    for few, many in [*pairwise(sizes), *([(sizes[0], sizes[-1])] if len(sizes) > 2 else [])]:
        growth = [
            f"{before.dialect} {math.log(after.p50 / before.p50) / _distance(before, after):.2f}"
            for before, after in zip(few, many, strict=True)
        ]
        print(f"growth {few[0].nodes} -> {many[0].nodes}, exponent: {', '.join(growth)}")


def _distance(before: Measure, after: Measure) -> float:
    return math.log(after.nodes / before.nodes)


if __name__ == "__main__":
    main()
