from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.dialects.names import Dialect
from ledger.domain.log.events import RefusalReason
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.requests import CpuSetDemand, PodRequest
from scheduler.decide.outcome import Unplaced
from scheduler.decide.refusal.reasons import message
from tests.support.clusters import (
    GIB,
    MIB,
    engine,
    gpu_bytes,
    gpu_node,
    nic,
    placed,
    pod,
    refused,
    running,
    selector,
    share,
)
from tests.support.topologies import MACHINE_X

NEVER_EIGHT = "no node in this cluster has 8 GPU; the most is 4"


def _by_node(answer: Unplaced, *nodes: NodeFacts) -> Mapping[str, list[str]]:
    assert answer.nodes is not None
    return answer.nodes.by_node(tuple(node.name for node in nodes))


def test_the_message_counts_by_number_then_text() -> None:
    """Rule: cli.md, Output."""
    text = message(6, [("b", 2), ("c", 3), ("a", 2)])

    assert text == "0/6 nodes are available: 3 c, 2 a, 2 b."


def test_a_cluster_without_nodes() -> None:
    """There is nothing to count."""
    assert refused(engine(), pod("p")).message == "0/0 nodes are available."


@pytest.mark.parametrize(
    ("node", "request_", "reasons"),
    [
        pytest.param(
            gpu_node("n", cpu_milli=500), pod("p"), ["Insufficient cpu"], id="too little cpu"
        ),
        pytest.param(
            gpu_node("n", cpu_milli=0, memory_bytes=0, pods_max=0),
            pod("p"),
            ["Too many pods", "Insufficient cpu", "Insufficient memory"],
            id="every resource that is short, as kube-scheduler's fit",
        ),
        pytest.param(
            gpu_node("n", cpu_milli=0, taints=(Taint(key="k", value="v", effect="NoSchedule"),)),
            pod("p"),
            ["node(s) had untolerated taint {k: v}"],
            id="the first stage that fails hides the later ones",
        ),
        pytest.param(
            gpu_node("n", 0, cpu_milli=0),
            pod("p", share(50)),
            ["Insufficient cpu"],
            id="devices come after the resource fit",
        ),
        pytest.param(
            gpu_node("n", 0), pod("p", share(50)), ["Insufficient gpu devices"], id="no card at all"
        ),
        pytest.param(
            gpu_node("n", 2),
            pod("p", share(100, 4)),
            ["Insufficient gpu devices"],
            id="too few cards",
        ),
        pytest.param(
            gpu_node("n", 1),
            pod("p", share(50), nic(10)),
            ["Insufficient rdma devices"],
            id="the type that fails is named",
        ),
        pytest.param(
            gpu_node("n", 2, closed=frozenset({1})),
            pod("p", share(100, 2)),
            ["Insufficient gpu devices"],
            id="closed cards would do",
        ),
        pytest.param(
            gpu_node("n", 2, models=("T4", "A10")),
            pod("p", share(100, 2, models=("T4",))),
            ["Insufficient gpu devices"],
            id="too few cards of the model",
        ),
        pytest.param(
            gpu_node("n", 2),
            pod("p", gpu_bytes(20 * GIB)),
            ["Insufficient gpu devices"],
            id="more bytes than one card, fewer than all",
        ),
        pytest.param(
            gpu_node("n", cpu_topology=MACHINE_X, cpu_milli=None),
            pod(
                "p",
                cpu_milli=99_000,
                cpuset=CpuSetDemand(
                    cpus=99, bind_policy="FullPCPUs", required=False, exclusive_policy="None"
                ),
            ),
            ["not enough cpus available to satisfy request"],
            id="too few CPUs to pin",
        ),
    ],
)
def test_the_reason_of_a_fresh_node(
    node: NodeFacts, request_: PodRequest, reasons: list[str]
) -> None:
    """Kubernetes' text, the contract's text, or a code, first failing stage only."""
    answer = refused(engine(node), request_)

    assert _by_node(answer, node) == {"n": reasons}
    assert answer.message == f"0/1 nodes are available: 1 {reasons[0]}." or len(reasons) > 1


@pytest.mark.parametrize(
    ("node", "request_", "name"),
    [
        pytest.param(
            gpu_node("n", 2, closed=frozenset({1})),
            pod("p", share(100, 2)),
            "GPUClosed",
            id="closed cards would do",
        ),
        pytest.param(
            gpu_node("n", 2),
            pod("p", gpu_bytes(20 * GIB)),
            "Insufficient gpu devices",
            id="enough in all, and no card is ever as large",
        ),
        pytest.param(
            gpu_node("n", 2), pod("p", share(100, 4)), "Insufficient gpu devices", id="too few"
        ),
    ],
)
def test_people_get_the_finer_word(node: NodeFacts, request_: PodRequest, name: str) -> None:
    """The contract's one text stands for several causes; `why` tells them apart."""
    answer = refused(engine(node), request_)

    assert [count.reason for count in answer.reasons] == [name]
    assert "Insufficient gpu devices" in answer.message


def test_enough_in_all_but_not_on_one_card_is_fragmented() -> None:
    """Two halves do not make a whole."""
    node = gpu_node("n", 2)
    cluster = engine(node, policy="spread")
    placed(cluster, pod("a", share(60)))
    placed(cluster, pod("b", share(60)))
    answer = refused(cluster, pod("c", share(70)))

    assert answer.reasons == (
        RefusalReason(
            reason="GPUFragmented",
            nodes=1,
            nearest_node="n",
            detail="asks 70 % of a GPU, 40 % left on the best, 80 % in all",
            remedy="release 30 % of one GPU on n or ask for 40 %",
        ),
    )


def test_a_pod_on_an_unknown_card_closes_the_node() -> None:
    """Nobody knows which card is taken."""
    node = gpu_node("n", 2)
    cluster = engine(node)
    assert cluster.adopt(0, running("legacy", unknown_types=("gpu",))) == []

    assert refused(cluster, pod("p", share(10))).message == (
        "0/1 nodes are available: 1 node(s) have a Pod on an unknown card."
    )


def test_a_card_full_of_containers() -> None:
    """The cap of mGPU on instances per card has a code of its own."""
    node = gpu_node("n", 1)
    cluster = engine(node)
    request = pod("p", gpu_bytes(256 * 2**20, core=1), dialect=Dialect.MGPU)
    for number in range(16):
        placed(cluster, pod(f"p{number}", *request.devices, cpu_milli=0, dialect=Dialect.MGPU))

    assert [count.reason for count in refused(cluster, request).reasons] == ["GPUContainerLimit"]


@pytest.mark.parametrize("restarted", [False, True], ids=["as decided", "adopted"])
def test_only_containers_of_mgpu_count_for_its_limit(*, restarted: bool) -> None:
    """GPU-sharing contract A.2: the cap is the mGPU driver's, other dialects have none."""
    others = [
        pod(f"o{number}", gpu_bytes(256 * 2**20), cpu_milli=0, dialect=dialect)
        for number, dialect in enumerate([Dialect.GPUSHARE, Dialect.KOORDINATOR] * 8)
    ]
    part = gpu_bytes(256 * 2**20, core=1)
    ours = [pod(f"m{number}", part, cpu_milli=0, dialect=Dialect.MGPU) for number in range(16)]
    cluster = engine(gpu_node("n", 1, pods_max=99))
    placements = [placed(cluster, request) for request in (*others, *ours)]
    if restarted:
        cluster = engine(gpu_node("n", 1, pods_max=99))
        for each in placements:
            seen = running(each.request.uid, *each.shares, cpu_milli=0)
            assert cluster.adopt(0, structs.replace(seen, dialect=str(each.request.dialect))) == []

    late = pod("late", part, cpu_milli=0, dialect=Dialect.MGPU)

    assert refused(cluster, late).message == "0/1 nodes are available: 1 GPUContainerLimit."
    cluster.release("m3")
    assert placed(cluster, late).node_name == "n"
    assert placed(cluster, replace(others[0], uid="more")).node_name == "n"


def test_counts_name_the_nearest_node_with_numbers() -> None:
    """The node that lacks least, what is short there, and what would make up for it."""
    nodes = (
        gpu_node("small", cpu_milli=2000),
        gpu_node("close", cpu_milli=7500),
        gpu_node("little", memory_bytes=GIB),
        gpu_node("elsewhere", labels={"zone": "b"}),
    )
    request = pod("p", cpu_milli=8000, memory_bytes=2 * GIB, placement=selector())
    answer = refused(engine(*nodes[:3]), request)

    assert answer.message == ("0/3 nodes are available: 2 Insufficient cpu, 1 Insufficient memory.")
    assert answer.reasons == (
        RefusalReason(
            reason="Insufficient cpu",
            nodes=2,
            nearest_node="close",
            detail="asks 8 cpu, 7.5 free",
            remedy="ask for at most 7.5 cpu",
        ),
        RefusalReason(
            reason="Insufficient memory",
            nodes=1,
            nearest_node="little",
            detail="asks 2048Mi memory, 1024Mi free",
            remedy="ask for at most 1024Mi memory",
        ),
    )


def test_whole_cards_are_counted_at_the_nearest_node() -> None:
    """The node with most untouched cards is nearest, and what is missing there must go."""
    nodes = (gpu_node("two", 2), gpu_node("four", 4, labels={"a": "x"}), gpu_node("none", 0))
    cluster = engine(*nodes)
    placed(cluster, pod("a", share(10), placement=selector(a="x")))
    answer = refused(cluster, pod("p", share(100, 4)))

    (count,) = answer.reasons
    assert (count.nearest_node, count.detail, count.remedy) == (
        "four",
        "asks 4 whole GPU, 3 untouched",
        "release 1 whole GPU on four",
    )


def test_an_unchanged_cluster_gives_the_same_answer() -> None:
    """A second refusal, from what is remembered, equals the first."""
    cluster = engine(gpu_node("a"), gpu_node("b", 0))
    request = pod("p", share(100, 3))

    assert refused(cluster, request) == refused(cluster, request)


def test_reasons_follow_the_order_the_nodes_were_given_in() -> None:
    """Also when a rank breaks ties in another order."""
    nodes = (gpu_node("a", cpu_milli=0), gpu_node("b", memory_bytes=0), gpu_node("c", 0))
    answer = refused(engine(*nodes, rank=[2, 0, 1]), pod("p", share(50)))

    assert _by_node(answer, *nodes) == {
        "a": ["Insufficient cpu"],
        "b": ["Insufficient memory"],
        "c": ["Insufficient gpu devices"],
    }


def test_a_node_that_could_never_serve_is_no_advice() -> None:
    """Who has too few cards is not told to release memory; one that has enough of all is named."""
    nodes = (
        gpu_node("small", 2, memory_bytes=8 * GIB),
        gpu_node("large", 4, memory_bytes=8 * GIB),
    )
    cluster = engine(*nodes)
    for node, memory in enumerate((5, 6)):
        cluster.adopt(node, running(f"p-{node}", cpu_milli=0, memory_bytes=memory * GIB))

    for cards, remedy, never in (
        (4, "release 2048Mi memory on large", ""),
        (8, "ask for less: no node among these has 8 GPU; the most is 4", NEVER_EIGHT),
    ):
        answer = refused(cluster, pod("p", share(100, cards), memory_bytes=4 * GIB))
        assert [reason.remedy for reason in answer.reasons] == [remedy]
        assert answer.never == never


def test_nobody_is_told_to_ask_for_less_than_one() -> None:
    """Of what no node has at all."""
    answer = refused(engine(gpu_node("a")), pod("p", nic(100)))
    fact = "has 1 RDMA; there is none"
    assert answer.never == f"no node in this cluster {fact}"
    assert [reason.remedy for reason in answer.reasons] == [
        f"add a node that has it: no node among these {fact}"
    ]


def test_what_no_card_has_is_said_with_the_largest() -> None:
    """80Gi of one card, where the largest has 32510Mi."""
    cluster = engine(gpu_node("a", card_bytes=20_000 * MIB), gpu_node("b", card_bytes=32_510 * MIB))
    answer = refused(cluster, pod("p", gpu_bytes(80 * GIB)))
    assert answer.never == "no card in this cluster has 80Gi; the largest has 32510Mi"
    assert not any("release" in reason.remedy for reason in answer.reasons)


def test_cards_of_unknown_memory_are_not_called_empty() -> None:
    """A device plugin tells a number of cards and nothing of their memory."""
    answer = refused(engine(gpu_node("a", card_bytes=0)), pod("p", gpu_bytes(80 * GIB)))
    assert answer.never == "no card in this cluster is known by its memory, and 80Gi is asked"


@pytest.mark.parametrize(
    ("request_", "never"),
    [
        (pod("p", cpu_milli=32_000), "no node in this cluster has 32 cpu; the most is 16"),
        (
            pod("p", memory_bytes=96 * GIB),
            "no node in this cluster has 96Gi memory; the most is 64Gi",
        ),
        (pod("p", nic(100)), "no node in this cluster has 1 RDMA; there is none"),
        (
            pod("p", share(100, 4), cpu_milli=12_000),
            "no node in this cluster has all of it together",
        ),
        (pod("p", share(100, 4)), ""),
    ],
)
def test_what_no_node_has_is_said_first(request_: PodRequest, never: str) -> None:
    """Each thing by itself, or all of it on one node."""
    cluster = engine(gpu_node("a", 4, cpu_milli=8_000), gpu_node("b"))
    cluster.adopt(0, running("other", unknown_types=("gpu",)))
    assert refused(cluster, request_).never == never
