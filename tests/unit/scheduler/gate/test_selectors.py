"""What a claim reads of devices, told from the text of its selectors and constraints."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.gate.selectors import attributes_read, class_selectors, exchangeable

D = 'device.attributes["gpu.nvidia.com"]'
CLASSES = {"any": (), "gpu": ('device.driver == "gpu.nvidia.com"',), "one": (f'{D}.uuid == "a"',)}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('device.driver == "gpu.nvidia.com"', []),
        (f'{D}.productName == "T4"', ["gpu.nvidia.com/productName"]),
        (f"{D}['uuid'] == 'a'", ["gpu.nvidia.com/uuid"]),
        (f'"uuid" in {D} && true', ["gpu.nvidia.com/uuid"]),
        (f'(true || "a" in {D})', ["gpu.nvidia.com/a"]),
        (
            f"has({D}.index) &&\n  {D}.model == 'T4'",
            ["gpu.nvidia.com/index", "gpu.nvidia.com/model"],
        ),
        (
            f'{D}.productName.lowerAscii().matches("^.*t4.*$")',
            ["gpu.nvidia.com/productName"],
        ),
        (
            'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("8Gi"))',
            [],
        ),
        ("device.allowMultipleAllocations == true", []),
        ('"device.attributes" == "uuid"', []),
    ],
)
def test_what_is_written_out_is_read(expression: str, names: list[str]) -> None:
    """By the name and the domain that the expression says."""
    assert attributes_read(expression) == frozenset(names)


@pytest.mark.parametrize(
    "expression",
    [
        f'{D}.exists(k, k == "uuid")',
        f"size({D}) > 3",
        f'{D}["uu" + "id"] == "a"',
        f'"uu" + "id" in {D}',
        f'("uu" + "id") in {D}',
        f'r"uuid" in {D}',
        f'"a" in {D} + x',
        'device.attributes["a" + "b"].uuid == "x"',
        'device.attributes[device.driver].uuid == "x"',
        'device.attributes[?"a"].?uuid.orValue("") == "x"',
        'device.?attributes["a"].model == "x"',
        'cel.bind(d, device, d.attributes["a"].uuid == "x")',
        "[device].exists(d, d.attributes['a'].uuid == 'x')",
        'device["attributes"]["a"].uuid == "x"',
        '.device.attributes["a"].model == "x"',
        'device.attributes["a"].`uuid` == "x"',
        f'{D}["u\\u0075id"] == "a"',
        f'""" " """ == "" || {D}.uuid == """ " """',
        f"'''a'b''' == '' || {D}.model == 'x'",
        f'{D}.model == "x" // "',
        '"open',
        "device",
        "device.attributes",
        'device.attributes["a"]',
        'device.somethingNew == "a"',
    ],
)
def test_what_is_not_written_out_is_in_doubt(expression: str) -> None:
    """It may be anything that names the single device."""
    assert attributes_read(expression) is None


def spec(*constraints: dict[str, Any], **exactly: Any) -> dict[str, Any]:  # noqa: ANN401 - fields
    """Return a claim's spec of one request `g`."""
    body = {"deviceClassName": "gpu", **exactly}
    return {
        "devices": {
            "requests": [{"name": "g", "exactly": body}],
            "constraints": list(constraints),
        }
    }


def cel(expression: str) -> list[dict[str, Any]]:
    """Return selectors of one expression."""
    return [{"cel": {"expression": expression}}]


@pytest.mark.parametrize(
    "asked",
    [
        spec(),
        spec(count=4, allocationMode="ExactCount", tolerations=[{"operator": "Exists"}]),
        spec(capacity={"requests": {"memory": "4Gi"}}, selectors=cel(f'{D}.model == "T4"')),
        spec({"matchAttribute": "resource.kubernetes.io/pcieRoot"}),
        spec({"matchAttribute": "gpu.nvidia.com/uuid", "requests": ["other"]}),
    ],
)
def test_devices_may_be_exchanged_where_nothing_names_one(asked: dict[str, Any]) -> None:
    """Neither the claim's selectors, nor its class's, nor a constraint."""
    assert exchangeable(asked, CLASSES) == {"g"}


@pytest.mark.parametrize(
    "asked",
    [
        spec(selectors=cel(f'{D}.uuid == "a"')),
        spec(selectors=cel(f'{D}.exists(k, k == "a")')),
        spec(selectors=[{"cel": {"expression": "true"}, "more": 1}]),
        spec(selectors=[{"new": {}}]),
        spec(selectors="all"),
        spec(deviceClassName="one"),
        spec(deviceClassName="unknown"),
        spec(allocationMode="All"),
        spec(adminAccess=True),
        spec(somethingNew=1),
        spec({"matchAttribute": "gpu.nvidia.com/uuid"}),
        spec({"distinctAttribute": "gpu.nvidia.com/index", "requests": ["g"]}),
        spec({"distinctAttribute": "resource.kubernetes.io/pciBusID", "requests": ["g"]}),
        spec({"somethingNew": "gpu.nvidia.com/model"}),
        {"devices": {"requests": [{"name": "g", "somethingNew": {}}]}},
        {"devices": {**spec()["devices"], "somethingNew": 1}},
        {"devices": 1},
    ],
)
def test_devices_stay_where_one_may_be_named(asked: dict[str, Any]) -> None:
    """Or where the claim says what is not known here."""
    assert exchangeable(asked, CLASSES) == frozenset()


def test_each_alternative_and_request_is_told_by_itself() -> None:
    """As results call it; a constraint on the request is one on each of its alternatives."""
    one = {"name": "one", "deviceClassName": "gpu"}
    two = {"name": "two", "deviceClassName": "one"}
    requests = [
        {"name": "g", "firstAvailable": [one, two]},
        {"name": "h", "exactly": {"deviceClassName": "any"}},
    ]
    asked: dict[str, Any] = {"devices": {"requests": requests}}
    assert exchangeable(asked, CLASSES) == {"g/one", "h"}

    asked["devices"]["constraints"] = [{"matchAttribute": "a/uuid", "requests": ["g"]}]
    assert exchangeable(asked, CLASSES) == {"h"}


def test_a_claim_of_ours_may_ask_for_several_devices() -> None:
    """Which they stay in any exchange: each device is exchanged for one."""
    several = spec({"distinctAttribute": "gpu.nvidia.com/uuid"}, count=2)
    assert exchangeable(several, CLASSES) == frozenset()
    assert exchangeable(several, CLASSES, is_ours=True) == {"g"}
    same = spec({"matchAttribute": "gpu.nvidia.com/uuid"})
    assert exchangeable(same, CLASSES, is_ours=True) == frozenset()


def test_a_class_says_its_expressions() -> None:
    """In order, none where it selects everything."""
    assert class_selectors({"spec": {"selectors": cel("true")}}) == ("true",)
    assert class_selectors({"spec": {}}) == ()
