"""The QoS principles of the CPU proposal, from the ledger's events to what each class may use."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from agent.decide.container_cpus import KubeQos, bound_to
from agent.decide.pools import NodeCpus, PodCpus, Pools, claimed_cpus, own_cpus, pools_of
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import CpuSet, cpuset_of, parse_cpuset
from ledger.domain.log.events import (
    ClaimObserved,
    ClaimReleased,
    ClaimReserved,
    ClaimVoided,
    LedgerEvent,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
)
from ledger.domain.request.requests import PodSnapshot
from tests.support.stores import claim, claim_ended, seen_claim
from tests.support.topologies import MACHINE_X

STATUS = "scheduling.koordinator.sh/resource-status"
NODE = NodeCpus(topology=MACHINE_X, kubelet_reserved=parse_cpuset("0,12"))
ALL = MACHINE_X.cpuset


def reserved(name: str, cpus: str, qos: str = "LSR", *, node: str = "x") -> PodReserved:
    """Return the reservation of a Pod with CPUs of its own."""
    return PodReserved(
        pod_uid=name,
        attempt=1,
        namespace="ml",
        pod_name=name,
        node_uid=node,
        node_name=node,
        cpu_milli=1000,
        memory_bytes=0,
        cpuset=parse_cpuset(cpus),
        annotations={STATUS: f'{{"cpuset":"{cpus}"}}'} if cpus else {},
        snapshot=PodSnapshot(qos=qos),
    )


def pinned(name: str, cpus: str) -> PodObserved:
    """Return a Guaranteed Pod that kubelet's static policy gave CPUs."""
    return PodObserved(
        pod_uid=name,
        attempt=1,
        namespace="ml",
        pod_name=name,
        node_uid="x",
        node_name="x",
        source="pod-cpu-allocs",
        cpuset=parse_cpuset(cpus),
        snapshot=PodSnapshot(qos="Guaranteed"),
    )


def gone(name: str) -> PodReleased:
    """Return the end of a Pod."""
    return PodReleased(pod_uid=name, attempt=1, node_uid="x", reason="deleted")


Holders = dict[tuple[str, int], PodCpus]
"""UID and attempt of a Pod or a claim -> its own CPUs."""


def holding(events: Iterable[LedgerEvent]) -> Holders:
    """Return who has CPUs of node x to himself after some events."""
    holders: Holders = {}
    for event in events:
        match event:
            case PodReserved() | PodObserved() if event.node_uid == "x" and event.cpuset:
                holders[event.pod_uid, event.attempt] = own_cpus(event)
            case ClaimReserved() | ClaimObserved() if event.node_uid == "x" and event.cpuset:
                holders[event.pod_uid, event.attempt] = claimed_cpus(event.cpuset)
            case PodReleased() | PodVoided() | ClaimReleased() | ClaimVoided():
                if event.node_uid == "x":
                    holders.pop((event.pod_uid, event.attempt), None)
            case _:
                pass
    return holders


def pools(*events: LedgerEvent) -> Pools:
    """Return the node's pools after these events."""
    return pools_of(NODE, holding(events).values())


def usable(qos: QosClass, after: Pools, kube: KubeQos = KubeQos.BURSTABLE) -> CpuSet:
    """Return the CPUs that a Pod without any of its own is bound to."""
    return bound_to(ResourceStatus(), qos, kube, after)


def test_the_cpus_of_a_claim_are_nobody_elses_until_it_ends() -> None:
    """As an LSE Pod's, whether the gate let them through or found them."""
    for made in (claim, seen_claim):
        given = made("c", cpus=(1, 13), node="x", node_uid="x")
        ended = structs.replace(claim_ended("c"), node_uid="x")
        mine = cpuset_of([1, 13])

        assert usable(QosClass.BE, pools(given)).isdisjoint(mine)
        assert usable(QosClass.LS, pools(given)).isdisjoint(mine)
        assert mine <= usable(QosClass.LS, pools(given, ended))


def test_the_cpus_of_an_lse_pod_are_nobody_elses() -> None:
    """QoS principle 2: completely exclusive."""
    after = pools(reserved("a", "1,13", "LSE"))

    assert usable(QosClass.LS, after) == usable(QosClass.BE, after) == ALL - parse_cpuset("1,13")


def test_the_cpus_of_an_lsr_pod_are_shared_with_be_pods_only() -> None:
    """QoS principles 3 to 5: LS binds the shared pool, BE all CPUs but LSE's."""
    after = pools(reserved("a", "1,13"), reserved("b", "2,14", "LSE"))

    assert usable(QosClass.LS, after) == ALL - parse_cpuset("1-2,13-14")
    assert usable(QosClass.BE, after) == ALL - parse_cpuset("2,14")


def test_a_running_guaranteed_pod_of_the_static_policy_keeps_its_cpus() -> None:
    """QoS principle 6: out of the shared pool; "Take over", 2.2: out of the BE pool, too."""
    after = pools(pinned("a", "1,13"))

    assert str(after.exclusive) == "1,13"
    assert usable(QosClass.LS, after) == usable(QosClass.BE, after) == ALL - parse_cpuset("1,13")


def test_a_guaranteed_pod_of_the_none_policy_is_ls() -> None:
    """QoS principles 7 and 8: it binds the shared pool, running or new."""
    after = pools(reserved("a", "1,13"))
    shared = usable(QosClass.LS, after)

    assert usable(QosClass.NONE, after, KubeQos.GUARANTEED) == shared
    assert pools(reserved("g", "", "Guaranteed")) == pools()


def test_what_kubelet_reserved_is_in_the_shared_pool_and_be_pods_use_it_first() -> None:
    """Basic principle 2.1; "Take over", 1.2 and 2.1."""
    after = pools(reserved("a", "1,13"))

    assert parse_cpuset("0,12") <= usable(QosClass.LS, after)
    assert str(after.best_effort_first) == "0,12"


def test_a_resource_status_replaces_what_kubelet_would_bind() -> None:
    """Proposal, "Take over", 3.1: of a Guaranteed Pod, whatever kubelet's policy is."""
    status = ResourceStatus(cpuset=parse_cpuset("1,13"))

    assert str(bound_to(status, QosClass.NONE, KubeQos.GUARANTEED, pools())) == "1,13"


def test_an_adopted_pod_of_an_earlier_scheduler_is_what_its_label_says() -> None:
    """With a `resource-status` it is LSR or LSE as any other, and not kubelet's."""
    adopted = structs.replace(
        pinned("a", "1,13"),
        annotations={STATUS: '{"cpuset":"1,13"}'},
        snapshot=PodSnapshot(qos="LSR"),
    )

    assert usable(QosClass.BE, pools(adopted)) == ALL


def test_the_pools_are_resized_with_every_event() -> None:
    """Proposal, "Take over", 4.1; other nodes and second releases change nothing."""
    a, b = reserved("a", "1,13"), reserved("b", "2,14", "LSE")
    voided = PodVoided(pod_uid="b", attempt=1, node_uid="x", reason="fenced")

    assert pools(a, b, gone("a")) == pools(b)
    assert pools(a, b, voided) == pools(a)
    assert pools(a, gone("a"), gone("a")) == pools()
    assert pools(reserved("c", "3", node="y")) == pools()
    assert pools(a, structs.replace(gone("a"), node_uid="y")) == pools(a)
