from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.decide.container_cpus import KubeQos, bound_to
from agent.decide.pools import NodeCpus, PodCpus, Pools, joined, pools_of
from ledger.domain.annotations.cpu import CpuSharedPool, NumaNodeResources, ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of, parse_cpuset
from ledger.domain.quantity import parse_quantity
from tests.support.topologies import MACHINE_X, MACHINE_Y

LSE, LSR, LS, BE = QosClass.LSE, QosClass.LSR, QosClass.LS, QosClass.BE
NONE, SYSTEM = QosClass.NONE, QosClass.SYSTEM


def held(cpus: str, qos: QosClass = LSR, *, by_kubelet: bool = False) -> PodCpus:
    """Return one Pod's own CPUs."""
    return PodCpus(cpus=parse_cpuset(cpus), qos=qos, by_kubelet=by_kubelet)


def texts(pools: tuple[CpuSharedPool, ...]) -> list[str]:
    """Return the CPUs of each pool."""
    return [str(pool.cpus) for pool in pools]


def example() -> Pools:
    """Return the pools of Koordinator contract 9.4's example."""
    node = NodeCpus(topology=MACHINE_X, reserved=parse_cpuset("0"))
    return pools_of(node, [held("2-3,14-15"), held("6-7,18-19", LSE)])


def test_the_worked_pools_of_machine_x() -> None:
    """Koordinator contract 9.4: an LSR Pod, an LSE Pod, CPU 0 reserved."""
    pools = example()

    assert texts(pools.shared) == ["1,4-5,12-13,16-17", "8-11,20-23"]
    assert texts(pools.best_effort) == ["1-5,12-17", "8-11,20-23"]
    assert str(pools.exclusive) == "2-3,6-7,14-15,18-19"


def test_kubelets_reserved_cpus_are_shared_and_best_effort_uses_them_first() -> None:
    """CPU proposal: the shared pool includes the reserved CPUs, best effort uses them first."""
    node = NodeCpus(topology=MACHINE_X, kubelet_reserved=parse_cpuset("0,12"))

    pools = pools_of(node, [held("1,13")])

    assert texts(pools.shared) == ["0,2-5,12,14-17", "6-11,18-23"]
    assert str(pools.best_effort_first) == "0,12"


def test_guaranteed_pods_of_kubelet_share_with_nobody() -> None:
    """CPU proposal, principles 2.1 and 2.3: neither LS nor BE runs on them."""
    pools = pools_of(NodeCpus(topology=MACHINE_X), [held("0-5,12-17", by_kubelet=True)])

    assert texts(pools.shared) == ["", "6-11,18-23"]
    assert texts(pools.best_effort) == ["", "6-11,18-23"]


def test_pools_are_per_socket_and_numa_node() -> None:
    """Machine Y: two sockets of one NUMA node each."""
    pools = pools_of(NodeCpus(topology=MACHINE_Y), [])

    assert [(pool.socket, pool.node) for pool in pools.shared] == [(0, 0), (1, 1)]
    assert texts(pools.shared) == ["0-3,8-11", "4-7,12-15"]


CPU_IDS = st.integers(0, 23)
OWN = st.builds(
    PodCpus,
    cpus=st.builds(cpuset_of, st.sets(CPU_IDS, max_size=6)),
    qos=st.sampled_from([LSE, LSR]),
    by_kubelet=st.booleans(),
)


@given(
    pods=st.lists(OWN, max_size=6),
    kubelet=st.sets(CPU_IDS, max_size=4),
    reserved=st.sets(CPU_IDS, max_size=4),
)
def test_pools_part_the_machine_and_a_release_restores_them(
    pods: list[PodCpus], kubelet: set[int], reserved: set[int]
) -> None:
    """Every CPU is reserved, somebody's own, or shared; never two of them but reserved and own."""
    node = NodeCpus(
        topology=MACHINE_X, kubelet_reserved=cpuset_of(kubelet), reserved=cpuset_of(reserved)
    )

    pools = pools_of(node, pods)

    shared, best_effort = joined(pools.shared), joined(pools.best_effort)
    assert shared.isdisjoint(pools.exclusive | node.reserved)
    assert shared | pools.exclusive | node.reserved == MACHINE_X.cpuset
    assert shared <= best_effort
    for pod in pods:
        if pod.qos is LSE or pod.by_kubelet:
            assert best_effort.isdisjoint(pod.cpus)
        elif all(pod.cpus.isdisjoint(other.cpus) for other in pods if other is not pod):
            assert pod.cpus - node.reserved <= best_effort
    if pods:
        before = pools_of(node, pods[1:])
        assert pools_of(node, [*pods[1:], pods[0]]) == pools
        assert pools_of(node, pods[1:]) == before


OnNode = tuple[ResourceStatus, QosClass, KubeQos]


def on_node(
    qos: QosClass, kube_qos: KubeQos = KubeQos.BURSTABLE, status: ResourceStatus | None = None
) -> OnNode:
    """Return a Pod without a status unless one is given."""
    return status or ResourceStatus(), qos, kube_qos


def of_numa(node: int, **amounts: str) -> ResourceStatus:
    """Return a status with amounts on one NUMA node."""
    resources = tuple(
        (name.replace("_", "-"), parse_quantity(text)) for name, text in amounts.items()
    )
    return ResourceStatus(numa_node_resources=(NumaNodeResources(node=node, resources=resources),))


SHARED = "1,4-5,8-13,16-17,20-23"
BE_POOL = "1-5,8-17,20-23"
OWN_CPUS = ResourceStatus(cpuset=parse_cpuset("2-3,14-15"))
POOL_OF_NODE_1 = ResourceStatus(cpu_shared_pools=(CpuSharedPool(socket=0, node=1),))
GUARANTEED, BEST_EFFORT = KubeQos.GUARANTEED, KubeQos.BEST_EFFORT


@pytest.mark.parametrize(
    ("pod", "cpus"),
    [
        pytest.param(on_node(LSR, status=OWN_CPUS), "2-3,14-15", id="1 own CPUs"),
        pytest.param(on_node(BE, status=OWN_CPUS), "2-3,14-15", id="1 whatever QoS"),
        pytest.param(
            on_node(LS, status=of_numa(1, cpu="2")),
            "8-11,20-23",
            id="2 numa",
        ),
        pytest.param(on_node(LS, status=POOL_OF_NODE_1), "8-11,20-23", id="2 pools"),
        pytest.param(on_node(LS, status=of_numa(1, hugepages="2Mi")), SHARED, id="2 no cpu"),
        pytest.param(on_node(SYSTEM), "0", id="3 the system's"),
        pytest.param(on_node(LS), SHARED, id="4 all shared pools"),
        pytest.param(on_node(BE), BE_POOL, id="5 as its class's cgroup"),
        pytest.param(on_node(NONE), SHARED, id="6 Burstable"),
        pytest.param(on_node(NONE, GUARANTEED), SHARED, id="6 Guaranteed"),
        pytest.param(on_node(NONE, BEST_EFFORT), BE_POOL, id="6 BestEffort, likewise"),
    ],
)
def test_the_first_rule_that_fits_binds_a_container(pod: OnNode, cpus: str) -> None:
    """Koordinator contract 9.3, kubelet's CPU manager policy `none`."""
    assert str(bound_to(*pod, example(), system=parse_cpuset("0"))) == cpus


def test_best_effort_pods_get_their_pools_where_they_are_managed() -> None:
    """Koordinator contract 9.3, gate BECPUManager: LSR's CPUs too, never LSE's."""
    everywhere = bound_to(*on_node(BE), example())
    numa = bound_to(
        *on_node(BE, status=of_numa(0, **{"kubernetes.io/batch_cpu": "2000"})),
        example(),
    )

    assert (str(everywhere), str(numa)) == (BE_POOL, "1-5,12-17")


def test_no_pool_is_nothing() -> None:
    """Joining nothing is the empty set."""
    assert joined([]) == EMPTY == CpuSet()
