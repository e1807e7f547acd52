from __future__ import annotations

import pytest

from scheduler.decide.cards.fit import score
from tests.support.cards import GIB, card, nic, part, rdma


@pytest.mark.parametrize(
    ("scoring", "used", "expected"),
    [
        pytest.param("LeastAllocated", 16, 47, id="least on the used card: (35 + 60) / 2"),
        pytest.param("LeastAllocated", 0, 87, id="least on an empty card: (75 + 100) / 2"),
        pytest.param("MostAllocated", 16, 52, id="most on the used card: (65 + 40) / 2"),
        pytest.param("MostAllocated", 0, 12, id="most on an empty card: (25 + 0) / 2"),
    ],
)
def test_the_worked_example(scoring: str, used: int, expected: int) -> None:
    """Koordinator contract 8.2: 40 GiB cards, ratio 25 asked, integer means."""
    view = card(0, memory_used=used * GIB)

    assert score(view, part(ratio=25), scoring=scoring) == expected


def test_a_ratio_tenant_counts_with_the_ratio_it_asked_for() -> None:
    """35 % of 24 GiB is 9019431321 bytes, rounded down; the score still counts 35."""
    view = card(0, memory_bytes=24 * GIB, memory_used=9019431321)

    assert score(view, part(ratio=15), scoring="MostAllocated") == (50 + 34) // 2


def test_another_type_is_scored_by_its_unit() -> None:
    """A NIC has one unit."""
    assert score(nic(0, used=30), rdma(20), scoring="MostAllocated") == 50
    assert score(nic(0, used=30), rdma(20), scoring="LeastAllocated") == 50
    assert score(nic(0, used=90), rdma(5), scoring="LeastAllocated") == 5


def test_a_device_without_capacity_scores_nothing() -> None:
    """No unit at all: 0, never a division by it."""
    assert score(card(0, core=0, memory_bytes=0), part(), scoring="MostAllocated") == 0
