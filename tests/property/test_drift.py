"""Whatever is told late, twice or out of order: what is wrong is named once, nothing else is."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drift_steps import STEPS, Step, play
from tests.support.examples import examples
from tests.support.reconciled import Cluster


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Hundreds of drifts are found in here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=examples(25))
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 49)), max_size=20),
    seed=st.integers(0, 99),
)
def test_what_is_planted_is_named_once_and_nothing_else(steps: Sequence[Step], seed: int) -> None:
    """After settling, over restarts, whenever it was planted and mended."""
    play(Cluster().bound_pods(), steps, seed)
