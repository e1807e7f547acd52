"""
Volcano mGPU, said again over every assignment of containers to cards.

Rule: GPU-sharing contract A.3 (admission), A.4 (filter), A.5 (search and score); mGPU proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import lcm

from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.decide.settings import DeviceSettings, MGPUSettings
from tests.oracles.koordinator import partitions_of
from tests.oracles.machine import MIB, REFUSED, UNFIT, Ask, Device, Machine, Uses
from tests.oracles.wanted import is_selected

CORE = "vke.volcengine.com/mgpu-core"
MEMORY = "vke.volcengine.com/mgpu-memory"
COUNTS = "vke.volcengine.com/container-multiple-gpu"
POLICY = "vke.volcengine.com/mgpu-compute-policy"
BURST = "native-burst-share"
MEMORY_MAX_MIB = 1048576

Assignment = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One container that takes cards: how many, what of each, whole or not."""

    name: str
    cards: int
    core: int
    memory_mib: int
    whole: bool


def expected(machine: Machine, ask: Ask, settings: MGPUSettings) -> Uses | str:
    """Return the best assignment, as (container, card, core, bytes), or why there is none."""
    if not any(limits.keys() & {CORE, MEMORY} for limits in (*ask.containers, *ask.inits)):
        return []  # A.3: the rules are for Pods that name either resource
    counts = _counts(ask)
    if counts is None or not _admitted(ask, counts, DEFAULT_VOCABULARY.mgpu_multi_min_memory_mib):
        return REFUSED
    levels = _levels(ask, counts)
    if not levels:
        return []
    if not _policies_agree(machine, ask, counts):
        return UNFIT
    cards = [card for card in machine.of_kind("gpu") if is_selected(ask, card)]
    best = None
    for allowed in _for_wholes(machine, levels, cards):
        best = best or _best(levels, cards, settings, allowed)
    if best is None:
        return UNFIT
    return sorted(
        (level.name, cards[place].minor, level.core, _bytes(level, cards[place]))
        for level, group in zip(levels, best, strict=True)
        for place in group
    )


def _counts(ask: Ask) -> list[int] | None:
    """Return the list of the annotation (M0 to M2), zeros without one, None when it is no list."""
    text = ask.annotations.get(COUNTS)
    if text is None:
        return [0] * len(ask.containers)
    try:
        counts = [int(word) for word in str(text).split(",")]
    except ValueError:
        return None  # M0
    if len(counts) != len(ask.containers) or min(counts) < 0:
        return None  # M1, M2
    return counts


def _admitted(ask: Ask, counts: Sequence[int], floor_mib: int) -> bool:
    """Tell whether every container has an allowed shape (A.3)."""
    if any(CORE in limits or MEMORY in limits for limits in ask.inits):
        return False  # A.3, ours: an mGPU request in an init container is denied
    multi = COUNTS in ask.annotations
    for limits, count in zip(ask.containers, counts, strict=True):
        core, memory = limits.get(CORE), limits.get(MEMORY)
        if multi and not _multi_shape(core, memory, count, floor_mib):
            return False
        if not multi and not (core is memory is None) and not _normal_shape(core, memory):
            return False
        if (memory or 0) > MEMORY_MAX_MIB * max(1, count):
            return False  # A.6, "6Gi"
    return True


def _normal_shape(core: int | None, memory: int | None) -> bool:
    """Allow 1..99 with memory of at least 256, or whole cards without memory (N1 to N4)."""
    if core is None or core <= 0:
        return False
    if core < 100:
        return (memory or 0) >= 256
    return core % 100 == 0 and memory is None


def _multi_shape(core: int | None, memory: int | None, count: int, floor_mib: int) -> bool:
    """Apply M3 to M9."""
    if core is not None and core <= 0:
        return False  # M3
    if count == 0:
        return not core and not memory  # M4
    if core is None:
        return False  # M5
    if core >= 100 and core % 100 == 0 and core // 100 == count:
        return memory is None  # M6
    memory = memory or 0
    if memory // count < floor_mib:
        return False  # M7
    if core % count or memory % count:
        return False  # M8
    return core // count <= 100  # M9


def _levels(ask: Ask, counts: Sequence[int]) -> list[Level]:
    """Return the containers that take cards, in spec order."""
    levels = []
    for place, (limits, count) in enumerate(zip(ask.containers, counts, strict=True)):
        core, memory = limits.get(CORE, 0), limits.get(MEMORY, 0)
        if core == 0:
            continue
        name = f"c{place}"
        if COUNTS in ask.annotations:
            whole = core == 100 * count and MEMORY not in limits
            level = Level(
                name=name, cards=count, core=core // count, memory_mib=memory // count, whole=whole
            )
        elif core < 100:
            level = Level(name=name, cards=1, core=core, memory_mib=memory, whole=False)
        else:
            level = Level(name=name, cards=core // 100, core=100, memory_mib=0, whole=True)
        levels.append(level)
    return levels


def _for_wholes(
    machine: Machine, levels: Sequence[Level], cards: Sequence[Device]
) -> list[Sequence[int]]:
    """
    Return the sets of cards that whole cards may be, best first; all in one where no table binds.

    Rule: DIVERGENCES, "`Honor` and mGPU's whole cards": together they are one partition.
    """
    count = sum(level.cards for level in levels if level.whole)
    if not machine.honors or not count:
        return [[card.minor for card in cards]]
    free = [card.minor for card in cards if not (card.closed or card.tenants)]
    groups = list(combinations(free, count))
    return partitions_of(machine, count, groups, {}, DeviceSettings())


def _policies_agree(machine: Machine, ask: Ask, counts: Sequence[int]) -> bool:
    """Apply A.4, 2 and 3."""
    pod, node = str(ask.annotations.get(POLICY, "fixed-share")), machine.mgpu_policy
    if any(count >= 1 for count in counts):
        return pod == node == BURST
    whole = all(limits.get(CORE, 0) % 100 == 0 for limits in ask.containers)
    return whole or pod == node


def _best(
    levels: Sequence[Level],
    cards: Sequence[Device],
    settings: MGPUSettings,
    for_wholes: Sequence[int],
) -> Assignment | None:
    """Return the first of the best assignments; the first one at all with too many levels."""
    best: Assignment | None = None
    best_score = 0
    groups = [list(combinations(range(len(cards)), level.cards)) for level in levels]
    for assignment in product(*groups):
        whole = {
            cards[place].minor
            for group, level in zip(assignment, levels, strict=True)
            for place in group
            if level.whole
        }
        if not whole <= set(for_wholes):
            continue
        idle = _idle_after(assignment, levels, cards, settings.max_containers_per_card)
        if idle is None:
            continue
        if len(levels) > settings.search_levels:
            return assignment
        worth = _score(idle, cards, settings)
        if best is None or worth > best_score:
            best, best_score = assignment, worth
    return best


def _idle_after(
    assignment: Assignment, levels: Sequence[Level], cards: Sequence[Device], cap: int
) -> list[tuple[int, int]] | None:
    """Return what is idle (core, memory) of every card, None when a card can't give it."""
    core = [100 - card.core_used for card in cards]
    memory = [card.memory - card.memory_used for card in cards]
    instances = [card.instances for card in cards]
    touched = [card.tenants > 0 for card in cards]
    for group, level in zip(assignment, levels, strict=True):
        for place in group:
            if cards[place].closed or cards[place].alone or (level.whole and touched[place]):
                return None
            core[place] -= level.core
            memory[place] -= _bytes(level, cards[place])
            instances[place] += 1
            touched[place] = True
            if core[place] < 0 or memory[place] < 0 or instances[place] > cap:
                return None
    return list(zip(core, memory, strict=True))


def _bytes(level: Level, card: Device) -> int:
    return card.memory if level.whole else level.memory_mib * MIB


def _score(idle: Sequence[tuple[int, int]], cards: Sequence[Device], settings: MGPUSettings) -> int:
    """
    Return binpack = (w*C + (100-w)*M) / 100, spread = 1 - binpack (A.5), in whole numbers.

    C and M are means of squared idle shares; all of it is multiplied by the same number of cards,
    by 100 for the core percents and by a common multiple of the cards' memory.
    """
    common = lcm(*(card.memory for card in cards))
    weight = settings.weight_of_core
    worth = 0
    for (core, memory), card in zip(idle, cards, strict=True):
        worth += weight * (core * common) ** 2
        worth += (100 - weight) * (memory * (common // card.memory) * 100) ** 2
    return worth if settings.policy == "binpack" else -worth
