"""Devices that slices tell, as they come, change and go."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from scheduler.service.slices import SliceBook
from tests.support.dra import DRIVER, card, resource_slice


class Told:
    """A book of slices, and whose devices it called others."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.book = SliceBook((DRIVER,), self._changed)

    def _changed(self, nodes: Collection[str]) -> None:
        self.nodes += sorted(nodes)

    def ids(self, node: str = "n-1") -> list[str]:
        """Return the ids of a node's cards."""
        return [one.device_id for one in self.book.accounts(node, ()).records]


@pytest.fixture
def told() -> Told:
    """A book that knows no slice."""
    return Told()


def test_a_pool_is_there_once_all_of_it_is_and_gone_with_its_last_slice(told: Told) -> None:
    """A newer generation replaces it once that is whole."""
    told.book.put("a", resource_slice([card("gpu-0", "GPU-a")], of=2))
    assert told.ids() == []
    told.book.put("b", resource_slice([card("gpu-1", "GPU-b")], of=2))
    assert told.ids() == ["GPU-a", "GPU-b"]
    told.book.put("c", resource_slice([card("gpu-0", "GPU-c")], generation=2, of=2))
    assert told.ids() == ["GPU-a", "GPU-b"]
    told.book.put("d", resource_slice([], generation=2, of=2))
    assert told.ids() == ["GPU-c"]

    for uid in "abcd":
        told.book.drop(uid)
    assert told.ids() == []
    assert set(told.nodes) == {"n-1"}


def test_a_slice_that_moves_to_another_pool_leaves_the_one_before(told: Told) -> None:
    """And one of a driver that is not looked at is none."""
    told.book.put("a", resource_slice([card("gpu-0", "GPU-a")]))
    told.book.put("a", resource_slice([card("gpu-0", "GPU-a")], node="n-2"))
    assert (told.ids(), told.ids("n-2")) == ([], ["GPU-a"])

    told.book.put("a", resource_slice([card("gpu-0", "GPU-a")], driver="other.example"))
    assert told.ids("n-2") == []


def test_a_slice_that_can_not_be_read_is_none_and_told(told: Told) -> None:
    """Until it can be, or is gone."""
    good = resource_slice([card("gpu-0", "GPU-a")])
    told.book.put("a", good)
    told.book.put("a", {"spec": {"driver": 7}})
    assert (told.ids(), list(told.book.faults)) == ([], ["a"])

    told.book.put("a", good)
    assert (told.ids(), list(told.book.faults)) == (["GPU-a"], [])
    told.book.put("a", {"spec": {}})
    told.book.drop("a")
    assert not told.book.faults
