"""What a card is worth to typical Pods that come one after the other, not just to the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ledger.domain.devices import WHOLE_PERCENT
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.score.fragmentation import SHARES, Fragmentation

ARRIVALS: Final = 50
"""How many Pods a card can wait for. With 1 only the next one counts, as in the FGD paper."""

_FINE_BITS: Final = 16


class ExpectedFill(Fragmentation):
    """
    Fragmentation that looks further: the percent of a card that the next Pods will fill.

    Rule: docs/adr/0009, "Expected fill". Only the worth of a single card
    differs: instead of all that is left where the next typical Pod fits, it is what `ARRIVALS`
    Pods drawn from the typical ones are expected to fill of it, each taken where that is better
    than to wait.
    """

    def _tables(self, percents: IntArray) -> tuple[IntArray, IntArray]:
        by_share, by_whole = super()._tables(percents)
        if not self.weight:
            return by_share, by_whole
        kinds, classes = len(percents), self.cpu_classes
        often: dict[int, IntArray] = {}
        for position, (pod, count) in enumerate(self._typical):
            cpu_class = int(self.cpu_class(np.array(pod.cpu_milli, dtype=np.int64)))
            for kind in range(kinds) if pod.gpu_count == 1 else ():
                percent = int(percents[kind, position])
                if 0 < percent <= WHOLE_PERCENT:
                    counts = often.setdefault(percent, np.zeros((kinds, classes), dtype=np.int64))
                    counts[kind, cpu_class:] += count
        filled = expected_fill(often, self.weight, (kinds, classes))
        return np.ascontiguousarray(filled.transpose(0, 2, 1)), by_whole


def expected_fill(
    often: Mapping[int, IntArray],
    weight: int,
    shape: tuple[int, int],
    *,
    arrivals: int = ARRIVALS,
) -> IntArray:
    """
    Return percent x `weight` that will be filled, at [kind, cpu class, percent left].

    A card with room for k more arrivals: V(0, left) = 0, and V(k, left) = V(k - 1, left) + the sum
    over percents m of p(m) x max(0, m + V(k - 1, left - m) - V(k - 1, left)). In fixed point.

    Args:
        often: percent asked -> of `weight` Pods so many ask for it, at [kind, cpu class].
    """
    fill = np.zeros((*shape, SHARES), dtype=np.int64)
    for _ in range(arrivals):
        more = np.zeros_like(fill)
        for percent, counts in often.items():
            gain = fill[:, :, : SHARES - percent] - fill[:, :, percent:]
            gain += percent << _FINE_BITS
            np.maximum(gain, 0, out=gain)
            gain *= counts[:, :, None]
            more[:, :, percent:] += gain
        fill += more // weight
    filled: IntArray = fill * weight >> _FINE_BITS
    return filled
