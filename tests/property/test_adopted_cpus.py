"""What a Binding says is enough: a Pod counts the same reserved and found running."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.adopted.pods import adopt
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import Vocabulary
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from tests.support.cpu_objects import (
    BIND_POLICY,
    NUMA_POLICY,
    RESERVATION,
    STRATEGY,
    cpu_node,
    cpu_pod,
    zone,
)
from tests.support.objects import Object

BINDS = ["", "", "Default", "FullPCPUs", "SpreadByPCPUs", "SpreadByPCPUs"]
EXCLUSIVES = ["", "Default", "PCPULevel", "PCPULevel", "PCPULevel", "NUMANodeLevel"]


def said(**words: str) -> dict[str, str]:
    """Return the words that are not empty."""
    return {key: text for key, text in words.items() if text}


@st.composite
def nodes(draw: st.DrawFn) -> NodeFacts:
    """Machine X with two GPUs and any policies."""
    labels = {
        BIND_POLICY: draw(st.sampled_from(["", "", "FullPCPUsOnly", "SpreadByPCPUs"])),
        NUMA_POLICY: draw(st.sampled_from(["", "", "BestEffort", "Restricted", "SingleNUMANode"])),
        STRATEGY: draw(st.sampled_from(["", "MostAllocated", "DistributeEvenly"])),
    }
    kept = draw(st.sampled_from(["", "0", "5,17", "0-1,12-13"]))
    objects = cpu_node(
        labels={key: text for key, text in labels.items() if text},
        annotations={RESERVATION: {"reservedCPUs": kept}} if kept else {},
        zones=[zone(0, "40Gi"), zone(1, "64Gi")],
        gpu_numas=[0, 1],
    )
    return decode_node(objects[0], objects[2], objects[1])[0]


PODS = st.builds(
    lambda cpus, qos, required, preferred, exclusive, memory, gpus: (
        str(cpus),
        {
            "qos": qos,
            "spec": said(
                requiredCPUBindPolicy=required,
                preferredCPUBindPolicy=preferred,
                preferredCPUExclusivePolicy=exclusive,
            ),
            "memory": f"{memory}Gi",
            "gpus": gpus,
        },
    ),
    st.integers(1, 6),
    st.sampled_from(["LSE", "LSR", "LSR", "LSR", "LS", ""]),
    st.sampled_from(["", "", "", "Default", "FullPCPUs", "SpreadByPCPUs"]),
    st.sampled_from(BINDS),
    st.sampled_from(EXCLUSIVES),
    st.integers(1, 20),
    st.sampled_from([0, 0, 1]),
)
SETTINGS = st.builds(
    lambda exclusive: SchedulingSettings(vocabulary=Vocabulary(default_exclusive_policy=exclusive)),
    st.sampled_from(["None", "PCPULevel"]),
)


def found_running(pod: Object, placement: Placement, node: NodeFacts, words: Any) -> PodObserved:  # noqa: ANN401
    """Return what adoption reads out of the Pod as the API server has it after the Binding."""
    metadata = {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], **words}}
    running = {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": node.name}}
    held = adopt(running, node)
    assert held.cpuset == placement.cpuset
    assert not held.faults
    return held


def decide_alike(
    node: NodeFacts, pods: list[tuple[str, Any]], settings: SchedulingSettings
) -> None:
    """Reserve in one engine, adopt in the other; compare every decision."""
    reserving, adopting = (Engine([node], settings) for _ in range(2))
    for number, (cpus, more) in enumerate(pods):
        pod = cpu_pod(f"p{number}", cpus, **more)
        request = decode_pod(pod, settings.vocabulary)
        answer, other = reserving.decide(request), adopting.decide(request)

        assert type(answer) is type(other)
        if isinstance(answer, Placement) and isinstance(other, Placement):
            assert answer == other
            reserving.reserve(answer)
            words = encode(answer, node=node, now_ns=0, settings=settings)
            assert adopting.adopt(0, found_running(pod, answer, node, words)) == []


@given(nodes(), st.lists(PODS, min_size=2, max_size=7), SETTINGS)
def test_a_pod_counts_the_same_reserved_and_adopted(
    node: NodeFacts, pods: list[tuple[str, Any]], settings: SchedulingSettings
) -> None:
    """
    One engine reserves, the other adopts from the Binding's annotations; they decide alike.

    CPUs and parts of NUMA nodes choose what comes next. No conflict is named, for nothing
    contradicts itself.
    """
    decide_alike(node, pods, settings)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["", "PCPULevel", "NUMANodeLevel"])),
        min_size=2,
        max_size=6,
    ),
    SETTINGS,
)
def test_exclusive_policies_are_adopted_with_the_cpus(
    wishes: list[tuple[int, str]], settings: SchedulingSettings
) -> None:
    """On a node that fills one NUMA node first, exclusivity sends Pods to the other."""
    node = decode_node(*full_first())[0]
    pods = [
        (
            str(cpus),
            {
                "spec": said(
                    preferredCPUBindPolicy="SpreadByPCPUs", preferredCPUExclusivePolicy=exclusive
                )
            },
        )
        for cpus, exclusive in wishes
    ]

    decide_alike(node, pods, settings)


def full_first() -> tuple[Object, None, Object]:
    """Return machine X, whose fuller NUMA node is taken first."""
    node, topology = cpu_node(labels={STRATEGY: "MostAllocated"})
    return node, None, topology
