from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from ledger.domain.annotations.device_hints import AllocateStrategy, DeviceHint
from ledger.domain.device_types import DeviceType, Unit, read_device_types
from ledger.domain.errors import InputError, RefusedError
from ledger.domain.kube.device_objects import inventory_of_device, inventory_of_quantities
from ledger.domain.quantity import quantity_from_int
from ledger.domain.request.asked import devices_of
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.resources import FPGA, RDMA
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

GIB: Final = 2**30
SECTION: Final = {
    "xpu": {
        "resource": "koordinator.sh/xpu",
        "memory": "koordinator.sh/xpu-memory",
        "aliases": ["kubernetes.io/xpu"],
        "virtualFunctions": False,
        "modelLabel": "node.koordinator.sh/xpu-model",
        "uniqueIds": True,
    },
    "npu": {"resource": "example.com/npu", "unit": "count"},
}


WORDS: Final = Vocabulary(device_types=read_device_types(SECTION))


def _pod(limits: Mapping[str, str], **annotations: str) -> dict[str, object]:
    keys = {
        f"scheduling.koordinator.sh/{key.replace('_', '-')}": annotations[key]
        for key in annotations
    }
    return {
        "metadata": {"name": "p", "annotations": keys},
        "spec": {"containers": [{"name": "c", "resources": {"limits": dict(limits)}}]},
    }


def _demand(limits: Mapping[str, str]) -> DeviceDemand:
    (demand,) = decode_pod(_pod(limits), WORDS).devices
    return demand


def _refusal(limits: Mapping[str, str], **annotations: str) -> str:
    with pytest.raises(RefusedError) as caught:
        decode_pod(_pod(limits, **annotations), WORDS)
    return str(caught.value)


def test_an_entry_is_read_with_its_defaults() -> None:
    """Only the resource has to be named; the unit is percent."""
    npu, xpu = read_device_types(SECTION)
    assert npu == DeviceType(name="npu", resource="example.com/npu", unit=Unit.COUNT)
    assert xpu.unit is Unit.PERCENT
    assert (npu.unique_ids, xpu.unique_ids) == (False, True)
    assert xpu.resources == ("koordinator.sh/xpu", "koordinator.sh/xpu-memory")
    assert read_device_types(None) == ()


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"gpu": {"resource": "example.com/x"}}, "gpu"),
        ({"Npu": {"resource": "example.com/x"}}, "Npu"),
        ({"npu": {}}, "npu.resource"),
        ({"npu": {"resource": "npu"}}, "npu.resource"),
        ({"npu": {"resource": "kubernetes.io/npu"}}, "npu.resource"),
        ({"npu": {"resource": "example.com/x", "unit": "cores"}}, "npu.unit"),
        ({"npu": {"resource": "example.com/x", "units": "count"}}, "npu.units"),
        ({"npu": {"resource": "example.com/x", "unit": "count", "memory": "a.b/c"}}, "npu.memory"),
        ({"npu": {"resource": "example.com/x", "aliases": ["x"]}}, "npu.aliases[0]"),
        ({"npu": {"resource": "koordinator.sh/gpu-core"}}, "npu"),
        ({"npu": {"resource": "koordinator.sh/rdma"}}, "npu"),
        ({"npu": {"resource": "a.b/c", "aliases": ["kubernetes.io/fpga"]}}, "npu"),
        ({"npu": {"resource": "tenure.sh/slot"}}, "npu"),
        ({"npu": {"resource": "nvidia.com/priority"}}, "npu"),
        ({"npu": {"resource": "nvidia.com/mig-1g.5gb"}}, "npu"),
        ({"npu": {"resource": "a.b/c", "aliases": ["nvidia.com/gpumem"]}}, "npu"),
        ({"a": {"resource": "x.y/z"}, "b": {"resource": "x.y/z"}}, "b"),
        ({"a": {"resource": "x.y/z", "memory": "x.y/z"}}, "a"),
        ({"npu": "example.com/npu"}, "npu"),
        ({1: {"resource": "example.com/x"}}, "1"),
    ],
)
def test_an_entry_that_means_nothing_clear_is_refused_with_its_field(
    section: object, field: str
) -> None:
    """No default for what can't be read; no resource that means something already."""
    with pytest.raises(InputError) as caught:
        read_device_types(section)
    assert caught.value.field == field


def test_a_percent_takes_the_same_percent_of_the_memory() -> None:
    """Up to 100 it is a part of one device, above it whole ones."""
    assert _demand({"koordinator.sh/xpu": "50"}) == DeviceDemand(
        device_type="xpu", count=1, core_percent=50, memory_ratio_percent=50, containers=("0",)
    )
    assert _demand({"kubernetes.io/xpu": "300"}) == DeviceDemand(
        device_type="xpu", count=3, core_percent=100, memory_ratio_percent=100, containers=("0",)
    )


def test_bytes_beside_the_percent_are_divided_over_the_devices() -> None:
    """Bytes alone are a part of one device."""
    both = _demand({"koordinator.sh/xpu": "200", "koordinator.sh/xpu-memory": "20Gi"})
    assert (both.count, both.core_percent, both.memory_bytes) == (2, 100, 10 * GIB)
    assert both.memory_ratio_percent == 0
    alone = _demand({"koordinator.sh/xpu-memory": "512Gi"})
    assert (alone.count, alone.core_percent, alone.memory_bytes) == (1, 0, 512 * GIB)


def test_a_count_is_whole_devices_that_nobody_shares() -> None:
    """Three of them are three whole devices."""
    assert _demand({"example.com/npu": "3"}) == DeviceDemand(
        device_type="npu", count=3, core_percent=100, exclusive=True, containers=("0",)
    )
    hint = DeviceHint(allocate_strategy=AllocateStrategy.REQUESTS_AS_COUNT)
    assert devices_of(3, hint, Unit.COUNT) == (3, 100)


def test_what_means_no_number_of_devices_is_refused_by_name() -> None:
    """The percent rule, bytes that do not divide, and functions that the type has none of."""
    assert "koordinator.sh/xpu: 150" in _refusal({"koordinator.sh/xpu": "150"})
    uneven = {"koordinator.sh/xpu": "300", "koordinator.sh/xpu-memory": "100"}
    assert "koordinator.sh/xpu-memory" in _refusal(uneven)
    hint = '{"xpu": {"vfSelector": {}}}'
    said = _refusal({"koordinator.sh/xpu": "50"}, device_allocate_hint=hint)
    assert "virtual functions of xpu" in said


def test_a_type_that_nothing_describes_is_inventoried_and_never_offered() -> None:
    """The ledger may name it; a Pod can't ask for it."""
    device = {
        "metadata": {"labels": {"node.koordinator.sh/xpu-model": "X9"}},
        "spec": {
            "devices": [
                {"type": "npu", "minor": 0, "health": True, "resources": {"example.com/npu": 4}},
                {"type": "npu", "minor": 1, "health": True, "resources": {}},
                {
                    "type": "xpu",
                    "minor": 0,
                    "health": True,
                    "labels": {"node.koordinator.sh/xpu-model": "X10"},
                    "resources": {"kubernetes.io/xpu": 100, "koordinator.sh/xpu-memory": "8Gi"},
                },
                {
                    "type": "xpu",
                    "minor": 1,
                    "health": True,
                    "resources": {"koordinator.sh/xpu": 100},
                },
                {"type": "qpu", "minor": 0, "health": True, "resources": {"example.com/qpu": 1}},
            ]
        },
    }
    inventory = inventory_of_device(device, "L40S", WORDS)
    assert [
        (item.key, item.core_percent, item.memory_bytes, item.model) for item in inventory.devices
    ] == [
        (("npu", 0), 100, 0, ""),
        (("npu", 1), 0, 0, ""),
        (("qpu", 0), 0, 0, ""),
        (("xpu", 0), 100, 8 * GIB, "X10"),
        (("xpu", 1), 100, 0, "X9"),
    ]
    assert inventory.warnings == (
        "devices of a type that no setting describes are not offered: type=qpu",
    )


def test_a_node_without_a_device_object_has_what_its_quantities_say() -> None:
    """As for GPUs: minors from 0, no ids, memory divided evenly; no GPU is made up."""
    amounts = {
        "example.com/npu": quantity_from_int(2),
        "koordinator.sh/xpu": quantity_from_int(250),
        "koordinator.sh/xpu-memory": quantity_from_int(16 * GIB),
    }
    inventory = inventory_of_quantities(amounts, model="L40S", vocabulary=WORDS)
    assert [(item.key, item.memory_bytes) for item in inventory.devices] == [
        (("npu", 0), 0),
        (("npu", 1), 0),
        (("xpu", 0), 8 * GIB),
        (("xpu", 1), 8 * GIB),
    ]
    with pytest.raises(InputError):
        inventory_of_quantities(
            {"example.com/npu": quantity_from_int(2000)}, model="", vocabulary=WORDS
        )


ADVERTISED: Final = {
    "one of each": ({RDMA: 100, FPGA: 100}, [("fpga", 0), ("rdma", 0)]),
    "two and a half NICs are two": ({RDMA: 250}, [("rdma", 0), ("rdma", 1)]),
    "less than one is none": ({RDMA: 99, FPGA: 0}, []),
}


@pytest.mark.parametrize(("amounts", "keys"), ADVERTISED.values(), ids=ADVERTISED)
def test_a_hundred_of_rdma_or_fpga_on_the_node_is_one_device(
    amounts: Mapping[str, int], keys: list[tuple[str, int]]
) -> None:
    """Device proposal, "Device resource dimensions": one RDMA and one FPGA are 100 each."""
    quantities = {name: quantity_from_int(units) for name, units in amounts.items()}

    inventory = inventory_of_quantities(quantities, model="L40S", vocabulary=DEFAULT_VOCABULARY)

    assert [item.key for item in inventory.devices] == keys
    assert {item.core_percent for item in inventory.devices} <= {100}
    assert {item.model for item in inventory.devices} <= {""}


def test_a_type_described_anew_is_made_up_by_its_own_resource() -> None:
    """Once: what the built-in one counted is counted no more."""
    amounts = {RDMA: quantity_from_int(100), "example.com/nic": quantity_from_int(2)}
    own = read_device_types({"rdma": {"resource": "example.com/nic", "unit": "count"}})

    inventory = inventory_of_quantities(amounts, model="", vocabulary=Vocabulary(device_types=own))

    assert [item.key for item in inventory.devices] == [("rdma", 0), ("rdma", 1)]


IDS = {
    "a GPU's UUID": ("gpu", "GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a44", True),
    "a GPU without an id": ("gpu", "", False),
    "a GPU by its bus address": ("gpu", "0000:3b:00.0", False),
    "a GPU by a long bus address": ("gpu", "00000000:3B:00.0", False),
    "a GPU by its number": ("gpu", "7", False),
    "a NIC": ("rdma", "0000:3b:00.0", False),
    "a NIC with a name": ("rdma", "mlx5_0", False),
    "an FPGA": ("fpga", "FPGA-0", False),
    "a type whose setting says so": ("xpu", "XPU-9f", True),
    "a type whose setting does not": ("npu", "NPU-9f", False),
    "a type without a setting": ("tpu", "TPU-9f", False),
}


@pytest.mark.parametrize(("kind", "device_id", "unique"), IDS.values(), ids=IDS)
def test_the_type_says_whether_an_id_is_unique_in_the_world(
    kind: str, device_id: str, *, unique: bool
) -> None:
    """Addresses and numbers never are; the inventory keeps it with each device."""
    item = {"type": kind, "id": device_id, "minor": 0}

    (record,) = inventory_of_device({"spec": {"devices": [item]}}, "", WORDS).devices

    assert WORDS.is_unique_id(kind, device_id) is unique
    assert record.unique_id is unique
