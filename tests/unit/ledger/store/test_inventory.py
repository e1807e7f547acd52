"""Which device is which: by UUID where there is one, by minor where there is none."""

from __future__ import annotations

import pytest

from ledger.store.projections.inventory import (
    GONE,
    INVENTORY,
    RETURNED,
    KnownMachine,
    KnownNode,
    inventory,
)
from tests.support.stores import gpu

Step = tuple[int, int, str, bool, str]


def steps(node: KnownNode, *records: object, first: int = 1) -> list[Step]:
    """Apply an inventory; return (number, minor, UUID, new, reason) of every change."""
    return [
        (
            change.device.number,
            change.device.minor,
            change.device.device_id,
            change.new,
            change.reason,
        )
        for change in inventory(node, records, first)  # type: ignore[arg-type]
    ]


def test_devices_are_numbered_in_the_order_of_the_records() -> None:
    """The first inventory makes every device, from the number it is given."""
    node = KnownNode(number=1, machine=KnownMachine(number=1))

    assert steps(node, gpu(1), gpu(0), first=7) == [
        (7, 1, "GPU-n-1-1", True, ""),
        (8, 0, "GPU-n-1-0", True, ""),
    ]
    assert [node.at["gpu", minor].number for minor in (0, 1)] == [8, 7]


def test_the_same_inventory_changes_nothing() -> None:
    """A node that reports again what it reported before writes no row."""
    node = KnownNode(number=1, machine=KnownMachine(number=1))
    steps(node, gpu(0), gpu(1))

    assert steps(node, gpu(0), gpu(1), first=3) == []


@pytest.mark.parametrize(
    ("first", "second", "changes"),
    [
        pytest.param(
            gpu(0), gpu(3, device_id="GPU-n-1-0"), [(1, 3, "GPU-n-1-0", False, "")], id="moved"
        ),
        pytest.param(
            gpu(0),
            gpu(0, healthy=False),
            [(1, 0, "GPU-n-1-0", False, INVENTORY)],
            id="closed",
        ),
        pytest.param(
            gpu(0),
            gpu(0, device_id="GPU-b"),
            [(2, 0, "GPU-b", True, ""), (1, 0, "GPU-n-1-0", False, GONE)],
            id="another card at its minor",
        ),
        pytest.param(
            gpu(0, device_id=""),
            gpu(0, device_id="GPU-b"),
            [(1, 0, "GPU-b", False, "")],
            id="an id learned",
        ),
        pytest.param(gpu(0), gpu(0, device_id=""), [], id="an id no longer told"),
        pytest.param(
            gpu(0, device_id=""),
            gpu(1, device_id=""),
            [(2, 1, "", True, ""), (1, 0, "", False, GONE)],
            id="no ids, another minor",
        ),
    ],
)
def test_identity_is_the_uuid(first: object, second: object, changes: list[Step]) -> None:
    """The minor is an attribute; without a UUID it is all there is."""
    node = KnownNode(number=1, machine=KnownMachine(number=1))
    steps(node, first)

    assert steps(node, second, first=2) == changes


def test_a_card_that_returns_is_the_one_that_left() -> None:
    """A gone device keeps its number; an inventory with its UUID opens it again."""
    node = KnownNode(number=1, machine=KnownMachine(number=1))
    steps(node, gpu(0))
    assert steps(node, first=2) == [(1, 0, "GPU-n-1-0", False, GONE)]
    assert node.at == {}

    assert steps(node, gpu(2, device_id="GPU-n-1-0"), first=2) == [
        (1, 2, "GPU-n-1-0", False, RETURNED)
    ]
    assert node.device("gpu", 2, "GPU-n-1-0") is node.at["gpu", 2]


def test_a_share_finds_its_card_or_none() -> None:
    """By UUID wherever the card is; without one, the card at the minor; else nothing."""
    node = KnownNode(number=1, machine=KnownMachine(number=1))
    steps(node, gpu(0), gpu(1))

    assert node.device("gpu", 5, "GPU-n-1-1") is node.at["gpu", 1]
    assert node.device("gpu", 1, "") is node.at["gpu", 1]
    assert node.device("gpu", 1, "GPU-other") is None
    assert node.device("rdma", 1, "") is None
