"""
Bandwidth between the GPUs of a node that somebody measured, out of what the tools print.

Read are CUDA's `p2pBandwidthLatencyTest` and NVIDIA's nccl-tests. Both name cards by CUDA's own
order, which the environment changes, so that each is known by its bus address alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from agent.discover.machine import Card
from ledger.domain.errors import InputError
from ledger.domain.kube.derived_links import MINOR_MAX
from ledger.domain.topology import LinkMatrix, link_matrix_of

TEXT_MAX: Final = 4 << 20

# Device: 1, NVIDIA A100-SXM4-80GB, pciBusID: 61, pciDeviceID: 0, pciDomainID:0
_P2P_DEVICE: Final = re.compile(
    r"Device: +(\d+),.*pciBusID: *([0-9a-fA-F]+),.*pciDomainID: *([0-9a-fA-F]+)"
)
_P2P_MATRIX: Final = re.compile(r"Unidirectional P2P=Enabled Bandwidth .*\(GB/s\)")
# #  Rank  1 Group  0 Pid   5068 on   GENOA-06 device  1 [0x61] NVIDIA GeForce RTX 5090
# #  Rank  1 Group  0 Pid  12716 on  node-0001 device  1 [0000:53:00] NVIDIA H100 80GB HBM3
_RANK: Final = re.compile(
    r"#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\s+\d+\s+\[(0x[0-9a-fA-F]+|[0-9a-fA-F:]+)\]"
)
_RANKS_BEGIN: Final = re.compile(r"#\s+Using devices")
_TIMES: Final = 4
"""Columns of one way to place the buffers: time, algbw, busbw, #wrong."""


def read_bandwidth(text: str, cards: Sequence[Card]) -> LinkMatrix:
    """
    Return the bandwidth between these cards, GB/s, by minor; what no card has is 0.

    Of `p2pBandwidthLatencyTest` the unidirectional matrix with peer access counts. Of nccl-tests
    each run tells of every pair of its ranks at least the bus bandwidth of its largest message, out
    of place; of several runs with one pair that with the fewest ranks counts, of equals the last.

    Raises:
        InputError: neither tool's output, a card that is not there, a pair that nobody measured.
    """
    if len(text) > TEXT_MAX:
        raise InputError(f"too large: bytes_max={TEXT_MAX}")
    lines = text.splitlines()
    if any(map(_P2P_MATRIX.search, lines)):
        pairs = _p2p_pairs(lines, cards)
    elif any(map(_RANKS_BEGIN.match, lines)):
        pairs = _nccl_pairs(lines, cards)
    else:
        raise InputError("neither p2pBandwidthLatencyTest nor nccl-tests printed this")
    size = max((card.minor for card in cards), default=-1) + 1
    if size > MINOR_MAX + 1:
        raise InputError(f"more GPUs than can be measured: minor={size - 1}")
    rows = [[0.0] * size for _ in range(size)]
    for a, b in combinations(sorted(card.minor for card in cards), 2):
        for source, target in ((a, b), (b, a)):
            if (source, target) not in pairs:
                raise InputError(f"nobody measured: from={source}, to={target}")
            rows[source][target] = pairs[source, target]
    return link_matrix_of(rows)


Pairs = dict[tuple[int, int], float]
"""From minor and to minor -> GB/s."""


def _p2p_pairs(lines: Sequence[str], cards: Sequence[Card]) -> Pairs:
    minors: dict[int, int] = {}
    for line in lines:
        device = _P2P_DEVICE.search(line)
        if device is not None:
            address = f"{int(device[3], 16):04x}:{int(device[2], 16):02x}:"
            minors[int(device[1])] = _minor_at(address, cards)
    start = next(number for number, line in enumerate(lines) if _P2P_MATRIX.search(line))
    head = lines[start + 1].replace("D\\D", "") if start + 1 < len(lines) else ""
    columns = [int(word) for word in head.split() if word.isdigit()]
    pairs: Pairs = {}
    for line in lines[start + 2 : start + 2 + len(columns)]:
        words = line.split()
        if len(words) != len(columns) + 1 or not words[0].isdigit():
            raise InputError(f"not a row of the matrix: value={line[:80]!r}")
        for column, word in zip(columns, words[1:], strict=True):
            source, target = minors.get(int(words[0])), minors.get(column)
            if source is None or target is None:
                raise InputError("which cards these are, is not said: no line `Device: N, ...`")
            pairs[source, target] = _gbps(word)
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of a test: its cards by minor, and its largest message's bandwidth."""

    minors: tuple[int, ...]
    gbps: float


def _nccl_pairs(lines: Sequence[str], cards: Sequence[Card]) -> Pairs:
    pairs: Pairs = {}
    for run in sorted(_runs(lines, cards), key=lambda run: -len(run.minors)):
        for a, b in combinations(run.minors, 2):
            pairs[a, b] = pairs[b, a] = run.gbps
    return pairs


def _runs(lines: Sequence[str], cards: Sequence[Card]) -> Iterable[_Run]:
    starts = [number for number, line in enumerate(lines) if _RANKS_BEGIN.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        ranks = [rank for line in lines[start:end] if (rank := _RANK.match(line)) is not None]
        if len({rank[2] for rank in ranks}) > 1:
            raise InputError(f"ranks on several machines: value={ranks[0][2]!r}, {ranks[-1][2]!r}")
        best = (0, 0.0)
        for line in lines[start:end]:
            words = line.split()
            if len(words) > 2 * _TIMES and words[0].isdigit() and words[1].isdigit():
                best = max(best, (int(words[0]), _gbps(words[-2 * _TIMES + 2])))
        if not best[0]:
            raise InputError(f"a run without a result: line={start + 1}")
        minors = tuple(_minor_at(_address(rank[3]), cards) for rank in ranks)
        yield _Run(minors=minors, gbps=best[1])


def _address(text: str) -> str:
    """Return how the bus address begins or ends that a rank has: `[0x61]`, `[0000:61:00]`."""
    return f":{int(text, 16):02x}:" if text.startswith("0x") else f"{text.lower()}."


def _minor_at(address: str, cards: Sequence[Card]) -> int:
    found = [card.minor for card in cards if address in card.place.bus_id]
    if len(found) != 1:
        raise InputError(f"{len(found)} cards have this bus address: value={address.strip(':.')!r}")
    return found[0]


def _gbps(word: str) -> float:
    try:
        value = float(word)
    except ValueError as error:
        raise InputError(f"not a bandwidth: value={word[:80]!r}") from error
    if not math.isfinite(value):
        raise InputError(f"not a bandwidth: value={word!r}")
    return value
