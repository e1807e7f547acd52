"""
Shape statistics of a production GPU-sharing cluster, as published with the FGD paper.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, cluster "openb": counts of node
shapes and of request shapes. Only frequencies are kept here, no row of the trace. A
cluster and arrivals are drawn from them in the trace's file format.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
TRACE_SECONDS = 12_902_960  # 149 days, the published trace's length


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """`count` nodes of one kind in the published cluster of 1,213 GPU nodes."""

    model: str
    count: int
    cpu_cores: int
    memory_gib: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """`count` Pods of one kind in the published workload; `gpu_milli` is per GPU."""

    count: int
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int


CARD_MEMORY_MIB: Final = {
    "P100": 16280,
    "T4": 15109,
    "V100M16": 16160,
    "V100M32": 32510,
    "A10": 22731,
    "G2": 20000,
    "G3": 30000,
}
"""Memory of one card by model; G2 and G3 are undisclosed codes with nominal sizes."""

_NODES: Final = (
    ("G2", 549, 96, 384, 8),
    ("T4", 387, 104, 512, 2),
    ("T4", 17, 96, 384, 4),
    ("G3", 39, 128, 768, 8),
    ("P100", 107, 16, 120, 2),
    ("P100", 22, 64, 256, 2),
    ("P100", 3, 8, 60, 1),
    ("P100", 2, 8, 60, 2),
    ("V100M32", 21, 96, 768, 8),
    ("V100M32", 9, 48, 368, 4),
    ("V100M16", 28, 32, 128, 4),
    ("V100M16", 19, 8, 32, 1),
    ("V100M16", 7, 64, 256, 8),
    ("V100M16", 1, 82, 336, 8),
    ("A10", 2, 128, 1024, 1),
)

# The shapes that cover 95 % of the Pods, then the multi-GPU ones. Memory is the shape's median.
_PODS: Final = (
    (1047, 3152, 5600, 1, 810),
    (874, 11300, 49152, 1, 1000),
    (599, 11400, 48128, 1, 1000),
    (470, 3152, 5600, 1, 1000),
    (388, 11908, 47104, 1, 470),
    (366, 12500, 57344, 0, 0),
    (360, 8000, 30517, 1, 470),
    (326, 12000, 24576, 1, 1000),
    (290, 32000, 49152, 0, 0),
    (255, 18708, 64512, 1, 1000),
    (237, 11908, 47104, 1, 650),
    (232, 4000, 22888, 1, 320),
    (195, 9810, 41560, 1, 1000),
    (185, 8000, 30517, 0, 0),
    (164, 8000, 16384, 1, 1000),
    (159, 4000, 24576, 1, 1000),
    (158, 15700, 58368, 1, 1000),
    (153, 11908, 47104, 1, 1000),
    (150, 16000, 32768, 1, 1000),
    (122, 4000, 30517, 1, 230),
    (120, 6000, 10240, 1, 460),
    (120, 15400, 51200, 0, 0),
    (95, 16500, 51200, 0, 0),
    (93, 14200, 58368, 1, 1000),
    (84, 24200, 93184, 1, 1000),
    (75, 3152, 5600, 1, 590),
    (72, 8000, 30517, 1, 320),
    (72, 4152, 10600, 1, 550),
    (55, 11900, 77824, 1, 1000),
    (54, 4000, 15258, 1, 160),
    (45, 4152, 10600, 1, 370),
    (43, 4000, 15258, 1, 220),
    (41, 8200, 33792, 1, 1000),
    (36, 15200, 80896, 1, 1000),
    (31, 4152, 10600, 1, 810),
    (18, 88000, 327680, 8, 1000),
    (18, 64200, 263168, 8, 1000),
    (9, 32200, 132096, 4, 1000),
    (7, 16200, 66560, 2, 1000),
    (6, 64000, 262144, 8, 1000),
    (6, 32000, 131072, 4, 1000),
    (6, 30200, 160768, 2, 1000),
    (3, 6000, 65536, 2, 1000),
)

NODE_SHAPES: Final = tuple(
    NodeShape(model=model, count=count, cpu_cores=cores, memory_gib=gib, gpus=gpus)
    for model, count, cores, gib, gpus in _NODES
)
POD_SHAPES: Final = tuple(
    PodShape(count=count, cpu_milli=cpu, memory_mib=mib, gpus=gpus, gpu_milli=milli)
    for count, cpu, mib, gpus, milli in _PODS
)
PODS_PER_NODE: Final = 8152 / 1213
"""Arrivals per GPU node in the published workload (98 % of the GPUs asked for)."""


def scaled_node_shapes(nodes: int) -> list[NodeShape]:
    """
    Return `nodes` node shapes in the published proportions, by largest remainder.

    Order: as in the table, so that equal sizes give equal clusters; the caller shuffles.
    """
    total = sum(shape.count for shape in NODE_SHAPES)
    exact = [shape.count * nodes / total for shape in NODE_SHAPES]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_remainder[: nodes - sum(counts)]:
        counts[index] += 1
    return [shape for shape, count in zip(NODE_SHAPES, counts, strict=True) for _ in range(count)]


def write_openb_like(directory: Path, *, nodes: int, seed: int) -> dict[str, int]:
    """
    Write `nodes.csv` and `pods.csv` in the openb format; return how many of each.

    Args:
        nodes: GPU nodes; Pods follow in the published ratio of about 6.7 a node.
        seed: the same seed and size give the same bytes.
    """
    rng = random.Random(seed)
    shapes = scaled_node_shapes(nodes)
    rng.shuffle(shapes)
    node_rows = [
        (f"openb-node-{i:04d}", s.cpu_cores * 1000, s.memory_gib * 1024, s.gpus, s.model)
        for i, s in enumerate(shapes)
    ]
    pod_rows = [_pod_row(rng, i) for i in range(round(nodes * PODS_PER_NODE))]
    write_csv(directory / "nodes.csv", NODE_COLUMNS, node_rows)
    write_csv(directory / "pods.csv", POD_COLUMNS, pod_rows)
    return {"nodes": len(node_rows), "pods": len(pod_rows)}


def _pod_row(rng: random.Random, index: int) -> tuple[object, ...]:
    shape = rng.choices(POD_SHAPES, weights=[shape.count for shape in POD_SHAPES])[0]
    created = rng.randrange(TRACE_SECONDS)
    scheduled = created + min(14_330, int(rng.lognormvariate(0.7, 2.0)))
    # Median 540 s with a long tail: the published lifetimes' 99th percentile is about 32 hours.
    deleted = scheduled + max(30, int(rng.lognormvariate(6.3, 2.3)))
    qos = "LS" if rng.random() < 0.57 else "BE"
    return (
        f"openb-pod-{index:04d}",
        shape.cpu_milli,
        shape.memory_mib,
        shape.gpus,
        shape.gpu_milli,
        "",
        qos,
        "Succeeded",
        created,
        min(deleted, TRACE_SECONDS),
        scheduled,
    )


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows with their header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
