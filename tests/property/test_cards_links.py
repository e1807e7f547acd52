from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.links import pick_linked


@st.composite
def matrices(draw: st.DrawFn, size: int) -> LinkMatrix:
    """A matrix of few different speeds, not symmetric."""
    speeds = st.sampled_from([4.64, 16.9, 48.38, 48.39, 96.4])
    row = st.tuples(*(speeds for _ in range(size)))
    return LinkMatrix(rows=draw(st.tuples(*(row for _ in range(size)))))


@given(data=st.data())
def test_the_pick_is_the_first_of_the_best_groups(data: st.DataObject) -> None:
    """Brute force over all groups in ascending order agrees, ties included."""
    size = data.draw(st.integers(1, 8))
    links = data.draw(matrices(size))
    free = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    count = data.draw(st.integers(1, len(free)))

    expected = max(combinations(free, count), key=links.bottleneck_gbps)  # the first maximum

    assert pick_linked(free, count, links) == expected
