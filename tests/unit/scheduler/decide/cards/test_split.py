"""How the GPUs of a group are shared out among its members on one node."""

from __future__ import annotations

import random

import pytest

from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.joint import split_linked
from tests.oracles.links import best_split, bottleneck
from tests.support.links import SIXTEEN_TWO_ISLANDS, matrix_of
from tests.support.topologies import EIGHT_GPU_NVLINK


def test_members_get_the_pairs_with_the_best_bottleneck() -> None:
    """GPU-topology proposal, Pick GPUs of Node: {0,1},{2,3} have 48 GB/s, {0,3},{1,2} 96."""
    assert split_linked((0, 1, 2, 3), (2, 2), EIGHT_GPU_NVLINK) == [(0, 3), (1, 2)]


def test_equal_splits_go_by_minor() -> None:
    """Where every link is as fast, members take the GPUs in their order."""
    alike = matrix_of(6, lambda _a, _b: 300.0)

    assert split_linked(range(6), (1, 3, 0, 2), alike) == [(0,), (1, 2, 3), (), (4, 5)]


@pytest.mark.parametrize(
    "machines",
    [
        pytest.param(300, id="300 machines"),
        pytest.param(10_000, id="10000 machines", marks=pytest.mark.slow),
    ],
)
def test_the_split_is_as_good_as_the_best_of_all(machines: int) -> None:
    """Seeded machines of up to six GPUs: every way to share them out was tried."""
    rng = random.Random(machines)
    for _ in range(machines):
        size = rng.randint(2, 6)
        speeds = [4.64, 16.9, 48.38, 96.4]
        rows = [[rng.choice(speeds) for _ in range(size)] for _ in range(size)]
        links = LinkMatrix(rows=tuple(map(tuple, rows)))
        counts: list[int] = []
        while sum(counts) < size:
            counts.append(rng.randint(0, size - sum(counts)))
        split = split_linked(range(size), tuple(counts), links)

        assert sorted(minor for part in split for minor in part) == list(range(size))
        assert [len(part) for part in split] == counts
        slowest = min(bottleneck(links, part) for part in split)
        assert slowest == best_split(links, range(size), counts), (links, counts)


def test_the_search_ends_and_is_no_worse_than_the_order_of_minors() -> None:
    """Eight pairs of sixteen GPUs, each pair inside one of two islands."""
    minors = range(16)
    split = split_linked(minors, (2,) * 8, SIXTEEN_TWO_ISLANDS)

    assert min(bottleneck(SIXTEEN_TWO_ISLANDS, pair) for pair in split) == 150.0
    assert len({minor for pair in split for minor in pair}) == 16
    assert all(len(pair) == 2 for pair in split)
