from __future__ import annotations

import json

import pytest

from ledger.domain.annotations.cpu import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    CpuSharedPool,
    NumaExclusive,
    NumaNodeResources,
    NumaPolicy,
    NumaTopologySpec,
    ResourceSpec,
    ResourceStatus,
    decode_numa_topology_spec,
    decode_resource_spec,
    decode_resource_status,
    effective_resource_spec,
    encode_resource_status,
    rewrite_resource_spec,
)
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from ledger.domain.quantity import parse_quantity
from tests.support.wishes import encode_numa_topology_spec, encode_resource_spec

PREFERRED = "preferredCPUBindPolicy"
REQUIRED = "requiredCPUBindPolicy"


def test_the_releases_resource_spec_round_trips() -> None:
    """Koordinator contract 2.1."""
    text = (
        '{"preferredCPUBindPolicy":"SpreadByPCPUs","preferredCPUExclusivePolicy":"PCPULevel",'
        '"requiredCPUBindPolicy":"FullPCPUs"}'
    )
    spec = ResourceSpec(
        required_bind_policy=CpuBindPolicy.FULL_PCPUS,
        preferred_bind_policy=CpuBindPolicy.SPREAD_BY_PCPUS,
        preferred_exclusive_policy=CpuExclusivePolicy.PCPU_LEVEL,
    )

    assert decode_resource_spec(text) == spec
    assert encode_resource_spec(spec) == text


def test_the_proposals_resource_spec_has_preferred_only() -> None:
    """CPU orchestration proposal, Application CPU orchestration API, Example."""
    text = """{
      "preferredCPUBindPolicy": "SpreadByPCPUs",
      "preferredCPUExclusivePolicy": "PCPULevel"
    }"""

    assert decode_resource_spec(text) == ResourceSpec(
        preferred_bind_policy=CpuBindPolicy.SPREAD_BY_PCPUS,
        preferred_exclusive_policy=CpuExclusivePolicy.PCPU_LEVEL,
    )


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        ("Default", CpuBindPolicy.DEFAULT),
        ("ConstrainedBurst", CpuBindPolicy.CONSTRAINED_BURST),
        ("", CpuBindPolicy.UNSET),
        ("fullpcpus", CpuBindPolicy.UNKNOWN),
    ],
    ids=["the default", "constrained burst", "empty", "any other text binds nothing"],
)
def test_bind_policies_are_read(written: str, policy: CpuBindPolicy) -> None:
    """Koordinator contract 6.1: any other text is no error but binds nothing."""
    spec = decode_resource_spec(json.dumps({"requiredCPUBindPolicy": written}))

    assert spec.required_bind_policy is policy


@pytest.mark.parametrize(
    "written",
    ["None", "Default", "", "sometimes", None],
    ids=["none", "the proposal's default", "empty", "any other text", "null"],
)
def test_other_exclusive_policies_read_as_none(written: str | None) -> None:
    """The proposal lists `Default` for exclusive: it is `None` (Koordinator contract 2.1)."""
    spec = decode_resource_spec(json.dumps({"preferredCPUExclusivePolicy": written}))

    assert spec == ResourceSpec()
    assert encode_resource_spec(spec) == "{}"


def test_rewriting_keeps_what_the_user_wrote() -> None:
    """Koordinator contract 2.2 and 14: effective policies go in, unknown fields stay."""
    text = '{"preferredCPUBindPolicy":"Default","preferredCPUExclusivePolicy":"Default","new":[1]}'

    rewritten = rewrite_resource_spec(
        text, required=CpuBindPolicy.FULL_PCPUS, preferred=CpuBindPolicy.SPREAD_BY_PCPUS
    )
    assert json.loads(rewritten) == {
        "new": [1],
        "preferredCPUBindPolicy": "SpreadByPCPUs",
        "preferredCPUExclusivePolicy": "Default",
        "requiredCPUBindPolicy": "FullPCPUs",
    }
    assert json.loads(rewrite_resource_spec(text)) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "by_node", "expected"),
    [
        ("{}", False, {PREFERRED: "FullPCPUs"}),
        ("{}", True, {PREFERRED: "FullPCPUs", REQUIRED: "FullPCPUs"}),
        ('{"preferredCPUBindPolicy":"Default"}', False, {PREFERRED: "FullPCPUs"}),
        ('{"preferredCPUBindPolicy":"SpreadByPCPUs"}', False, None),
        (
            '{"preferredCPUBindPolicy":"SpreadByPCPUs"}',
            True,
            {PREFERRED: "SpreadByPCPUs", REQUIRED: "FullPCPUs"},
        ),
        ('{"requiredCPUBindPolicy":"FullPCPUs"}', True, None),
        ('{"requiredCPUBindPolicy":"Default"}', False, None),
        ('{"requiredCPUBindPolicy":"Default"}', True, {REQUIRED: "FullPCPUs"}),
    ],
)
def test_policies_that_became_effective_are_put_in(
    text: str, *, by_node: bool, expected: dict[str, str] | None
) -> None:
    """Koordinator contract 2.2, the last rule: by the node, and where the Pod left it open."""
    rewritten = effective_resource_spec(text, CpuBindPolicy.FULL_PCPUS, by_node=by_node)

    assert (None if rewritten is None else json.loads(rewritten)) == expected


def test_the_releases_resource_status_round_trips() -> None:
    """Koordinator contract 2.2; the quantities keep their style."""
    text = (
        '{"cpuset":"4-7,28-31",'
        '"numaNodeResources":[{"node":0,"resources":{"cpu":"8","memory":"16Gi"}}]}'
    )
    status = ResourceStatus(
        cpuset=parse_cpuset("4-7,28-31"),
        numa_node_resources=(
            NumaNodeResources(
                node=0,
                resources=(("cpu", parse_quantity("8")), ("memory", parse_quantity("16Gi"))),
            ),
        ),
    )

    assert decode_resource_status(text) == status
    assert encode_resource_status(status) == text


def test_the_proposals_resource_status_round_trips() -> None:
    """Shared pools name socket and node; the agent resolves the CPUs."""
    text = '{"cpuSharedPools":[{"node":0,"socket":0}]}'
    status = ResourceStatus(cpu_shared_pools=(CpuSharedPool(socket=0, node=0),))

    assert decode_resource_status(text) == status
    assert encode_resource_status(status) == text
    assert decode_resource_status('{"cpuset": "0-3"}').cpuset == parse_cpuset("0-3")


def test_both_kinds_of_status_fields_go_together() -> None:
    """Koordinator contract 2.2, "OURS"."""
    text = (
        '{"cpuSharedPools":[{"node":1,"socket":0}],'
        '"numaNodeResources":[{"node":1,"resources":{"cpu":"1500m"}}]}'
    )

    assert encode_resource_status(decode_resource_status(text)) == text


def test_an_empty_status_is_an_empty_object() -> None:
    """`{}`, `null` and an empty cpuset all mean nothing was bound."""
    for text in ("{}", "null", '{"cpuset":""}', '{"cpuset":null,"numaNodeResources":null}'):
        assert decode_resource_status(text) == ResourceStatus()
    assert encode_resource_status(ResourceStatus()) == "{}"


def test_the_releases_numa_spec_round_trips() -> None:
    """Koordinator contract 2.1."""
    text = '{"numaTopologyPolicy":"SingleNUMANode","singleNUMANodeExclusive":"Required"}'
    spec = NumaTopologySpec(policy=NumaPolicy.SINGLE_NUMA_NODE, exclusive=NumaExclusive.REQUIRED)

    assert decode_numa_topology_spec(text) == spec
    assert encode_numa_topology_spec(spec) == text


def test_a_pods_numa_policy_is_exclusive_by_default() -> None:
    """Koordinator contract 7: no exclusivity beside a policy means `Required`."""
    spec = decode_numa_topology_spec('{"numaTopologyPolicy":"Restricted"}')

    assert spec.exclusive is NumaExclusive.REQUIRED
    assert decode_numa_topology_spec("{}") == NumaTopologySpec()
    assert (
        decode_numa_topology_spec(
            '{"numaTopologyPolicy":"BestEffort","singleNUMANodeExclusive":"Preferred"}'
        ).exclusive
        is NumaExclusive.PREFERRED
    )


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", ""),
        ("{cpuset}", ""),
        ('{"cpuset":"5-3"}', ".cpuset"),
        ('{"cpuset":[1]}', ".cpuset"),
        ('{"cpuSharedPools":{}}', ".cpuSharedPools"),
        ('{"cpuSharedPools":[{"node":0}]}', ".cpuSharedPools[0].socket"),
        ('{"numaNodeResources":[{"resources":{}}]}', ".numaNodeResources[0].node"),
        ('{"numaNodeResources":[{"node":-1}]}', ".numaNodeResources[0].node"),
        (
            '{"numaNodeResources":[{"node":0,"resources":{"cpu":"-1"}}]}',
            ".numaNodeResources[0].resources[cpu]",
        ),
    ],
    ids=[
        "no text",
        "broken JSON",
        "a reversed range",
        "a cpuset as a list",
        "pools that are no list",
        "a pool without socket",
        "resources without node",
        "a negative node",
        "a negative quantity",
    ],
)
def test_a_broken_status_is_an_error(text: str, field: str) -> None:
    """The message names the place inside the annotation."""
    with pytest.raises(InputError) as caught:
        decode_resource_status(text)

    prefix = "metadata.annotations[scheduling.koordinator.sh/resource-status]"
    assert caught.value.field == f"{prefix}{field}"


@pytest.mark.parametrize("text", ["", "[]", '{"requiredCPUBindPolicy":1}'])
def test_a_broken_spec_is_an_error(text: str) -> None:
    """A policy that is no text is broken; a text we don't know is not."""
    with pytest.raises(InputError):
        decode_resource_spec(text)


@pytest.mark.parametrize(
    "text",
    ['{"numaTopologyPolicy":"Strict"}', '{"singleNUMANodeExclusive":"Always"}', "1"],
    ids=["an unknown policy", "an unknown exclusivity", "a number"],
)
def test_a_broken_numa_spec_is_an_error(text: str) -> None:
    """A NUMA policy we don't know can't be honoured."""
    with pytest.raises(InputError):
        decode_numa_topology_spec(text)
