"""
A virtual week of a GPU cluster: objects, arrivals with lifetimes, a dying card.

Layout of the directory, all deterministic in (nodes, pods, seed):
    trace.json      what this is and how it was made
    cluster.json    `kind: List` of Node, Device and NodeResourceTopology objects
    pods.jsonl      one Pod manifest a line, in arrival order
    schedule.csv    at_seconds,event,object,value: when what happens (docs/schedules.md)
"""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ledger.domain import resources as names
from ledger.domain.dialects.gpushare import words as gpushare
from ledger.domain.dialects.mgpu import words as mgpu
from tenure.simulate.schedule import COLUMNS
from tenure.simulate.trace.shapes import (
    CARD_MEMORY_MIB,
    POD_SHAPES,
    NodeShape,
    PodShape,
    scaled_node_shapes,
    write_csv,
)

FORMAT: Final = "tenure-week/v1"
WEEK_START: Final = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday, midnight UTC."""

WEEK_SECONDS: Final = 7 * 86_400
HOUR: Final = 3600
MGPU_EVERY: Final = 12
"""One node in so many is an mGPU node (label `vke.node.gpu.schedule`)."""

RESEARCH_TAINT: Final = {"key": "pool", "value": "research", "effect": "NoSchedule"}
RESEARCH_MODEL: Final = "V100M32"
NUMA_NODES: Final = 2
THREADS_PER_CORE: Final = 2


def write_week(directory: Path, *, nodes: int, pods: int, seed: int) -> dict[str, int]:
    """Write the four files; return how many nodes, cards, Pods and faults they hold."""
    rng = random.Random(seed)
    objects = list(cluster_objects(rng, nodes))
    cards = [
        (item["metadata"]["name"], device["minor"])
        for item in objects
        if item["kind"] == "Device"
        for device in item["spec"]["devices"]
        if device["type"] == "gpu"
    ]
    arrivals = sorted(_arrival_seconds(rng) for _ in range(pods))
    drafts = [_draw(rng) for _ in arrivals]
    rows: list[tuple[int, str, str, str]] = []
    manifests = []
    for index, (at, (team, draft)) in enumerate(zip(arrivals, drafts, strict=True)):
        manifest = _manifest(index, at, team, draft)
        manifests.append(manifest)
        path = f"{team.namespace}/{manifest['metadata']['name']}"
        rows.append((at, "arrive", path, str(draft.lifetime_seconds)))
    faults = _faults(rng, cards)
    _write_json(directory / "cluster.json", {"apiVersion": "v1", "kind": "List", "items": objects})
    _write_lines(directory / "pods.jsonl", manifests)
    write_csv(directory / "schedule.csv", COLUMNS, sorted(rows + faults))
    summary = {"nodes": nodes, "cards": len(cards), "pods": pods, "faults": len(faults)}
    _write_json(
        directory / "trace.json",
        {"format": FORMAT, "seed": seed, "start": WEEK_START.isoformat(), **summary},
    )
    return summary


def _arrival_seconds(rng: random.Random) -> int:
    """Draw an arrival: busy in the day (peak at 15:00), quiet at night and at the weekend."""
    for _ in range(1000):
        at = rng.randrange(WEEK_SECONDS)
        hour = at % 86_400 / 3600
        weekend = at >= 5 * 86_400
        level = (0.55 + 0.45 * math.cos((hour - 15) / 24 * 2 * math.pi)) * (0.5 if weekend else 1)
        if rng.random() < level:
            return at
    raise AssertionError("a thousand draws never fell into the day")


def _draw(rng: random.Random) -> tuple[Team, Draft]:
    team = rng.choices(TEAMS, weights=[team.weight for team in TEAMS])[0]
    kinds = [kind for _, kind in team.kinds]
    kind = rng.choices(kinds, weights=[weight for weight, _ in team.kinds])[0]
    return team, kind(rng)


def _manifest(index: int, at: int, team: Team, draft: Draft) -> Mapping[str, Any]:
    kind = draft.owner_kind
    owner = f"{team.namespace}-{kind.lower()}-{index // 7:04d}"
    name = f"{owner}-{index:05d}"
    created = (WEEK_START + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": team.namespace,
            "name": name,
            "uid": stable_uuid("pod", f"{team.namespace}/{name}"),
            "creationTimestamp": created,
            "labels": {"team": team.namespace, **draft.labels},
            "annotations": dict(draft.annotations),
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
                    "kind": kind,
                    "name": owner,
                    "uid": stable_uuid(kind, owner),
                    "controller": True,
                }
            ],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/work:1",
                    "resources": {
                        "requests": dict(draft.requests),
                        "limits": dict(draft.requests),
                    },
                }
            ],
            **draft.spec,
        },
    }


def _faults(rng: random.Random, cards: list[tuple[str, int]]) -> list[tuple[int, str, str, str]]:
    """Return one card that dies on Wednesday, and a few that fail and come back."""
    count = max(2, len(cards) // 250)
    chosen = rng.sample(cards, min(count, len(cards)))
    node, minor = chosen[0]
    rows = [(2 * 86_400 + 10 * 3600, "fail", f"{node}/gpu/{minor}", "Xid79")]
    for node, minor in chosen[1:]:
        at = rng.randrange(86_400, 5 * 86_400)
        rows.append((at, "fail", f"{node}/gpu/{minor}", "Xid94"))
        back = at + rng.randrange(3600, 86_400)
        rows.append((back, "recover", f"{node}/gpu/{minor}", "replaced"))
    return rows


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _write_lines(path: Path, values: list[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A Pod before it has a name: its spec parts and how long it will run once placed."""

    owner_kind: str
    requests: Mapping[str, str]
    lifetime_seconds: int
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """One namespace, its share of the arrivals, and the kinds of work it submits."""

    namespace: str
    weight: int
    kinds: tuple[tuple[int, Callable[[random.Random], Draft]], ...]


def _draft(
    owner_kind: str,
    requests: Mapping[str, str],
    lifetime_seconds: float,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Draft:
    return Draft(
        owner_kind=owner_kind,
        requests=requests,
        lifetime_seconds=max(60, int(lifetime_seconds)),
        annotations=annotations or {},
        labels=labels or {},
        spec=spec or {},
    )


def _shape(rng: random.Random, accept: Callable[[PodShape], bool]) -> PodShape:
    shapes = [shape for shape in POD_SHAPES if accept(shape)]
    return rng.choices(shapes, weights=[shape.count for shape in shapes])[0]


def _host(shape: PodShape) -> dict[str, str]:
    return {names.CPU: f"{shape.cpu_milli}m", names.MEMORY: f"{shape.memory_mib}Mi"}


def training(rng: random.Random) -> Draft:
    """Whole cards in NVIDIA's dialect, one card each; hours to days."""
    shape = _shape(rng, lambda s: s.gpus == 1 and s.gpu_milli == 1000)
    return _draft(
        "Job", _host(shape) | {names.NVIDIA_GPU: "1"}, rng.lognormvariate(2.3, 1.1) * HOUR
    )


def big_training(rng: random.Random) -> Draft:
    """Two, four or eight whole cards; eight ask for a NIC as well."""
    shape = _shape(rng, lambda s: s.gpus > 1)
    requests = _host(shape) | {names.NVIDIA_GPU: str(shape.gpus)}
    if shape.gpus == 8 and rng.random() < 0.5:
        requests[names.RDMA] = "100"
    return _draft("Job", requests, rng.lognormvariate(2.3, 0.9) * HOUR)


def notebook(rng: random.Random) -> Draft:
    """A fraction of a card in Koordinator's dialect; a working day."""
    shape = _shape(rng, lambda s: 0 < s.gpu_milli < 1000)
    percent = str(shape.gpu_milli // 10)
    requests = _host(shape) | {names.GPU_CORE: percent, names.GPU_MEMORY_RATIO: percent}
    return _draft("StatefulSet", requests, rng.lognormvariate(2.0, 0.8) * HOUR)


def legacy_notebook(rng: random.Random) -> Draft:
    """The same in the proposal's domain, `kubernetes.io/gpu`."""
    shape = _shape(rng, lambda s: 0 < s.gpu_milli < 1000)
    requests = _host(shape) | {names.GPU_PROPOSAL: str(shape.gpu_milli // 10)}
    return _draft("StatefulSet", requests, rng.lognormvariate(2.0, 0.8) * HOUR)


def inference(rng: random.Random) -> Draft:
    """Card memory alone in GPU share's dialect; services that stay."""
    mib = rng.choice((2048, 4096, 6144, 8138, 12207))
    requests = {names.CPU: "4", names.MEMORY: "16Gi", gpushare.GPUSHARE_MEMORY: str(mib)}
    return _draft("Deployment", requests, rng.lognormvariate(3.0, 0.8) * HOUR)


def burst_inference(rng: random.Random) -> Draft:
    """mGPU: core and memory of a card, sometimes over two cards at once."""
    core = rng.choice((10, 20, 30, 50))
    requests = {
        names.CPU: "4",
        names.MEMORY: "16Gi",
        mgpu.MGPU_CORE: str(core),
        mgpu.MGPU_MEMORY: str(core * 100),
    }
    annotations = {mgpu.ANNOTATION_MGPU_COMPUTE_POLICY: "native-burst-share"}
    if rng.random() < 0.3:
        annotations[mgpu.ANNOTATION_MGPU_CONTAINER_MULTIPLE] = "2"
    lifetime = rng.lognormvariate(2.5, 0.8) * HOUR
    return _draft("Deployment", requests, lifetime, annotations=annotations)


def latency_service(rng: random.Random) -> Draft:
    """CPUs of its own (LSR) beside a fraction of a card."""
    requests = {
        names.CPU: rng.choice(("4", "8")),
        names.MEMORY: "16Gi",
        names.GPU_CORE: "25",
        names.GPU_MEMORY_RATIO: "25",
    }
    labels = {names.LABEL_QOS_CLASS: "LSR", names.LABEL_PRIORITY_CLASS: "koord-prod"}
    return _draft("Deployment", requests, rng.lognormvariate(3.2, 0.6) * HOUR, labels=labels)


def cpu_only(rng: random.Random) -> Draft:
    """No device at all."""
    shape = _shape(rng, lambda s: s.gpus == 0)
    return _draft("Job", _host(shape), rng.lognormvariate(0.5, 1.2) * HOUR)


def research(rng: random.Random) -> Draft:
    """Whole cards in the tainted research pool, chosen by model."""
    requests = {names.CPU: "8", names.MEMORY: "64Gi", names.NVIDIA_GPU: rng.choice(("1", "2", "4"))}
    spec = {
        "nodeSelector": {names.LABEL_GPU_MODEL: RESEARCH_MODEL},
        "tolerations": [{"key": "pool", "operator": "Equal", "value": "research"}],
    }
    return _draft("Job", requests, rng.lognormvariate(2.6, 0.7) * HOUR, spec=spec)


def mistake(rng: random.Random) -> Draft:
    """A request that this cluster can never serve, one of the kinds that users really send."""
    return rng.choice(
        (
            _draft("Job", {names.CPU: "64", names.MEMORY: "512Gi", names.NVIDIA_GPU: "16"}, HOUR),
            _draft(
                "Job",
                {names.CPU: "8", names.MEMORY: "64Gi", names.NVIDIA_GPU: "1"},
                HOUR,
                spec={"nodeSelector": {names.LABEL_GPU_MODEL: "H100"}},
            ),
            _draft(
                "Job",
                {names.CPU: "4", names.MEMORY: "8Gi", gpushare.GPUSHARE_MEMORY: "81920"},
                HOUR,
            ),
            _draft(
                "Job",
                {names.CPU: "8", names.MEMORY: "32Gi", names.NVIDIA_GPU: "1"},
                HOUR,
                spec={"nodeSelector": {names.LABEL_GPU_MODEL: RESEARCH_MODEL}},
            ),
            _draft(
                "Job",
                {
                    names.CPU: "4",
                    names.MEMORY: "8Gi",
                    names.NVIDIA_GPU: "1",
                    gpushare.GPUSHARE_MEMORY: "4096",
                },
                HOUR,
            ),
            _draft("Job", {names.CPU: "4", names.MEMORY: "8Gi", mgpu.MGPU_CORE: "150"}, HOUR),
            _draft(
                "Deployment",
                {names.CPU: "2500m", names.MEMORY: "8Gi"},
                HOUR,
                labels={names.LABEL_QOS_CLASS: "LSR", names.LABEL_PRIORITY_CLASS: "koord-prod"},
            ),
        )
    )


TEAMS: Final = (
    Team(namespace="ml-research", weight=22, kinds=((16, training), (2, research), (2, mistake))),
    Team(namespace="vision", weight=20, kinds=((10, training), (2, big_training), (4, notebook))),
    Team(namespace="search-ranking", weight=16, kinds=((6, inference), (4, latency_service))),
    Team(namespace="speech", weight=14, kinds=((5, training), (1, big_training), (5, notebook))),
    Team(namespace="recommend", weight=12, kinds=((6, burst_inference), (4, inference))),
    Team(namespace="data-platform", weight=10, kinds=((9, cpu_only), (1, mistake))),
    Team(namespace="classroom", weight=6, kinds=((7, notebook), (5, legacy_notebook))),
)
"""Seven namespaces and what they run; weights are parts of the arrivals."""


def cluster_objects(rng: random.Random, nodes: int) -> Iterator[Mapping[str, Any]]:
    """Yield Node, Device and NodeResourceTopology objects for `nodes` nodes, node by node."""
    shapes = scaled_node_shapes(nodes)
    rng.shuffle(shapes)
    for index, shape in enumerate(shapes):
        name = f"gpu-{index:04d}"
        yield _node(name, index, shape)
        yield _device(name, shape)
        if shape.gpus == 8:
            yield _topology(name, shape)


def stable_uuid(kind: str, name: str) -> str:
    """Return a UUID that is the same in every run."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tenure:week/{kind}/{name}"))


def card_id(node: str, minor: int) -> str:
    """Return the UUID of one card, as NVML writes it."""
    return f"GPU-{stable_uuid('gpu', f'{node}/{minor}')}"


def _node(name: str, index: int, shape: NodeShape) -> Mapping[str, Any]:
    labels = {names.LABEL_HOSTNAME: name, names.LABEL_GPU_MODEL: shape.model}
    if index % MGPU_EVERY == 0:
        labels |= {
            mgpu.LABEL_MGPU_NODE: "mgpu",
            mgpu.LABEL_MGPU_COMPUTE_POLICY: "native-burst-share",
        }
    taints = [RESEARCH_TAINT] if shape.model == RESEARCH_MODEL else []
    size = {
        names.CPU: str(shape.cpu_cores),
        names.MEMORY: f"{shape.memory_gib}Gi",
        names.PODS: "110",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": stable_uuid("node", name), "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "allocatable": size,
            "nodeInfo": {"machineID": stable_uuid("machine", name).replace("-", "")},
        },
    }


def _device(name: str, shape: NodeShape) -> Mapping[str, Any]:
    cards = [_card(name, shape, minor) for minor in range(shape.gpus)]
    nics = [_nic(name, minor) for minor in range(2 if shape.gpus == 8 else 0)]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name, "labels": {names.LABEL_GPU_MODEL: shape.model}},
        "spec": {"devices": cards + nics},
    }


def _card(name: str, shape: NodeShape, minor: int) -> Mapping[str, Any]:
    numa = minor * NUMA_NODES // shape.gpus
    return {
        "type": names.TYPE_GPU,
        "id": card_id(name, minor),
        "minor": minor,
        "health": True,
        "resources": {
            names.GPU_CORE: "100",
            names.GPU_MEMORY: f"{CARD_MEMORY_MIB[shape.model]}Mi",
            names.GPU_MEMORY_RATIO: "100",
        },
        "topology": {
            "socketID": numa,
            "nodeID": numa,
            "pcieID": f"pci{minor // 2:04x}:{numa:02x}",
            "busID": f"0000:{minor + 0x1A:02x}:00.0",
        },
    }


def _nic(name: str, minor: int) -> Mapping[str, Any]:
    bus = f"0000:{minor + 0x5E:02x}:00.0"
    return {
        "type": names.TYPE_RDMA,
        "id": bus,
        "minor": minor,
        "health": True,
        "labels": {"host": name},
        "resources": {names.RDMA: "100"},
        "topology": {"socketID": minor, "nodeID": minor, "pcieID": f"pci5e:{minor}", "busID": bus},
    }


def _topology(name: str, shape: NodeShape) -> Mapping[str, Any]:
    cores = shape.cpu_cores // THREADS_PER_CORE
    detail = [
        {
            "id": cpu,
            "core": cpu % cores,
            "socket": (cpu % cores) * NUMA_NODES // cores,
            "node": (cpu % cores) * NUMA_NODES // cores,
        }
        for cpu in range(shape.cpu_cores)
    ]
    text = json.dumps({"detail": detail}, separators=(",", ":"))
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": {names.ANNOTATION_CPU_TOPOLOGY: text}},
        "topologyPolicies": [],
        "zones": [],
    }
