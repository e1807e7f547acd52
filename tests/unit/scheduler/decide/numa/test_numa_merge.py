from __future__ import annotations

import random
from itertools import product

import pytest

from ledger.domain.annotations.cpu import NumaPolicy
from scheduler.decide.numa.align import Usage, score, split
from scheduler.decide.numa.merge import (
    Aligned,
    Exclusivity,
    Hints,
    NumaHint,
    NumaUse,
    hints_of,
    mask_text,
    masks_of,
    merge,
)

BEST_EFFORT = NumaPolicy.BEST_EFFORT
RESTRICTED = NumaPolicy.RESTRICTED
SINGLE = NumaPolicy.SINGLE_NUMA_NODE

NODE_0, NODE_1, BOTH = 0b01, 0b10, 0b11
ALIGNS_ON_1: Hints = {
    "cpu": [
        NumaHint(nodes=NODE_0),
        NumaHint(nodes=NODE_1),
        NumaHint(nodes=BOTH, preferred=False),
    ],
    "gpu": [NumaHint(nodes=NODE_1, score=500), NumaHint(nodes=BOTH, preferred=False)],
}
"""Koordinator contract 7, fresh example: cpu {0}P,{1}P,{0,1}; gpu {1}P(500),{0,1}."""


def gpu_needs_both(preferred: int | None = None) -> Hints:
    """Return the second half of the example: gpu only has {0,1}P."""
    return {
        "cpu": hints_of([NODE_0, NODE_1, BOTH], lambda _: 0, preferred),
        "gpu": hints_of([BOTH], lambda _: 0, preferred),
    }


@pytest.mark.parametrize("policy", [BEST_EFFORT, RESTRICTED, SINGLE])
def test_a_common_preferred_node_is_chosen_by_every_policy(policy: NumaPolicy) -> None:
    """Koordinator contract 7: merged {1} is preferred."""
    assert merge(policy, ALIGNS_ON_1, [0, 1]) == Aligned(nodes=NODE_1)


def test_restricted_admits_both_nodes_where_both_are_common() -> None:
    """Koordinator contract 7: under a Pod's Restricted every feasible cpu mask is preferred."""
    assert merge(RESTRICTED, gpu_needs_both(0), [0, 1]) == Aligned(nodes=BOTH)


def test_a_set_wider_than_a_resource_needs_is_not_preferred() -> None:
    """Kubernetes' Restricted: cpu would fit one NUMA node, so that both are refused."""
    reason = (
        "Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11] & gpu prefer [11] among [11]"
    )

    assert merge(RESTRICTED, gpu_needs_both(), [0, 1]) == Aligned(reasons=(reason,))
    assert merge(RESTRICTED, {"cpu": hints_of([BOTH], lambda _: 0, 1)}, [0, 1]).reasons
    assert merge(RESTRICTED, {"cpu": hints_of([BOTH], lambda _: 0, 2)}, [0, 1]).nodes == BOTH


def test_a_single_node_is_refused_where_a_device_needs_two() -> None:
    """Koordinator contract 7: Single refuses, with what each resource would prefer."""
    reason = (
        "Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11],gpu prefer [11] among [11]"
    )

    assert merge(SINGLE, gpu_needs_both(), [0, 1]) == Aligned(reasons=(reason,))


def test_best_effort_takes_all_nodes_where_the_narrowest_does_not_serve_all() -> None:
    """Koordinator contract 7: {0} is unsatisfied, hence all nodes."""
    assert merge(BEST_EFFORT, gpu_needs_both(), [0, 1]) == Aligned(nodes=BOTH)


@pytest.mark.parametrize("policy", [RESTRICTED, SINGLE])
def test_a_resource_that_no_node_serves_is_named(policy: NumaPolicy) -> None:
    """Koordinator contract 7, the table of policies: best effort takes all nodes instead."""
    hints: Hints = {"cpu": [NumaHint(nodes=NODE_0)], "gpu": []}

    assert merge(policy, hints, [0, 1]) == Aligned(reasons=("Unsatisfied NUMA gpu",))
    assert merge(BEST_EFFORT, hints, [0, 1]) == Aligned(nodes=BOTH)


def test_restricted_names_the_resources_that_do_not_align() -> None:
    """Joined with an ampersand."""
    hints: Hints = {"cpu": [NumaHint(nodes=NODE_0)], "gpu": [NumaHint(nodes=NODE_1)]}
    reason = "Unaligned NUMA Hint cause cpu prefer [01] among [01] & gpu prefer [10] among [10]"

    assert merge(RESTRICTED, hints, [0, 1]) == Aligned(reasons=(reason,))


def test_no_opinion_at_all_is_no_affinity_for_a_single_node() -> None:
    """Koordinator contract 7: the result of all nodes becomes no affinity."""
    assert merge(SINGLE, {}, [0, 1]) == Aligned()
    assert merge(SINGLE, {"cpu": [NumaHint(nodes=NODE_0)]}, [0]) == Aligned()
    assert merge(RESTRICTED, {}, [0, 1]) == Aligned(nodes=BOTH)


def test_a_device_outweighs_the_cpus() -> None:
    """Score 500 against 0 to 100: the choice of GPUs decides between equal masks."""
    hints: Hints = {
        "cpu": [NumaHint(nodes=NODE_0, score=100), NumaHint(nodes=NODE_1, score=0)],
        "memory": [NumaHint(nodes=NODE_0, score=100), NumaHint(nodes=NODE_1, score=0)],
        "gpu": [NumaHint(nodes=NODE_0), NumaHint(nodes=NODE_1, score=500)],
    }

    assert merge(SINGLE, hints, [0, 1]) == Aligned(nodes=NODE_1)


@pytest.mark.parametrize(
    ("uses", "nodes"),
    [
        pytest.param({0: NumaUse.SHARED}, NODE_1, id="one node, where no wide set sits"),
        pytest.param({}, NODE_0, id="nothing there: the lower mask"),
        pytest.param({0: NumaUse.SINGLE}, NODE_0, id="one-node sets may meet"),
    ],
)
def test_exclusive_use_keeps_one_node_sets_off_wide_ones(
    uses: dict[int, NumaUse], nodes: int
) -> None:
    """Koordinator contract 7, exclusive use."""
    hints: Hints = {"cpu": [NumaHint(nodes=NODE_0), NumaHint(nodes=NODE_1)]}

    assert merge(SINGLE, hints, [0, 1], Exclusivity(required=True, uses=uses)) == Aligned(
        nodes=nodes
    )


def test_a_wide_set_touches_no_single_node() -> None:
    """Koordinator contract 7: such a hint is not preferred, so that Restricted refuses."""
    hints: Hints = {"cpu": [NumaHint(nodes=BOTH)]}
    single = {1: NumaUse.SINGLE}

    assert merge(RESTRICTED, hints, [0, 1], Exclusivity(required=True, uses=single)).reasons
    assert merge(RESTRICTED, hints, [0, 1], Exclusivity(uses=single)) == Aligned(nodes=BOTH)


def test_merging_agrees_with_all_permutations() -> None:
    """Koordinator contract 7: one hint of each resource, in every combination."""
    for seed in range(2000):
        chance = random.Random(seed)
        nodes = list(range(chance.randint(1, 3)))
        hints, exclusivity = drawn(chance, nodes)
        for policy in (BEST_EFFORT, RESTRICTED, SINGLE):
            got = merge(policy, hints, nodes, exclusivity)
            expected = by_permutations(policy, hints, nodes, exclusivity)
            assert (got.nodes, bool(got.reasons)) == expected, (seed, policy)


def drawn(chance: random.Random, nodes: list[int]) -> tuple[Hints, Exclusivity]:
    """Draw hints of up to three resources, and what sits on the nodes."""
    hints = {
        name: [
            NumaHint(nodes=mask, preferred=chance.random() < 0.6, score=chance.choice([0, 50, 500]))
            for mask in masks_of(nodes)
            if chance.random() < 0.6
        ]
        for name in ["cpu", "memory", "gpu"][: chance.randint(1, 3)]
    }
    uses = {node: chance.choice(list(NumaUse)) for node in nodes}
    return hints, Exclusivity(required=chance.random() < 0.5, uses=uses)


def by_permutations(
    policy: NumaPolicy, hints: Hints, nodes: list[int], exclusivity: Exclusivity
) -> tuple[int | None, bool]:
    """Return (nodes, refused) the slow way, from the contract's words."""
    everywhere = (1 << len(nodes)) - 1
    strict = policy is not BEST_EFFORT
    if any(not found for found in hints.values()):
        return (None, True) if strict else (everywhere, False)
    if policy is SINGLE:
        hints = {
            name: [hint for hint in found if hint.preferred and hint.nodes.bit_count() == 1]
            for name, found in hints.items()
        }
    merged = []
    for members in product(*hints.values()):
        mask = everywhere
        for hint in members:
            mask &= hint.nodes
        if mask:
            same = all(hint.nodes == mask for hint in members)
            preferred = same and all(hint.preferred for hint in members)
            score_ = sum(hint.score for hint in members if hint.nodes == mask)
            preferred = preferred and exclusivity.allows(mask)
            merged.append((not preferred, mask.bit_count(), -score_, mask, not same))
    if not merged:
        return (None, True) if strict else (everywhere, False)
    unpreferred, _, _, mask, unsatisfied = min(merged)
    if not strict:
        return (everywhere if unsatisfied else mask), False
    if unpreferred:
        return None, True
    return (None if policy is SINGLE and mask == everywhere else mask), False


def test_masks_come_by_size_then_number() -> None:
    """Koordinator contract 7, hints."""
    assert list(masks_of([0, 1, 3])) == [0b1, 0b10, 0b1000, 0b11, 0b1001, 0b1010, 0b1011]


def test_masks_are_written_in_pairs_of_bits() -> None:
    """As kubelet's logs show them."""
    assert [mask_text(mask) for mask in (0b1, 0b10, 0b101, 0b10000)] == [
        "01",
        "10",
        "0101",
        "010000",
    ]


@pytest.mark.parametrize(
    ("amount", "available", "unit", "parts"),
    [
        pytest.param(6, {0: 12, 1: 12}, 2, {0: 2, 1: 4}, id="required Full 6: one core, then four"),
        pytest.param(5000, {0: 1500, 1: 9000}, 1, {0: 1500, 1: 3500}, id="share of five CPUs"),
        pytest.param(5, {0: 12, 1: 12}, 1, {0: 2, 1: 3}, id="Spread 5"),
        pytest.param(4, {1: 8, 3: 2}, 1, {3: 2, 1: 2}, id="the node with the least first"),
        pytest.param(4, {3: 8, 1: 8}, 1, {1: 2, 3: 2}, id="equal nodes by id (Q10)"),
        pytest.param(0, {0: 1}, 1, {0: 0}, id="nothing"),
        pytest.param(9, {0: 4, 1: 4}, 1, None, id="more than there is"),
    ],
)
def test_a_request_is_spread_over_nodes(
    amount: int, available: dict[int, int], unit: int, parts: dict[int, int] | None
) -> None:
    """Koordinator contract 7, splitting a request over a mask."""
    assert split(amount, available, unit) == parts


@pytest.mark.parametrize(
    ("usages", "most", "expected"),
    [
        ([Usage(10, 0, 4)], False, 60),
        ([Usage(10, 0, 4)], True, 40),
        ([Usage(3, 1, 1)], False, 33),
        ([Usage(3, 1, 1)], True, 66),
        ([Usage(10, 8, 4)], False, 0),
        ([Usage(10, 8, 4)], True, 100),
        ([Usage(10, 0, 4), Usage(10, 0, 9)], False, 35),
        ([Usage(0, 0, 4)], True, 0),
        ([], True, 0),
    ],
)
def test_scores_are_whole_numbers(
    usages: list[Usage],
    most: bool,  # noqa: FBT001 - a column of the table
    expected: int,
) -> None:
    """Koordinator contract 7, scoring formulas."""
    assert score(usages, most_allocated=most) == expected
