"""
Aliyun GPU share, said again: the whole Pod on the one card with the least left that fits.

Rule: GPU-sharing contract B.3, B.4; GPU-share proposal, Schedule.
"""

from __future__ import annotations

from tests.oracles.machine import GIB, MIB, UNFIT, Ask, Machine, Part, Parts
from tests.oracles.wanted import is_selected

MEMORY = "aliyun.com/gpu-mem"


def expected(machine: Machine, ask: Ask, unit: str) -> Parts | str:
    """Return the part of the one card that the Pod gets, or why none."""
    apps = sum(limits.get(MEMORY, 0) for limits in ask.containers)
    inits = max((limits.get(MEMORY, 0) for limits in ask.inits), default=0)
    # B.3, ours: max(sum of app, max of init).
    wanted = max(apps, inits) * (MIB if unit == "MiB" else GIB)
    if wanted == 0:
        return {}
    left = {
        card.minor: card.memory - card.memory_used
        for card in machine.of_kind("gpu")
        if not card.closed and not card.alone and is_selected(ask, card)
    }
    # B.3: at least one healthy card with available >= request; the whole Pod sits on ONE card.
    fitting = {minor: available for minor, available in left.items() if available >= wanted}
    if not fitting:
        return UNFIT
    # B.4: choose the smallest `available`; equal values: lowest index.
    least = min(fitting.values())
    minor = min(minor for minor, available in fitting.items() if available == least)
    total = next(card.memory for card in machine.of_kind("gpu") if card.minor == minor)
    # Koordinator contract 4.5: memory given, ratio truncated; any tenant counts at least 1.
    return {("gpu", minor): Part(memory=wanted, ratio=max(1, wanted * 100 // total))}
