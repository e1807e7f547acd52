"""
Cards of dynamic resource allocation: who holds which, out of slices and claims.

Rule: docs/contracts/dra.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.resources import TYPE_GPU
from scheduler.usage.claims import Dra, DraClaim, DraDevice, DraPart
from scheduler.usage.picture import (
    NONE,
    CardGroup,
    DeviceNow,
    HolderNow,
    Many,
    Mode,
    Units,
    Unplaced,
    exactly,
)

SYSTEM: Final = "dra"
_CARD: Final = re.compile(r"accel|dcu|gaudi|gcu|gpu|mig|mlu|neuron|npu|tpu|xpu")
_Held = dict[tuple[str, str, str], list[tuple[DraClaim, DraPart]]]


def dra_groups(node: str, dra: Dra, *, is_open: bool) -> tuple[CardGroup, ...]:
    """Return the cards of a node by driver, model and memory, then those that no slice tells of."""
    held = _held_of(dra)
    cards: dict[tuple[str, str], list[DraDevice]] = {}
    for device in dra.devices:
        if device.node == node and _is_card(device):
            cards.setdefault((device.driver, device.card), []).append(device)
    likes: dict[tuple[str, str, int | None], list[list[DraDevice]]] = {}
    for (driver, _), parts in cards.items():
        first = _first(parts)
        likes.setdefault((driver, first.model, first.memory_mib), []).append(parts)
    groups = [
        _group(model, memory, some, held, is_open=is_open)
        for (_, model, memory), some in likes.items()
    ]
    return (*groups, *_untold(node, dra, is_open=is_open))


def dra_not_looked_at(node: str, dra: Dra) -> Mapping[str, Units]:
    """Return the drivers of a node whose devices are no cards, with how many are allocated."""
    held = _held_of(dra)
    found: dict[str, Units] = {}
    for device in dra.devices:
        if device.node == node and not _is_card(device):
            before = found.get(device.driver, Units(allocatable=0, held=0))
            found[device.driver] = Units(
                allocatable=before.allocatable + 1, held=before.held + (device.key in held)
            )
    return found


def _held_of(dra: Dra) -> _Held:
    held: _Held = {}
    for claim in dra.claims:
        for part in claim.parts:
            held.setdefault(part.key, []).append((claim, part))
    return held


def _is_card(device: DraDevice) -> bool:
    return bool(_CARD.search(device.kind or device.driver.partition(".")[0]))


def _first(parts: Sequence[DraDevice]) -> DraDevice:
    """Return the device that is the whole card, else the largest of its parts."""
    return max(parts, key=lambda each: (not each.parent, bool(each.id), each.memory_mib or 0))


def _group(
    model: str,
    memory_mib: int | None,
    cards: Sequence[Sequence[DraDevice]],
    held: _Held,
    *,
    is_open: bool,
) -> CardGroup:
    devices = tuple(_card(parts, held) for parts in cards)
    kept = [any(part.key in held for part in parts) for parts in cards]
    idle = [each for each, is_kept in zip(devices, kept, strict=True) if not is_kept]
    return CardGroup(
        device_type=TYPE_GPU,
        system=SYSTEM,
        model=model,
        memory_mib=memory_mib,
        mode=_mode(cards),
        cards=exactly(len(cards)),
        free=exactly(len(idle)),
        gettable=exactly(sum(each.is_good for each in idle)) if is_open else NONE,
        devices=devices,
    )


def _mode(cards: Sequence[Sequence[DraDevice]]) -> Mode:
    if any(part.is_shared for parts in cards for part in parts):
        return "shares"
    return "slices" if any(len(parts) > 1 for parts in cards) else "whole"


def _card(parts: Sequence[DraDevice], held: _Held) -> DeviceNow:
    first = _first(parts)
    holders = tuple(
        holder
        for device in parts
        for claim, part in held.get(device.key, ())
        for holder in _holders(device, first, claim, part)
    )
    claims = [claim for device in parts for claim, _ in held.get(device.key, ())]
    unused = next((each for each in claims if not each.pods), None)
    closed = first.closed
    if unused is not None and not holders:
        closed = f"allocated to claim {unused.namespace}/{unused.name}, which no Pod uses"
    return DeviceNow(id=first.id or first.parent, minor=first.minor, closed=closed, holders=holders)


def _holders(
    device: DraDevice, first: DraDevice, claim: DraClaim, part: DraPart
) -> Iterator[HolderNow]:
    is_whole = device is first and not part.is_part
    memory = part.memory_mib if part.is_part else device.memory_mib
    level = part.core_percent or 0
    if is_whole:
        level = WHOLE_PERCENT
    elif not level and memory and first.memory_mib:
        level = min(WHOLE_PERCENT, memory * WHOLE_PERCENT // first.memory_mib)
    for name, uid in claim.pods:
        yield HolderNow(
            namespace=claim.namespace,
            name=name,
            uid=uid,
            core_percent=WHOLE_PERCENT if is_whole else part.core_percent,
            memory_mib=memory,
            whole=is_whole and len(claim.pods) == 1,
            level_percent=level,
        )


def _untold(node: str, dra: Dra, *, is_open: bool) -> Iterator[CardGroup]:
    """Yield cards that claims were allocated there and no slice lists: so many, or more."""
    known = {device.key for device in dra.devices}
    unplaced = []
    for claim in dra.claims:
        lost = [part for part in claim.parts if part.key not in known]
        if claim.node != node or not lost or not _CARD.search(lost[0].driver.partition(".")[0]):
            continue
        unplaced += [
            Unplaced(
                namespace=claim.namespace,
                name=name,
                uid=uid,
                amount=len(lost),
                unit=lost[0].driver,
                cards=len(lost),
            )
            for name, uid in claim.pods
        ]
    if unplaced:
        yield CardGroup(
            device_type=TYPE_GPU,
            system=SYSTEM,
            model="",
            memory_mib=None,
            mode="whole",
            cards=Many(least=max(each.cards for each in unplaced), most=None),
            free=Many(least=0, most=None),
            gettable=Many(least=0, most=None) if is_open else NONE,
            unplaced=tuple(unplaced),
        )
