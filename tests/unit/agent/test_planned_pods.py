"""Kubelet's Pods as planning takes them, and which holdings count."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.cpus.nri import snapshot_of
from agent.cpus.nri_messages import Bound
from agent.decide.container_cpus import KubeQos
from agent.decide.node_cpus import FoundCpus, KubeletManagers, MachineCpus
from agent.decide.node_holdings import CpuClaim
from agent.decide.planned_pods import (
    believed_cpus,
    by_their_own_words,
    node_planned,
    planned_pods,
)
from agent.decide.pools import PodCpus, joined
from agent.decide.wanted_cpus import PodWanted, wanted_of
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.resources import ANNOTATION_NODE_RESERVATION, ANNOTATION_RESOURCE_STATUS
from tests.support.cgroup_trees import id_of, uid_of
from tests.support.cpus_world import holding, pod
from tests.support.proofs import believing, word
from tests.support.topologies import MACHINE_Y

Json = dict[str, Any]
CLAIM = CpuClaim(claim_uid="c", position=7, namespace="ml", name="mine", cpus=parse_cpuset("6-7"))


def found(*, static: bool = False) -> FoundCpus:
    """Return machine Y, and what kubelet does there."""
    policy = KubeletCpuPolicy(
        policy="static" if static else "none", reserved_cpus=parse_cpuset("0" if static else "")
    )
    return FoundCpus(
        machine=MachineCpus(topology=MACHINE_Y, numa=()),
        managers=KubeletManagers(cpu=policy),
        pinned={},
        memory={},
        pods=(),
    )


@pytest.mark.parametrize(
    ("made", "said", "amounts"),
    [
        (pod(1, qos="LSR", cpus="2-3", milli=2000), ("LSR", "Guaranteed"), (True, 2000)),
        (pod(1, milli=500), ("", "Guaranteed"), (False, 500)),
        (pod(1, qos="LS", milli=1000, limit=False), ("LS", "Burstable"), (True, 0)),
        (pod(1, qos="BE", milli=0), ("BE", "BestEffort"), (False, 0)),
    ],
    ids=["LSR", "Guaranteed", "LS", "BE"],
)
@pytest.mark.parametrize("is_static_pod", [False, True], ids=["told", "by its amounts"])
def test_a_pod_is_planned_by_its_classes_and_its_containers(
    made: Json, said: tuple[str, str], amounts: tuple[bool, int], *, is_static_pod: bool
) -> None:
    """Kubelet does not say the class of every static Pod: amounts do."""
    if is_static_pod:
        made = {**made, "status": {**made["status"], "qosClass": ""}}
    (planned,), doubted = planned_pods([made], {}, ())
    assert (planned.uid, planned.qos, planned.kube_qos) == (
        uid_of(1),
        QosClass(said[0]),
        KubeQos(said[1]),
    )
    [container] = planned.containers
    assert (container.name, container.id) == ("main", id_of(1))
    assert (container.whole_cpus, container.limit_milli, container.given) == (*amounts, EMPTY)
    assert not doubted


def test_what_kubelet_gave_to_one_container_is_no_other_containers() -> None:
    """Nor does the runtime's hook give it to anybody: kubelet has it written."""
    made = pod(1, milli=2000)
    [first] = made["spec"]["containers"]
    made["spec"]["containers"] = [first, {**first, "name": "b"}]
    given = {"main": parse_cpuset("2-3"), "b": parse_cpuset("4-5")}
    here = replace(found(static=True), pinned={uid_of(1): given})
    node, _ = node_planned(here, [made], (), (), {})
    [planned] = node.pods
    assert {one.name: one.given for one in planned.containers} == given
    wanted = wanted_of(node)
    assert wanted.pools.exclusive == parse_cpuset("2-5")
    bound = snapshot_of(wanted, kubelet_binds=True, v1=False).bound
    assert {name: bound[uid_of(1), name] for name in given} == dict.fromkeys(given, Bound())


def test_a_container_that_is_not_made_yet_has_no_id_and_an_ephemeral_one_its_own() -> None:
    """Names come from the spec, and of ephemeral ones from the status alone."""
    made = pod(1)
    made["status"]["containerStatuses"] = []
    made["status"]["ephemeralContainerStatuses"] = [
        {"name": "debug", "containerID": f"containerd://{id_of(7)}"}
    ]
    (planned,), _ = planned_pods([made], {}, ())
    assert {one.name: one.id for one in planned.containers} == {"main": "", "debug": id_of(7)}


def test_a_pod_that_has_ended_is_none_and_one_that_can_not_be_read_is_left_alone() -> None:
    """Nothing of it is touched, and it is named."""
    ended, broken = pod(1), pod(2)
    ended["status"]["phase"] = "Succeeded"
    broken["metadata"]["annotations"][ANNOTATION_RESOURCE_STATUS] = "{"
    planned, (doubted,) = planned_pods([ended, broken], {}, ())
    assert [(one.uid, one.stays) for one in planned] == [(uid_of(2), True)]
    assert doubted.about == uid_of(2)


@pytest.mark.parametrize("by_template", [False, True])
def test_a_pod_whose_claim_has_cpus_is_bound_by_the_claims_driver(*, by_template: bool) -> None:
    """By the claim's name: the ledger says who holds, not who uses."""
    made = pod(1)
    entry = {"name": "x", "resourceClaimName": "mine"}
    if by_template:
        made["status"]["resourceClaimStatuses"] = [entry]
    else:
        made["spec"]["resourceClaims"] = [entry]
    (planned,), _ = planned_pods([made], {}, [CLAIM])
    assert (planned.stays, planned.claimed) == (True, CLAIM.cpus)
    for other, claim in ((pod(1), CLAIM), (made, replace(CLAIM, namespace="else"))):
        (planned,), _ = planned_pods([other], {}, [claim])
        assert (planned.stays, planned.claimed) == (False, EMPTY)


def test_a_stays_are_in_nobodys_pool() -> None:
    """As an LSE Pod's: neither LS nor BE Pods run there, and what the claim's Pod has stays."""
    user, ls, be = pod(1), pod(2, qos="LS", milli=500, limit=False), pod(3, qos="BE", milli=0)
    user["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "mine"}]
    node, _ = node_planned(replace(found(), told=[CLAIM]), [user, ls, be], (), (), {})
    assert node.held == {"c/7": PodCpus(cpus=CLAIM.cpus, qos=QosClass.LSE)}
    wanted = wanted_of(node)
    left = MACHINE_Y.cpuset - CLAIM.cpus
    assert joined(wanted.pools.shared) == joined(wanted.pools.best_effort) == left
    assert wanted.pods[uid_of(1)] == PodWanted(stays=True)
    assert [wanted.pods[uid_of(one)].unnamed for one in (2, 3)] == [left, left]


def test_where_nobody_says_which_claims_have_cpus_a_pod_with_one_stops_the_plan() -> None:
    """An older service does not: nobody is bound to CPUs that may be a claim's."""
    user = pod(1)
    node, _ = node_planned(replace(found(), told=None), [user], (), (), {})
    assert node.held == {}
    user["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "mine"}]
    with pytest.raises(InputError, match="which have CPUs"):
        node_planned(replace(found(), told=None), [user], (), (), {})
    assert node_planned(replace(found(), told=()), [user], (), (), {})[0].held == {}


def test_the_services_word_counts_and_beside_it_no_proof_of_a_pod() -> None:
    """What is not among its holdings has ended, whatever a Pod carries."""
    one, other = pod(1, cpus="2-3"), pod(2, cpus="4-5")
    held, doubted = believed_cpus(
        believing(), word(100, holding(1, "2-3")), [one, other], is_heard=True
    )
    assert [each.pod_uid for each in held] == [uid_of(1)]
    assert not doubted


def test_while_the_service_is_away_later_proofs_of_pods_count_beside_its_copy() -> None:
    """A Pod that was bound since has its CPUs; one that the copy knows to have ended has not."""
    later, ended = pod(200, cpus="4-5"), pod(2, cpus="6-7")
    held, doubted = believed_cpus(
        believing(), word(100, holding(1, "2-3")), [later, ended], is_heard=False
    )
    assert {each.pod_uid for each in held} == {uid_of(1), uid_of(200)}
    assert [each.about for each in doubted] == [uid_of(2)]


def test_nobody_gets_cpus_of_a_holding_that_is_not_believed_and_its_pod_is_left_alone() -> None:
    """Its proof is of another Pod, say."""
    forged = holding(2, "4-5")
    held, doubted = believed_cpus(
        believing(),
        word(100, type(forged)(**{**_fields(forged), "proof": holding(1, "2-3").proof})),
        [pod(2)],
        is_heard=True,
    )
    node, _ = node_planned(found(), [pod(2)], held, doubted, {})
    assert node.held[uid_of(2)].cpus == parse_cpuset("4-5")
    assert [(one.uid, one.stays) for one in node.pods] == [(uid_of(2), True)]


def _fields(one: Any) -> Json:  # noqa: ANN401 - a dataclass
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def test_a_node_is_planned_with_what_it_keeps_back_and_who_has_what() -> None:
    """By its annotations, kubelet's policies, and the ledger."""
    pods = [pod(1, qos="LSR", cpus="2-3", milli=2000)]
    words = {ANNOTATION_NODE_RESERVATION: json.dumps({"reservedCPUs": "15"})}
    held, _ = believed_cpus(believing(), word(100, holding(1, "2-3")), pods, is_heard=True)
    node, _ = node_planned(found(static=True), pods, held, (), words)
    assert node.cpus.reserved == parse_cpuset("15")
    assert node.cpus.kubelet_reserved == parse_cpuset("0")
    assert node.cpus.kubelet_static
    assert node.held == {uid_of(1): PodCpus(cpus=parse_cpuset("2-3"), qos=QosClass.LSR)}
    assert by_their_own_words(node).held == node.held


def test_of_a_pod_that_is_not_here_yet_nobody_shares_the_cpus() -> None:
    """They are free of others before it starts."""
    held, _ = believed_cpus(believing(), word(100, holding(1, "2-3")), (), is_heard=True)
    node, _ = node_planned(found(), (), held, (), {})
    assert node.held[uid_of(1)].qos is QosClass.LSE


def test_a_claim_that_was_given_cpus_anew_shares_none_of_both() -> None:
    """What it held through a Node that was lost may still be in use."""
    claims = tuple(
        CpuClaim(claim_uid="c", position=at, namespace="ml", name="mine", cpus=parse_cpuset(cpus))
        for at, cpus in ((7, "2-3"), (9, "4-5"))
    )
    node, _ = node_planned(replace(found(), told=claims), (), (), (), {})
    assert {one.cpus for one in node.held.values()} == {claim.cpus for claim in claims}
