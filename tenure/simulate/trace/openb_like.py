"""A cluster and arrivals in the openb file format, drawn from the published shape statistics."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from tenure.simulate.trace.shapes import POD_SHAPES, PODS_PER_NODE, scaled_node_shapes

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
    _write(directory / "nodes.csv", NODE_COLUMNS, node_rows)
    _write(directory / "pods.csv", POD_COLUMNS, pod_rows)
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


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
