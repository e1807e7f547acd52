from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.link_table import table_of
from scheduler.decide.cards.links import pick_linked
from tests.support.links import picked_by_trying

FEW_SPEEDS = st.sampled_from([4.64, 16.9, 48.38, 48.39, 96.4])
ANY_SPEED = st.floats(min_value=0, max_value=1e9)


@st.composite
def matrices(draw: st.DrawFn, size: int) -> LinkMatrix:
    """A matrix of few different speeds or of any, not symmetric."""
    row = st.tuples(*(draw(st.sampled_from([FEW_SPEEDS, ANY_SPEED])) for _ in range(size)))
    return LinkMatrix(rows=draw(st.tuples(*(row for _ in range(size)))))


@given(data=st.data())
def test_the_pick_is_the_one_that_every_rule_leaves(data: st.DataObject) -> None:
    """Trying all groups agrees: slowest link, ring, rest, lowest minors, one after the other."""
    size = data.draw(st.integers(1, 7))
    links = data.draw(matrices(size))
    free = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    count = data.draw(st.integers(1, len(free)))

    assert pick_linked(free, count, links) == picked_by_trying(links, free, count)


@pytest.mark.parametrize(
    "machines",
    [
        pytest.param(1_000, id="1000 machines", marks=pytest.mark.campaign_sample),
        pytest.param(50_000, id="50000 machines", marks=pytest.mark.slow),
    ],
)
def test_random_machines_agree_with_trying_everything(machines: int) -> None:
    """Seeded machines of up to eight GPUs, speeds of few kinds or measured: the same GPUs."""
    rng = random.Random(machines)
    for _ in range(machines):
        size = rng.randint(2, 8)
        kinds = rng.sample([4.64, 9.0, 12.0, 16.9, 24.0, 48.38, 96.4], rng.randint(1, 4))
        noise = rng.choice([0.0, 0.0, 0.02, 0.2])
        rows = [
            [rng.choice(kinds) * (1 - noise * rng.random()) for _ in range(size)]
            for _ in range(size)
        ]
        links = LinkMatrix(rows=tuple(map(tuple, rows)))
        free = rng.sample(range(size), rng.randint(1, size))
        count = rng.randint(1, len(free))

        assert pick_linked(free, count, links) == picked_by_trying(links, free, count), links


@given(data=st.data())
def test_only_the_slower_directions_between_free_gpus_decide(data: st.DataObject) -> None:
    """The diagonal, the faster directions and the order in which GPUs are named change nothing."""
    size = data.draw(st.integers(2, 7))
    links = data.draw(matrices(size))
    free = data.draw(st.permutations(range(size)))
    count = data.draw(st.integers(1, size))
    either_way = LinkMatrix(
        rows=tuple(
            tuple(links.bandwidth_gbps(a, b) if a != b else 1.0 for b in range(size))
            for a in range(size)
        )
    )

    assert pick_linked(free, count, links) == pick_linked(range(size), count, either_way)


@given(data=st.data())
def test_an_answer_does_not_depend_on_what_was_asked_before(data: st.DataObject) -> None:
    """A table that has answered much and one just made give the same GPUs."""
    size = data.draw(st.integers(2, 6))
    links = data.draw(matrices(size))
    asks = data.draw(
        st.lists(st.sets(st.integers(0, size - 1), min_size=2), min_size=1, max_size=8)
    )
    first = [pick_linked(free, len(free) - 1, links) for free in asks]
    table_of.cache_clear()

    again = [pick_linked(free, len(free) - 1, links) for free in reversed(asks)]

    assert first == list(reversed(again))
