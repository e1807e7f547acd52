"""
HAMi, said again over every way to hand out cards: parts of different cards of one node.

Rule: docs/contracts/hami.md 1 and 2, with what it says is ours; Koordinator contract 8.2 (order).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scheduler.decide.settings import DeviceSettings
from tests.oracles.machine import MIB, REFUSED, UNFIT, Ask, Device, Given, Machine, Part
from tests.oracles.wanted import is_selected

GPU = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
SHARES = {MEMORY, PERCENT, CORES}
USE_ID = "nvidia.com/use-gpuuuid"
NOUSE_ID = "nvidia.com/nouse-gpuuuid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What is taken of one card: core, and memory in MiB or in percent."""

    core: int
    mib: int
    percent: int

    @property
    def alone(self) -> bool:
        """Fact 3: all of the compute is a card without other holders."""
        return self.core == 100

    def bytes_of(self, total: int) -> int:
        """Return the bytes of a card with so many (fact 5)."""
        return self.percent * total // 100 if self.percent else self.mib * MIB


def expected(machine: Machine, ask: Ask, settings: DeviceSettings) -> Given | str:
    """Return what the Pod gets, per card and per container, or why nothing."""
    asking = [*ask.inits, *ask.containers]
    if any(not _legal(limits) for limits in asking):
        return REFUSED
    wants = [_want(limits) for limits in asking]
    if ask.inits and any(wants[: len(ask.inits)]):
        counted = {bool(want.mib) for _, want in filter(None, wants) if want.percent != 100}
        if len(counted) > 1:
            return REFUSED  # MiB and percent take turns on a card
    places, users = _places(ask)
    ids = _ids(ask, USE_ID)
    if places and ids and len(ids - _ids(ask, NOUSE_ID)) < len(places):
        return REFUSED
    if not places:
        return {}, []
    best = min(_assignments(machine, ask, places, settings), default=None)
    if best is None:
        return UNFIT
    cards = {card.minor: card for card in machine.of_kind("gpu")}
    parts, uses = {}, []
    for minor, want, names in zip(best[1], places, users, strict=True):
        memory = want.bytes_of(cards[minor].memory)
        ratio = want.percent or max(1, memory * 100 // cards[minor].memory)
        parts["gpu", minor] = Part(core=want.core, memory=memory, ratio=ratio, alone=want.alone)
        uses += [(name, minor, want.core, memory) for name in names]
    return parts, sorted(uses)


def _legal(limits: Mapping[str, int]) -> bool:
    """Facts 6 to 8 and 11, as ours."""
    asked = {key for key in SHARES if limits.get(key)}
    return not (
        asked >= {MEMORY, PERCENT}
        or limits.get(PERCENT, 0) > 100
        or limits.get(CORES, 0) > 100
        or (asked and limits.get(GPU) == 0)
    )


def _want(limits: Mapping[str, int]) -> tuple[int, Want] | None:
    """Return cards and what is taken of each, None for nothing (facts 1 to 4)."""
    if not any(limits.get(key) for key in (GPU, *SHARES)):
        return None
    mib, percent, core = (limits.get(key, 0) for key in (MEMORY, PERCENT, CORES))
    if not mib and not percent:
        percent = 100
    if percent == 100 and not core:
        core = 100
    return limits.get(GPU, 1), Want(core=core, mib=mib, percent=percent)


def _places(ask: Ask) -> tuple[list[Want], list[list[str]]]:
    """Return what is taken of the Pod's first, second, ... card, and who uses it (fact 13)."""
    places: list[Want] = []
    users: list[list[str]] = []
    for number, limits in enumerate(ask.containers):
        cards, want = _want(limits) or (0, None)
        places += [want] * cards if want else []
        users += [[f"c{number}"] for _ in range(cards)]
    for number, limits in enumerate(ask.inits):
        cards, want = _want(limits) or (0, None)
        for place in range(cards):
            assert want is not None
            if place == len(places):
                places.append(want)
                users.append([])
            places[place] = _larger(places[place], want)
            users[place].append(f"i{number}")
    return places, users


def _larger(one: Want, other: Want) -> Want:
    percent = max(one.percent, other.percent)
    return Want(
        core=max(one.core, other.core),
        mib=0 if percent == 100 else max(one.mib, other.mib),
        percent=percent,
    )


def _ids(ask: Ask, key: str) -> set[str]:
    return {word for word in str(ask.annotations.get(key, "")).split(",") if word}


def _takes(ask: Ask, card: Device) -> bool:
    name = f"gpu-{card.minor}"
    return name not in _ids(ask, NOUSE_ID) and name in (_ids(ask, USE_ID) or {name})


def _fits(card: Device, want: Want) -> bool:
    if card.closed or card.alone or (want.alone and card.tenants):
        return False
    if not want.core and card.core_used == 100:
        return False  # fact 9
    room = card.memory - card.memory_used
    return want.core <= 100 - card.core_used and want.bytes_of(card.memory) <= room


def _assignments(
    machine: Machine, ask: Ask, places: Sequence[Want], settings: DeviceSettings
) -> Iterator[tuple[list[list[tuple[int, int]]], list[int]]]:
    """Yield every way to give each place a card, as its rank and the minors by place."""
    cards = [
        card for card in machine.of_kind("gpu") if is_selected(ask, card) and _takes(ask, card)
    ]
    runs: list[tuple[Want, int]] = []
    for want in places:
        if runs and runs[-1][0] == want:
            runs[-1] = (want, runs[-1][1] + 1)
        else:
            runs.append((want, 1))
    yield from _ways(runs, cards, settings)


def _ways(
    runs: Sequence[tuple[Want, int]], cards: Sequence[Device], settings: DeviceSettings
) -> Iterator[tuple[list[list[tuple[int, int]]], list[int]]]:
    if not runs:
        yield [], []
        return
    (want, count), rest = runs[0], runs[1:]
    fitting = [card for card in cards if _fits(card, want)]
    for some in combinations(fitting, count):
        left = [card for card in cards if card not in some]
        rank = sorted((_order(card, want, settings), card.minor) for card in some)
        for ranks, minors in _ways(rest, left, settings):
            yield [rank, *ranks], [*(card.minor for card in some), *minors]


def _order(card: Device, want: Want, settings: DeviceSettings) -> int:
    """Return 0 for whole cards, else less for a card that would be fuller, or emptier (8.2)."""
    if want.alone and want.percent == 100:
        return 0
    total = card.memory
    by_ratio = min(100, -(-card.memory_used * 100 // total) + want.percent)
    by_bytes = min(total, card.memory_used + (0 if want.percent else want.mib * MIB))
    if settings.scoring == "MostAllocated":
        return -((by_ratio + by_bytes * 100 // total) // 2)
    return -((100 - by_ratio + (total - by_bytes) * 100 // total) // 2)
