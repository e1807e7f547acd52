"""Builders of nodes and requests as the engine takes them, and strategies over both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from hypothesis import strategies as st

from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.requests import (
    ContainerNeed,
    CpuSetDemand,
    DeviceDemand,
    MatchExpression,
    PlacementRules,
    PodRequest,
    Toleration,
)
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.engine import Engine
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.score.rows import RatingRows
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import SchedulingSettings
from scheduler.decide.shapes import Shape

MIB: Final = 2**20
GIB: Final = 2**30


def gpu_node(
    name: str,
    gpus: int = 2,
    *,
    cpu_milli: int | None = 16_000,
    memory_bytes: int | None = 64 * GIB,
    pods_max: int | None = None,
    model: str = "T4",
    models: Sequence[str] = (),
    card_bytes: int = 16 * GIB,
    nics: int = 0,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    unschedulable: bool = False,
    dialects: frozenset[Dialect] | None = None,
    mgpu_policy: str = "",
    mgpu_invalid: bool = False,
    cpu_topology: CpuTopology | None = None,
    closed: frozenset[int] = frozenset(),
) -> NodeFacts:
    """Return a node with `gpus` cards and `nics` NICs; `closed` lists unhealthy GPUs."""
    cards = tuple(
        DeviceRecord(
            device_type="gpu",
            minor=minor,
            device_id=f"GPU-{name}-{minor}",
            model=models[minor] if models else model,
            memory_bytes=card_bytes,
            healthy=minor not in closed,
        )
        for minor in range(gpus)
    )
    ports = tuple(
        DeviceRecord(device_type="rdma", minor=minor, device_id=f"NIC-{name}-{minor}")
        for minor in range(nics)
    )
    return NodeFacts(
        uid=f"uid-{name}",
        name=name,
        labels=labels or {},
        taints=taints,
        unschedulable=unschedulable,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        pods_max=pods_max,
        devices=(*cards, *ports),
        dialects=dialects,
        mgpu_policy=mgpu_policy,
        mgpu_invalid=mgpu_invalid,
        cpu_topology=cpu_topology,
    )


def share(percent: int, count: int = 1, *, models: tuple[str, ...] = ()) -> DeviceDemand:
    """Return a demand for GPUs by share, core and memory alike; 100 wants the card alone."""
    return DeviceDemand(
        device_type="gpu",
        count=count,
        core_percent=percent,
        memory_ratio_percent=percent,
        exclusive=percent == 100,
        model_names=models,
    )


def gpu_bytes(size: int, count: int = 1, *, core: int = 0) -> DeviceDemand:
    """Return a demand for a part of GPUs in bytes of memory."""
    return DeviceDemand(device_type="gpu", count=count, core_percent=core, memory_bytes=size)


def nic(percent: int, count: int = 1) -> DeviceDemand:
    """Return a demand for NICs."""
    return DeviceDemand(
        device_type="rdma", count=count, core_percent=percent, exclusive=percent == 100
    )


def pod(
    uid: str,
    *demands: DeviceDemand,
    cpu_milli: int = 1000,
    memory_bytes: int = GIB,
    dialect: Dialect | None = Dialect.KOORDINATOR,
    placement: PlacementRules | None = None,
    cpuset: CpuSetDemand | None = None,
    mgpu_policy: str = "",
    mgpu_multi: bool = False,
) -> PodRequest:
    """Return a request; without a GPU demand it has no dialect."""
    has_gpu = any(demand.device_type == "gpu" for demand in demands)
    return PodRequest(
        uid=uid,
        namespace="default",
        name=uid,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        dialect=dialect if has_gpu else None,
        devices=demands,
        placement=placement or PlacementRules(),
        cpuset=cpuset,
        mgpu_policy=mgpu_policy,
        mgpu_multi=mgpu_multi,
    )


def running(
    uid: str,
    *shares: DeviceShare,
    cpu_milli: int = 1000,
    memory_bytes: int = GIB,
    cpuset: CpuSet | None = None,
    unknown_types: tuple[str, ...] = (),
) -> PodObserved:
    """Return what a running Pod holds."""
    return PodObserved(
        pod_uid=uid,
        attempt=1,
        namespace="default",
        pod_name=uid,
        node_uid="",
        node_name="",
        source="device-allocated",
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        shares=shares,
        cpuset=cpuset or CpuSet(),
        unknown_types=unknown_types,
    )


def held(minor: int, percent: int, *, card_bytes: int = 16 * GIB) -> DeviceShare:
    """Return a holding of one GPU."""
    return DeviceShare(
        device_type="gpu",
        minor=minor,
        device_id="",
        core_percent=percent,
        memory_bytes=percent * card_bytes // 100,
        memory_ratio_percent=percent,
        exclusive=percent == 100,
    )


def engine(
    *nodes: NodeFacts,
    policy: str = "binpack",
    typical: Sequence[PodRequest] = (),
    seed: int = 0,
    rank: Sequence[int] | None = None,
) -> Engine:
    """Return an engine with a node policy and otherwise the defaults."""
    settings = SchedulingSettings(node_policy=policy)
    return Engine(nodes, settings, workload=workload_of(typical), seed=seed, rank=rank)


def placed(cluster: Engine, request: PodRequest) -> Placement:
    """Decide and reserve a Pod that fits."""
    answer = cluster.decide(request)
    assert isinstance(answer, Placement), answer
    cluster.reserve(answer)
    return answer


def refused(cluster: Engine, request: PodRequest) -> Unplaced:
    """Decide a Pod that does not fit."""
    answer = cluster.decide(request)
    assert isinstance(answer, Unplaced), answer
    return answer


def selector(**labels: str) -> PlacementRules:
    """Return rules with a node selector."""
    return PlacementRules(node_selector=tuple(sorted(labels.items())))


def affinity(*terms: tuple[MatchExpression, ...]) -> PlacementRules:
    """Return rules with a required node affinity."""
    return PlacementRules(affinity_terms=terms)


def tolerating(*tolerations: Toleration) -> PlacementRules:
    """Return rules with tolerations."""
    return PlacementRules(tolerations=tolerations)


# --- Strategies -------------------------------------------------------------------------------

SMALL_MACHINE: Final = cpu_topology_of(
    Cpu(id=cpu, core=cpu // 2, socket=0, numa=cpu // 4) for cpu in range(8)
)
MODELS: Final = ("T4", "A10")
CARD_BYTES: Final = (16 * GIB, 15109 * MIB, 1000)

# A strategy is checked when it is first drawn from, which takes longer than the draw: what a
# composite draws from is therefore made once, here or behind a cache.
_FEW: Final = tuple(st.integers(0, most) for most in range(17))
_EITHER: Final = st.booleans()
_MODELS: Final = tuple(
    st.lists(st.sampled_from(MODELS), min_size=gpus, max_size=gpus) for gpus in range(5)
)
_PODS_MAX: Final = st.sampled_from((None, None, 1, 3))
_CARD_BYTES: Final = st.sampled_from(CARD_BYTES)
_LABELS: Final = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
_CLOSED: Final = st.frozensets(st.integers(0, 3), max_size=1)
_NODE_DIALECTS: Final = st.sampled_from((None, None, None, frozenset({Dialect.NVIDIA})))
_MGPU_POLICIES: Final = st.sampled_from(("", "native-burst-share"))
_TOPOLOGIES: Final = st.sampled_from((None, SMALL_MACHINE))
_DIALECTS: Final = st.sampled_from(list(Dialect))
_GPUSHARE_BYTES: Final = st.sampled_from((1, GIB, 9 * GIB))
_WHOLE_CARDS: Final = st.integers(1, 2)
_PINNED: Final = st.one_of(st.none(), st.integers(1, 6))
_ONE_GIB: Final = st.sampled_from((0, GIB))
_SOME_GIB: Final = st.sampled_from((0, GIB, 3 * GIB))
_BIND_POLICIES: Final = st.sampled_from(("FullPCPUs", "SpreadByPCPUs"))
_PLACEMENTS: Final = st.sampled_from(
    (PlacementRules(), PlacementRules(), selector(a="x"), selector(b="y"))
)


@cache
@st.composite
def nodes(draw: st.DrawFn, name: str = "n") -> NodeFacts:
    """Draw a node: some without cards, without limits, closed cards, several models, NICs."""
    gpus = draw(_FEW[4])
    limited = draw(_EITHER) or draw(_EITHER)
    return gpu_node(
        name,
        gpus,
        cpu_milli=draw(_FEW[8]) * 1000 if limited else None,
        memory_bytes=draw(_FEW[16]) * GIB if limited else None,
        pods_max=draw(_PODS_MAX),
        models=draw(_MODELS[gpus]),
        card_bytes=draw(_CARD_BYTES),
        nics=draw(_FEW[2]),
        labels=draw(_LABELS),
        unschedulable=draw(_FEW[9]) == 0,
        closed=draw(_CLOSED),
        dialects=draw(_NODE_DIALECTS),
        mgpu_policy=draw(_MGPU_POLICIES),
        cpu_topology=draw(_TOPOLOGIES),
    )


@st.composite
def fleets(draw: st.DrawFn, most: int = 6) -> tuple[NodeFacts, ...]:
    """Draw a small cluster."""
    count = draw(st.integers(1, most))
    return tuple(draw(nodes(f"n{number}")) for number in range(count))


@cache
def demands() -> st.SearchStrategy[tuple[DeviceDemand, ...]]:
    """Draw what a Pod asks of devices: mostly shares of GPUs, at times bytes, NICs or several."""
    percents = st.sampled_from((5, 10, 33, 47, 50, 81, 100))
    models = st.sampled_from(((), (), (), ("T4",), ("A10", "T4")))
    shares = st.builds(
        lambda percent, count, allowed: share(percent, count, models=allowed),
        percents,
        st.sampled_from((1, 1, 1, 2, 4)),
        models,
    )
    in_bytes = st.builds(
        lambda size, count, core: gpu_bytes(size, count, core=core),
        st.sampled_from((100, 1000, GIB, 7 * GIB, 16 * GIB)),
        st.sampled_from((1, 1, 2)),
        st.sampled_from((0, 30)),
    )
    nics = st.builds(nic, st.sampled_from((10, 50, 100)), st.sampled_from((1, 2)))
    return st.one_of(
        st.just(()),
        st.tuples(shares),
        st.tuples(shares),
        st.tuples(in_bytes),
        st.tuples(nics),
        st.tuples(shares, nics),
    )


@cache
def _mgpu_demands() -> st.SearchStrategy[tuple[DeviceDemand, ...]]:
    """Draw one demand per container: parts of a card, parts of several, or whole cards."""
    parts = st.builds(
        lambda core, size, count: gpu_bytes(size, count, core=core),
        st.sampled_from((1, 30, 60)),
        st.sampled_from((256 * MIB, 3 * GIB, 9 * GIB)),
        st.sampled_from((1, 1, 1, 2)),
    )
    whole = st.builds(lambda count: share(100, count), st.sampled_from((1, 2)))
    each = st.one_of(parts, parts, whole)
    return st.lists(each, min_size=1, max_size=3).map(
        lambda demands: tuple(
            replace(demand, containers=(str(place),)) for place, demand in enumerate(demands)
        )
    )


@cache
@st.composite
def requests_of_any_dialect(draw: st.DrawFn, uid: str = "p") -> PodRequest:
    """Draw a request that may speak mGPU or GPU share, or want CPUs of its own."""
    dialect: Dialect = draw(_DIALECTS)
    match dialect:
        case Dialect.MGPU | Dialect.HAMI:
            devices = draw(_mgpu_demands())
        case Dialect.GPUSHARE:
            devices = (gpu_bytes(draw(_GPUSHARE_BYTES)),)
        case Dialect.NVIDIA:
            devices = (share(100, draw(_WHOLE_CARDS)),)
        case Dialect.KOORDINATOR:
            devices = draw(demands())
    pinned = draw(_PINNED)
    request = pod(
        uid,
        *devices,
        cpu_milli=1000 * (pinned or draw(_FEW[2])),
        memory_bytes=draw(_ONE_GIB),
        dialect=dialect,
        mgpu_policy=draw(_MGPU_POLICIES),
        mgpu_multi=any(demand.count > 1 and not demand.exclusive for demand in devices),
        cpuset=None
        if pinned is None
        else CpuSetDemand(
            cpus=pinned,
            bind_policy=draw(_BIND_POLICIES),
            required=draw(_EITHER),
            exclusive_policy="None",
        ),
    )
    needs = tuple(
        ContainerNeed(
            name=f"c{place}", index=str(place), kind="app", device_counts=(("gpu", demand.count),)
        )
        for place, demand in enumerate(devices)
        if dialect in {Dialect.MGPU, Dialect.HAMI}
    )
    return replace(request, containers=needs)


@cache
@st.composite
def requests(draw: st.DrawFn, uid: str = "p") -> PodRequest:
    """Draw a request in the Koordinator dialect."""
    placement = draw(_PLACEMENTS)
    return pod(
        uid,
        *draw(demands()),
        cpu_milli=draw(_FEW[6]) * 500,
        memory_bytes=draw(_SOME_GIB),
        placement=placement,
    )


def rated_anew(rows: RatingRows, shape: Shape) -> IntArray:
    """Return the ratings of all nodes, from nothing remembered."""
    return rows._rate(rows._blank(shape), rows.arrays.everything)
