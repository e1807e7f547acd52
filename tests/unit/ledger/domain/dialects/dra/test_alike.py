"""Which devices are equal but for what names the single one."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.dialects.dra.alike import likeness, may_name_one
from ledger.domain.dialects.dra.objects import SlicedDevice
from tests.support.dra import DRIVER, card, consumes, pools, resource_slice

ROOT = "resource.kubernetes.io/pcieRoot"


def two(driver: str = DRIVER, **second: Any) -> tuple[SlicedDevice, SlicedDevice]:  # noqa: ANN401 - fields
    """Return two cards, the second with these fields besides."""
    said = {"index": {"int": 1}, ROOT: {"string": "p0"}}
    first = card("gpu-0", "GPU-0", said={**said, "index": {"int": 0}})
    other = card("gpu-1", "GPU-1", said={**said, **second.pop("said", {})})
    for name, value in second.items():
        other[name] = value
    slice_ = resource_slice([first, other], driver=driver)
    (pool,) = pools(slice_)
    return pool.devices[0], pool.devices[1]


def are_alike(devices: tuple[SlicedDevice, SlicedDevice], *, anywhere: bool = False) -> bool:
    """Tell whether two devices of NVIDIA's driver are alike."""
    one, other = (likeness(DRIVER, each, anywhere=anywhere) for each in devices)
    return one is not None and one == other


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"said": {"uuid": {"string": "another"}, "index": {"int": 9}}},
    ],
)
def test_names_of_the_single_device_may_differ(second: dict[str, Any]) -> None:
    """By them alone nobody is told from another."""
    assert are_alike(two(**second))


@pytest.mark.parametrize(
    "second",
    [
        {"said": {"productName": {"string": "A100"}}},
        {"said": {ROOT: {"string": "p1"}}},
        {"said": {"index": {"string": "1"}}},
        {"said": {"other.example/uuid": {"string": "b"}}},
        {"said": {"more": {"bool": True}}},
        {"capacity": {"memory": {"value": "40Gi"}}},
        {"capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi"}}}},
        {"taints": [{"key": "a", "effect": "NoSchedule"}]},
        {"bindingConditions": ["ready"]},
        {"allowMultipleAllocations": True},
        {"nodeName": "n-2"},
        {"bindsToNode": True},
        consumes("set-1", slices=1),
    ],
    ids=str,
)
def test_everything_else_may_not(second: dict[str, Any]) -> None:
    """What a selector could read, a scheduler looks at, or a driver acts by."""
    assert not are_alike(two(**second))


def test_what_says_what_is_not_known_is_like_nobody() -> None:
    """Not even like itself: a later API may mean anything by it."""
    _, other = two(somethingNew=1)
    assert likeness(DRIVER, other) is None
    body = resource_slice([card("gpu-0", "GPU-0")])
    body["spec"]["somethingNew"] = 1
    (pool,) = pools(body)
    assert likeness(DRIVER, pool.devices[0]) is None


def test_devices_may_be_alike_wherever_on_the_node_they_are() -> None:
    """For claims that were written for a Pod's request, which says nothing of that."""
    elsewhere = two(said={ROOT: {"string": "p1"}})
    assert are_alike(elsewhere, anywhere=True)
    assert not are_alike(two(said={"productName": {"string": "A100"}}), anywhere=True)


@pytest.mark.parametrize("name", ["uuid", "a.example/uuid", "resource.kubernetes.io/pciBusID"])
def test_whoever_reads_such_a_name_may_mean_one_device(name: str) -> None:
    """Of whichever domain it is."""
    assert may_name_one(name)
    assert not may_name_one(ROOT)
