from __future__ import annotations

import math
import random
from typing import Final

import pytest

from ledger.domain.topology import LinkMatrix, parse_link_matrix
from scheduler.decide.cards import links as links_module
from scheduler.decide.cards.links import pick_linked
from tests.oracles.links import ring
from tests.support.links import (
    DGX_1,
    DGX_A100,
    SIXTEEN_FOUR_ROOTS,
    SIXTEEN_TWO_ISLANDS,
    TWO_BY_FOUR_PCIE,
    best_bottlenecks,
    groups_of,
    islands,
    matrix_of,
    picked_by_trying,
    slower_ways,
)
from tests.support.topologies import EIGHT_GPU_DEVICE_TEXT, EIGHT_GPU_NVLINK

DEVICE_MATRIX = parse_link_matrix(EIGHT_GPU_DEVICE_TEXT)

EIGHT: Final = {
    "the proposal's first matrix": EIGHT_GPU_NVLINK,
    "the proposal's second matrix": DEVICE_MATRIX,
    "DGX-1": DGX_1,
    "DGX A100 and H100": DGX_A100,
    "two PCIe roots of four": TWO_BY_FOUR_PCIE,
    "two PCIe roots of four, one way faster": slower_ways(TWO_BY_FOUR_PCIE),
}
SIXTEEN: Final = {
    "two NVLink islands of eight": SIXTEEN_TWO_ISLANDS,
    "four PCIe roots of four": SIXTEEN_FOUR_ROOTS,
    "two NVLink islands of eight, one way faster": slower_ways(SIXTEEN_TWO_ISLANDS),
}


def test_the_proposals_group_is_found() -> None:
    """GPU-topology proposal, Motivation: {0,1,2,3} is as good as any four, and the lowest."""
    group = pick_linked(range(8), 4, EIGHT_GPU_NVLINK)

    assert group == (0, 1, 2, 3)
    assert EIGHT_GPU_NVLINK.bottleneck_gbps(group) == 48.33


def test_the_proposals_bad_group_is_not_as_bad_as_it_says() -> None:
    """The matrix gives 15.52 for {0,1,2,5}, not the 4.64 of the text; we follow the matrix."""
    assert EIGHT_GPU_NVLINK.bottleneck_gbps((0, 1, 2, 5)) == 15.52


def test_the_second_matrix_counts_the_slower_direction() -> None:
    """GPU 2 to 3 is 6.02 one way and 96.48 the other in the Device example: a slow link."""
    assert DEVICE_MATRIX.bandwidth_gbps(2, 3) == 6.02
    assert pick_linked({0, 1, 2, 3}, 2, DEVICE_MATRIX) == (0, 3)
    assert pick_linked({2, 3}, 2, DEVICE_MATRIX) == (2, 3)
    assert pick_linked(range(8), 4, DEVICE_MATRIX) == (4, 5, 6, 7)


@pytest.mark.parametrize("links", EIGHT.values(), ids=EIGHT)
def test_eight_gpus_get_the_best_bottleneck_for_every_free_set_and_size(links: LinkMatrix) -> None:
    """Every free set, every size: no group has a faster slowest link."""
    best = best_bottlenecks(links)
    for free in range(1, 256):
        minors = [minor for minor in range(8) if free >> minor & 1]
        for count in range(1, len(minors) + 1):
            group = pick_linked(minors, count, links)

            assert len(group) == count
            assert set(group) <= set(minors)
            assert links.bottleneck_gbps(group) == best[free][count]


def test_a_cube_mesh_gives_the_best_ring_as_well() -> None:
    """On DGX-1 the best pair and the best ring never exclude each other: both are the optimum."""
    for free in range(1, 256):
        minors = [minor for minor in range(8) if free >> minor & 1]
        for count in range(4, len(minors) + 1):
            speed = ring(DGX_1, pick_linked(minors, count, DGX_1))

            assert speed == max(_ring(group) for group in groups_of(minors, count))


@pytest.mark.parametrize("links", SIXTEEN.values(), ids=SIXTEEN)
def test_sixteen_gpus_get_the_best_bottleneck_for_a_sample(links: LinkMatrix) -> None:
    """Seeded free sets of up to eleven: no group has a faster slowest link."""
    rng = random.Random(16)
    for _ in range(60):
        minors = rng.sample(range(16), rng.randint(2, 11))
        count = rng.randint(1, len(minors))

        group = pick_linked(minors, count, links)

        best = max(map(links.bottleneck_gbps, groups_of(minors, count)))
        assert links.bottleneck_gbps(group) == best


@pytest.mark.slow
@pytest.mark.parametrize("links", SIXTEEN.values(), ids=SIXTEEN)
def test_sixteen_gpus_get_the_best_bottleneck_for_every_free_set_and_size(
    links: LinkMatrix,
) -> None:
    """All 65,535 free sets of sixteen GPUs and all sizes: no group has a faster slowest link."""
    best = best_bottlenecks(links)
    for free in range(1, 1 << 16):
        minors = [minor for minor in range(16) if free >> minor & 1]
        for count in range(1, len(minors) + 1):
            group = pick_linked(minors, count, links)

            assert len(group) == count
            assert set(group) <= set(minors)
            assert links.bottleneck_gbps(group) == best[free][count]


@pytest.mark.parametrize(
    ("links", "free", "count", "group"),
    [
        (TWO_BY_FOUR_PCIE, {0, 1, 2, 3, 5, 6, 7}, 1, (5,)),
        (TWO_BY_FOUR_PCIE, {0, 1, 2, 3, 5, 6, 7}, 2, (5, 6)),
        (TWO_BY_FOUR_PCIE, {0, 1, 2, 3, 5, 6, 7}, 3, (5, 6, 7)),
        (TWO_BY_FOUR_PCIE, {0, 1, 2, 6, 7}, 1, (6,)),
        (DGX_1, set(range(8)), 2, (0, 3)),
        (SIXTEEN_TWO_ISLANDS, set(range(8)) | {10, 11, 12, 13, 14, 15}, 4, (10, 11, 12, 13)),
        (SIXTEEN_FOUR_ROOTS, set(range(16)) - {0, 4, 5, 8, 9, 10}, 2, (6, 7)),
    ],
    ids=[
        "one GPU comes from the root that is begun",
        "two GPUs come from the root that is begun",
        "three GPUs use up the root that is begun",
        "of two begun roots the fuller one",
        "two GPUs come from one quad, the other stays whole",
        "four GPUs leave an island of eight whole",
        "two GPUs use up a root beside a whole one",
    ],
)
def test_what_is_left_is_the_best_for_the_next(
    links: LinkMatrix, free: set[int], count: int, group: tuple[int, ...]
) -> None:
    """Of equally fast groups the one whose rest offers most to 8, to 4 and to 2 GPUs."""
    assert pick_linked(free, count, links) == group


def test_ties_may_go_to_the_lowest_minors_at_once() -> None:
    """Where another document has its own order of ties, ring and rest are not looked at."""
    free = {0, 1, 2, 3, 5, 6, 7}

    assert pick_linked(free, 2, TWO_BY_FOUR_PCIE) == (5, 6)
    assert pick_linked(free, 2, TWO_BY_FOUR_PCIE, ties_by_minor=True) == (0, 1)
    assert pick_linked(free, 1, TWO_BY_FOUR_PCIE, ties_by_minor=True) == (0,)
    assert pick_linked({0, 4, 5}, 2, TWO_BY_FOUR_PCIE, ties_by_minor=True) == (4, 5)


def test_noise_of_a_measurement_is_no_quality_of_the_rest() -> None:
    """Links within ten percent count alike for the rest: the lowest minor, not the quietest."""
    noisy = matrix_of(4, lambda a, b: 24.0 + 0.1 * (a + b))

    assert pick_linked(range(4), 1, noisy) == (0,)


def test_of_equal_bottlenecks_the_better_ring_wins() -> None:
    """Five GPUs of a cube mesh cross sockets in any case; NVLinks all the way round still help."""
    group = pick_linked(range(8), 5, DGX_1)

    assert DGX_1.bottleneck_gbps(group) == 9.0
    assert ring(DGX_1, group) == 25.0


def test_all_gpus_are_all() -> None:
    """As many as are free leaves no choice."""
    assert pick_linked(range(8), 8, EIGHT_GPU_NVLINK) == tuple(range(8))
    assert pick_linked({5}, 1, EIGHT_GPU_NVLINK) == (5,)


def test_ties_go_to_the_lowest_minors() -> None:
    """Equal links everywhere: the lowest minors."""
    equal = LinkMatrix(rows=((1.0,) * 6,) * 6)

    assert pick_linked({1, 2, 4, 5}, 1, equal) == (1,)
    assert pick_linked({1, 2, 4, 5}, 3, equal) == (1, 2, 4)


def test_a_minor_outside_the_matrix_has_the_slowest_links() -> None:
    """A card that the matrix lacks is taken last, never an error."""
    assert pick_linked({0, 9, 12}, 2, EIGHT_GPU_NVLINK) == (0, 9)
    assert pick_linked({0, 3, 9}, 2, EIGHT_GPU_NVLINK) == (0, 3)
    assert pick_linked({1, 4, 9}, 1, EIGHT_GPU_NVLINK) == (9,)
    assert pick_linked({0, 1}, 1, LinkMatrix(rows=())) == (0,)


@pytest.mark.parametrize("size", [20, 40])
def test_a_large_machine_is_searched(size: int) -> None:
    """Of more free GPUs than the table holds, all are looked at; ties go to the lowest minors."""
    links = islands(size, 5, inside=9.0, between=1.0)
    fast = {frozenset({13, 16}), frozenset({17, 18})}
    faster = matrix_of(size, lambda a, b: 20.0 if {a, b} in fast else links.bandwidth_gbps(a, b))

    assert pick_linked(range(size), 2, faster) == (13, 16)
    assert pick_linked(set(range(1, size)), 5, links) == (5, 6, 7, 8, 9)
    assert pick_linked(range(size), 17, links) == tuple(range(17))


def test_few_free_gpus_of_a_large_machine_are_chosen_exactly() -> None:
    """What counts is how many are free, not how many there are."""
    links = islands(24, 4, inside=9.0, between=1.0)
    free = {2, 3, 8, 9, 10, 20, 21, 22, 23}

    assert pick_linked(free, 3, links) == (8, 9, 10)
    assert pick_linked(free, 2, links) == picked_by_trying(links, free, 2)


def test_a_search_ends_after_its_steps() -> None:
    """A graph made for a long search: an answer all the same, within the bound."""
    rng = random.Random(3)
    links = LinkMatrix(rows=tuple(tuple(rng.choices((1.0, 2.0), k=48)) for _ in range(48)))

    group = pick_linked(range(48), 24, links)

    assert len(group) == 24
    assert links_module.STEPS_MAX == 20_000


def test_sixteen_equal_gpus_are_chosen_at_once() -> None:
    """The densest case, half of sixteen equal GPUs, needs no enumeration."""
    links = LinkMatrix(rows=((math.inf,) * 16,) * 16)

    assert pick_linked(range(16), 8, links) == tuple(range(8))


_RINGS: dict[tuple[int, ...], float] = {}


def _ring(group: tuple[int, ...]) -> float:
    if group not in _RINGS:
        _RINGS[group] = ring(DGX_1, group)
    return _RINGS[group]
