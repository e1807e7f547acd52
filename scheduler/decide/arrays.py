"""The array types of deciding. Every number is an exact 64-bit integer."""

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
