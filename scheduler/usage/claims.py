"""
Cards that others hand out by claims or annotations: who holds how much of which.

Rule: docs/contracts/dra.md, docs/contracts/volcano-vgpu.md, docs/contracts/hami.md 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from ledger.domain.annotations.volcano_vgpu import VGPU_NAMES, VGPU_NUMBER
from ledger.domain.devices import WHOLE_PERCENT, level_percent
from ledger.domain.log.events import PodObserved
from ledger.domain.request import extended
from ledger.domain.request.card_names import NVIDIA_DOMAIN, count_in, number_in, product_of
from ledger.domain.resources import TYPE_GPU
from ledger.domain.systems import DRA, UNHEALTHY, VOLCANO, DeviceSystems, SystemCard, SystemPart
from scheduler.usage.picture import (
    NONE,
    UNUSED,
    CardGroup,
    DeviceNow,
    HolderNow,
    Many,
    Mode,
    Units,
    Unplaced,
    exactly,
    group_of,
)

_OF_AMOUNTS: Final = ("core", "mem", "percent")
_Key = tuple[str, str]  # the driver, and its key of a card


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hold:
    """
    What one Pod has by claims of one card; of a claim that no Pod uses there is no Pod.

    Attributes:
        away: the Pod does not run there: a claim alone tells of it.
        state: of a claim that no Pod tells of, why.
    """

    namespace: str
    name: str
    uid: str
    part: SystemPart
    away: bool = False
    state: str = ""


# --- dynamic resource allocation --------------------------------------------------------------


def dra_groups(
    systems: DeviceSystems, pods: Sequence[PodObserved], *, is_open: bool
) -> Iterator[CardGroup]:
    """Yield the cards of a node by driver, model and memory, then those that no slice tells of."""
    held = _held_by(systems, pods)
    likes: dict[tuple[str, str, int | None], list[SystemCard]] = {}
    for card in systems.cards:
        if card.system == DRA:
            likes.setdefault((card.driver, card.model, card.memory_mib), []).append(card)
    for (_, model, memory), some in likes.items():
        kept = [(card.driver, card.key) in held for card in some]
        devices = tuple(_card(card, held.get((card.driver, card.key), ())) for card in some)
        idle = [each for each, is_kept in zip(devices, kept, strict=True) if not is_kept]
        good = [each for each in idle if is_open and each.is_good]
        yield CardGroup(
            device_type=TYPE_GPU,
            system=DRA,
            model=model,
            memory_mib=memory,
            mode=_mode(some),
            cards=exactly(len(some)),
            free=exactly(len(idle)),
            gettable=Many(least=sum(bool(one.id) for one in good), most=len(good)),
            devices=devices,
            held=exactly(sum(kept)),
            is_inventoried=False,
        )
    known = {(card.driver, card.key) for card in systems.cards}
    lost = {key: holds for key, holds in held.items() if key not in known and holds[0].part.is_card}
    yield from _untold(lost, is_open=is_open)


def dra_not_looked_at(systems: DeviceSystems, pods: Sequence[PodObserved]) -> Mapping[str, Units]:
    """Return the drivers of a node whose devices are no cards, with how many are allocated."""
    held = Counter(
        key[0]
        for key, holds in _held_by(systems, pods).items()
        if not any(hold.part.is_card for hold in holds)
    )
    return {
        driver: Units(allocatable=number, held=held[driver]) for driver, number in systems.others
    }


def _held_by(systems: DeviceSystems, pods: Sequence[PodObserved]) -> dict[_Key, list[_Hold]]:
    """Return what is allocated of each device, also to claims that no Pod uses."""
    held: dict[_Key, list[_Hold]] = {}
    for pod in pods:
        for part in pod.parts:
            if part.system == DRA:
                hold = _Hold(namespace=pod.namespace, name=pod.pod_name, uid=pod.pod_uid, part=part)
                held.setdefault((part.driver, part.card), []).append(hold)
    for claim in systems.claims:
        namespace = claim.claim.partition("/")[0]
        users = [(each.name, each.uid) for each in claim.pods] or [("", "")]
        for part in claim.parts:
            held.setdefault((part.driver, part.card), []).extend(
                _Hold(
                    namespace=namespace, name=name, uid=uid, part=part, away=True, state=claim.state
                )
                for name, uid in users
            )
    return held


def _mode(cards: Sequence[SystemCard]) -> Mode:
    modes = {card.mode for card in cards}
    found = next((each for each in ("shares", "slices", "replicas") if each in modes), "whole")
    return cast("Mode", found)


def _card(card: SystemCard, holds: Sequence[_Hold]) -> DeviceNow:
    sharing = Counter(hold.part.claim for hold in holds)
    users = [hold for hold in holds if hold.uid or hold.name]
    closed = card.closed or None
    if holds and not users:
        closed = (
            f"allocated to claim {holds[0].part.claim}, {holds[0].state or 'which no Pod uses'}"
        )
        users = list({hold.part.claim: hold for hold in holds}.values())
    return DeviceNow(
        id=card.id,
        minor=None if card.minor < 0 else card.minor,
        closed=closed,
        holders=tuple(_holder(hold, card, alone=sharing[hold.part.claim] == 1) for hold in users),
    )


def _holder(hold: _Hold, card: SystemCard, *, alone: bool) -> HolderNow:
    """Return a Pod as a holder; a claim that no Pod uses holds by itself."""
    part = hold.part
    is_idle = not (hold.uid or hold.name)
    level = WHOLE_PERCENT if part.whole else part.core_percent or 0
    if not level and part.memory_mib and card.memory_mib:
        level = min(WHOLE_PERCENT, part.memory_mib * WHOLE_PERCENT // card.memory_mib)
    return HolderNow(
        namespace=hold.namespace,
        name=part.claim.partition("/")[2] if is_idle else hold.name,
        uid=hold.uid,
        core_percent=WHOLE_PERCENT if part.whole else part.core_percent,
        memory_mib=part.memory_mib,
        whole=part.whole and alone,
        level_percent=level,
        lost=hold.away,
        users=() if is_idle else None,
        state=hold.state or (UNUSED if is_idle else ""),
    )


def _untold(held: Mapping[_Key, Sequence[_Hold]], *, is_open: bool) -> Iterator[CardGroup]:
    """Yield the cards that claims were allocated there and no slice lists: so many, or more."""
    devices = [_unlisted(*key, holds) for key, holds in sorted(held.items())]
    if devices:
        yield CardGroup(
            device_type=TYPE_GPU,
            system=DRA,
            model="",
            memory_mib=None,
            mode="whole",
            cards=Many(least=len(devices), most=None),
            free=Many(least=0, most=None),
            gettable=Many(least=0, most=None) if is_open else NONE,
            devices=tuple(devices),
            held=exactly(len(devices)),
            is_inventoried=False,
        )


def _unlisted(driver: str, key: str, holds: Sequence[_Hold]) -> DeviceNow:
    """Return a card that claims alone tell of; its holders have it whole, if nobody says less."""
    card = _card(SystemCard(system=DRA, key=key, driver=driver), holds)
    return replace(
        card,
        holders=tuple(
            replace(each, level_percent=each.level_percent or WHOLE_PERCENT)
            for each in card.holders
        ),
        lasts=any(hold.away for hold in holds),
    )


# --- registers ---------------------------------------------------------------------------------


def named_by_registers(systems: DeviceSystems) -> Mapping[tuple[str, str], list[SystemCard]]:
    """Return system and vendor -> the cards of its register; none of one that can't be read."""
    found: dict[tuple[str, str], list[SystemCard]] = {key: [] for key in systems.unread}
    for card in systems.cards:
        if card.system != DRA:
            found.setdefault((card.system, card.driver), []).append(card)
    return found


def is_of_register(name: str, registers: Iterable[tuple[str, str]]) -> bool:
    """Tell whether a resource is one of cards that a register lists, by its vendor's name."""
    vendors = {vendor.lower() for _, vendor in registers}
    return any(each in name.lower() if each else name in VGPU_NAMES for each in vendors)


def register_groups(
    systems: DeviceSystems, pods: Sequence[PodObserved], labels: Mapping[str, str], *, is_open: bool
) -> Iterator[CardGroup]:
    """Yield the cards of a node that plugins of others registered, by model and memory."""
    counts = {pod.pod_uid: extended.held(pod.snapshot) for pod in pods}
    offers, there = dict(systems.offers), systems.there()
    asked = sum(map(Counter, counts.values()), Counter[str]())
    registers = dict(named_by_registers(systems))
    if asked[VGPU_NUMBER]:
        registers.setdefault((VOLCANO, ""), [])
    for key, listed in registers.items():
        named = {name for name in (*there, *asked) if is_of_register(name, [key])}
        names = sorted(named, key=lambda name: (name not in there, len(name), name))
        names.sort(key=lambda name: (name != VGPU_NUMBER, any(w in name for w in _OF_AMOUNTS)))
        is_unread = key in systems.unread
        cards = [*listed, *(_lost(key, pods) if is_unread else ())]
        known = {card.key for card in cards}
        unplaced = [
            Unplaced(
                namespace=pod.namespace,
                name=pod.pod_name,
                uid=pod.pod_uid,
                amount=counts[pod.pod_uid][names[0]],
                unit=names[0],
                is_counted=False,
            )
            for pod in pods
            if names and counts[pod.pod_uid].get(names[0])
            if not any(part.card in known for part in pod.parts)
        ]
        likes: dict[tuple[str, int | None], list[SystemCard]] = {}
        for card in cards:
            likes.setdefault((card.model, card.memory_mib), []).append(card)
        if (unplaced or is_unread) and not likes:
            likes["", None] = []
        for (model, memory), some in likes.items():
            group = group_of(
                system=key[0],
                mode="slices" if any(card.mode == "slices" for card in some) else "shares",
                model=model,
                memory_mib=memory or None,
                devices=[_registered(card, pods) for card in some],
                is_open=is_open and key[0] == VOLCANO,
                units={
                    name: Units(allocatable=offers.get(name, 0), held=asked[name]) for name in names
                },
                unplaced=unplaced,
                is_inventoried=False,
            )
            yield _unread(group, names, there, labels) if is_unread else group


def _lost(key: tuple[str, str], pods: Sequence[PodObserved]) -> Iterator[SystemCard]:
    """Yield the cards of a register that can't be read which Pods' annotations name."""
    parts = {part.card for pod in pods for part in pod.parts if (part.system, part.driver) == key}
    yield from (SystemCard(system=key[0], key=card, id=card) for card in sorted(parts))


def _unread(
    group: CardGroup, names: Sequence[str], there: Mapping[str, int], labels: Mapping[str, str]
) -> CardGroup:
    """Return cards of which Pods alone name some: as many as a label counts, else a range."""
    domain = names[0].partition("/")[0] if names and group.system != VOLCANO else NVIDIA_DOMAIN
    count = count_in(labels, domain)[1]
    units = there.get(names[0], 0) if names else 0
    least = max(count or min(1, units), len(group.devices))
    most = max(least, count or units) if count or units else None
    return replace(
        group,
        model=group.model or (product_of(labels) if domain == NVIDIA_DOMAIN else ""),
        memory_mib=group.memory_mib or number_in(labels, f"{domain}/gpu.memory") or None,
        cards=Many(least=least, most=most),
        free=Many(
            least=max(0, least - len(group.devices) - len(group.unplaced)),
            most=None if most is None else most - (len(group.devices) or bool(group.unplaced)),
        ),
        gettable=NONE,
    )


def _registered(card: SystemCard, pods: Sequence[PodObserved]) -> DeviceNow:
    return DeviceNow(
        id=card.id,
        minor=None if card.minor < 0 else card.minor,
        healthy=card.closed != UNHEALTHY,
        closed=card.closed or None,
        holders=tuple(
            _vgpu_holder(pod, part, card)
            for pod in pods
            for part in pod.parts
            if part.system == card.system and part.card == card.key
        ),
    )


def _vgpu_holder(pod: PodObserved, part: SystemPart, card: SystemCard) -> HolderNow:
    core, mib = part.core_percent or 0, part.memory_mib or 0
    memory = mib * WHOLE_PERCENT // card.memory_mib if card.memory_mib else 0
    return HolderNow(
        namespace=pod.namespace,
        name=pod.pod_name,
        uid=pod.pod_uid,
        core_percent=core or None,
        memory_mib=mib or None,
        whole=part.whole,
        level_percent=min(WHOLE_PERCENT, level_percent(core, memory)),
    )
