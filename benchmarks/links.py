"""
How long the choice of GPUs by their links takes, and how often it is the best there is.

    .venv/bin/python benchmarks/links.py            # every free set and size of the 8-GPU machines
    .venv/bin/python benchmarks/links.py --asks 50000

Per machine: the time to make its table, a first answer (nothing remembered), an answer again, in
microseconds; medians and 99th percentiles over all free sets and sizes of 8 GPUs, and over a
seeded sample of those of 16. The last column compares the slowest link of every answer with the
best of all groups. Limits: 50 us for 8 GPUs, 1 ms for 16; 5 us from the table. With `--limits`
the exit status is 1 when a median is over its limit.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards import link_table
from scheduler.decide.cards.links import pick_linked

SEED: Final = 7
FIRST_LIMIT_US: Final = {8: 50.0, 16: 1000.0}
AGAIN_LIMIT_US: Final = {8: 5.0, 16: 1000.0}

Ask = tuple[tuple[int, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One machine; times in microseconds."""

    table_us: float
    first_us: Sequence[float]
    again_us: Sequence[float]
    best: int
    checked: int
    asks: int


def main() -> None:
    """Measure every machine and print a line for each."""
    options = _options()
    head = ("", "GPUs", "asks", "table", "first p50", "p99", "again p50", "p99", "best of all")
    print(f"{head[0]:<28}" + "".join(f"{name:>12}" for name in head[1:]))
    over = False
    for name, links in _machines().items():
        measure = _measured(links, options.asks, options.checked)
        first, again = sorted(measure.first_us), sorted(measure.again_us)
        over |= statistics.median(first) > FIRST_LIMIT_US[len(links)]
        over |= statistics.median(again) > AGAIN_LIMIT_US[len(links)]
        values = (
            f"{len(links)}",
            f"{measure.asks}",
            f"{measure.table_us:.0f}",
            f"{statistics.median(first):.1f}",
            f"{first[len(first) * 99 // 100]:.1f}",
            f"{statistics.median(again):.2f}",
            f"{again[len(again) * 99 // 100]:.2f}",
            f"{100 * measure.best / measure.checked:.1f} %",
        )
        print(f"{name:<28}" + "".join(f"{value:>12}" for value in values))
    if options.limits and over:
        sys.exit("a median is over its limit")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--asks", type=int, default=4000, help="free sets sampled of 16 GPUs")
    parser.add_argument("--checked", type=int, default=300, help="of them compared with all groups")
    parser.add_argument("--limits", action="store_true")
    return parser.parse_args()


def _machines() -> dict[str, LinkMatrix]:
    """Return the machines by name, the last two measured with noise and not symmetric."""
    rng = random.Random(SEED)

    def noisy(links: LinkMatrix) -> LinkMatrix:
        rows = [[round(speed * rng.uniform(0.97, 1), 2) for speed in row] for row in links.rows]
        return LinkMatrix(rows=tuple(map(tuple, rows)))

    dgx_1 = _matrix(8, _cube_mesh)
    islands = _matrix(16, lambda a, b: 150.0 if a // 8 == b // 8 else 20.0)
    return {
        "DGX-1": dgx_1,
        "DGX A100, H100": _matrix(8, lambda _a, _b: 300.0),
        "2 x 4 PCIe": _matrix(8, lambda a, b: 24.0 if a // 4 == b // 4 else 9.0),
        "16, two islands": islands,
        "16, four roots": _matrix(16, lambda a, b: (9.0, 12.0, 24.0)[_shared(a, b)]),
        "DGX-1, measured": noisy(dgx_1),
        "16, two islands, measured": noisy(islands),
    }


def _matrix(size: int, speed: Callable[[int, int], float]) -> LinkMatrix:
    return LinkMatrix(rows=tuple(tuple(speed(a, b) for b in range(size)) for a in range(size)))


def _cube_mesh(a: int, b: int) -> float:
    pair = (min(a, b), max(a, b))
    if pair in {(0, 3), (0, 6), (1, 2), (1, 7), (2, 3), (4, 5), (4, 7), (5, 6)}:
        return 50.0
    if pair in {(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 7)}:
        return 25.0
    return 12.0 if a // 4 == b // 4 else 9.0


def _shared(a: int, b: int) -> int:
    return (a // 8 == b // 8) + (a // 4 == b // 4)


def _asks(size: int, most: int) -> list[Ask]:
    """Return all free sets and sizes of 8 GPUs, a sample of those of 16."""
    rng = random.Random(SEED)
    asks = [
        (free, count)
        for length in range(1, size + 1)
        for free in combinations(range(size), length)
        for count in range(1, length + 1)
    ]
    return asks if size <= 8 else rng.sample(asks, most)


def _measured(links: LinkMatrix, most: int, checked: int) -> Measure:
    asks = _asks(len(links), most)
    link_table.table_of.cache_clear()
    clock = time.perf_counter
    start = clock()
    table = link_table.table_of(links)
    table.prepare()
    table_us = 1e6 * (clock() - start)
    first: list[float] = []
    again: list[float] = []
    best = 0
    for number, (free, count) in enumerate(asks):
        start = clock()
        group = pick_linked(free, count, links)
        middle = clock()
        same = pick_linked(free, count, links)
        end = clock()
        assert same == group, (free, count)
        first.append(1e6 * (middle - start))
        again.append(1e6 * (end - middle))
        if len(links) <= 8 or number < checked:
            groups = combinations(free, count)
            best += links.bottleneck_gbps(group) == max(map(links.bottleneck_gbps, groups))
    return Measure(
        table_us=table_us,
        first_us=first,
        again_us=again,
        best=best,
        checked=len(asks) if len(links) <= 8 else min(checked, len(asks)),
        asks=len(asks),
    )


if __name__ == "__main__":
    main()
