from __future__ import annotations

import math

import pytest

from ledger.domain.topology import LinkMatrix, parse_link_matrix
from scheduler.decide.cards.links import pick_linked
from tests.support.topologies import EIGHT_GPU_DEVICE_TEXT, EIGHT_GPU_NVLINK

DEVICE_MATRIX = parse_link_matrix(EIGHT_GPU_DEVICE_TEXT)


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


@pytest.mark.parametrize("count", [1, 8])
def test_one_or_all_leave_no_choice(count: int) -> None:
    """One GPU is the lowest; all GPUs are all."""
    assert pick_linked(range(8), count, EIGHT_GPU_NVLINK) == tuple(range(count))


def test_ties_go_to_the_lowest_minors() -> None:
    """Equal links everywhere: the lowest minors."""
    equal = LinkMatrix(rows=((1.0,) * 6,) * 6)

    assert pick_linked({1, 2, 4, 5}, 3, equal) == (1, 2, 4)


def test_a_minor_outside_the_matrix_has_no_link_to_compare() -> None:
    """A card that the matrix lacks: the lowest minors, never an error."""
    assert pick_linked({0, 9, 12}, 2, EIGHT_GPU_NVLINK) == (0, 9)


def test_a_large_machine_is_bounded() -> None:
    """Of more than 16 free GPUs the lowest 16 are compared; above 16 asked none is."""
    size = 20
    rows = tuple(
        tuple(9.0 if {a, b} <= {14, 15} or {a, b} <= {18, 19} else 1.0 for b in range(size))
        for a in range(size)
    )
    links = LinkMatrix(rows=rows)

    assert pick_linked(range(size), 2, links) == (14, 15)
    assert pick_linked(range(size), 17, links) == tuple(range(17))


def test_sixteen_equal_gpus_are_chosen_at_once() -> None:
    """The densest case, half of sixteen equal GPUs, needs no enumeration."""
    links = LinkMatrix(rows=((math.inf,) * 16,) * 16)

    assert pick_linked(range(16), 8, links) == tuple(range(8))
