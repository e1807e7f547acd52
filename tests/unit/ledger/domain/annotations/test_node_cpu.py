from __future__ import annotations

from fractions import Fraction

import pytest

from ledger.domain.annotations.cpu import CpuSharedPool, NumaPolicy
from ledger.domain.annotations.node_cpu import (
    KubeletCpuPolicy,
    NodeCpuBindPolicy,
    NodeCpuPolicies,
    NodeReservation,
    NumaAllocateStrategy,
    PodCpuAlloc,
    ReservationApplyPolicy,
    SystemQosResource,
    decode_amplification_ratios,
    decode_cpu_shared_pools,
    decode_cpu_topology,
    decode_kubelet_cpu_policy,
    decode_node_reservation,
    decode_pod_cpu_allocs,
    decode_raw_allocatable,
    decode_system_qos_resource,
    encode_cpu_shared_pools,
    encode_cpu_topology,
    encode_kubelet_cpu_policy,
    encode_pod_cpu_allocs,
    numa_policy_of,
    read_node_cpu_policies,
)
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.quantity import parse_quantity
from ledger.domain.topology import Cpu, cpu_topology_of
from tests.support.topologies import MACHINE_X, MACHINE_Y
from tests.support.wishes import (
    encode_amplification_ratios,
    encode_node_reservation,
    encode_raw_allocatable,
    encode_system_qos_resource,
)


def test_node_labels_are_read() -> None:
    """CPU orchestration proposal, node labels, Example."""
    labels = {
        "node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly",
        "node.koordinator.sh/numa-topology-alignment-policy": "BestEffort",
        "node.koordinator.sh/numa-allocate-strategy": "MostAllocated",
    }

    assert read_node_cpu_policies(labels) == NodeCpuPolicies(
        bind_policy=NodeCpuBindPolicy.FULL_PCPUS_ONLY,
        numa_allocate_strategy=NumaAllocateStrategy.MOST_ALLOCATED,
        numa_policy=NumaPolicy.BEST_EFFORT,
    )


def test_no_labels_are_no_policies() -> None:
    """Absent, empty and unknown values all leave the choice to Pod and settings."""
    odd = {
        "node.koordinator.sh/cpu-bind-policy": "Whatever",
        "node.koordinator.sh/numa-topology-policy": "None",
        "node.koordinator.sh/numa-allocate-strategy": "Random",
    }

    assert read_node_cpu_policies({}) == read_node_cpu_policies(odd) == NodeCpuPolicies()


def test_the_proposals_short_bind_policy_is_read() -> None:
    """Koordinator contract 2.3: `PCPUOnly` reads as `FullPCPUsOnly`."""
    policies = read_node_cpu_policies({"node.koordinator.sh/cpu-bind-policy": "PCPUOnly"})

    assert policies.bind_policy is NodeCpuBindPolicy.FULL_PCPUS_ONLY


def test_the_releases_numa_key_wins() -> None:
    """Koordinator contract 2.3: both keys are read; an empty released value says nothing."""
    both = {
        "node.koordinator.sh/numa-topology-policy": "Restricted",
        "node.koordinator.sh/numa-topology-alignment-policy": "BestEffort",
    }

    assert read_node_cpu_policies(both).numa_policy is NumaPolicy.RESTRICTED
    both["node.koordinator.sh/numa-topology-policy"] = ""
    assert read_node_cpu_policies(both).numa_policy is NumaPolicy.BEST_EFFORT


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("BestEffort", NumaPolicy.BEST_EFFORT),
        ("BestEffortPodLevel", NumaPolicy.BEST_EFFORT),
        ("BestEffortContainerLevel", NumaPolicy.BEST_EFFORT),
        ("Restricted", NumaPolicy.RESTRICTED),
        ("RestrictedPodLevel", NumaPolicy.RESTRICTED),
        ("RestrictedContainerLevel", NumaPolicy.RESTRICTED),
        ("SingleNUMANode", NumaPolicy.SINGLE_NUMA_NODE),
        ("SingleNUMANodePodLevel", NumaPolicy.SINGLE_NUMA_NODE),
        ("SingleNUMANodeContainerLevel", NumaPolicy.SINGLE_NUMA_NODE),
        ("None", NumaPolicy.NONE),
        ("", NumaPolicy.NONE),
        ("PodLevel", NumaPolicy.NONE),
    ],
)
def test_kubelets_topology_policies_map_to_three(text: str, policy: NumaPolicy) -> None:
    """Koordinator contract 3.2, "OURS", quirk Q9."""
    assert numa_policy_of(text) is policy


def test_the_contracts_cpu_topology_round_trips() -> None:
    """Koordinator contract 2.4."""
    text = (
        '{"detail":[{"core":0,"id":0,"node":0,"socket":0},{"core":0,"id":12,"node":0,"socket":0}]}'
    )

    assert decode_cpu_topology(text) == cpu_topology_of(
        [Cpu(id=0, core=0, socket=0, numa=0), Cpu(id=12, core=0, socket=0, numa=0)]
    )
    assert encode_cpu_topology(decode_cpu_topology(text)) == text


def test_named_machines_round_trip() -> None:
    """A topology says the same before and after."""
    for machine in (MACHINE_X, MACHINE_Y):
        assert decode_cpu_topology(encode_cpu_topology(machine)) == machine


def test_no_topology_is_an_empty_one() -> None:
    """`{}` and `null` list no CPUs."""
    assert not decode_cpu_topology("{}")
    assert not decode_cpu_topology("null")


def test_the_contracts_pod_cpu_allocs_round_trip() -> None:
    """Koordinator contract 2.4."""
    text = (
        '[{"cpuset":"6-7,18-19","managedByKubelet":true,"name":"g-0","namespace":"ml",'
        '"uid":"0a4c"}]'
    )
    alloc = PodCpuAlloc(
        namespace="ml",
        name="g-0",
        uid="0a4c",
        cpus=parse_cpuset("6-7,18-19"),
        managed_by_kubelet=True,
    )

    assert decode_pod_cpu_allocs(text) == (alloc,)
    assert encode_pod_cpu_allocs((alloc,)) == text
    assert alloc.counts


def test_the_proposals_pod_cpu_allocs_are_read() -> None:
    """CPU orchestration proposal, NodeResourceTopology example: key `cpu`, text "true"."""
    text = """[{"namespace": "default", "name": "static-guaranteed-pod",
                "uid": "32b14702-2efe-4be9-a9da-f3b779175846",
                "cpu": "4-8", "managedByKubelet": "true"}]"""
    alloc = decode_pod_cpu_allocs(text)[0]

    assert str(alloc.cpus) == "4-8"
    assert alloc.managed_by_kubelet
    assert '"cpuset":"4-8"' in encode_pod_cpu_allocs((alloc,))
    assert '"managedByKubelet":true' in encode_pod_cpu_allocs((alloc,))


def test_empty_pod_cpu_allocs_are_the_text_null() -> None:
    """Koordinator contract 2.4; an empty list is read as well."""
    assert decode_pod_cpu_allocs("null") == decode_pod_cpu_allocs("[]") == ()
    assert encode_pod_cpu_allocs(()) == "null"


@pytest.mark.parametrize(
    "text",
    [
        '[{"uid":"u","cpuset":"1"}]',
        '[{"uid":"u","cpuset":"1","managedByKubelet":false}]',
        '[{"uid":"u","cpuset":"1","managedByKubelet":"false"}]',
        '[{"cpuset":"1","managedByKubelet":true}]',
        '[{"uid":"u","managedByKubelet":true}]',
    ],
    ids=["unmarked", "not kubelet's", "not kubelet's, as text", "no UID", "no CPUs"],
)
def test_allocs_that_do_not_count_are_told_apart(text: str) -> None:
    """Koordinator contract 2.4: only kubelet's entries with UID and CPUs reserve anything."""
    assert not decode_pod_cpu_allocs(text)[0].counts


def test_shared_pools_round_trip() -> None:
    """Koordinator contract 2.4; the pools of BE Pods have the same shape."""
    text = '[{"cpuset":"2-5,14-17","node":0,"socket":0}]'
    pools = (CpuSharedPool(socket=0, node=0, cpus=parse_cpuset("2-5,14-17")),)

    assert decode_cpu_shared_pools(text) == pools
    assert decode_cpu_shared_pools(text, best_effort=True) == pools
    assert encode_cpu_shared_pools(pools) == text


def test_errors_in_be_pools_name_the_be_key() -> None:
    """Two annotations, two places."""
    with pytest.raises(InputError, match="be-cpu-shared-pools"):
        decode_cpu_shared_pools("x", best_effort=True)


def test_kubelets_policy_round_trips() -> None:
    """Koordinator contract 2.4."""
    text = '{"options":{"full-pcpus-only":"true"},"policy":"static","reservedCPUs":"0-1"}'
    policy = KubeletCpuPolicy(
        policy="static",
        options=(("full-pcpus-only", "true"),),
        reserved_cpus=parse_cpuset("0-1"),
    )

    assert decode_kubelet_cpu_policy(text) == policy
    assert encode_kubelet_cpu_policy(policy) == text
    assert policy.full_pcpus_only
    assert not policy.distribute_across_numa


def test_kubelets_options_need_the_static_policy() -> None:
    """Koordinator contract 6.1 and Q8; the proposal's example sets both options."""
    both = '"options":{"full-pcpus-only":"true","distribute-cpus-across-numa":"true"}'
    static = decode_kubelet_cpu_policy(f'{{"policy":"static",{both}}}')
    none = decode_kubelet_cpu_policy(f'{{"policy":"none",{both}}}')

    assert (static.full_pcpus_only, static.distribute_across_numa) == (True, True)
    assert (none.full_pcpus_only, none.distribute_across_numa) == (False, False)


def test_the_node_reservation_round_trips() -> None:
    """Koordinator contract 2.3."""
    text = '{"applyPolicy":"Default","reservedCPUs":"0-3","resources":{"cpu":"2"}}'
    reservation = NodeReservation(
        resources=(("cpu", parse_quantity("2")),), reserved_cpus=parse_cpuset("0-3")
    )

    assert decode_node_reservation(text) == reservation
    assert encode_node_reservation(reservation) == text
    assert decode_node_reservation("{}") == NodeReservation()
    only = decode_node_reservation('{"applyPolicy":"ReservedCPUsOnly"}')
    assert only.apply_policy is ReservationApplyPolicy.RESERVED_CPUS_ONLY


def test_the_system_set_is_exclusive_by_default() -> None:
    """Koordinator contract 2.3."""
    text = '{"cpuset":"0-1","cpusetExclusive":true}'
    resource = SystemQosResource(cpus=parse_cpuset("0-1"))

    assert decode_system_qos_resource(text) == resource
    assert decode_system_qos_resource('{"cpuset":"0-1"}') == resource
    assert encode_system_qos_resource(resource) == text
    assert not decode_system_qos_resource('{"cpusetExclusive":false}').exclusive


def test_amplification_ratios_are_exact_and_written_with_two_decimals() -> None:
    """Koordinator contract 2.3: `{"cpu":1.40}` is 7/5, not a neighbour of it."""
    ratios = decode_amplification_ratios('{"cpu":1.40}')

    assert ratios == {"cpu": Fraction(7, 5)}
    assert encode_amplification_ratios(ratios) == '{"cpu":1.40}'
    assert encode_amplification_ratios({"memory": Fraction(2), "cpu": Fraction(4, 3)}) == (
        '{"cpu":1.33,"memory":2.00}'
    )
    assert encode_amplification_ratios({}) == "{}"


@pytest.mark.parametrize("text", ["{}", "null", '{"cpu":1}', '{"cpu":1.00}', '{"cpu":0.5}'])
def test_a_ratio_of_at_most_one_amplifies_nothing(text: str) -> None:
    """Koordinator contract 2.3."""
    assert decode_amplification_ratios(text) == {}


def test_raw_allocatable_round_trips() -> None:
    """Koordinator contract 2.3."""
    assert decode_raw_allocatable('{"cpu":"24"}') == (("cpu", parse_quantity("24")),)
    assert encode_raw_allocatable(decode_raw_allocatable('{"cpu":"24"}')) == '{"cpu":"24"}'


def _decodes_nothing(text: str) -> None:
    for decode in (
        decode_cpu_topology,
        decode_pod_cpu_allocs,
        decode_cpu_shared_pools,
        decode_kubelet_cpu_policy,
        decode_node_reservation,
        decode_system_qos_resource,
        decode_amplification_ratios,
        decode_raw_allocatable,
    ):
        with pytest.raises(InputError, match=r"^metadata\.annotations\["):
            decode(text)


@pytest.mark.parametrize("text", ["", "{", '"x"', "7"])
def test_broken_json_is_an_error_in_every_key(text: str) -> None:
    """A value that does not parse is never taken for an absent one."""
    _decodes_nothing(text)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"detail":[{"id":0,"core":0,"socket":0}]}', ".detail[0].node"),
        ('{"detail":[{"core":0,"socket":0,"node":0}]}', ".detail[0].id"),
        ('{"detail":[{"id":-1,"core":0,"socket":0,"node":0}]}', ".detail[0].id"),
        ('{"detail":[{"id":5000,"core":0,"socket":0,"node":0}]}', ".detail"),
        (
            '{"detail":[%s,%s]}' % (('{"id":1,"core":0,"socket":0,"node":0}',) * 2),
            ".detail",
        ),
    ],
    ids=["no node", "no id", "a negative id", "an id above the limit", "a repeated id"],
)
def test_a_broken_topology_is_an_error(text: str, field: str) -> None:
    """A CPU is never put on node 0 by guess."""
    with pytest.raises(InputError) as caught:
        decode_cpu_topology(text)

    assert caught.value.field == f"metadata.annotations[node.koordinator.sh/cpu-topology]{field}"


@pytest.mark.parametrize(
    "text",
    [
        '[{"cpuset":"1,"}]',
        '[{"cpu":"1-"}]',
        '[{"managedByKubelet":"yes"}]',
        '[{"managedByKubelet":1}]',
        '{"cpuset":"1"}',
    ],
)
def test_broken_pod_cpu_allocs_are_an_error(text: str) -> None:
    """Only the two spellings of a boolean are taken."""
    with pytest.raises(InputError):
        decode_pod_cpu_allocs(text)


@pytest.mark.parametrize(
    "text",
    ['{"applyPolicy":"Never"}', '{"applyPolicy":0}', '{"resources":{"cpu":"x"}}'],
    ids=["an unknown policy", "a policy as a number", "a broken quantity"],
)
def test_a_broken_reservation_is_an_error(text: str) -> None:
    """What a node keeps for itself is never guessed."""
    with pytest.raises(InputError):
        decode_node_reservation(text)
