"""Devices that slices tell, as they come, change and go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from ledger.domain.devices import DeviceRecord
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import NodeState
from scheduler.gate.claims import Allocated
from scheduler.gate.decide import Accounted, Unaccounted
from scheduler.service.slices import LiveAccounts, SliceBook
from scheduler.service.wakeups import Wakeups
from tests.support.dra import DRIVER, card, resource_slice


class Told:
    """A book of slices, and whose devices it called others."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        wakeups = Wakeups()
        wakeups.pools_changed.subscribe(self._changed)
        self.book = SliceBook((DRIVER,), wakeups)

    def _changed(self, nodes: Collection[str]) -> None:
        self.nodes += sorted(nodes)

    def ids(self, node: str = "n-1") -> list[str]:
        """Return the ids of a node's cards."""
        return [one.device_id for one in self.book.accounts(node, ()).records]

    def account(self, device: str) -> Accounted | Unaccounted:
        """Return what all of a device of node `n-1` is of, with its cards as they are recorded."""
        devices: tuple[DeviceRecord, ...] = tuple(self.book.records("n-1", (), ()))
        accounts = LiveAccounts(
            self.book, lambda name: NodeState(uid="node", name=name, devices=devices)
        )
        one = ClaimResult(request="g", driver=DRIVER, pool="n-1", device=device)
        return accounts.account(Allocated(node_name="n-1", results=(one,)))


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


def test_of_a_pool_that_is_being_replaced_nothing_is_told(told: Told) -> None:
    """Its names may mean other cards by now: neither generation is to be gone by."""
    told.book.put("a", resource_slice([card("gpu-0", "GPU-a")]))
    assert isinstance(told.account("gpu-0"), Accounted)

    told.book.put("b", resource_slice([card("gpu-0", "GPU-b")], generation=2, of=2))
    between = told.account("gpu-0")
    assert isinstance(between, Unaccounted)
    assert between.reason == "DeviceUnlisted"

    told.book.put("c", resource_slice([card("gpu-1", "GPU-a")], generation=2, of=2))
    now = told.account("gpu-0")
    assert isinstance(now, Accounted)
    assert [one.device_id for one in now.shares] == ["GPU-b"]


def test_a_device_of_a_slice_that_vanished_is_unlisted(told: Told) -> None:
    """Also where the ledger has its card yet."""
    told.book.put("a", resource_slice([card("gpu-0", "GPU-a")]))
    told.book.drop("a")
    found = told.account("gpu-0")
    assert isinstance(found, Unaccounted)
    assert found.reason == "DeviceUnlisted"


def versioned(item: dict[str, Any], version: int, uid: str = "") -> dict[str, Any]:
    """Return an object at a version."""
    metadata = {**item["metadata"], "resourceVersion": str(version), "uid": uid}
    return {**item, "metadata": metadata}


def test_a_list_is_taken_beside_the_watch(told: Told) -> None:
    """What it lacks is gone, what the watch told later stays, and what it told as gone too."""
    cards = {uid: resource_slice([card("gpu-0", f"GPU-{uid}")], node=f"n-{uid}") for uid in "abcd"}
    told.book.put("a", versioned(cards["a"], 3))
    told.book.put("b", versioned(cards["b"], 9))
    with told.book.readings.one() as went:
        told.book.put("c", versioned(cards["c"], 4))
        told.book.drop("c")
    listed = [versioned(cards[uid], 4, uid) for uid in "cd"]
    told.book.take_list({"metadata": {"resourceVersion": "5"}, "items": listed}, went)

    there = {uid: told.ids(f"n-{uid}") for uid in cards}
    assert there == {"a": [], "b": ["GPU-b"], "c": [], "d": ["GPU-d"]}


def test_an_older_slice_is_passed_over(told: Told) -> None:
    """The watch tells what the list had told already, as it was before."""
    told.book.put("a", versioned(resource_slice([card("gpu-0", "GPU-new")]), 7))
    told.book.put("a", versioned(resource_slice([card("gpu-0", "GPU-old")]), 6))
    assert told.ids() == ["GPU-new"]


def test_devices_without_a_sign_are_recorded_by_name_where_that_is_wished() -> None:
    """Else a claim for one is refused with that reason."""
    nameless = resource_slice([{"name": "card-0"}])
    refused = SliceBook((DRIVER,), Wakeups())
    kept = SliceBook((DRIVER,), Wakeups(), untold="record")
    for book in (refused, kept):
        book.put("a", nameless)
    assert refused.accounts("n-1", ()).untold
    assert [one.device_id for one in kept.accounts("n-1", ()).records] == [f"{DRIVER}/n-1/card-0"]
