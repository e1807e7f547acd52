"""The array types of deciding, and sums along rows. Every number is an exact 64-bit integer."""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Number = TypeVar("Number", bound=np.generic)

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


def with_rows(values: npt.NDArray[Number], rows: int) -> npt.NDArray[Number]:
    """
    Return the array with at least so many rows, new ones 0; it may share what it was cut from.

    Where it has to be copied, room is made for twice as many rows, so that one more costs little.
    An array that was returned is only ever given on to this function or read.
    """
    if rows <= len(values):
        return values
    room = values.base
    if room is None or len(room) < rows or room.shape[1:] != values.shape[1:]:
        room = np.zeros((2 * rows, *values.shape[1:]), dtype=values.dtype)
        room[: len(values)] = values
    return room[:rows]


def with_columns(values: npt.NDArray[Number], columns: int) -> npt.NDArray[Number]:
    """Return a copy of the array with so many columns, new ones 0, what is beyond cut off."""
    wide = np.zeros((len(values), columns), dtype=values.dtype)
    kept = min(columns, values.shape[1])
    wide[:, :kept] = values[:, :kept]
    return wide
