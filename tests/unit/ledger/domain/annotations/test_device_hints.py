from __future__ import annotations

import json

import pytest

from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
    JointAllocation,
    JointScope,
    LabelSelector,
    PartitionPolicy,
    PartitionSpec,
    SelectorOperator,
    SelectorRequirement,
    TopologyScope,
    decode_device_hints,
    decode_joint_allocation,
    decode_partition_spec,
)
from ledger.domain.errors import InputError
from ledger.domain.quantity import parse_quantity
from tests.support.wishes import encode_device_hints, encode_joint_allocation, encode_partition_spec

HINTS = """
{"rdma": {"selector": {"matchLabels": {"fabric": "roce"}},
          "vfSelector": {"matchExpressions": [{"key": "use", "operator": "In",
                                               "values": ["train"]}]},
          "allocateStrategy": "RequestsAsCount",
          "exclusivePolicy": "DeviceLevel"},
 "gpu":  {"requiredTopologyScope": "NUMANode"}}
"""


def test_the_contracts_hints_round_trip() -> None:
    """Koordinator contract 2.1."""
    hints = {
        "gpu": DeviceHint(required_topology_scope=TopologyScope.NUMA_NODE),
        "rdma": DeviceHint(
            selector=LabelSelector(match_labels=(("fabric", "roce"),)),
            vf_selector=LabelSelector(
                match_expressions=(
                    SelectorRequirement(key="use", operator=SelectorOperator.IN, values=("train",)),
                )
            ),
            allocate_strategy=AllocateStrategy.REQUESTS_AS_COUNT,
            exclusive_policy=DeviceExclusivePolicy.DEVICE_LEVEL,
        ),
    }

    assert decode_device_hints(HINTS) == hints
    assert json.loads(encode_device_hints(hints)) == json.loads(HINTS)


def test_an_empty_vf_selector_still_asks_for_a_vf() -> None:
    """Koordinator contract 2.1: present at all means one VF per device."""
    text = '{"rdma":{"vfSelector":{}}}'
    hint = decode_device_hints(text)["rdma"]

    assert hint.vf_selector == LabelSelector()
    assert hint.selector is None
    assert encode_device_hints({"rdma": hint}) == text
    assert decode_device_hints('{"rdma":{"vfSelector":null}}')["rdma"].vf_selector is None


def test_scopes_deepen_towards_the_device() -> None:
    """Koordinator contract 2.1: Node 1, NUMANode 2, PCIe 3, Device 4."""
    depths = {str(scope): scope.depth for scope in TopologyScope}

    assert depths == {"": 0, "Node": 1, "NUMANode": 2, "PCIe": 3, "Device": 4}


@pytest.mark.parametrize(
    ("operator", "values", "matching", "other"),
    [
        (SelectorOperator.IN, ("a", "b"), [{"k": "a"}, {"k": "b"}], [{"k": "c"}, {}]),
        (SelectorOperator.NOT_IN, ("a",), [{"k": "b"}, {}], [{"k": "a"}]),
        (SelectorOperator.EXISTS, (), [{"k": ""}], [{}]),
        (SelectorOperator.DOES_NOT_EXIST, (), [{}], [{"k": ""}]),
    ],
)
def test_selector_operators_match_as_kubernetes_does(
    operator: SelectorOperator,
    values: tuple[str, ...],
    matching: list[dict[str, str]],
    other: list[dict[str, str]],
) -> None:
    """NotIn also takes an object without the label."""
    requirement = SelectorRequirement(key="k", operator=operator, values=values)

    assert all(requirement.matches(labels) for labels in matching)
    assert not any(requirement.matches(labels) for labels in other)


def test_every_part_of_a_selector_must_hold() -> None:
    """Labels and expressions are ANDed; an empty selector matches everything."""
    selector = LabelSelector(
        match_labels=(("fabric", "roce"),),
        match_expressions=(SelectorRequirement(key="use", operator=SelectorOperator.EXISTS),),
    )

    assert selector.matches({"fabric": "roce", "use": "x"})
    assert not selector.matches({"fabric": "roce"})
    assert not selector.matches({"fabric": "ib", "use": "x"})
    assert LabelSelector().matches({})


def test_the_contracts_joint_allocation_round_trips() -> None:
    """Koordinator contract 2.1: the first type is the primary one, so order is kept."""
    text = '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'
    joint = JointAllocation(device_types=("gpu", "rdma"), required_scope=JointScope.SAME_PCIE)

    assert decode_joint_allocation(text) == joint
    assert encode_joint_allocation(joint) == text
    assert decode_joint_allocation('{"deviceTypes":["gpu"]}').required_scope is (
        JointScope.BEST_EFFORT
    )
    assert decode_joint_allocation("{}") == JointAllocation()


def test_the_contracts_partition_spec_round_trips() -> None:
    """Koordinator contract 2.1."""
    text = '{"allocatePolicy":"Restricted","ringBusBandwidth":"200Gi"}'
    spec = PartitionSpec(
        allocate_policy=PartitionPolicy.RESTRICTED, ring_bus_bandwidth=parse_quantity("200Gi")
    )

    assert decode_partition_spec(text) == spec
    assert encode_partition_spec(spec) == text


def test_an_empty_partition_spec_is_a_wish_too() -> None:
    """Koordinator contract 2.1: its presence makes the table mandatory; BestEffort by default."""
    assert decode_partition_spec("{}") == PartitionSpec()
    assert encode_partition_spec(PartitionSpec()) == '{"allocatePolicy":"BestEffort"}'


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", ""),
        ("[]", ""),
        ('{"gpu":1}', ".gpu"),
        ('{"gpu":{"requiredTopologyScope":"Socket"}}', ".gpu.requiredTopologyScope"),
        ('{"rdma":{"allocateStrategy":"Some"}}', ".rdma.allocateStrategy"),
        ('{"rdma":{"exclusivePolicy":"RackLevel"}}', ".rdma.exclusivePolicy"),
        ('{"rdma":{"selector":[]}}', ".rdma.selector"),
        ('{"rdma":{"selector":{"matchLabels":{"a":1}}}}', ".rdma.selector.matchLabels[a]"),
        (
            '{"rdma":{"selector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}}',
            ".rdma.selector.matchExpressions[0].operator",
        ),
        (
            '{"rdma":{"selector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}',
            ".rdma.selector.matchExpressions[0].values",
        ),
        (
            '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Exists","values":[""]}]}}}',
            ".gpu.selector.matchExpressions[0].values",
        ),
        (
            '{"rdma":{"selector":{"matchExpressions":[{"operator":"Exists"}]}}}',
            ".rdma.selector.matchExpressions[0].key",
        ),
    ],
    ids=[
        "no text",
        "a list",
        "a hint that is no object",
        "an unknown scope",
        "an unknown strategy",
        "an unknown exclusive policy",
        "a selector that is no object",
        "a label value that is no text",
        "an unknown operator",
        "In without values",
        "Exists with values",
        "no key",
    ],
)
def test_broken_hints_are_errors(text: str, field: str) -> None:
    """A hint we can't honour is refused, not dropped."""
    with pytest.raises(InputError) as caught:
        decode_device_hints(text)

    prefix = "metadata.annotations[scheduling.koordinator.sh/device-allocate-hint]"
    assert caught.value.field == f"{prefix}{field}"


@pytest.mark.parametrize(
    "text",
    ['{"requiredScope":"SameNode"}', '{"deviceTypes":"gpu"}', '{"deviceTypes":[1]}', "x"],
)
def test_a_broken_joint_allocation_is_an_error(text: str) -> None:
    """The scope is a promise to the Pod."""
    with pytest.raises(InputError, match="device-joint-allocate"):
        decode_joint_allocation(text)


@pytest.mark.parametrize(
    "text",
    ['{"allocatePolicy":"Honor"}', '{"ringBusBandwidth":"-1"}', '{"ringBusBandwidth":[]}', "x"],
)
def test_a_broken_partition_spec_is_an_error(text: str) -> None:
    """Bandwidths are quantities of at least 0."""
    with pytest.raises(InputError, match="gpu-partition-spec"):
        decode_partition_spec(text)
