from __future__ import annotations

import json

import pytest

from ledger.domain.annotations.device_allocated import (
    DeviceAllocation,
    VfAllocation,
    decode_device_allocated,
    encode_device_allocated,
)
from ledger.domain.errors import InputError
from ledger.domain.quantity import ZERO, parse_quantity
from ledger.domain.resources import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA

UUID = "GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a44"

RELEASE = """
{"gpu": [{"minor": 3, "id": "GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a44",
          "resources": {"koordinator.sh/gpu-core": "40", "koordinator.sh/gpu-memory": "9019431321",
                        "koordinator.sh/gpu-memory-ratio": "35"},
          "extension": {"gpuSharedResourceTemplate": "vir02"}}],
 "rdma": [{"minor": 11, "id": "0000:5e:00.0", "resources": {"koordinator.sh/rdma": "1"},
           "extension": {"vfs": [{"minor": 4, "busID": "0000:5e:01.4"}]}}]}
"""

PROPOSAL = """
{
  "gpu": [
    {"minor": 0, "resouurces": {"kubernetes.io/gpu-core": 100, "kubernetes.io/gpu-mem-ratio": 100,
                                "kubernetes.io/gpu-mem": "16Gi"}},
    {"minor": 1, "resouurces": {"kubernetes.io/gpu-core": 100, "kubernetes.io/gpu-mem-ratio": 100,
                                "kubernetes.io/gpu-mem": "16Gi"}}
  ]
}
"""

WHOLE_CARD = (
    (GPU_CORE, parse_quantity("100")),
    (GPU_MEMORY, parse_quantity("16Gi")),
    (GPU_MEMORY_RATIO, parse_quantity("100")),
)


def test_the_releases_example_is_read() -> None:
    """Koordinator contract 2.2: shares are per device; the extension names template and VFs."""
    assert decode_device_allocated(RELEASE) == {
        "gpu": (
            DeviceAllocation(
                minor=3,
                id=UUID,
                resources=(
                    (GPU_CORE, parse_quantity("40")),
                    (GPU_MEMORY, parse_quantity("9019431321")),
                    (GPU_MEMORY_RATIO, parse_quantity("35")),
                ),
                template="vir02",
            ),
        ),
        "rdma": (
            DeviceAllocation(
                minor=11,
                id="0000:5e:00.0",
                resources=((RDMA, parse_quantity("1")),),
                vfs=(VfAllocation(minor=4, bus_id="0000:5e:01.4"),),
            ),
        ),
    }


def test_the_releases_example_is_written_back() -> None:
    """Only blanks and the order of keys change."""
    text = encode_device_allocated(decode_device_allocated(RELEASE))

    assert json.loads(text) == json.loads(RELEASE)
    assert text == json.dumps(json.loads(RELEASE), sort_keys=True, separators=(",", ":"))


def test_the_proposals_example_is_read() -> None:
    """`resouurces`, the other domain, the typo keys, numbers and suffixes are all taken."""
    assert decode_device_allocated(PROPOSAL) == {
        "gpu": (
            DeviceAllocation(minor=0, resources=WHOLE_CARD),
            DeviceAllocation(minor=1, resources=WHOLE_CARD),
        )
    }


def test_the_proposals_example_is_written_as_the_release() -> None:
    """Readers take both, writers emit one: released names, decimal strings in base units."""
    expected = (
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
        '"koordinator.sh/gpu-memory":"17179869184","koordinator.sh/gpu-memory-ratio":"100"}}]}'
    )

    entries = decode_device_allocated(PROPOSAL)["gpu"][:1]
    assert encode_device_allocated({"gpu": entries}) == expected


def test_the_proposals_domain_is_written_on_demand() -> None:
    """For nodes that advertise `kubernetes.io/` names; only the domain differs."""
    text = encode_device_allocated(decode_device_allocated(RELEASE), proposal_domain=True)

    assert json.loads(text)["gpu"][0]["resources"] == {
        "kubernetes.io/gpu-core": "40",
        "kubernetes.io/gpu-memory": "9019431321",
        "kubernetes.io/gpu-memory-ratio": "35",
    }
    assert decode_device_allocated(text) == decode_device_allocated(RELEASE)


def test_a_vf_without_minor_has_minor_0() -> None:
    """Go leaves a zero minor out; -1 marks a VF that is not numbered."""
    text = '{"rdma":[{"minor":1,"extension":{"vfs":[{"busID":"a"},{"minor":-1,"busID":"b"}]}}]}'
    entry = decode_device_allocated(text)["rdma"][0]

    assert entry.vfs == (VfAllocation(minor=0, bus_id="a"), VfAllocation(minor=-1, bus_id="b"))
    written = json.loads(encode_device_allocated({"rdma": (entry,)}))
    assert written["rdma"][0]["extension"]["vfs"] == [{"busID": "a"}, {"minor": -1, "busID": "b"}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"gpu":[{"minor":0,"resources":{},"resouurces":{"koordinator.sh/gpu-core":1}}]}', "()"),
        ('{"gpu":[{"minor":0,"resources":null,"resouurces":{"koordinator.sh/gpu-core":1}}]}', "1"),
    ],
    ids=["the right spelling, though empty", "null is as good as absent"],
)
def test_the_right_spelling_wins(text: str, why: str) -> None:
    """`resouurces` counts only where `resources` says nothing."""
    resources = decode_device_allocated(text)["gpu"][0].resources

    assert ("()" if not resources else str(resources[0][1])) == why


def test_both_domains_in_one_entry_count_once() -> None:
    """The released name wins over its alias."""
    text = (
        '{"gpu":[{"minor":0,"resources":'
        '{"kubernetes.io/gpu-core":"10","koordinator.sh/gpu-core":"20"}}]}'
    )

    assert decode_device_allocated(text)["gpu"][0].quantity(GPU_CORE).ceil() == 20


def test_unknown_fields_are_ignored() -> None:
    """A newer writer may add what we don't know, at every level."""
    text = (
        '{"gpu":[{"minor":0,"new":1,"resources":{},"extension":{"new":[]}}],'
        '"npu":[{"minor":5,"resources":{"example.com/npu":"1"}}]}'
    )

    allocations = decode_device_allocated(text)
    assert allocations["gpu"] == (DeviceAllocation(minor=0),)
    assert allocations["npu"][0].quantity("example.com/npu").ceil() == 1


@pytest.mark.parametrize("text", ["null", "{}"])
def test_nothing_allocated_is_no_error(text: str) -> None:
    """An empty map is written back as one; empty types disappear."""
    assert decode_device_allocated(text) == {}
    assert encode_device_allocated({}) == encode_device_allocated({"gpu": ()}) == "{}"


def test_entries_are_written_by_minor() -> None:
    """The order inside a type carries no meaning, so one state has one text."""
    entries = tuple(DeviceAllocation(minor=minor) for minor in (5, 0, 2))

    written = json.loads(encode_device_allocated({"gpu": entries}))
    assert [entry["minor"] for entry in written["gpu"]] == [0, 2, 5]


def test_an_unlisted_resource_is_zero() -> None:
    """Asking for what an entry does not list is no error."""
    assert DeviceAllocation(minor=0).quantity(GPU_CORE) == ZERO


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", ""),
        ("{", ""),
        ("[]", ""),
        ('"gpu"', ""),
        ('{"gpu":{}}', ".gpu"),
        ('{"gpu":[1]}', ".gpu[0]"),
        ('{"gpu":[{"id":"GPU-a"}]}', ".gpu[0].minor"),
        ('{"gpu":[{"minor":null}]}', ".gpu[0].minor"),
        ('{"gpu":[{"minor":"0"}]}', ".gpu[0].minor"),
        ('{"gpu":[{"minor":0.5}]}', ".gpu[0].minor"),
        ('{"gpu":[{"minor":true}]}', ".gpu[0].minor"),
        ('{"gpu":[{"minor":-1}]}', ".gpu[0].minor"),
        ('{"gpu":[{"minor":0,"id":7}]}', ".gpu[0].id"),
        ('{"gpu":[{"minor":0,"resources":[]}]}', ".gpu[0].resources"),
        (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"1.5Gi2"}}]}',
            ".gpu[0].resources[koordinator.sh/gpu-core]",
        ),
        (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"-1"}}]}',
            ".gpu[0].resources[koordinator.sh/gpu-core]",
        ),
        (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":true}}]}',
            ".gpu[0].resources[koordinator.sh/gpu-core]",
        ),
        ('{"rdma":[{"minor":0,"extension":{"vfs":[{"minor":-2}]}}]}', ".rdma[0].extension.vfs[0]"),
        ('{"gpu":[{"minor":0,"id":"\\ud800"}]}', ""),
        ('{"gpu":[{"minor":NaN}]}', ""),
        ("[" * 100_000, ""),
    ],
    ids=[
        "no text",
        "broken JSON",
        "a list",
        "a text",
        "entries that are no list",
        "an entry that is no object",
        "a missing minor",
        "a null minor",
        "a minor as text",
        "a fraction of a minor",
        "a boolean minor",
        "a negative minor",
        "an id that is no text",
        "resources that are no object",
        "a broken quantity",
        "a negative quantity",
        "a boolean quantity",
        "a VF below -1",
        "half a surrogate pair",
        "NaN",
        "absurd nesting",
    ],
)
def test_what_does_not_parse_is_an_error_not_absent(text: str, field: str) -> None:
    """Koordinator contract 2: the Pod is unschedulable, and the message names the place."""
    with pytest.raises(InputError) as caught:
        decode_device_allocated(text)

    prefix = "metadata.annotations[scheduling.koordinator.sh/device-allocated]"
    assert caught.value.field.startswith(f"{prefix}{field}")
