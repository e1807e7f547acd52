"""A card that two systems offer is one card, and what nobody reads leaves numbers open."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler.usage.once import once, open_ended
from scheduler.usage.picture import (
    CardGroup,
    DeviceNow,
    HolderNow,
    Many,
    Sums,
    Units,
    Unplaced,
    exactly,
    group_of,
)
from scheduler.usage.plugins import Plugged, plugin_groups

GPU = "nvidia.com/gpu"
COUNT = {f"{GPU}.count": "2"}


def named(system: str, *ids: str, held: Sequence[str] = ()) -> CardGroup:
    """Return cards with ids, of which some are held."""
    holder = HolderNow(namespace="ml", name=system, uid=system)
    devices = [DeviceNow(id=i, minor=0, holders=(holder,) if i in held else ()) for i in ids]
    return group_of(system=system, devices=devices, is_open=True, is_inventoried=False)


def by_number(cards: int, held: int = 0) -> CardGroup:
    """Return whole cards of NVIDIA's plugin, of which a Pod holds some."""
    pods = [Unplaced(namespace="ml", name="p", uid="p", amount=held, unit=GPU, cards=held)]
    return group_of(
        system="nvidia",
        devices=[DeviceNow(id="", minor=minor) for minor in range(cards)],
        is_open=True,
        unplaced=pods if held else [],
        units={GPU: Units(allocatable=cards, held=held)},
    )


def test_cards_that_a_label_counts_are_the_named_ones() -> None:
    """Two by number, two with ids, and two by the label: there are two."""
    plugin, volcano = by_number(2, 1), named("volcano", "GPU-a", "GPU-b", held=["GPU-a"])

    (group,), sums, told = once([plugin, volcano], COUNT)

    assert sums == Sums(cards=exactly(2), free=exactly(0), gettable=exactly(0))
    assert (group.system, len(group.devices), len(group.unplaced)) == ("volcano", 2, 1)
    assert GPU in group.units
    assert len(told) == 1


def test_cards_that_no_label_counts_are_a_range() -> None:
    """They are the same, or others: nobody says it."""
    groups, sums, told = once([by_number(2), named("dra", "GPU-a", "GPU-b")], {})

    assert len(groups) == 2
    assert (sums.cards, sums.free) == (Many(least=2, most=4), Many(least=2, most=4))
    assert len(told) == 1


def test_cards_that_a_label_counts_together_are_apart() -> None:
    """Nothing is said where the label has room for all."""
    _, sums, told = once([by_number(1), named("dra", "GPU-a")], COUNT)

    assert (sums.cards, told) == (exactly(2), [])


def test_one_id_is_one_card_with_the_holders_of_both() -> None:
    """The first that lists it has it."""
    dra, volcano = named("dra", "GPU-a"), named("volcano", "GPU-a", "GPU-b", held=["GPU-a"])

    (first, second), sums, told = once([dra, volcano], {})

    assert [card.id for card in first.devices] == ["GPU-a"]
    assert [holder.name for holder in first.devices[0].holders] == ["volcano"]
    assert [card.id for card in second.devices] == ["GPU-b"]
    assert (sums.cards, sums.free) == (exactly(2), exactly(1))
    assert told == ["dra and volcano offer one card: GPU-a"]


def test_what_may_be_cards_opens_the_range() -> None:
    """But where a label counts exactly those that are known."""
    sums = Sums(cards=exactly(2), free=exactly(1), gettable=exactly(1))
    vgpus = {"example.com/vgpu": Units(allocatable=4, held=0)}

    assert open_ended(sums, vgpus, {}, ()).cards == Many(least=2, most=None)
    assert open_ended(sums, vgpus, {}, ()).free == Many(least=1, most=None)
    assert open_ended(sums, vgpus, COUNT, ()) == sums
    mine = {"nvidia.com/vgpu": Units(allocatable=4, held=0)}
    assert open_ended(sums, mine, {}, [named("hami", "GPU-a", "GPU-b")]) == sums
    assert open_ended(sums, {"rdma/hca": Units(allocatable=4, held=0)}, {}, ()) == sums


def test_whole_cards_beside_slices_that_need_all_are_none() -> None:
    """Two cards can't be whole and cut; the difference is named."""
    offers = {GPU: 2, "nvidia.com/mig-1g.10gb": 6, "nvidia.com/mig-2g.20gb": 4}
    node = Plugged(is_open=True, labels=COUNT, offers=offers, capacity=offers)

    groups, told = plugin_groups(node, "nvidia.com")

    assert [(group.mode, group.cards) for group in groups] == [
        ("whole", exactly(0)),
        ("slices", exactly(2)),
    ]
    assert told == [
        f"{GPU}.count is 2, offered are 2 {GPU}, 6 nvidia.com/mig-1g.10gb, 4 nvidia.com/mig-2g.20gb"
    ]


def test_places_for_pods_cut_what_can_be_got() -> None:
    """A number without an end stays one as far as there are places."""
    cut = [
        (exactly(0), 3, exactly(0)),
        (Many(least=2, most=7), 3, Many(least=2, most=3)),
        (Many(least=2, most=7), 0, exactly(0)),
        (Many(least=1, most=None), 5, Many(least=1, most=None)),
        (Many(least=1, most=None), 0, exactly(0)),
    ]
    assert [many.cut(places) for many, places, _ in cut] == [right for _, _, right in cut]


@pytest.mark.parametrize("is_first", [True, False])
def test_one_id_is_as_bad_as_any_system_has_it(*, is_first: bool) -> None:
    """Whichever of the two lists it first."""
    ill = DeviceNow(id="GPU-a", minor=0, healthy=False, closed="unhealthy")
    volcano = group_of(system="volcano", devices=[ill], is_open=True, is_inventoried=False)
    both = [named("dra", "GPU-a"), volcano]

    (group,), sums, _ = once(both if is_first else both[::-1], {})

    assert [(card.healthy, card.closed) for card in group.devices] == [(False, "unhealthy")]
    assert (sums.free, sums.gettable) == (exactly(0), exactly(0))
