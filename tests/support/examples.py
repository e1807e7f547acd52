"""How many examples and seeds a test tries: a part in `make test`, all of them in `make slow`."""

from __future__ import annotations

import os
from typing import Final

import pytest
from _pytest.mark import ParameterSet

VARIABLE: Final = "TENURE_TEST_EXAMPLES"
ALL: Final = "all"
_PART: Final = 3
_LEAST: Final = 15


def examples(whole: int) -> int:
    """Return how many of a test's examples are tried: a third, or all where the variable says."""
    if os.environ.get(VARIABLE) == ALL:
        return whole
    return min(whole, max(_LEAST, whole // _PART))


def seeds(some: int, whole: int) -> list[ParameterSet]:
    """Return the seeds of a test as its cases: the first few, and those of `make slow`."""
    return [
        pytest.param(seed, marks=pytest.mark.slow if seed >= some else ()) for seed in range(whole)
    ]
