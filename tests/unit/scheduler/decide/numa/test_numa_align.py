from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from ledger.domain.annotations.cpu import (
    CpuSharedPool,
    NumaExclusive,
    NumaPolicy,
    NumaTopologySpec,
)
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import DeviceTopology
from ledger.domain.nodes import NodeFacts, NumaZone
from ledger.domain.request.requests import CpuSetDemand, DeviceDemand, PodRequest, PodSnapshot
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.numa.align import Alignment, NodeNow, align, effective_policy
from scheduler.decide.numa.state import NumaLoad, numa_nodes_of
from scheduler.decide.outcome import CardView, NumaPart, Unfit
from scheduler.decide.settings import CpuSettings, SchedulingSettings
from tests.support.cards import GIB, card, nic, rdma, whole
from tests.support.topologies import MACHINE_X

BEST_EFFORT = NumaPolicy.BEST_EFFORT
RESTRICTED = NumaPolicy.RESTRICTED
SINGLE = NumaPolicy.SINGLE_NUMA_NODE
ZONES = (NumaZone(id=0, memory_bytes=64 * GIB), NumaZone(id=1, memory_bytes=64 * GIB))
LEAST = CpuSettings()
OWN = NumaTopologySpec(policy=RESTRICTED)
"""A Pod's own word, under which every set of NUMA nodes is preferred."""


def pinned_pod(
    cpus: int,
    *devices: DeviceDemand,
    policy: str = "FullPCPUs",
    required: bool = False,
    memory: int = 0,
    numa: NumaTopologySpec | None = None,
) -> PodRequest:
    """Return an LSR Pod with CPUs of its own."""
    return PodRequest(
        uid="uid-p",
        namespace="ml",
        name="p",
        cpu_milli=cpus * 1000,
        memory_bytes=memory,
        devices=devices,
        numa=numa,
        cpuset=CpuSetDemand(
            cpus=cpus, bind_policy=policy, required=required, exclusive_policy="None"
        ),
        snapshot=PodSnapshot(qos="LSR"),
    )


def sharing_pod(
    cpu_milli: int, *devices: DeviceDemand, memory: int = 0, qos: str = "LS"
) -> PodRequest:
    """Return a Pod that runs in the shared pools."""
    pod = pinned_pod(1, *devices, memory=memory)
    return replace(pod, cpu_milli=cpu_milli, cpuset=None, snapshot=PodSnapshot(qos=qos))


def at(numa: int, view: CardView) -> CardView:
    """Return a device on a NUMA node, on a PCIe root of its own."""
    place = DeviceTopology(
        socket=0, numa_node=numa, pcie_id=f"{numa}-{view.record.minor}", bus_id=""
    )
    return replace(view, record=replace(view.record, topology=place))


def aligned(
    policy: NumaPolicy,
    request: PodRequest,
    *cards: CardView,
    taken: Sequence[str] = (),
    parts: Sequence[NumaPart] = (),
    zones: tuple[NumaZone, ...] = ZONES,
    ratio: Fraction = Fraction(1),
    reserved: str = "",
) -> Alignment | Unfit:
    """Align a Pod on machine X, where Pods hold the CPU sets `taken`; the policy is the node's."""
    facts = NodeFacts(
        uid="n",
        name="n",
        numa_policy=policy if request.numa is None else NumaPolicy.NONE,
        reserved_cpus=parse_cpuset(reserved),
        cpu_topology=MACHINE_X,
        cpu_amplification=ratio,
        numa_zones=zones,
        devices=tuple(card.record for card in cards),
    )
    holdings = [CpuHolding(cpus=parse_cpuset(text).mask) for text in taken]
    load = NumaLoad(pinned=pinned_of(facts, holdings), parts=tuple(parts))

    def choose_devices(view: NodeView) -> Choice | Unfit:
        return choose(request, view, SchedulingSettings())

    view = NodeView(facts=facts, cards=cards, cpu_refs=load.pinned.refs)
    now = NodeNow(view=view, load=load, choose_devices=choose_devices)
    return align(policy, request, now, LEAST)


def minors(given: Alignment) -> list[tuple[str, int]]:
    """Return the devices of an alignment."""
    return [share.key for share in given.choice.shares]


def granted(answer: Alignment | Unfit) -> Alignment:
    """Return an alignment that must be one."""
    assert isinstance(answer, Alignment), answer
    return answer


@pytest.mark.parametrize("policy", [BEST_EFFORT, RESTRICTED, SINGLE])
def test_cpus_come_from_the_node_of_the_only_free_gpu(policy: NumaPolicy) -> None:
    """Koordinator contract 7, fresh example: every policy ends on NUMA node 1."""
    used = at(0, card(0, core_used=100, memory_used=40 * GIB))
    request = pinned_pod(4, whole(1), memory=8 * GIB)

    given = granted(aligned(policy, request, used, at(1, card(1))))

    assert minors(given) == [("gpu", 1)]
    assert str(given.cpuset) == "6-7,18-19"
    assert given.parts == (NumaPart(node=1, cpu_milli=4000, memory_bytes=8 * GIB, pinned=True),)


WIDE = ["0-3,6-9,12-15,18-21"]
"""Each NUMA node has two cores left."""
BUSY = at(0, card(0, core_used=100, memory_used=40 * GIB))


@pytest.mark.parametrize(
    ("request_", "cards", "taken", "nodes"),
    [
        pytest.param(pinned_pod(4), [], WIDE, [0], id="one NUMA node has it"),
        pytest.param(pinned_pod(6), [], WIDE, None, id="one could have it, and has not"),
        pytest.param(pinned_pod(14), [], ["0,12"], [0, 1], id="no one could ever have it"),
        pytest.param(pinned_pod(14), [], WIDE, None, id="both together have not"),
        pytest.param(sharing_pod(6000), [], WIDE, None, id="of the shared pools, too"),
        pytest.param(pinned_pod(2, memory=48 * GIB), [], [], [0], id="memory of one"),
        pytest.param(pinned_pod(2, memory=80 * GIB), [], [], [0, 1], id="CPUs beside their memory"),
        pytest.param(
            pinned_pod(2, whole(2)),
            [at(0, card(0)), at(1, card(1))],
            [],
            None,
            id="two GPUs of both, CPUs of one",
        ),
        pytest.param(pinned_pod(14, memory=80 * GIB), [], [], [0, 1], id="both resources need two"),
        pytest.param(
            sharing_pod(0, whole(2)), [at(0, card(0)), at(1, card(1))], [], [0, 1], id="two GPUs"
        ),
        pytest.param(
            sharing_pod(0, whole(2)),
            [BUSY, at(0, card(1)), at(1, card(2))],
            [],
            None,
            id="NUMA node 0 has two GPUs, one of them in use",
        ),
    ],
)
def test_restricted_by_a_node_is_kubernetes_word(
    request_: PodRequest, cards: Sequence[CardView], taken: Sequence[str], nodes: list[int] | None
) -> None:
    """As few NUMA nodes as the empty machine could serve each resource from, or none."""
    answer = aligned(RESTRICTED, request_, *cards, taken=taken)

    given = None if isinstance(answer, Unfit) else [part.node for part in answer.parts]
    assert given == nodes


def test_reserved_cpus_are_none_that_a_numa_node_could_give() -> None:
    """Twelve CPUs are on no single NUMA node of which one is kept back."""
    assert granted(aligned(RESTRICTED, pinned_pod(12), reserved="0,6")).cpuset
    assert isinstance(aligned(RESTRICTED, pinned_pod(11), taken=["1,7"], reserved="0,6"), Unfit)


def test_restricted_by_a_pod_is_the_releases_word() -> None:
    """Koordinator contract 7: every set that serves a resource is preferred."""
    given = granted(aligned(RESTRICTED, pinned_pod(6, numa=OWN), taken=WIDE))

    assert [part.node for part in given.parts] == [0, 1]


def test_required_whole_cores_are_split_core_by_core() -> None:
    """Koordinator contract 7, machine X, mask {0,1}: 6 / 2 = 3, so one core, then two."""
    request = pinned_pod(6, whole(2), required=True, numa=OWN)

    given = granted(aligned(RESTRICTED, request, at(0, card(0)), at(1, card(1))))

    assert str(given.cpuset) == "0,6-7,12,18-19"
    assert [part.cpu_milli for part in given.parts] == [2000, 4000]


@pytest.mark.parametrize(
    ("policy", "request_", "taken", "parts"),
    [
        pytest.param(SINGLE, sharing_pod(18000), [], [18000], id="a share of an amplified node"),
        pytest.param(SINGLE, sharing_pod(18001), [], None, id="a share too many"),
        pytest.param(RESTRICTED, sharing_pod(36000), [], [18000, 18000], id="both nodes"),
        pytest.param(RESTRICTED, sharing_pod(36001), [], None, id="more than both"),
        pytest.param(SINGLE, pinned_pod(12), [], [12000], id="every real CPU"),
        pytest.param(SINGLE, pinned_pod(13), [], None, id="CPUs of one's own are real"),
        pytest.param(SINGLE, sharing_pod(12000), ["0-1,12-13"], [12000], id="beside four CPUs"),
        pytest.param(SINGLE, sharing_pod(12001), ["0-3,6-7"], [12001], id="the emptier node"),
        pytest.param(SINGLE, sharing_pod(15001), ["0-3,6-7"], None, id="sets cost what they do"),
    ],
)
def test_numa_nodes_are_amplified_as_their_node_is(
    policy: NumaPolicy,
    request_: PodRequest,
    taken: Sequence[str],
    parts: Sequence[int] | None,
) -> None:
    """Contract 6.6 and 7: ratio 1.5 on 12 CPUs a NUMA node; parts say what was asked."""
    answer = aligned(policy, request_, taken=taken, ratio=Fraction(3, 2))

    if parts is None:
        assert isinstance(answer, Unfit)
    else:
        assert [part.cpu_milli for part in granted(answer).parts] == parts


def test_a_share_leaves_the_cpus_of_an_amplified_node_that_it_pays_for() -> None:
    """9000m of 18000m are shared: six of twelve CPUs at 1.5 can be somebody's own, not seven."""
    parts = [NumaPart(node=0, cpu_milli=9000), NumaPart(node=1, cpu_milli=9001)]

    six = granted(aligned(SINGLE, pinned_pod(6), parts=parts, ratio=Fraction(3, 2)))

    assert str(six.cpuset) == "0-2,12-14"
    assert [part.cpu_milli for part in six.parts] == [6000]
    assert isinstance(aligned(SINGLE, pinned_pod(7), parts=parts, ratio=Fraction(3, 2)), Unfit)


def test_spread_cpus_are_split_in_halves() -> None:
    """Koordinator contract 7, machine X, mask {0,1}: Spread 5 is 0-1 and 6-8."""
    request = pinned_pod(5, whole(2), policy="SpreadByPCPUs", required=True, numa=OWN)

    given = granted(aligned(RESTRICTED, request, at(0, card(0)), at(1, card(1))))

    assert str(given.cpuset) == "0-1,6-8"


def test_a_share_takes_what_the_fuller_node_has() -> None:
    """Koordinator contract 7: 5 CPUs with 1500m free on node 0 and 9000m on node 1."""
    parts = [NumaPart(node=0, cpu_milli=10500), NumaPart(node=1, cpu_milli=3000)]
    request = replace(sharing_pod(5000, whole(2)), numa=OWN)

    given = granted(aligned(RESTRICTED, request, at(0, card(0)), at(1, card(1)), parts=parts))

    assert [part.cpu_milli for part in given.parts] == [1500, 3500]
    assert not given.cpuset


def test_a_sharing_pod_is_bound_to_the_pools_of_its_nodes() -> None:
    """Koordinator contract 2.2: socket and node only, for LS Pods under the strict policies."""
    pool = (CpuSharedPool(socket=0, node=0),)

    assert granted(aligned(SINGLE, sharing_pod(2000))).shared_pools == pool
    assert granted(aligned(BEST_EFFORT, sharing_pod(2000))).shared_pools == ()
    assert granted(aligned(SINGLE, sharing_pod(2000, qos="BE"))).shared_pools == ()
    assert granted(aligned(SINGLE, pinned_pod(2))).shared_pools == ()


def test_a_single_node_refuses_what_only_two_can_serve() -> None:
    """Koordinator contract 7: SingleNUMANode fails with what each resource would prefer."""
    both = (at(0, card(0)), at(1, card(1)))
    answer = aligned(SINGLE, pinned_pod(4, whole(2)), *both)

    assert isinstance(answer, Unfit)
    assert answer.reason == (
        "Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11],gpu prefer [11] among [11]"
    )
    assert granted(aligned(BEST_EFFORT, pinned_pod(4, whole(2)), *both)).cpuset


def test_memory_of_one_node_decides_too() -> None:
    """48 of 64 GiB are taken on node 0, so that 20 GiB and the CPUs come from node 1."""
    parts = [NumaPart(node=0, memory_bytes=48 * GIB)]
    request = pinned_pod(4, memory=20 * GIB)

    given = granted(aligned(SINGLE, request, parts=parts))

    assert [(part.node, part.memory_bytes) for part in given.parts] == [(1, 20 * GIB)]
    assert str(given.cpuset) == "6-7,18-19"


def test_memory_that_nobody_reports_decides_nothing() -> None:
    """Koordinator contract 7: a resource nobody reports has no opinion."""
    given = granted(aligned(SINGLE, pinned_pod(4, memory=999 * GIB), zones=()))

    assert str(given.cpuset) == "0-1,12-13"
    assert given.parts[0].memory_bytes == 0


def test_gpu_and_nic_align_with_the_cpus() -> None:
    """CPU, GPU and RDMA from NUMA node 1, where alone a NIC is free."""
    cards = (
        at(0, card(0)),
        at(1, card(1)),
        at(0, nic(0, used=100)),
        at(1, nic(1)),
    )

    given = granted(aligned(SINGLE, pinned_pod(4, whole(1), rdma(100)), *cards))

    assert minors(given) == [("gpu", 1), ("rdma", 1)]
    assert str(given.cpuset) == "6-7,18-19"


def test_a_device_preference_outweighs_the_emptier_node() -> None:
    """Score 500: GPU 0 would be chosen anyway, though node 1 has more CPUs free."""
    both = (at(0, card(0)), at(1, card(1)))

    given = granted(aligned(SINGLE, pinned_pod(2, whole(1)), *both, taken=["0-3,12-15"]))

    assert minors(given) == [("gpu", 0)]
    assert str(given.cpuset) == "4,16"


def test_devices_whose_place_nobody_knows_have_no_opinion() -> None:
    """They go with any NUMA node."""
    given = granted(aligned(SINGLE, pinned_pod(4, whole(1)), card(0), taken=["0-4,12-16"]))

    assert minors(given) == [("gpu", 0)]
    assert str(given.cpuset) == "6-7,18-19"


def test_exclusive_use_keeps_a_pod_off_a_node_of_wide_sets() -> None:
    """Koordinator contract 7: a two-node set touches both, so a one-node Pod finds none."""
    wide = ["0,6,12,18"]
    own = NumaTopologySpec(policy=SINGLE, exclusive=NumaExclusive.REQUIRED)

    assert isinstance(aligned(SINGLE, pinned_pod(2, numa=own), taken=wide), Unfit)
    assert granted(aligned(SINGLE, pinned_pod(2), taken=wide)).cpuset


def test_a_wide_pod_keeps_off_nodes_of_single_sets() -> None:
    """Koordinator contract 7: a many-node set that would touch a single node is refused."""
    own = NumaTopologySpec(policy=RESTRICTED, exclusive=NumaExclusive.REQUIRED)

    assert isinstance(aligned(RESTRICTED, pinned_pod(14, numa=own), taken=["0,12"]), Unfit)
    assert len(granted(aligned(RESTRICTED, pinned_pod(14), taken=["0,12"])).cpuset) == 14


def test_a_node_without_numa_nodes_serves_best_effort_only() -> None:
    """The strict policies can't be kept where nobody reports NUMA nodes."""
    facts = NodeFacts(uid="n", name="n")
    request = sharing_pod(1000)
    now = NodeNow(view=NodeView(facts=facts), load=NumaLoad(), choose_devices=lambda _: Choice())

    assert align(BEST_EFFORT, request, now, LEAST) == Alignment()
    refused = align(RESTRICTED, request, now, LEAST)
    assert isinstance(refused, Unfit)
    assert refused.reason == "node(s) missing NUMA resources"


def test_reserved_cpus_lower_their_nodes_quantity() -> None:
    """Koordinator contract 6.3: zone 0 of 12 CPUs, kubelet's 0 and 12, the system's 1: 9 left."""
    facts = NodeFacts(
        uid="n",
        name="n",
        cpu_topology=MACHINE_X,
        reserved_cpus=parse_cpuset("0-1,12"),
        numa_zones=(NumaZone(id=0, cpu_milli=12000), NumaZone(id=1, cpu_milli=12000)),
    )

    free = [numa.cpu_milli_free for numa in numa_nodes_of(facts, NumaLoad())]

    assert free == [9000, 12000]


@pytest.mark.parametrize(
    ("node", "pod", "default", "expected"),
    [
        (SINGLE, NumaPolicy.NONE, "None", SINGLE),
        (NumaPolicy.NONE, RESTRICTED, "None", RESTRICTED),
        (SINGLE, SINGLE, "None", SINGLE),
        (NumaPolicy.NONE, NumaPolicy.NONE, "BestEffort", BEST_EFFORT),
        (NumaPolicy.NONE, NumaPolicy.NONE, "None", NumaPolicy.NONE),
        (RESTRICTED, NumaPolicy.NONE, "BestEffort", RESTRICTED),
        (SINGLE, RESTRICTED, "None", "node(s) NUMA Topology policy not match"),
    ],
)
def test_whose_policy_counts(
    node: NumaPolicy, pod: NumaPolicy, default: str, expected: NumaPolicy | str
) -> None:
    """Koordinator contract 7: the node's, then the Pod's, then the settings'."""
    facts = NodeFacts(uid="n", name="n", numa_policy=node)
    request = pinned_pod(2, numa=NumaTopologySpec(policy=pod))

    found = effective_policy(request, facts, CpuSettings(default_numa_topology_policy=default))

    assert (found.reason if isinstance(found, Unfit) else found) == expected
