from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

import pytest

from ledger.domain.annotations.cpu import CpuSharedPool
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import KubeletPolicy, NodeFacts
from ledger.domain.request.requests import ContainerCpus, CpuSetDemand, PodRequest, PodSnapshot
from ledger.domain.resources import ANNOTATION_RESOURCE_STATUS
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cpusets.choose import NOT_WHOLE_CORES, choose_cpus, demand_on, parts_of
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.engine import Engine
from scheduler.decide.numa.align import burst_pools
from scheduler.decide.outcome import Placement, Unfit, Unplaced
from scheduler.decide.settings import DEFAULT_SCHEDULING, CpuSettings, SchedulingSettings
from tests.support.topologies import MACHINE_X

FULL, SPREAD = "FullPCPUs", "SpreadByPCPUs"
FOUR_NODES = cpu_topology_of(
    Cpu(id=thread * 16 + core, core=core, socket=core // 8, numa=core // 4)
    for thread in range(2)
    for core in range(16)
)


def node(
    *,
    machine: CpuTopology = MACHINE_X,
    policy: str = "",
    strategy: str = "",
    labels: Mapping[str, str] | None = None,
    reserved: str = "",
    unpooled: str = "",
) -> NodeFacts:
    """Return a node with this machine."""
    return NodeFacts(
        uid="n",
        name="n",
        cpu_topology=machine,
        cpu_bind_policy=policy,
        numa_strategy=strategy,
        labels=labels or {},
        reserved_cpus=parse_cpuset(reserved),
        unpooled_cpus=parse_cpuset(unpooled),
    )


def demand(
    cpus: int, policy: str = FULL, *, required: bool = False, exclusive: str = "None"
) -> CpuSetDemand:
    """Return a demand for CPUs."""
    return CpuSetDemand(
        cpus=cpus, bind_policy=policy, required=required, exclusive_policy=exclusive
    )


def pod(
    cpu_milli: int,
    *,
    cpuset: CpuSetDemand | None = None,
    burst: int = 0,
    containers: Sequence[int] = (),
    kind: str = "app",
) -> PodRequest:
    """Return a Pod without devices; Guaranteed with `containers` of whole CPUs."""
    return PodRequest(
        uid="p",
        namespace="ml",
        name="p",
        cpu_milli=cpu_milli,
        memory_bytes=0,
        cpuset=cpuset,
        burst_milli=burst,
        bound_cpus=sum(containers),
        kubelet_cpus=tuple(ContainerCpus(kind=kind, cpus=cpus) for cpus in containers),
    )


def picked(
    asked: CpuSetDemand, facts: NodeFacts, *holdings: CpuHolding, settings: CpuSettings
) -> str:
    """Return the CPUs picked, or the reason of the refusal."""
    answer = choose_cpus(asked, facts, pinned_of(facts, holdings), settings)
    return str(answer) if isinstance(answer, CpuSet) else answer.reason


# A node's bind policy gives every Pod CPUs of its own


@pytest.mark.parametrize(
    ("policy", "cpu_milli", "cpus"),
    [("FullPCPUs", 4000, "0-1,12-13"), ("SpreadByPCPUs", 4000, "0-3"), ("", 4000, "")],
)
def test_a_guaranteed_pod_gets_cpus_where_the_node_binds(
    policy: str, cpu_milli: int, cpus: str
) -> None:
    """CPU proposal, "CPU bind policy": a node's is equivalent to kubelet's option."""
    engine = Engine([node(policy=policy)], SchedulingSettings())

    placed = engine.decide(pod(cpu_milli, containers=[cpu_milli // 1000]))

    assert isinstance(placed, Placement)
    assert str(placed.cpuset) == cpus


def test_smt_alignment_is_checked_before_kubelet_does() -> None:
    """CPU proposal: else kubelet rejects the Pod after it was scheduled."""
    engine = Engine([node(policy=FULL)], SchedulingSettings())

    refused = engine.decide(pod(3000, containers=[3]))

    assert isinstance(refused, Unplaced)
    assert "not multiple cpus per core" in refused.message


@pytest.mark.parametrize("policy", [FULL, SPREAD])
@pytest.mark.parametrize("cpu_milli", [0, 500, 2000, 3000])
def test_other_pods_stay_in_the_shared_pool_of_a_binding_node(cpu_milli: int, policy: str) -> None:
    """CPU proposal, basic principle 2.1: whatever has no whole CPUs that are Guaranteed."""
    engine = Engine([node(policy=policy)], SchedulingSettings())

    placed = engine.decide(pod(cpu_milli))

    assert isinstance(placed, Placement)
    assert not placed.cpuset


@pytest.mark.parametrize(
    ("containers", "kind", "kept", "reason"),
    [
        pytest.param([2, 4], "app", "", "", id="whole cores each"),
        pytest.param([1, 1], "app", "", NOT_WHOLE_CORES, id="halves of a core, that add up"),
        pytest.param([3], "init", "", NOT_WHOLE_CORES, id="an init container"),
        pytest.param([22], "app", "0", "", id="beside a reserved CPU"),
        pytest.param([24], "app", "0", "not enough cpus", id="the core of a reserved CPU"),
        pytest.param([12, 14], "init", "", "not enough cpus", id="kubelet counts init's CPUs"),
    ],
)
def test_kubelets_whole_cores_are_asked_of_each_container(
    containers: list[int], kind: str, kept: str, reason: str
) -> None:
    """Kubelet's SMT alignment, also where the Pod itself stays in the shared pool."""
    reserved = parse_cpuset(kept)
    policy = KubeletPolicy(whole_cores=True, kept=reserved, reserved=reserved)
    engine = Engine([replace(node(), kubelet=policy)], SchedulingSettings())

    answer = engine.decide(replace(pod(1000, containers=containers, kind=kind), bound_cpus=0))

    if reason:
        assert isinstance(answer, Unplaced)
        assert reason in answer.message
    else:
        assert isinstance(answer, Placement)


def test_a_node_without_a_bind_policy_gives_guaranteed_pods_none() -> None:
    """CPU proposal, QoS principle 8: without a QoS label they are as LS."""
    assert demand_on(pod(2000, containers=[2]), node()) is None


BINDS = {"tenure.sh/cpu-managed": "true"}


@pytest.mark.parametrize(
    ("request_of", "policy", "labels", "closed"),
    [
        pytest.param("lsr", "", {}, True, id="LSR"),
        pytest.param("lsr", "", {"tenure.sh/cpu-managed": "false"}, True, id="the label says no"),
        pytest.param("lsr", "", BINDS, False, id="an agent binds them"),
        pytest.param("guaranteed", FULL, {}, True, id="Guaranteed, by the node's label"),
        pytest.param("guaranteed", FULL, BINDS, False, id="by the label, and an agent"),
        pytest.param("guaranteed", "", {}, False, id="Guaranteed, in the shared pool"),
        pytest.param("shared", FULL, {}, False, id="LS"),
    ],
)
def test_a_node_gives_cpus_of_ones_own_where_something_binds_them(
    request_of: str, policy: str, labels: Mapping[str, str], *, closed: bool
) -> None:
    """By the agent's word, or on every node where koordlet does; kubelet binds whole cores."""
    asked = {
        "lsr": replace(pod(2000), cpuset=demand(2)),
        "guaranteed": pod(2000, containers=[2]),
        "shared": replace(pod(2000), bound_cpus=0),
    }[request_of]
    there = node(policy=policy, labels=labels)

    answer = Engine([there], DEFAULT_SCHEDULING).decide(asked)

    assert isinstance(answer, Unplaced) is closed
    if closed:
        assert isinstance(answer, Unplaced)
        assert answer.message == "0/1 nodes are available: 1 CPUsNotBound."
    assert isinstance(Engine([there], SchedulingSettings()).decide(asked), Placement)
    kubelet = replace(there, kubelet=KubeletPolicy(whole_cores=True))
    by_kubelet = Engine([kubelet], DEFAULT_SCHEDULING).decide(asked)
    assert isinstance(by_kubelet, Unplaced) is (closed and request_of == "lsr")


# DistributeEvenly


@pytest.mark.parametrize(
    ("count", "policy", "taken", "cpus"),
    [
        pytest.param(4, FULL, "", "0-1,16-17", id="one node holds it"),
        pytest.param(12, FULL, "", "0-3,4-5,16-21", id="two nodes, six each, in cores"),
        pytest.param(16, FULL, "0,16", "4-11,20-27", id="two whole nodes, where there are"),
        pytest.param(12, SPREAD, "", "0-7,16-17,20-21", id="six each, one of each core first"),
    ],
)
def test_cpus_are_spread_evenly_over_the_fewest_nodes(
    count: int, policy: str, taken: str, cpus: str
) -> None:
    """Koordinator contract, quirk Q8; four NUMA nodes of four cores."""
    facts = node(machine=FOUR_NODES, strategy="DistributeEvenly")
    held = CpuHolding(cpus=parse_cpuset(taken).mask)

    got = picked(demand(count, policy), facts, held, settings=CpuSettings())

    if count == 12 and policy == FULL:
        chosen = parse_cpuset(got)
        assert [len(chosen & FOUR_NODES.cpus_in_numa(numa)) for numa in range(4)] == [6, 6, 0, 0]
    else:
        assert parse_cpuset(got) == parse_cpuset(cpus)


def test_parts_are_the_evenest_of_the_fewest() -> None:
    """Against every way to part small requests over small machines, in whole cores."""
    for free_ in product(range(0, 9, 2), repeat=3):
        free = dict(enumerate(free_))
        for count in range(2, 15, 2):
            assert parts_of(count, free, 2) == _by_hand(count, free), (count, free)


def _by_hand(count: int, free: dict[int, int]) -> dict[int, int] | None:
    for size in (1, 2, 3):
        found = []
        for nodes in combinations(free, size):
            for amounts in product(range(0, count + 1, 2), repeat=size):
                fits = all(
                    amount <= free[node] for node, amount in zip(nodes, amounts, strict=True)
                )
                if sum(amounts) == count and max(amounts) - min(amounts) <= 2 and fits:
                    parts = dict(zip(nodes, amounts, strict=True))
                    uneven = sum((left - parts.get(node, 0)) ** 2 for node, left in free.items())
                    given = {node: part for node, part in parts.items() if part}
                    found.append((uneven, nodes, tuple(-a for a in amounts), given))
        if found:
            return min(found)[-1]
    return None


# What the proposal asks for and the release never built


def test_numa_node_level_downgrades_where_no_clean_node_is_left() -> None:
    """CPU proposal: to PCPULevel; off unless asked for, since it changes the release's picks."""
    asked = demand(2, SPREAD, exclusive="NUMANodeLevel")
    facts = node()
    holdings = [
        CpuHolding(cpus=parse_cpuset("0").mask, exclusive_policy="NUMANodeLevel"),
        CpuHolding(cpus=parse_cpuset("6").mask, exclusive_policy="NUMANodeLevel"),
        CpuHolding(cpus=parse_cpuset("14").mask, exclusive_policy="PCPULevel"),
    ]
    least = CpuSettings()
    most = CpuSettings(numa_allocate_strategy="MostAllocated")
    downgrading = CpuSettings(numa_allocate_strategy="MostAllocated", numa_level_downgrades=True)

    assert picked(asked, facts, *holdings, settings=most) == "1-2"
    assert picked(asked, facts, *holdings, settings=downgrading) == "1,3"
    assert picked(asked, facts, holdings[0], settings=least) == "6-7"


@pytest.mark.parametrize(
    ("count", "taken", "release", "proposal"),
    [
        pytest.param(8, "", "0-5,12-13", "0-7", id="eight of twelve cores"),
        pytest.param(6, "", "0-5", "0-5", id="one NUMA node has as many"),
        pytest.param(12, "", "0-5,12-17", "0-11", id="every core"),
        pytest.param(13, "", "0-12", "0-12", id="more than there are cores"),
        pytest.param(8, "0-3", "6-11,18-19", "4-11", id="cores that are half held come last"),
    ],
)
def test_a_preferred_spread_takes_every_core_once_when_asked_to(
    count: int, taken: str, release: str, proposal: str
) -> None:
    """CPU proposal, `SpreadByPCPUs`: an logical CPU from each physical core; off as released."""
    held = CpuHolding(cpus=parse_cpuset(taken).mask)
    spreading = CpuSettings(spread_over_numa_nodes=True)

    assert picked(demand(count, SPREAD), node(), held, settings=CpuSettings()) == release
    assert picked(demand(count, SPREAD), node(), held, settings=spreading) == proposal


@pytest.mark.parametrize("strategy", ["MostAllocated", "LeastAllocated"])
@pytest.mark.parametrize(
    ("bind_policy", "taken", "cpus"),
    [
        pytest.param("FullPCPUs", "0-1,12-13", "2-9,14-21", id="whole cores"),
        pytest.param("FullPCPUs", "6-7,18-19", "0-5,8-9,12-17,20-21", id="node 1 is the fuller"),
        pytest.param(SPREAD, "0-1,12-13", "2-11,14-19", id="one CPU of each core"),
    ],
)
def test_the_strategy_says_nothing_of_a_set_that_one_numa_node_is_too_small_for(
    strategy: str, bind_policy: str, taken: str, cpus: str
) -> None:
    """DIVERGENCES: the release orders a socket's cores by their ids; the proposal would not."""
    held = CpuHolding(cpus=parse_cpuset(taken).mask)
    settings = CpuSettings(numa_allocate_strategy=strategy)

    assert picked(demand(16, bind_policy), node(), held, settings=settings) == cpus


def test_spread_pods_avoid_whole_core_nodes_when_asked_to() -> None:
    """CPU proposal: the scheduler will avoid such nodes."""
    avoiding = CpuSettings(spread_avoids_whole_cores=True)

    assert picked(demand(4, SPREAD), node(policy=FULL), settings=CpuSettings()) == "0-1,12-13"
    assert "conflicts" in picked(demand(4, SPREAD), node(policy=FULL), settings=avoiding)
    assert picked(demand(4), node(policy=FULL), settings=avoiding) == "0-1,12-13"


def test_arm_knows_whole_cores_only_when_asked_to() -> None:
    """CPU proposal: FullPCPUs and NUMANodeLevel only."""
    arm = node(labels={"kubernetes.io/arch": "arm64"})
    restricted = CpuSettings(arm_full_pcpus_only=True)

    assert picked(demand(4, SPREAD), arm, settings=restricted) == "0-1,12-13"
    assert "conflicts" in picked(demand(4, SPREAD, required=True), arm, settings=restricted)
    assert picked(demand(4, SPREAD), arm, settings=CpuSettings()) == "0-3"
    assert picked(demand(4, SPREAD), node(), settings=restricted) == "0-3"


# ConstrainedBurst


@pytest.mark.parametrize(
    ("limit_milli", "held", "strategy", "nodes"),
    [
        pytest.param(8000, "", "LeastAllocated", [0], id="one node, the first of equals"),
        pytest.param(8000, "0-2,12-14", "LeastAllocated", [1], id="the emptier node"),
        pytest.param(6000, "0-2,12-14", "MostAllocated", [0], id="the fuller one that holds it"),
        pytest.param(8000, "0-2,12-14", "MostAllocated", [1], id="six CPUs are too few"),
        pytest.param(16000, "", "LeastAllocated", [0, 1], id="both together"),
    ],
)
def test_a_burst_is_bound_to_pools_that_hold_its_limit(
    limit_milli: int, held: str, strategy: str, nodes: list[int]
) -> None:
    """CPU proposal, ConstrainedBurst: by the Pod's limit, the fewest NUMA nodes."""
    facts = node()
    pinned = pinned_of(facts, [CpuHolding(cpus=parse_cpuset(held).mask)])

    pools = burst_pools(limit_milli, facts, pinned, strategy=strategy)

    assert pools == tuple(CpuSharedPool(socket=0, node=numa) for numa in nodes)


def test_a_limit_beyond_all_pools_is_refused() -> None:
    """Reserved by the node: in no pool. Kubelet's own reserve: in one."""
    facts = node(reserved="0-3", unpooled="0-1")
    pinned = pinned_of(facts, [])

    answer = burst_pools(23000, facts, pinned, strategy="LeastAllocated")

    assert isinstance(answer, Unfit)
    assert (answer.reason, answer.available) == ("Insufficient CPU shared pool", 22000)
    assert not isinstance(burst_pools(22000, facts, pinned, strategy=""), Unfit)


def test_of_very_many_pools_the_largest_count() -> None:
    """More NUMA nodes than sets of them are tried: none is left out for its id alone."""
    machine = cpu_topology_of(Cpu(id=cpu, core=cpu, socket=0, numa=cpu // 2) for cpu in range(24))
    facts = node(machine=machine)
    pinned = pinned_of(facts, [CpuHolding(cpus=parse_cpuset("0-17").mask)])

    def nodes(limit_milli: int) -> list[int]:
        pools = burst_pools(limit_milli, facts, pinned, strategy="LeastAllocated")
        assert not isinstance(pools, Unfit)
        return [pool.node for pool in pools]

    assert nodes(4000) == [9, 10]
    everything = burst_pools(18000, facts, pinned_of(facts, []), strategy="LeastAllocated")
    assert not isinstance(everything, Unfit)
    assert len(everything) == 12


def test_a_bursting_pod_is_placed_with_its_pools() -> None:
    """Through the engine: nodes whose pools are too small are passed over."""
    small = cpu_topology_of(Cpu(id=cpu, core=cpu, socket=0, numa=0) for cpu in range(4))
    engine = Engine([node(machine=small), node()], SchedulingSettings())

    placed = engine.decide(pod(500, burst=8000))

    assert isinstance(placed, Placement)
    assert placed.node == 1
    assert placed.shared_pools == (CpuSharedPool(socket=0, node=0),)
    assert not placed.cpuset


# Over arrays, before any closer look


@pytest.mark.parametrize(
    ("asked", "facts", "taken", "reason"),
    [
        pytest.param(demand(14), node(), "0-11", "not enough cpus", id="too few CPUs"),
        pytest.param(
            demand(2, required=True), node(), "0-11", "not enough cpus", id="no whole core"
        ),
        pytest.param(
            demand(13, SPREAD, required=True), node(), "", "not enough cpus", id="too few cores"
        ),
        pytest.param(
            demand(4, SPREAD, required=True), node(policy=FULL), "", "conflicts", id="conflict"
        ),
        pytest.param(demand(3), node(policy=FULL), "0-11", "not multiple", id="odd first"),
        pytest.param(
            demand(2, SPREAD), node(policy=FULL), "0-11", "not enough cpus", id="the node's policy"
        ),
    ],
)
def test_a_refusal_over_arrays_is_the_pickers(
    asked: CpuSetDemand, facts: NodeFacts, taken: str, reason: str
) -> None:
    """Koordinator contract 6.2: the filter answers as the allocator would."""
    held = CpuHolding(cpus=parse_cpuset(taken).mask)
    engine = Engine([facts], SchedulingSettings())
    for cpu in parse_cpuset(taken):
        placement = Placement(
            request=replace(pod(1000, cpuset=demand(1)), uid=f"holder-{cpu}"),
            node=0,
            node_uid="n",
            node_name="n",
            cpuset=parse_cpuset(str(cpu)),
        )
        engine.reserve(placement)

    refused = engine.decide(pod(asked.cpus * 1000, cpuset=asked))

    assert isinstance(refused, Unplaced)
    assert reason in refused.message
    assert reason in picked(asked, facts, held, settings=CpuSettings())


# Amplification


@pytest.mark.parametrize(
    ("cpu_milli", "own", "fits"),
    [
        pytest.param(18000, False, True, id="a share of 18"),
        pytest.param(18100, False, False, id="a share of 18.1"),
        pytest.param(12000, True, True, id="a set of 12 costs 16800"),
        pytest.param(13000, True, False, id="a set of 13 costs 18200"),
    ],
)
def test_what_fits_an_amplified_node(
    cpu_milli: int,
    own: bool,  # noqa: FBT001 - a column of the table
    fits: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Koordinator contract 6.6: r = 1.4, 33600m; 14000m asked, of which a 4-CPU set."""
    facts = replace(node(), cpu_milli=33600, cpu_amplification=Fraction(7, 5))
    engine = Engine([facts], SchedulingSettings())
    set_of_four = engine.decide(replace(pod(4000, cpuset=demand(4)), uid="set"))
    assert isinstance(set_of_four, Placement)
    engine.reserve(set_of_four)
    share = engine.decide(replace(pod(10000), uid="share"))
    assert isinstance(share, Placement)
    engine.reserve(share)

    answer = engine.decide(pod(cpu_milli, cpuset=demand(cpu_milli // 1000) if own else None))

    if fits:
        assert isinstance(answer, Placement)
    else:
        assert isinstance(answer, Unplaced)
        assert answer.message == "0/1 nodes are available: 1 Insufficient amplified cpu."
    engine.release("set")
    engine.release("share")
    whole = engine.decide(pod(24000, cpuset=demand(24)))
    assert isinstance(whole, Placement)


def test_a_bursting_pod_is_bound_to_pools_where_the_node_binds_too() -> None:
    """CPU proposal, `ConstrainedBurst`: the shared pools are for it, whole cores for others."""
    engine = Engine([node(policy=FULL)], SchedulingSettings())

    placed = engine.decide(pod(2000, burst=8000))

    assert isinstance(placed, Placement)
    assert (str(placed.cpuset), placed.shared_pools) == ("", (CpuSharedPool(socket=0, node=0),))


def test_pools_of_an_amplified_node_hold_amplified_limits() -> None:
    """12 CPUs of a NUMA node at 1.5 hold a limit of 18; what a Pod shares costs what it asks."""
    facts = replace(node(), cpu_milli=36_000, cpu_amplification=Fraction(3, 2))
    free = pinned_of(facts, [])

    def nodes(limit_milli: int) -> list[int]:
        pools = burst_pools(limit_milli, facts, free, strategy="LeastAllocated")
        return [] if isinstance(pools, Unfit) else [pool.node for pool in pools]

    assert [nodes(limit) for limit in (18_000, 18_001, 36_001)] == [[0], [0, 1], []]


@pytest.mark.parametrize(("cpus", "hopeless"), [(16, False), (18, True)])
def test_cpus_that_cost_more_than_an_amplified_node_is_are_hopeless(
    cpus: int, *, hopeless: bool
) -> None:
    """The end of other Pods helps where the node has the cpu, and nowhere else (contract 13)."""
    amplified = replace(node(), cpu_milli=25_000, cpu_amplification=Fraction(3, 2))
    engine = Engine([amplified], SchedulingSettings())
    held = engine.decide(pod(2000))
    assert isinstance(held, Placement)
    engine.reserve(held)
    request = replace(pod(cpus * 1000), uid="new", cpuset=demand(cpus))

    found = engine.filter(request, [0])

    assert found.reasons[found.codes.item(0)] == "Insufficient amplified cpu"
    assert found.hopeless.tolist() == [hopeless]


# CPUs that are never shared, and those that may be


def own(uid: str, cpus: int, qos: str = "LSR", *, required: bool = False) -> PodRequest:
    """Return a Pod with CPUs of its own."""
    asked = replace(demand(cpus, required=required), alone=qos == "LSE")
    request = replace(pod(cpus * 1000, cpuset=asked), uid=uid, name=uid)
    return replace(request, snapshot=PodSnapshot(qos=qos))


def running(uid: str, cpus: str, qos: str, *, by_kubelet: bool = False) -> PodObserved:
    """Return a running Pod that holds CPUs, by its own status or kubelet's word."""
    status = {ANNOTATION_RESOURCE_STATUS: f'{{"cpuset":"{cpus}"}}'}
    return PodObserved(
        pod_uid=uid,
        attempt=1,
        namespace="ml",
        pod_name=uid,
        node_uid="n",
        node_name="n",
        source="pod-cpu-allocs" if by_kubelet else "resource-status",
        cpuset=parse_cpuset(cpus),
        annotations={} if by_kubelet else status,
        snapshot=PodSnapshot(qos=qos),
    )


def shared_engine(*pods: PodObserved, limit: int = 2) -> Engine:
    """Return an engine over machine X, where a CPU may have so many holders."""
    engine = Engine([replace(node(), cpu_ref_count_max=limit)], SchedulingSettings())
    for each in pods:
        engine.adopt(0, each)
    return engine


def taken(engine: Engine, *requests: PodRequest) -> list[str]:
    """Reserve one Pod after the other; return its CPUs, or `-`."""
    cpus = []
    for request in requests:
        answer = engine.decide(request)
        if isinstance(answer, Placement):
            engine.reserve(answer)
        cpus.append(str(answer.cpuset) if isinstance(answer, Placement) else "-")
    return cpus


def test_cpus_of_lse_pods_are_never_shared() -> None:
    """CPU proposal, QoS principle 2: whatever the reference count says, for those who come, too."""
    given = taken(
        shared_engine(),
        *[own("a", 12, "LSE"), own("b", 12, "LSE"), own("c", 2, "LSE"), own("d", 2, "LSR")],
    )

    assert given == ["0-5,12-17", "6-11,18-23", "-", "-"]


def test_lse_pods_get_no_cpu_that_somebody_holds() -> None:
    """An LSR Pod's CPU may be shared, but not with an LSE Pod."""
    given = taken(shared_engine(), own("a", 14, "LSR"), own("b", 12, "LSE"), own("c", 10, "LSE"))

    assert given == ["0-6,12-18", "-", "7-11,19-23"]


@pytest.mark.parametrize("required", [False, True])
def test_idle_cpus_come_before_shared_ones(*, required: bool) -> None:
    """Two LSR Pods share a CPU only when the setting allows it and no idle one is left."""
    pods = [own(f"p{count}", cpus, required=required) for count, cpus in enumerate((10, 10, 8))]

    given = taken(shared_engine(), *pods)

    assert given == ["0-4,12-16", "6-10,18-22", "0-1,5,11-13,17,23"]


def test_one_cpu_of_each_core_is_an_idle_one_where_there_is_one() -> None:
    """Required SpreadByPCPUs, two holders a CPU: the second threads are idle."""
    spread = replace(own("b", 12), cpuset=demand(12, SPREAD, required=True))
    first = replace(own("a", 12), cpuset=demand(12, SPREAD, required=True))

    assert taken(shared_engine(), first, spread) == ["0-11", "12-23"]


@pytest.mark.parametrize(
    ("qos", "by_kubelet", "given"),
    [
        pytest.param("LSE", False, "-", id="LSE"),
        pytest.param("", True, "-", id="pinned by kubelet, which promised it"),
        pytest.param("LSR", False, "0-1,12-13", id="LSR"),
    ],
)
def test_running_pods_keep_their_cpus_to_themselves(
    qos: str,
    by_kubelet: bool,  # noqa: FBT001 - a column of the table
    given: str,
) -> None:
    """CPU proposal, Story 2: kubelet's own Pods are as LSE; no CPU is idle any more."""
    engine = shared_engine(
        running("a", "0-1,12-13", qos, by_kubelet=by_kubelet),
        running("b", "2-11,14-23", "LSE"),
    )

    assert taken(engine, own("new", 4)) == [given]


def test_a_running_pod_on_cpus_of_an_lse_pod_is_named() -> None:
    """Two holders are within the count, but one of them is LSE."""
    engine = shared_engine(running("a", "0-1", "LSE"))

    assert engine.adopt(0, running("b", "1-2", "LSR")) == ["n: CPUs 1 held by ml/b and others"]


def test_the_filter_knows_which_cpus_are_idle() -> None:
    """Over arrays as on the node: too few idle CPUs for an LSE Pod, enough for an LSR one."""
    engine = shared_engine(running("a", "0-11,14-23", "LSR"))

    lse, lsr = (engine.filter(own("new", 4, qos), [0]) for qos in ("LSE", "LSR"))

    assert (lse.passing.tolist(), lsr.passing.tolist()) == ([], [0])
    assert lse.reasons[lse.codes.item(0)] == "not enough cpus available to satisfy request"
