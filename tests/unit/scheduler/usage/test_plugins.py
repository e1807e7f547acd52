"""Cards told from units: what a device plugin counts is not always a card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.log.events import PodObserved
from ledger.domain.request.requests import PodSnapshot
from scheduler.usage.picture import CardGroup, Many, Units, exactly
from scheduler.usage.plugins import Plugged, not_offered, plugin_groups, vendor_of

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.5gb"
LARGE = "nvidia.com/mig-3g.20gb"


def holder(name: str, resource: str, amount: int) -> PodObserved:
    """Return a Pod that asks for so many units."""
    return PodObserved(
        pod_uid=name,
        attempt=1,
        namespace="ml",
        pod_name=name,
        node_uid="n",
        node_name="n",
        source="",
        snapshot=PodSnapshot(original={f"main.{resource}": str(amount)}),
    )


def plugged(
    offers: dict[str, int], labels: dict[str, str] | None = None, *pods: PodObserved
) -> Plugged:
    """Return an open node of which all devices are healthy; labels without their prefix."""
    told = {f"nvidia.com/{key}": value for key, value in (labels or {}).items()}
    return Plugged(is_open=True, labels=told, offers=offers, capacity=offers, pods=pods)


def nvidia(node: Plugged) -> tuple[CardGroup, ...]:
    """Return the groups of NVIDIA's plugin."""
    return plugin_groups(node, "nvidia.com")[0]


def test_replicas_are_not_cards() -> None:
    """Three of sixteen replicas are on one to three of four cards; nobody gets one whole."""
    pods = [holder(f"p{number}", GPU, 1) for number in range(3)]
    labels = {"gpu.count": "4", "gpu.replicas": "4", "gpu.product": "Tesla-T4-SHARED"}

    (group,) = nvidia(plugged({GPU: 16}, {**labels, "gpu.memory": "15360"}, *pods))

    assert (group.mode, group.model, group.memory_mib) == ("replicas", "Tesla-T4", 15360)
    assert (group.cards, group.free, group.gettable) == (
        exactly(4),
        Many(least=1, most=3),
        exactly(0),
    )
    assert group.units == {GPU: Units(allocatable=16, held=3)}
    assert [(each.path, each.amount) for each in group.unplaced] == [
        ("ml/p0", 1),
        ("ml/p1", 1),
        ("ml/p2", 1),
    ]


def test_labels_against_the_count_leave_the_cards_between_them() -> None:
    """GPU feature discovery runs every minute: it may be behind the plugin."""
    labels = {"gpu.count": "3", "gpu.replicas": "4"}

    (group,) = nvidia(plugged({GPU: 8}, labels))

    assert group.cards == Many(least=2, most=3)


@pytest.mark.parametrize(
    ("profile", "cards"),
    [
        ("1g.5gb", Many(least=2, most=14)),
        ("7g.40gb", exactly(14)),
        ("3g.20gb", Many(least=7, most=14)),
    ],
)
def test_instances_under_the_name_of_cards(profile: str, cards: Many) -> None:
    """Strategy single: the number of cards is told by nobody."""
    labels = {"gpu.product": f"NVIDIA-A100-MIG-{profile}", "gpu.memory": "4864"}

    (group,) = nvidia(plugged({GPU: 14}, labels))

    assert (group.mode, group.cards, group.free) == ("slices", cards, cards)
    assert (group.gettable, group.memory_mib, group.model) == (exactly(0), None, "NVIDIA-A100")


def test_ill_instances_leave_none_free_for_certain() -> None:
    """Which cards they are of nobody says."""
    labels = {"gpu.product": "NVIDIA-A100-MIG-1g.5gb"}
    node = Plugged(is_open=True, labels=_prefixed(labels), offers={GPU: 6}, capacity={GPU: 7})

    (group,) = nvidia(node)

    assert group.free == Many(least=0, most=7)


def _prefixed(labels: dict[str, str]) -> dict[str, str]:
    return {f"nvidia.com/{key}": value for key, value in labels.items()}


@given(
    small=st.integers(0, 20),
    large=st.integers(0, 6),
    asked_small=st.integers(0, 20),
    asked_large=st.integers(0, 6),
    told=st.integers(0, 30),
)
def test_bounds_hold_for_every_way_to_cut(
    small: int, large: int, asked_small: int, asked_large: int, told: int
) -> None:
    """No bound is over the other, and each card is held or free in either."""
    pods = [holder("a", SLICE, asked_small), holder("b", LARGE, asked_large)]
    labels = {"gpu.count": str(told), "mig.strategy": "mixed"}

    groups = nvidia(plugged({SLICE: small, LARGE: large}, labels, *pods))

    if not groups:
        assert small == large == asked_small == asked_large == 0
        return
    (group,) = groups
    assert group.cards.most is not None
    assert 0 <= group.cards.least <= group.cards.most <= small + large
    assert group.free.most is not None
    assert 0 <= group.free.least <= group.free.most <= group.cards.most
    if asked_small <= small and asked_large <= large and asked_small + asked_large:
        assert group.free.most < group.cards.most


@pytest.mark.parametrize(
    ("resource", "system"),
    [
        ("amd.com/gpu", "amd"),
        ("gpu.intel.com/xe", "intel"),
        ("huawei.com/Ascend910", "huawei"),
        ("google.com/tpu", "google"),
        ("habana.ai/gaudi", "habana"),
        ("example.com/npu", "example"),
    ],
)
def test_a_unit_of_any_vendor_is_a_card(resource: str, system: str) -> None:
    """One rule: what comes next needs no reader of its own."""
    node = Plugged(
        is_open=True,
        offers={resource: 6},
        capacity={resource: 8},
        pods=[holder("p", resource, 4)],
    )

    ((group,), _) = plugin_groups(node, resource.partition("/")[0])

    assert (group.system, group.mode, group.cards) == (system, "whole", exactly(8))
    assert group.free == Many(least=2, most=4)
    assert group.gettable == exactly(2)
    assert [(each.path, each.amount, each.unit) for each in group.unplaced] == [
        ("ml/p", 4, resource)
    ]


@pytest.mark.parametrize(
    "resource",
    [
        "gpu.intel.com/i915_monitoring",
        "rdma/hca",
        "nvidia.com/mlnxnics",
    ],
)
def test_what_is_no_card_has_no_group(resource: str) -> None:
    """It is listed as not looked at instead."""
    assert plugin_groups(plugged({resource: 3}), resource.partition("/")[0]) == ((), [])


def test_a_vendor_is_the_name_in_its_domain() -> None:
    """The last part but one; a domain of one part is it."""
    assert (vendor_of("gpu.intel.com"), vendor_of("rdma")) == ("intel", "rdma")


NEURON = "aws.amazon.com/neuron"
BY_NAME = {NEURON: 6, f"{NEURON}core": 12, f"{NEURON}device": 6}


@pytest.mark.parametrize(
    ("pods", "held", "free"),
    [
        ({}, exactly(0), exactly(6)),
        ({"": 1}, exactly(1), exactly(5)),
        ({"": 1, "device": 2}, exactly(3), exactly(3)),
        ({"": 1, "core": 2}, Many(least=2, most=3), Many(least=3, most=4)),
        ({"core": 12}, exactly(6), exactly(0)),
    ],
)
def test_names_of_one_chip_are_one_card(pods: dict[str, int], held: Many, free: Many) -> None:
    """Whichever name holds, the chip is held."""
    found = [holder(f"p{part}", f"{NEURON}{part}", units) for part, units in pods.items()]

    ((group,), _) = plugin_groups(plugged(BY_NAME, None, *found), "aws.amazon.com")

    assert (group.cards, group.held, group.free, group.gettable) == (exactly(6), held, free, free)
    assert {each.path for each in group.unplaced} == {f"ml/p{part}" for part in pods}
    assert group.units.keys() == BY_NAME.keys()


def test_an_ill_chip_is_closed_once() -> None:
    """Five of six are left, whatever they are called."""
    node = Plugged(
        is_open=True,
        offers={NEURON: 5, f"{NEURON}core": 10, f"{NEURON}device": 5},
        capacity=BY_NAME,
        pods=[holder("p", f"{NEURON}device", 1)],
    )

    ((group,), _) = plugin_groups(node, "aws.amazon.com")

    assert (group.cards, group.free, group.gettable) == (
        exactly(6),
        Many(least=4, most=5),
        exactly(4),
    )
    assert [card.closed for card in group.devices].count("unhealthy") == 1


def test_cores_alone_are_on_some_chips() -> None:
    """Nobody says how many cores a chip has."""
    ((group,), _) = plugin_groups(plugged({f"{NEURON}core": 4}), "aws.amazon.com")

    assert (group.cards, group.gettable) == (Many(least=1, most=4), exactly(0))


def test_cards_that_are_not_offered_are_not_ill() -> None:
    """The label tells of them; what their system says of their health is not known."""
    (group,) = not_offered({"nvidia.com/gpu.count": "2"})

    assert [(card.healthy, card.closed) for card in group.devices] == [(True, "not offered")] * 2
    assert (group.free, group.gettable) == (exactly(0), exactly(0))


def test_nothing_offered_is_no_group() -> None:
    """A node without GPUs has none."""
    assert nvidia(plugged({})) == ()


def test_replicas_against_the_count_are_a_range() -> None:
    """Also where the label is below what the units need, and the product says that they share."""
    labels = {"gpu.count": "2", "gpu.replicas": "4", "gpu.product": "A10-SHARED"}

    (group,) = nvidia(plugged({GPU: 12}, labels))

    assert group.cards == Many(least=2, most=3)
