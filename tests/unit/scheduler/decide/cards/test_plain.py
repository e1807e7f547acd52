from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.devices import DeviceTopology
from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.derived_links import derive_links
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import Unfit
from scheduler.decide.settings import DeviceSettings, SchedulingSettings
from tests.support.cards import GIB, card, minors_of, need, nic, node_of, part, pod, rdma, whole
from tests.support.links import TWO_BY_FOUR_PCIE
from tests.support.topologies import EIGHT_GPU_NVLINK

MOST = SchedulingSettings()
LEAST = SchedulingSettings(devices=DeviceSettings(scoring="LeastAllocated"))


def chosen(answer: Choice | Unfit) -> Choice:
    """Return the choice, or fail with the reason."""
    assert isinstance(answer, Choice), answer
    return answer


def refused(answer: Choice | Unfit) -> Unfit:
    """Return the refusal, or fail with the shares."""
    assert isinstance(answer, Unfit), answer
    return answer


def three_cards_first_part_used() -> NodeView:
    """Koordinator contract 8.2's example: 40 GiB cards, 40 % of card 0 used."""
    return node_of(card(0, core_used=40, memory_used=16 * GIB), card(1), card(2))


def test_a_pod_without_devices_gets_none() -> None:
    """Nothing asked, nothing chosen, on any node."""
    assert choose(pod(), node_of(), MOST) == Choice()


def test_least_allocated_takes_the_lowest_empty_card() -> None:
    """Contract 8.2: with LeastAllocated ratio 25 goes to card 1, the first of two empty ones."""
    answer = choose(pod(part(ratio=25)), three_cards_first_part_used(), LEAST)

    assert minors_of(chosen(answer).shares) == (1,)


def test_most_allocated_takes_the_used_card() -> None:
    """Contract 8.2: with MostAllocated the same request goes to card 0."""
    answer = choose(pod(part(ratio=25)), three_cards_first_part_used(), MOST)

    assert minors_of(chosen(answer).shares) == (0,)


def test_parts_of_several_cards_take_the_best_scored_ones() -> None:
    """`gpu.shared: 2` takes two different cards, the fullest two that fit."""
    node = node_of(
        card(0), card(1, core_used=10, memory_used=GIB), card(2, core_used=60), card(3, core_used=9)
    )

    answer = chosen(choose(pod(part(50, memory=2 * GIB, count=2)), node, MOST))

    assert minors_of(answer.shares) == (0, 1)
    assert [share.core_percent for share in answer.shares] == [50, 50]


def test_cards_without_memory_are_ordered_by_core() -> None:
    """Where no GPU reports memory the fuller core is the fuller card."""
    node = node_of(card(0, memory_bytes=0), card(1, memory_bytes=0, core_used=30))

    assert minors_of(chosen(choose(pod(part(40)), node, MOST)).shares) == (1,)
    assert minors_of(chosen(choose(pod(part(40)), node, LEAST)).shares) == (0,)


def test_a_ratio_becomes_bytes_and_both_numbers_are_kept() -> None:
    """Contract 4.5: 35 % of 24 GiB are 9019431321 bytes."""
    node = node_of(card(0, memory_bytes=24 * GIB))

    (share,) = chosen(choose(pod(part(40, ratio=35)), node, MOST)).shares

    assert (share.core_percent, share.memory_bytes, share.memory_ratio_percent) == (
        40,
        9019431321,
        35,
    )


@pytest.mark.parametrize(
    ("total_gib", "asked_bytes", "ratio"),
    [
        pytest.param(24, 7 * GIB, 29, id="7 GiB of 24 are 29 percent, cut off"),
        pytest.param(80, GIB // 2, 1, id="a tenant below one percent still counts as one"),
    ],
)
def test_bytes_get_a_ratio(total_gib: int, asked_bytes: int, ratio: int) -> None:
    """Contract 4.5, "ours": the ratio is truncated but never 0 for a tenant."""
    node = node_of(card(0, memory_bytes=total_gib * GIB))

    (share,) = chosen(choose(pod(part(memory=asked_bytes)), node, MOST)).shares

    assert (share.memory_bytes, share.memory_ratio_percent) == (asked_bytes, ratio)


def test_mixed_units_never_promise_more_bytes_than_there_are() -> None:
    """Contract 4.5, the over-commit hole: after three times 7 GiB a ratio of 13 is refused."""
    node = node_of(card(0, memory_bytes=24 * GIB, memory_used=21 * GIB, tenants=3))

    assert refused(choose(pod(part(ratio=13)), node, MOST)).preemptible
    assert minors_of(chosen(choose(pod(part(ratio=12)), node, MOST)).shares) == (0,)


def test_the_ratio_constrains_nothing() -> None:
    """Design section 4: seven times 2325 MiB fit on a card of 16276 MiB, whatever the ratios."""
    mib = 2**20
    node = node_of(card(0, memory_bytes=16276 * mib, memory_used=6 * 2325 * mib, tenants=6))

    (share,) = chosen(choose(pod(part(memory=2325 * mib)), node, MOST)).shares

    assert share.memory_bytes == 2325 * mib


def test_a_whole_card_needs_one_without_any_tenant() -> None:
    """Contract 4.5: a tenant with no core and almost no memory still keeps an exclusive Pod off."""
    node = node_of(card(0, memory_used=1, tenants=1), card(1))

    assert minors_of(chosen(choose(pod(whole()), node, MOST)).shares) == (1,)


def test_a_card_held_alone_takes_no_one_else() -> None:
    """An exclusive holder that asked for half the core still has the card to itself."""
    node = node_of(card(0, core_used=50, exclusive=True))

    assert refused(choose(pod(part(10, ratio=1)), node, MOST)).preemptible


def test_whole_cards_are_the_lowest_that_fit() -> None:
    """Contract 8.4: exclusive requests take the lowest fitting minors, whatever the scoring."""
    node = node_of(card(0, closed=True), card(1, core_used=1), card(2), card(3), card(4))

    shares = chosen(choose(pod(whole(2), dialect=Dialect.NVIDIA), node, LEAST)).shares

    assert minors_of(shares) == (2, 3)
    assert all(share.exclusive and share.memory_ratio_percent == 100 for share in shares)
    assert all(share.memory_bytes == 40 * GIB for share in shares)


def test_an_unhealthy_card_is_never_chosen() -> None:
    """A closed card is out, even when it is the only one."""
    answer = refused(choose(pod(whole()), node_of(card(0, closed=True)), MOST))

    assert answer.reason == "Insufficient gpu devices"
    assert not answer.preemptible


def test_cards_of_different_sizes_are_measured_by_their_own() -> None:
    """16 GiB fit on the large card only; half of a card is half of that card."""
    node = node_of(card(0, memory_bytes=12 * GIB), card(1, memory_bytes=48 * GIB))

    (by_bytes,) = chosen(choose(pod(part(memory=16 * GIB)), node, MOST)).shares
    (by_ratio,) = chosen(choose(pod(part(50, ratio=50)), node, MOST)).shares

    assert by_bytes.minor == 1
    assert (by_ratio.minor, by_ratio.memory_bytes) == (0, 6 * GIB)


def test_only_the_models_asked_for_count() -> None:
    """A model list narrows the cards."""
    node = node_of(card(0, model="T4"), card(1, model="A100"))

    answer = choose(pod(whole(model_names=("A100", "H100"))), node, MOST)

    assert minors_of(chosen(answer).shares) == (1,)


def test_a_node_without_the_model_can_not_be_helped_by_preemption() -> None:
    """GPU-sharing contract C.3: the wrong model is unresolvable."""
    node = node_of(card(0, model="T4", core_used=100))

    assert refused(choose(pod(whole(model_names=("A100",))), node, MOST)) == Unfit(
        reason="GPUModelMismatch", preemptible=False
    )


def test_a_resource_that_the_card_lacks_counts_nothing() -> None:
    """Contract 12, quirk Q3 "ours": missing is 0, so a request for it does not fit."""
    no_core = node_of(card(0, core=0))
    no_memory = node_of(card(0, memory_bytes=0))

    assert refused(choose(pod(part(10, ratio=10)), no_core, MOST))
    assert refused(choose(pod(part(10, memory=GIB)), no_memory, MOST))
    assert refused(choose(pod(part(0, ratio=10)), no_memory, MOST))


def test_core_guards_the_ratio_where_memory_is_unknown() -> None:
    """Equal core and ratio fit on a card of unknown memory: core keeps the sum within 100."""
    node = node_of(card(0, memory_bytes=0, core_used=50))

    (share,) = chosen(choose(pod(part(50, ratio=50)), node, MOST)).shares

    assert (share.memory_bytes, share.memory_ratio_percent) == (0, 50)
    assert refused(choose(pod(part(51, ratio=51)), node, MOST))


def test_a_refusal_counts_whole_cards() -> None:
    """Two whole cards asked, one of two free."""
    answer = refused(choose(pod(whole(2)), node_of(card(0, core_used=1), card(1)), MOST))

    assert (answer.requested, answer.available, answer.unit) == (2, 1, "cards")
    assert answer.preemptible


def test_a_refusal_names_the_unit_that_is_short_on_the_best_card() -> None:
    """A part of a card: the most core, else the most memory, that one card has left."""
    node = node_of(card(0, core_used=20, memory_used=39 * GIB), card(1, core_used=30))

    by_core = refused(choose(pod(part(90, ratio=1)), node, MOST))
    by_memory = refused(choose(pod(part(80, memory=41 * GIB - 1)), node_of(card(0)), MOST))
    held = refused(choose(pod(part(1, memory=GIB)), node_of(card(0, memory_used=40 * GIB)), MOST))

    assert (by_core.requested, by_core.available, by_core.unit) == (90, 80, "core percent")
    assert (by_memory.unit, by_memory.preemptible) == ("cards", False)
    assert (held.requested, held.available, held.unit) == (GIB, 0, "memory bytes")


def test_too_few_cards_in_the_machine_can_not_be_helped() -> None:
    """More cards than the node has: no preemption makes them."""
    answer = refused(choose(pod(whole(4)), node_of(card(0), card(1)), MOST))

    assert answer == Unfit(
        reason="Insufficient gpu devices",
        requested=4,
        available=2,
        unit="cards",
        preemptible=False,
    )


def test_a_policys_card_is_taken_when_it_fits() -> None:
    """A node policy that scored cards gets its card; a card that does not fit is passed over."""
    node = three_cards_first_part_used()

    assert minors_of(chosen(choose(pod(part(25)), node, MOST, preferred_card=2)).shares) == (2,)
    assert minors_of(chosen(choose(pod(part(70)), node, MOST, preferred_card=0)).shares) == (1,)
    assert minors_of(chosen(choose(pod(whole(2)), node, MOST, preferred_card=2)).shares) == (1, 2)


def test_a_group_plan_restricts_the_cards() -> None:
    """Only the planned GPUs are used; other types are not restricted."""
    node = node_of(*(card(minor) for minor in range(4)), nic(7))

    answer = choose(pod(whole(2), rdma(10)), node, MOST, only_minors=frozenset({1, 3}))

    assert [share.key for share in chosen(answer).shares] == [("gpu", 1), ("gpu", 3), ("rdma", 7)]


def test_linked_cards_are_chosen_by_their_slowest_link() -> None:
    """GPU-topology proposal: two whole GPUs take the fastest pair (96.43 GB/s), not 0 and 1."""
    node = node_of(*(card(minor) for minor in range(8)), links=EIGHT_GPU_NVLINK)

    shares = chosen(choose(pod(whole(2)), node, MOST)).shares

    assert minors_of(shares) == (2, 3)


def test_one_whole_card_leaves_the_best_links_to_others() -> None:
    """Of two PCIe roots the one that is begun, whatever card the node policy would like."""
    cards = [card(minor, core_used=100 * (minor == 4)) for minor in range(8)]
    node, linked = node_of(*cards), node_of(*cards, links=TWO_BY_FOUR_PCIE)

    assert minors_of(chosen(choose(pod(whole()), linked, MOST)).shares) == (5,)
    assert minors_of(chosen(choose(pod(whole()), linked, MOST, preferred_card=1)).shares) == (5,)
    assert minors_of(chosen(choose(pod(whole()), node, MOST, preferred_card=1)).shares) == (1,)


def test_places_decide_where_links_are_not_measured() -> None:
    """Three GPUs of one socket, though no NUMA node holds them; without every place, by minor."""
    places = [DeviceTopology(socket=n // 4, numa_node=n // 2, pcie_id=f"pci{n}") for n in range(8)]
    free = [
        replace(card, record=replace(card.record, topology=places[card.record.minor]))
        for card in (card(minor, core_used=100 * (minor in {0, 1})) for minor in range(8))
    ]
    links = derive_links(card.record for card in free)
    unplaced = [*free[:-1], card(7)]

    by_place = chosen(choose(pod(whole(3)), node_of(*free, derived_links=links), MOST))
    by_minor = chosen(choose(pod(whole(3)), node_of(*unplaced, derived_links=links), MOST))

    assert minors_of(by_place.shares) == (4, 5, 6)
    assert minors_of(by_minor.shares) == (2, 3, 4)


def test_closed_and_held_cards_are_no_part_of_the_links() -> None:
    """Cards that may not be granted are neither chosen nor counted as what is left."""
    cards = [card(minor, closed=minor in {0, 1}, core_used=minor == 5) for minor in range(8)]
    node = node_of(*cards, links=TWO_BY_FOUR_PCIE)

    assert minors_of(chosen(choose(pod(whole(2)), node, MOST)).shares) == (2, 3)
    assert minors_of(chosen(choose(pod(whole(3)), node, MOST)).shares) == (4, 6, 7)


def test_several_types_are_all_or_nothing() -> None:
    """A Pod with GPU and RDMA gets both, ordered by type, or the reason of the type that fails."""
    request = pod(part(50, ratio=50), rdma(40))

    both = chosen(choose(request, node_of(card(0), nic(3, used=50)), MOST))
    without = refused(choose(request, node_of(card(0), nic(3, used=70)), MOST))

    assert [(share.device_type, share.minor) for share in both.shares] == [("gpu", 0), ("rdma", 3)]
    assert both.shares[1].core_percent == 40
    assert both.shares[1].memory_ratio_percent == 0
    assert without.reason == "Insufficient rdma devices"


def test_a_device_type_is_data() -> None:
    """A type nobody has heard of is allocated by percent like any other."""
    npu = card(0, device_type="npu", memory_bytes=0, core_used=30)
    demand = rdma(70)
    request = pod(type(demand)(device_type="npu", count=1, core_percent=70))

    assert chosen(choose(request, node_of(npu), MOST)).shares[0].core_percent == 70
    assert refused(choose(pod(rdma(1)), node_of(npu), MOST)).reason == "Insufficient rdma devices"


def test_demands_of_one_pod_take_different_cards() -> None:
    """Two demands never meet on one card, though one card could hold both."""
    node = node_of(card(0), card(1))

    answer = choose(pod(part(10, ratio=10), part(20, ratio=20)), node, MOST)

    assert minors_of(chosen(answer).shares) == (0, 1)


def test_a_node_that_serves_another_dialect_is_refused() -> None:
    """cli.md, inventory without a Device object: it serves its own dialect only."""
    node = node_of(card(0), dialects=frozenset({Dialect.NVIDIA}))

    assert refused(choose(pod(part(50, ratio=50)), node, MOST)).reason == "DialectNotServed"
    assert chosen(choose(pod(whole(), dialect=Dialect.NVIDIA), node, MOST))


def test_containers_are_named_with_their_part() -> None:
    """Contract 4.1 "ours": who uses which card is part of the share."""
    request = pod(
        part(30, ratio=30, count=2),
        containers=(need("a", "0", gpu=1), need("log", "1"), need("b", "2", gpu=1)),
    )

    shares = chosen(choose(request, node_of(card(0), card(1)), MOST)).shares

    assert [[use.container for use in share.containers] for share in shares] == [["a"], ["b"]]
    assert shares[1].containers[0].index == "2"
    assert shares[1].containers[0].memory_bytes == 30 * 40 * GIB // 100
