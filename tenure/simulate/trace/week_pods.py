"""The workload of the virtual week: who asks for what, in which dialect, for how long."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain import resources as names
from ledger.domain.dialects.gpushare import words as gpushare
from ledger.domain.dialects.mgpu import words as mgpu
from tenure.simulate.trace.shapes import POD_SHAPES, PodShape
from tenure.simulate.trace.week_cluster import RESEARCH_MODEL

HOUR: Final = 3600


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
