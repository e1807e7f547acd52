"""Which accounts the devices of slices are, and what allocations hold of them."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.devices import COUNTER, DeviceRecord, DeviceTopology
from ledger.domain.dialects.dra.accounts import Listed, accounts_of, bounded, core_of
from ledger.domain.dialects.dra.objects import pools_of, read_claim, read_slice
from ledger.domain.dialects.dra.shares import (
    UNLISTED,
    UNTOLD,
    Shares,
    Taken,
    Untold,
    first_taken,
    holders_of,
    shares_of,
)
from ledger.domain.errors import InputError
from tests.support.dra import (
    DRIVER,
    GIB,
    card,
    consumes,
    counters,
    part,
    pools,
    resource_claim,
    resource_slice,
    result,
)
from tests.support.folding import fold
from tests.support.stores import claim, gpu, node, observed, reserved, seen_claim, share

SETS = {"set-0": counters(multiprocessors=98, slice_0=1, slice_1=1, memory="80Gi")}
MIGS = resource_slice(
    [
        card(
            "gpu-0",
            "GPU-a",
            **consumes("set-0", multiprocessors=98, slice_0=1, slice_1=1, memory="80Gi"),
        ),
        part("gpu-0-mig-1", "GPU-a", **consumes("set-0", multiprocessors=14, slice_1=1)),
        part("gpu-0-mig-2", "GPU-a", **consumes("set-0", multiprocessors=14, slice_0=1)),
        card("gpu-1"),
    ],
    sets=SETS,
)
OTHER = resource_slice([card("hami-0", "GPU-a")], driver="hami.example")


def _shares(*devices: dict[str, Any], inventory: tuple[DeviceRecord, ...] = ()) -> Shares:
    allocated = read_claim(resource_claim("c", *devices))
    found = shares_of(allocated.results, accounts_of("n-1", pools(MIGS, OTHER), inventory))
    assert isinstance(found, Shares), found
    return found


def test_one_card_is_one_account_whatever_lists_it() -> None:
    """The worked example: a card, its partitions, another driver's name for it."""
    accounts = accounts_of("n-1", pools(MIGS, OTHER))

    cards = [each for each in accounts.records if each.device_type == "gpu"]
    assert [(each.device_id, each.minor, each.memory_bytes) for each in cards] == [
        ("GPU-a", 0, 80 * GIB)
    ]
    assert {each.device_id.rpartition("/")[2] for each in accounts.records[:4]} == {
        *("memory", "multiprocessors", "slice-0", "slice-1"),
    }
    assert all(each.by_claims for each in accounts.records)
    assert accounts.untold == {(DRIVER, "n-1", "gpu-1")}


def test_all_of_a_card_is_exclusive_and_takes_its_counters() -> None:
    """So nothing of it is left for a partition, by the card or by a slice."""
    of_card = _shares(result("gpu-0")).shares[-1]

    assert (of_card.device_id, of_card.core_percent, of_card.memory_bytes) == (
        *("GPU-a", 100),
        80 * GIB,
    )
    assert of_card.exclusive
    assert [each.memory_bytes for each in _shares(result("gpu-0")).shares[:-1]] == [
        *(80 * GIB, 98, 1, 1),
    ]
    assert _shares(result("hami-0", driver="hami.example")).shares == (of_card,)


def test_a_part_is_its_memory_its_counters_and_core_by_multiprocessors() -> None:
    """14 of 98 are 14 percent; two parts of one claim are one share."""
    one = _shares(result("gpu-0-mig-1")).shares
    both = _shares(result("gpu-0-mig-1"), result("gpu-0-mig-2")).shares

    assert [(each.device_type, each.core_percent, each.memory_bytes) for each in one] == [
        *((COUNTER, 0, 14), (COUNTER, 0, 1), ("gpu", 14, 10 * GIB)),
    ]
    assert [(each.core_percent, each.memory_bytes, each.instances) for each in both] == [
        *((0, 28, 2), (0, 1, 1), (0, 1, 1), (28, 20 * GIB, 2)),
    ]
    assert not both[-1].exclusive


def test_core_without_a_counter_of_cores_is_the_mean() -> None:
    """Linear, so that parts which fit by counters fit by core."""
    totals = {"s0": 1, "s1": 1, "s2": 1, "s3": 1, "memory": 8}

    assert core_of({"s0": 1, "memory": 2}, totals) == 25
    assert core_of({"s0": 1}, totals) == 20
    assert core_of(totals, totals) == 100
    assert core_of({}, {}) == 0


def test_a_share_is_what_was_consumed() -> None:
    """Rounded up, and not alone; what is neither memory nor cores is an account of its own."""
    shared = card("gpu-0", "GPU-a", allowMultipleAllocations=True)
    shared["capacity"] |= {"cores": {"value": "200"}, "lanes": {"value": "16"}}
    accounts = accounts_of("n-1", pools(resource_slice([shared])))
    consumed = {"memory": "1431Mi", "cores": "50", "lanes": "4"}
    found = shares_of(
        read_claim(
            resource_claim("c", result("gpu-0", shareID="s", consumedCapacity=consumed))
        ).results,
        accounts,
    )

    assert isinstance(found, Shares)
    cores, lanes, of_card = found.shares
    assert (of_card.core_percent, of_card.memory_bytes) == (25, 1431 << 20)
    assert not of_card.exclusive
    assert (lanes.device_type, lanes.memory_bytes) == (COUNTER, 4)
    assert (cores.device_type, cores.memory_bytes) == (COUNTER, 50)
    counted = [each.memory_bytes for each in accounts.records if each.device_type == COUNTER]
    assert counted == [200, 16]


def _one(device: dict[str, Any], **said: Any) -> Shares:  # noqa: ANN401 - what a result says
    allocated = read_claim(resource_claim("c", result("gpu-0", **said)))
    found = shares_of(allocated.results, accounts_of("n-1", pools(resource_slice([device]))))
    assert isinstance(found, Shares), found
    return found


def test_what_nobody_else_can_have_is_held_whole_whatever_a_result_says() -> None:
    """A share of a card that is not shared is forged, or of a time when it was."""
    (of_card,) = _one(card("gpu-0", "GPU-a"), consumedCapacity={"memory": "1Mi"}).shares

    assert (of_card.core_percent, of_card.exclusive) == (100, True)


@pytest.mark.parametrize("consumed", [{}, {"memory": "1Mi"}, {"cores": "1"}], ids=str)
def test_a_share_has_all_of_what_it_does_not_name(consumed: dict[str, str]) -> None:
    """Nothing is held as nothing because nobody said how much it is."""
    shared = card("gpu-0", "GPU-a", allowMultipleAllocations=True)
    shared["capacity"]["cores"] = {"value": "100"}

    (of_card,) = _one(shared, shareID="s", consumedCapacity=consumed).shares

    assert of_card.core_percent == int(consumed.get("cores", "100"))
    assert of_card.memory_bytes == (1 << 20 if "memory" in consumed else 80 * GIB)


def test_cores_that_are_no_whole_percents_are_counted_as_cores() -> None:
    """One of 150 is nothing of a hundred: 151 of them would be as well."""
    shared = card("gpu-0", "GPU-a", allowMultipleAllocations=True)
    shared["capacity"]["cores"] = {"value": "150"}

    cores, of_card = _one(
        shared, shareID="s", consumedCapacity={"memory": "1Mi", "cores": "1"}
    ).shares

    assert (cores.device_type, cores.memory_bytes, of_card.core_percent) == (COUNTER, 1, 0)


def test_access_of_an_administrator_that_was_not_asked_for_holds() -> None:
    """Whoever writes a status may write that word as well."""
    (of_card,) = _one(card("gpu-0", "GPU-a"), adminAccess=True).shares

    assert of_card.exclusive


def test_access_of_an_administrator_holds_nothing() -> None:
    """It monitors: nothing is taken."""
    body = resource_claim("c", result("gpu-0", adminAccess=True))
    body["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True

    found = shares_of(read_claim(body).results, accounts_of("n-1", pools(MIGS)))

    assert isinstance(found, Shares)
    assert found.shares == ()


def test_a_card_of_the_inventory_is_that_account() -> None:
    """By its id or its PCI address, with its minor; a second listing adds nothing."""
    known = gpu(5, device_id="GPU-a")
    by_bus = gpu(3, device_id="GPU-b", topology=DeviceTopology(bus_id="0000:3b:00.0"))
    said = {"resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"}}
    bused = resource_slice([card("x", said=said)], driver="other.example")
    accounts = accounts_of("n-1", pools(MIGS, bused), (known, by_bus))

    assert not [each for each in accounts.records if each.device_type == "gpu"]
    assert _shares(result("gpu-0"), inventory=(known,)).shares[-1].minor == 5
    assert accounts.devices["other.example", "n-1", "x"].parts[0].card is by_bus


def test_devices_that_are_known_by_name_alone_are_refused_or_recorded_by_it() -> None:
    """By the setting; a device of no pool is told apart."""
    results = read_claim(resource_claim("c", result("gpu-1"))).results
    refused = shares_of(results, accounts_of("n-1", pools(MIGS)))
    recorded = shares_of(results, accounts_of("n-1", pools(MIGS), (), Listed(untold="record")))
    gone = shares_of(
        read_claim(resource_claim("c", result("gpu-9"))).results, accounts_of("n-1", pools(MIGS))
    )

    assert isinstance(refused, Untold)
    assert refused.reason == UNTOLD
    assert str(refused).startswith("gpu.nvidia.com/n-1/gpu-1 tells no UUID, parent UUID,")
    assert isinstance(recorded, Shares)
    assert recorded.shares[0].device_id == "gpu.nvidia.com/n-1/gpu-1"
    assert isinstance(gone, Untold)
    assert gone.reason == UNLISTED


def test_what_is_recorded_keeps_its_number() -> None:
    """Accounts made of what was recorded before are the same, with one more card in front of it."""
    first = accounts_of("n-1", pools(MIGS))
    more = resource_slice([card("a-0", "GPU-0"), *MIGS["spec"]["devices"]], sets=SETS)
    again = accounts_of("n-1", pools(more), first.records)

    assert all(each in again.records for each in first.records)
    assert accounts_of("n-1", pools(MIGS), first.records) == first


def test_a_pool_counts_whole_and_newest() -> None:
    """The worked example of `objects.py`."""
    old = [resource_slice([card(f"o{i}")], generation=1, of=2, name=f"o{i}") for i in range(2)]
    new = [resource_slice([card(f"n{i}")], generation=2, of=2, name=f"n{i}") for i in range(2)]
    read = [read_slice(each) for each in (*old, *new)]

    assert pools_of(read[:1]) == ()
    [first] = pools_of(read[:2])
    assert first.generation == 1
    assert pools_of(read[:3]) == ()
    assert pools_of(read[:3], [first]) == (first,)
    [second] = pools_of(read[1:], [first])
    assert [each.name for each in second.devices] == ["n0", "n1"]
    assert pools_of([], [second]) == ()


def test_a_pool_with_two_devices_of_one_name_is_not_used() -> None:
    """In one slice or in two: what it was before counts, as while slices of it are missing."""
    [whole] = pools(resource_slice([card("gpu-0", "GPU-a")]))
    twice = [card("gpu-0", "GPU-a"), card("gpu-0", "GPU-b")]
    apart = [resource_slice([each], generation=2, of=2, name=each["name"]) for each in twice]
    for broken in ([resource_slice(twice, generation=2)], apart):
        read = [read_slice(each) for each in broken]
        assert pools_of(read) == ()
        assert pools_of(read, [whole]) == (whole,)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no number of slices": (
        {"pool": {"name": "p", "generation": 1}},
        "spec.pool.resourceSliceCount",
    ),
    "a device without a name": ({"devices": [{}]}, "spec.devices[0].name"),
    "a capacity in words": (
        {"devices": [{"name": "a", "capacity": {"memory": {"value": "much"}}}]},
        "spec.devices[0].capacity[memory].value",
    ),
    "an attribute of two kinds": (
        {"devices": [{"name": "a", "attributes": {"x": {"int": 1, "string": "1"}}}]},
        "spec.devices[0].attributes[x]",
    ),
}


@pytest.mark.parametrize(("change", "field"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_slice_is_refused_with_its_place(change: dict[str, Any], field: str) -> None:
    """Nothing is guessed of an object that is not as the API has it."""
    body = resource_slice([])
    body["spec"] |= change

    with pytest.raises(InputError) as caught:
        read_slice(body)
    assert caught.value.field == field


def test_a_claim_is_read() -> None:
    """Who uses it, on which node."""
    found = read_claim(resource_claim("c", result("gpu-0"), pods=["p"]))

    assert (found.node, found.is_allocated) == ("n-1", True)
    assert [(each.name, each.uid) for each in found.consumers] == [("p", "uid-p")]
    assert not read_claim(resource_claim("free")).is_allocated


HELD = {
    "a Pod": reserved("p", share(0, 60, gib=10)),
    "a claim": claim("d", share(0, 60, gib=10)),
    "an observed Pod": observed("p", share(0, 60, gib=10)),
    "an observed claim": seen_claim("d", share(0, 60, gib=10)),
}


@pytest.mark.parametrize("held", HELD.values(), ids=list(HELD))
def test_who_holds_a_card_is_told_with_what_it_lacks(held: Any) -> None:  # noqa: ANN401 - an event
    """Whoever that is."""
    state = fold([(1, node(devices=(gpu(0),))), (2, held)])["uid-n-1"]

    taken = first_taken(state, (share(0, 50, gib=1),))
    assert isinstance(taken, Taken)
    assert taken.fact == "asks 50 percent core, 40 left"
    assert [each.pod_uid for each in taken.holders] == [held.pod_uid]
    assert holders_of(state, taken.device) == taken.holders
    assert first_taken(state, (share(0, 40, gib=1),)) is None
    assert first_taken(state, (share(7, 1, gib=1),)) is not None


def test_a_name_that_is_too_long_for_an_index_ends_in_its_hash() -> None:
    """Two of them are still two."""
    long = "x" * 300
    assert len(bounded(long)) == 253
    assert bounded(long) != bounded(f"{long}y")
    assert bounded("short") == "short"
