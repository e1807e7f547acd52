"""The array types of deciding, and sums along rows. Every number is an exact 64-bit integer."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

UNLIMITED: Final = 1 << 60
"""Stands for a resource without a limit: no sum of requests reaches it or lets it overflow."""

IMPOSSIBLE: Final = -(1 << 44)
"""Added to a score that must lose: no sum of real scores comes near it, no few of it overflow."""

_FEW_ROWS: Final = 192
"""Below this many rows one reduction along the rows costs less than one step per column."""


def row_counts(mask: BoolArray) -> IntArray:
    """Return how many columns are true in each row."""
    if len(mask) < _FEW_ROWS:
        few: IntArray = np.count_nonzero(mask, axis=1)
        return few
    counts: IntArray = mask[:, 0].astype(np.int64)
    for column in range(1, mask.shape[1]):
        counts += mask[:, column]
    return counts


def row_sums(values: IntArray) -> IntArray:
    """Return the sum of each row."""
    if len(values) < _FEW_ROWS:
        few: IntArray = values.sum(axis=1)
        return few
    sums: IntArray = values[:, 0].copy()
    for column in range(1, values.shape[1]):
        sums += values[:, column]
    return sums


def row_maxima(values: IntArray) -> IntArray:
    """Return the largest number of each row."""
    if len(values) < _FEW_ROWS:
        few: IntArray = values.max(axis=1)
        return few
    most: IntArray = values[:, 0].copy()
    for column in range(1, values.shape[1]):
        np.maximum(most, values[:, column], out=most)
    return most
