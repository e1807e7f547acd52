from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from msgspec import structs

from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec
from ledger.domain.annotations.device_hints import (
    DeviceHint,
    JointAllocation,
    JointScope,
    LabelSelector,
    PartitionSpec,
    TopologyScope,
)
from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import DeviceRecord, DeviceTopology
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts, NumaZone, Taint
from ledger.domain.request.requests import CpuSetDemand, DeviceDemand, MatchExpression, PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.outcome import Unplaced
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from scheduler.whatif.nearest import nearest
from scheduler.whatif.obstacles import Obstacle, find_reasons
from scheduler.whatif.what_if import WhatIf
from tests.support.clusters import (
    GIB,
    MIB,
    SMALL_MACHINE,
    affinity,
    gpu_bytes,
    gpu_node,
    held,
    nic,
    pod,
    running,
    selector,
    share,
)


@dataclass(frozen=True)
class Case:
    """One way to be refused by the one node, what `why` says of it, and what would help."""

    request: PodRequest
    node: NodeFacts
    reason: str
    numbers: tuple[int, int, str] = (-1, -1, "")
    about: str = ""
    helps: tuple[str, ...] = ()  # texts of smaller requests, other wishes, Pods to end
    remedy: str = ""  # of the refusal itself: what the owner of the cluster could change
    holders: tuple[Holder, ...] = ()
    settings: SchedulingSettings = field(default_factory=SchedulingSettings)


def rooted(node: NodeFacts, roots: dict[tuple[str, int], tuple[int, str]]) -> NodeFacts:
    """Return the node with the NUMA node and PCIe root of each of its devices."""
    devices = tuple(
        replace(
            record,
            topology=DeviceTopology(numa_node=roots[record.key][0], pcie_id=roots[record.key][1]),
        )
        for record in node.devices
    )
    return replace(node, devices=devices)


def hinted(demand: DeviceDemand, **fields: object) -> DeviceDemand:
    """Return the demand with a hint."""
    return replace(demand, hint=DeviceHint(**fields))  # type: ignore[arg-type]


def fpga_node() -> NodeFacts:
    """Return a node with one FPGA."""
    fpga = DeviceRecord(device_type="fpga", minor=0, device_id="F-0")
    return replace(gpu_node("n", 0), devices=(fpga,))


def pinned(cpus: int, *, required: bool = False) -> PodRequest:
    """Return a request for CPUs of its own."""
    demand = CpuSetDemand(
        cpus=cpus, bind_policy="FullPCPUs", required=required, exclusive_policy="None"
    )
    return pod("w", cpu_milli=cpus * 1000, cpuset=demand)


def on(*pods: object) -> tuple[Holder, ...]:
    """Return holders on the node."""
    return tuple(Holder(node=0, held=each) for each in pods)  # type: ignore[arg-type]


TWO_ROOTS = rooted(
    gpu_node("n", 2, nics=1),
    {("gpu", 0): (0, "r0"), ("gpu", 1): (1, "r1"), ("rdma", 0): (1, "r1")},
)
ONE_A_NUMA = rooted(gpu_node("n", 2), {("gpu", 0): (0, "r0"), ("gpu", 1): (1, "r1")})
TABLE = {
    2: (
        GpuPartition(minors=(0, 1), link_type="", allocation_score=1),
        GpuPartition(minors=(2, 3), link_type="", allocation_score=1),
    )
}
HONORS = replace(gpu_node("n", 4), partitions=TABLE, honors_partitions=True)
MGPU = gpu_node("n", 1)
JOINT = JointAllocation(device_types=("gpu", "rdma"), required_scope=JointScope.SAME_PCIE)

CASES = {
    "cordoned": Case(
        request=pod("w"),
        node=gpu_node("n", unschedulable=True),
        reason=reasons.UNSCHEDULABLE.text,
        helps=("uncordon a node",),
    ),
    "tainted": Case(
        request=pod("w"),
        node=gpu_node("n", taints=(Taint(key="team", value="a", effect="NoSchedule"),)),
        reason="node(s) had untolerated taint {team: a}",
        about="taint team=a:NoSchedule",
        helps=("tolerate the taint team=a:NoSchedule",),
    ),
    "node selector": Case(
        request=pod("w", placement=selector(zone="b")),
        node=gpu_node("n", labels={"zone": "a"}),
        reason=reasons.AFFINITY.text,
        about="wants zone=b, the node has a",
        helps=("drop the node selector zone=b",),
    ),
    "node affinity": Case(
        request=pod(
            "w",
            placement=affinity(
                (MatchExpression(key="zone", operator="In", values=("b", "c")),),
            ),
        ),
        node=gpu_node("n"),
        reason=reasons.AFFINITY.text,
        about="wants zone In (b, c), the node has none",
        helps=("drop the required node affinity",),
    ),
    "Pods": Case(
        request=pod("w"),
        node=gpu_node("n", pods_max=1),
        holders=on(running("x")),
        reason="Too many pods",
        numbers=(1, 0, "pods"),
        helps=("end default/x",),
    ),
    "cpu": Case(
        request=pod("w", cpu_milli=4000),
        node=gpu_node("n", cpu_milli=4000),
        holders=on(running("x", cpu_milli=1500)),
        reason="Insufficient cpu",
        numbers=(4000, 2500, "cpu milli"),
        helps=("cpu 2500 of 4000", "end default/x"),
    ),
    "memory": Case(
        request=pod("w", memory_bytes=3 * GIB),
        node=gpu_node("n", memory_bytes=2 * GIB),
        reason="Insufficient memory",
        numbers=(3072, 2048, "memory MiB"),
        helps=("memory 2048 of 3072",),
    ),
    "whole cards": Case(
        request=pod("w", share(100, 2), dialect=Dialect.NVIDIA),
        node=gpu_node("n", 2),
        holders=on(running("x", held(1, 30))),
        reason="Insufficient gpu devices",
        numbers=(2, 1, "gpu devices"),
        about="could serve gpu/0; held gpu/1",
        helps=("gpu count 1 of 2", "end default/x"),
    ),
    "a part of a card": Case(
        request=pod("w", share(80)),
        node=gpu_node("n", 1),
        holders=on(running("x", held(0, 30))),
        reason="Insufficient gpu devices",
        about="most is left on gpu/0",
        helps=("gpu share 70 of 80", "end default/x"),
    ),
    "pieces of cards": Case(
        request=pod("w", share(80)),
        node=gpu_node("n", 2),
        holders=on(running("x", held(0, 50)), running("y", held(1, 50))),
        reason="GPUFragmented",
        about="most is left on gpu/0",
        helps=("gpu share 50 of 80", "end default/x"),
    ),
    "closed cards": Case(
        request=pod("w", share(100)),
        node=gpu_node("n", 1, closed=frozenset({0})),
        reason="GPUClosed",
        numbers=(1, 0, "gpu devices"),
        about="closed gpu/0",
        remedy="open GPU 0 of n",
    ),
    "another model": Case(
        request=pod("w", share(100, models=("H100",))),
        node=gpu_node("n", 1),
        reason="GPUModelMismatch",
        about="asks for H100; the node has T4",
        helps=("allow other gpu models than H100",),
    ),
    "an unknown card": Case(
        request=pod("w", share(100)),
        node=gpu_node("n", 1),
        holders=on(running("x", unknown_types=("gpu",))),
        reason=reasons.UNKNOWN_CARD.text,
        about="default/x",
        helps=("end default/x",),
    ),
    "another dialect": Case(
        request=pod("w", gpu_bytes(GIB), dialect=Dialect.GPUSHARE),
        node=gpu_node("n", 1, dialects=frozenset({Dialect.NVIDIA})),
        reason="DialectNotServed",
        about="asks in gpushare, serves nvidia",
    ),
    "GPU share memory": Case(
        request=pod("w", gpu_bytes(9 * GIB), dialect=Dialect.GPUSHARE),
        node=gpu_node("n", 1),
        holders=on(running("x", structs.replace(held(0, 50), core_percent=0))),
        reason="Insufficient gpu devices",
        numbers=(9216, 8192, "MiB of one card"),
        about="most is left on gpu/0",
        helps=("gpu memory 8192 of 9216", "end default/x"),
    ),
    "mGPU off": Case(
        request=pod("w", gpu_bytes(GIB, core=20), dialect=Dialect.MGPU),
        node=MGPU,
        settings=SchedulingSettings(mgpu=MGPUSettings(enabled=False)),
        reason="MGPUDisabled",
        remedy="set mgpu.enabled",
    ),
    "mGPU policy": Case(
        request=pod(
            "w", gpu_bytes(GIB, core=20), dialect=Dialect.MGPU, mgpu_policy="native-burst-share"
        ),
        node=gpu_node("n", 1, mgpu_policy="fixed-share"),
        reason="MGPUPolicyMismatch",
        about="asks for native-burst-share, the node has fixed-share",
        helps=("use the mGPU compute policy fixed-share instead of native-burst-share",),
    ),
    "containers on a card": Case(
        request=pod("w", gpu_bytes(GIB, core=20), dialect=Dialect.MGPU),
        node=MGPU,
        holders=on(
            structs.replace(running("x", held(0, 10)), dialect="mgpu"), running("y", held(0, 10))
        ),
        settings=SchedulingSettings(mgpu=MGPUSettings(max_containers_per_card=1)),
        reason="GPUContainerLimit",
        about="at most 1 mGPU containers; gpu/0 has 1",
        remedy="or raise mgpu.maxContainersPerCard",
        helps=("end default/x",),
    ),
    "NICs": Case(
        request=pod("w", nic(100, 2)),
        node=gpu_node("n", 0, nics=1),
        reason="Insufficient rdma devices",
        numbers=(2, 1, "rdma devices"),
        about="could serve rdma/0",
        helps=("rdma count 1 of 2",),
    ),
    "FPGAs": Case(
        request=pod(
            "w", DeviceDemand(device_type="fpga", count=1, core_percent=100, exclusive=True)
        ),
        node=fpga_node(),
        holders=on(
            running("x", structs.replace(held(0, 100), device_type="fpga", memory_bytes=0)),
        ),
        reason="Insufficient fpga devices",
        numbers=(1, 0, "fpga devices"),
        about="held fpga/0",
        helps=("end default/x",),
    ),
    "virtual functions": Case(
        request=pod("w", hinted(nic(50), vf_selector=LabelSelector())),
        node=gpu_node("n", 0, nics=1),
        reason="Insufficient rdma VirtualFunctions",
        helps=("drop the vfSelector of rdma",),
    ),
    "a device selector": Case(
        request=pod("w", hinted(nic(50), selector=LabelSelector(match_labels=(("a", "b"),)))),
        node=gpu_node("n", 0, nics=1),
        reason="Insufficient rdma devices",
        helps=("drop the device selector of rdma",),
    ),
    "the same PCIe root": Case(
        request=replace(pod("w", share(100), nic(50)), joint=JOINT),
        node=TWO_ROOTS,
        holders=on(running("x", held(1, 30))),
        reason=reasons.JOINT_RULES.text,
        about="gpu fits under roots r0; rdma fits under roots r1",
        helps=("drop the required scope SamePCIe of joint allocation",),
    ),
    "a topology scope": Case(
        request=pod("w", hinted(share(100, 2), required_topology_scope=TopologyScope.NUMA_NODE)),
        node=ONE_A_NUMA,
        reason=reasons.TOPOLOGY_SCOPE.text,
        numbers=(2, 2, "gpu devices"),
        about="NUMA 0 root r0: 1, NUMA 1 root r1: 1",
        helps=("drop requiredTopologyScope NUMANode of gpu",),
    ),
    "no topology tree": Case(
        request=pod("w", hinted(share(100, 2), required_topology_scope=TopologyScope.NUMA_NODE)),
        node=gpu_node("n", 2),
        reason=reasons.NO_TOPOLOGY_TREE.text,
        helps=("drop requiredTopologyScope NUMANode of gpu",),
    ),
    "no partition table": Case(
        request=replace(pod("w", share(100, 2)), partition=PartitionSpec()),
        node=gpu_node("n", 2),
        reason=reasons.NO_PARTITION_TABLE.text,
        about="the node has no table",
        helps=("drop the GPU partition spec",),
    ),
    "a number no partition has": Case(
        request=pod("w", share(100, 3)),
        node=HONORS,
        reason=reasons.PARTITION_COUNT.text,
        remedy="ask for a number of GPUs that the node's partition table has",
        about="the table has sizes 2",
        helps=("gpu count 2 of 3",),
    ),
    "no free partition": Case(
        request=pod("w", share(100, 2)),
        node=HONORS,
        holders=on(running("x", held(0, 100)), running("y", held(2, 100))),
        reason=reasons.NO_FREE_PARTITION.text,
        remedy="end Pods until a whole partition is free",
        numbers=(2, 2, "gpu devices"),
        about="partitions 0+1 2+3; free 1,3",
        helps=("end default/x",),
    ),
    "no CPU topology": Case(
        request=pinned(2),
        node=gpu_node("n"),
        reason=reasons.NO_CPU_TOPOLOGY.text,
        helps=("ask for no CPUs of its own (QoS LS)",),
    ),
    "CPUs of its own": Case(
        request=pinned(6),
        node=gpu_node("n", cpu_topology=SMALL_MACHINE),
        holders=on(running("x", cpuset=parse_cpuset("0-3"))),
        reason=reasons.INSUFFICIENT_CPUS.text,
        numbers=(6, 4, "cpus"),
        about="free 4-7; NUMA 0 has 0 whole cores, 0 CPUs; NUMA 1 has 2 whole cores, 4 CPUs; "
        "the Pod prefers FullPCPUs",
        helps=("cpus 4 of 6", "end default/x"),
    ),
    "amplified cpu": Case(
        request=pinned(4),
        node=replace(
            gpu_node("n", cpu_milli=6000, cpu_topology=SMALL_MACHINE), cpu_amplification=Fraction(2)
        ),
        reason=reasons.INSUFFICIENT_AMPLIFIED_CPU.text,
        numbers=(8000, 6000, "cpu milli"),
        about="counts 2 times",
        helps=("cpus 3 of 4",),
    ),
    "odd CPUs": Case(
        request=pinned(3, required=True),
        node=gpu_node("n", cpu_topology=SMALL_MACHINE),
        reason=reasons.NOT_WHOLE_CORES.text,
        about="a core has 2 CPUs",
        helps=("cpus 2 of 3", "prefer the CPU bind policy FullPCPUs instead of requiring it"),
    ),
    "the node's bind policy": Case(
        request=pinned(2, required=True),
        node=replace(gpu_node("n", cpu_topology=SMALL_MACHINE), cpu_bind_policy="SpreadByPCPUs"),
        reason=reasons.BIND_POLICY_CONFLICT.text,
        about="requires FullPCPUs, the node SpreadByPCPUs",
        helps=("prefer the CPU bind policy FullPCPUs instead of requiring it",),
    ),
    "whole cores are short where CPUs are not": Case(
        request=pinned(4, required=True),
        node=replace(
            gpu_node("n", cpu_topology=SMALL_MACHINE), reserved_cpus=parse_cpuset("0,2,4")
        ),
        reason=reasons.INSUFFICIENT_CPUS.text,
        numbers=(4, 2, "cpus"),
        about="free 1,3,5-7; NUMA 0 has 0 whole cores, 2 CPUs; NUMA 1 has 1 whole core, 3 CPUs; "
        "the Pod requires FullPCPUs; kept back CPUs 0,2,4",
        helps=("cpus 2 of 4",),
    ),
    "a node that gives Guaranteed Pods their own CPUs": Case(
        request=replace(pod("w", cpu_milli=6000), bound_cpus=6),
        node=replace(gpu_node("n", cpu_topology=SMALL_MACHINE), cpu_bind_policy="SpreadByPCPUs"),
        reason=reasons.INSUFFICIENT_CPUS.text,
        numbers=(6, 4, "cpus"),
        about="the node requires SpreadByPCPUs",
    ),
    "one NUMA node": Case(
        request=pod("w", cpu_milli=2000, memory_bytes=4 * GIB),
        node=replace(
            gpu_node("n", cpu_topology=SMALL_MACHINE),
            numa_policy=NumaPolicy.SINGLE_NUMA_NODE,
            numa_zones=(NumaZone(id=0, memory_bytes=4 * GIB), NumaZone(id=1, memory_bytes=GIB)),
        ),
        holders=on(
            structs.replace(
                running("x"),
                annotations={
                    "scheduling.koordinator.sh/resource-status": '{"numaNodeResources":[{"node":0,'
                    '"resources":{"cpu":"2500m","memory":"1Gi"}}]}'
                },
            )
        ),
        reason=reasons.UNALIGNED.text,
        remedy="or ask for BestEffort",
        about="NUMA 0 has 2 whole cores, 4 CPUs, 1500m not taken by shares, 3072 MiB; "
        "NUMA 1 has 2 whole cores, 4 CPUs, 1024 MiB; policy SingleNUMANode",
        helps=("end default/x",),
    ),
    "two NUMA policies": Case(
        request=replace(pinned(2), numa=NumaTopologySpec(policy=NumaPolicy.RESTRICTED)),
        node=replace(
            gpu_node("n", cpu_topology=SMALL_MACHINE), numa_policy=NumaPolicy.SINGLE_NUMA_NODE
        ),
        reason=reasons.NUMA_POLICY_CONFLICT.text,
        about="policy Restricted of the Pod, SingleNUMANode of the node",
    ),
    "a burst larger than the pools": Case(
        request=replace(pod("w", cpu_milli=1000), burst_milli=7000),
        node=gpu_node("n", cpu_topology=SMALL_MACHINE),
        holders=on(running("x", cpuset=parse_cpuset("0-1"))),
        reason=reasons.INSUFFICIENT_POOL.text,
        numbers=(7000, 6000, "cpu milli"),
        about="pools: NUMA 0 has 2 CPUs, NUMA 1 has 4 CPUs",
    ),
    "containers together": Case(
        request=pod(
            "w",
            replace(gpu_bytes(GIB, core=60), containers=("0",)),
            replace(gpu_bytes(GIB, core=60), containers=("1",)),
            dialect=Dialect.MGPU,
        ),
        node=MGPU,
        reason="NoCombinationOfDevices",
    ),
}


def explained(case: Case) -> tuple[WhatIf, list[Obstacle]]:
    """Return the findings of the one node."""
    what_if = WhatIf((case.node,), case.holders, case.settings)
    answer = what_if.decide(case.request)
    assert isinstance(answer, Unplaced), answer
    assert case.remedy in answer.reasons[0].remedy
    return what_if, list(find_reasons(case.request, answer, what_if))


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_explained_with_its_numbers(name: str) -> None:
    """The first rule that fails, what is asked, what is there, and what both are about."""
    case = CASES[name]

    _, found = explained(case)

    (finding,) = found
    assert finding.reason == case.reason
    assert case.about in finding.about
    if case.numbers[0] >= 0:
        assert (finding.asked, finding.available, finding.unit) == case.numbers


@pytest.mark.parametrize("name", CASES)
def test_the_nearest_changes_of_a_refusal_are_found(name: str) -> None:
    """Smaller requests, other wishes and Pods that would have to end, each of them decided."""
    case = CASES[name]
    what_if, _ = explained(case)

    found = nearest(case.request, what_if)

    said = [f"{item.name} {item.fits} of {item.asked}" for item in found.smaller]
    said += [other.text for other in found.others]
    if found.ending is not None:
        said += [f"end {holder.path}" for holder in found.ending.holders]
    assert set(case.helps) <= set(said), said


def test_sizes_are_read_in_mebibytes() -> None:
    """A size that is no multiple of it is rounded up when asked, down when available."""
    node = gpu_node("n", memory_bytes=10 * MIB + 1)
    _, (finding,) = explained(
        Case(request=pod("w", memory_bytes=10 * MIB + 2), node=node, reason="")
    )

    assert (finding.asked, finding.available) == (11, 10)
