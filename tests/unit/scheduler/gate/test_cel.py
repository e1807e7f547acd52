"""Selectors of devices: plain comparisons are evaluated as CEL does, the rest is named."""

from __future__ import annotations

import pytest

from scheduler.gate.allocate import Asked, BeyondError, matches

H100 = Asked.read(
    "gpu.nvidia.com",
    {
        "attributes": {
            "productName": {"string": "H100"},
            "index": {"int": 3},
            "healthy": {"bool": True},
            "driverVersion": {"version": "580.1.0"},
            "other.com/zone": {"string": "a"},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    },
)
NAME = 'device.attributes["gpu.nvidia.com"]'
MEMORY = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity'


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('device.driver == "gpu.nvidia.com"', True),
        ("device.driver == 'other.com'", False),
        (f'{NAME}.productName == "H100"', True),
        (f'{NAME}.productName != "H100"', False),
        (f"{NAME}.index == 3 && {NAME}.healthy", True),
        (f"{NAME}.healthy == false", False),
        ('device.attributes["other.com"].zone == "a"', True),
        (f'{MEMORY}("80Gi")) >= 0', True),
        (f'{MEMORY}("80Gi")) > 0', False),
        pytest.param(f'{NAME}.absent == "x"', None, id="what is not there fails"),
        pytest.param(f'{NAME}.index == "3"', None, id="two kinds are not compared"),
        pytest.param(f'{NAME}.driverVersion == "580.1.0"', None, id="a version is no text"),
        pytest.param(f"{NAME}.productName", None, id="a text is no truth"),
        pytest.param(f"{NAME}.absent && {NAME}.index == 4", False, id="false beside a failure"),
    ],
)
def test_a_comparison_says_what_cel_would(expression: str, found: object) -> None:
    """True, false, or a failure, which selects nothing."""
    assert matches(expression, H100) is found


@pytest.mark.parametrize(
    "expression",
    [
        "",
        f"{NAME}.healthy || true",
        f"!{NAME}.healthy",
        f"({NAME}.healthy)",
        f'{NAME}.productName in ["H100"]',
        f'{NAME}.productName.startsWith("H")',
        f'{NAME}.productName == "a && b"',
        f"{NAME}.index > 2",
        f"{NAME}.index == \uff12",
        f'{MEMORY}("eighty")) >= 0',
        'device.capacity["gpu.nvidia.com"].memory == 3',
        '"gpu.nvidia.com" in device.attributes',
    ],
)
def test_what_is_more_than_that_is_never_taken_for_true(expression: str) -> None:
    """Whatever the device is."""
    with pytest.raises(BeyondError):
        matches(expression, H100)
