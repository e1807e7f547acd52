"""Whether one device can serve one demand, and the words for why none can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from ledger.domain.annotations.device_hints import DeviceExclusivePolicy, DeviceHint
from ledger.domain.devices import GPU, WHOLE_PERCENT, cores_to_percent
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.resources import HUAWEI_NPU_CORE
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons

UNIT_CARDS: Final = "cards"
UNIT_CORE: Final = "core percent"
UNIT_MEMORY: Final = "memory bytes"
MOST_ALLOCATED: Final = "MostAllocated"
LEAST_ALLOCATED: Final = "LeastAllocated"
Bytes = TypeVar("Bytes", int, IntArray)


def root_of(card: CardView) -> str:
    """Return the PCIe root of a device, empty where the inventory does not tell."""
    place = card.record.topology
    return "" if place is None else place.pcie_id


def roots_of(cards: Iterable[CardView]) -> frozenset[str]:
    """Return the roots of these devices; the empty text is among them where one is unknown."""
    return frozenset(map(root_of, cards))


def selected(cards: Sequence[CardView], hint: DeviceHint | None) -> list[CardView]:
    """Return the devices whose labels the hint's selector takes (Koordinator contract 2.1)."""
    if hint is None or hint.selector is None:
        return list(cards)
    return [card for card in cards if hint.selector.matches(card.record.labels)]


def undisturbed(
    offered: Sequence[CardView], of_type: Sequence[CardView], hint: DeviceHint | None
) -> list[CardView]:
    """
    Return the devices that are left where whole PCIe roots are asked for.

    Rule: Koordinator contract, quirk Q5 as "ours": a root with any used device of the type is
    out. A device without a known root stands for itself.
    """
    if hint is None or hint.exclusive_policy is not DeviceExclusivePolicy.PCIE_LEVEL:
        return list(offered)
    used = roots_of(card for card in of_type if card.tenants) - {""}
    return [card for card in offered if not card.tenants and root_of(card) not in used]


def asked_bytes(demand: DeviceDemand, total_bytes: Bytes) -> Bytes | int:
    """
    Return the bytes the demand takes of a device with `total_bytes`, or of each of many devices.

    Rule: Koordinator contract 4.5 (a ratio is floored to bytes once); GPU-sharing contract A.5
    (a whole card is fully consumed, memory included).
    """
    if demand.memory_ratio_percent:
        return demand.memory_ratio_percent * total_bytes // WHOLE_PERCENT
    if demand.exclusive and not demand.memory_bytes:
        return total_bytes
    return demand.memory_bytes


def core_percent_on(card: CardView, demand: DeviceDemand) -> int:
    """Return the core percent the demand takes of the card, AI cores as a part of all it has."""
    cores = dict(demand.amounts).get(HUAWEI_NPU_CORE)
    if cores is None:
        return demand.core_percent
    return cores_to_percent(cores, dict(card.amounts_cap).get(HUAWEI_NPU_CORE, 0))


def fits(card: CardView, demand: DeviceDemand) -> bool:
    """
    Tell whether the device can serve the demand now.

    Rule: Koordinator contract 8.2 and 4.5, quirks Q1 and Q3 as "ours": core and bytes are
    compared, a resource that the device lacks counts 0, an exclusive demand needs a device
    without any tenant and keeps others out. The ratio constrains nothing.
    """
    record = card.record
    if card.closed or card.exclusive or card.core_free < demand.core_percent:
        return False
    if demand.model_names and record.model not in demand.model_names:
        return False
    if not _gives(card, demand, card.amounts_free):
        return False
    if demand.amounts and card.core_free < core_percent_on(card, demand):
        return False
    if demand.exclusive:
        if card.tenants:
            return False
    elif _ratio_unguarded(demand, record.memory_bytes):
        return False
    return asked_bytes(demand, record.memory_bytes) <= card.memory_free


def why_unfit(cards: Sequence[CardView], demand: DeviceDemand) -> Unfit:
    """
    Return why these devices, all of the demand's type, can't serve it.

    Rule: Koordinator contract 13: no device of the type, or never enough of them, can't be
    helped by preemption; what is held now can.
    """
    reason = reasons.insufficient_devices(demand.device_type).text
    of_model = [
        card for card in cards if not demand.model_names or card.record.model in demand.model_names
    ]
    if cards and not of_model:
        return Unfit(reason=reasons.model_mismatch(demand.device_type).text, preemptible=False)
    able = [card for card in of_model if _fits_empty(card, demand)]
    if len(able) < demand.count:
        return Unfit(
            reason=reason,
            requested=demand.count,
            available=len(able),
            unit=UNIT_CARDS,
            preemptible=False,
        )
    requested, available, unit = _shortage(able, demand)
    return Unfit(reason=reason, requested=requested, available=available, unit=unit)


def _shortage(able: Sequence[CardView], demand: DeviceDemand) -> tuple[int, int, str]:
    """For one part of one card say what is short on the best card, else count cards."""
    if demand.count == 1 and not demand.exclusive:
        core_free = max(0, *(card.core_free for card in able))
        if core_free < demand.core_percent:
            return demand.core_percent, core_free, UNIT_CORE
        memory_free = max(0, *(card.memory_free for card in able))
        if memory_free < demand.memory_bytes:
            return demand.memory_bytes, memory_free, UNIT_MEMORY
        for name, amount in demand.amounts:
            free = max(dict(card.amounts_free).get(name, 0) for card in able)
            if free < amount:
                return amount, free, name
    return demand.count, sum(fits(card, demand) for card in able), UNIT_CARDS


def _fits_empty(card: CardView, demand: DeviceDemand) -> bool:
    """Tell whether the device could serve the demand if it had no tenant at all."""
    record = card.record
    if card.closed or record.core_percent < demand.core_percent:
        return False
    if not demand.exclusive and _ratio_unguarded(demand, record.memory_bytes):
        return False
    if not _gives(card, demand, card.amounts_cap):
        return False
    return asked_bytes(demand, record.memory_bytes) <= record.memory_bytes


def _gives(card: CardView, demand: DeviceDemand, amounts: Sequence[tuple[str, int]]) -> bool:
    """
    Tell whether so much of a card's other resources is enough.

    A card whose compute is counted in AI cores gives none by percent (quirk Q3 as "ours").
    """
    if not demand.amounts:
        return not (demand.core_percent and dict(card.amounts_cap).get(HUAWEI_NPU_CORE))
    given = dict(amounts)
    return all(given.get(name, 0) >= asked for name, asked in demand.amounts)


def _ratio_unguarded(demand: DeviceDemand, total_bytes: int) -> bool:
    """
    Tell whether a ratio would go unconstrained on a device that reports no memory.

    Bytes constrain, and a ratio of 0 bytes is 0 bytes. Where core is asked in at least the same
    measure, core keeps the ratios of all tenants within 100; elsewhere missing is 0 and nothing
    fits.
    """
    return not total_bytes and demand.memory_ratio_percent > demand.core_percent


def score(card: CardView, demand: DeviceDemand, *, scoring: str) -> int:
    """
    Return how full (MostAllocated) or else how empty the device would be, 0..100.

    Rule: Koordinator contract 8.2: the integer mean over memory ratio and memory of a GPU, the
    unit asked for alone counting as requested; one unit for other types and for GPUs that report
    no memory. 40 GiB with 16 GiB used, ratio 25 asked: most (65 + 40) / 2 = 52, least 47.
    """
    most = scoring == MOST_ALLOCATED
    record = card.record
    total = record.memory_bytes
    if record.device_type != GPU or not total:
        used = record.core_percent - card.core_free + demand.core_percent
        return _part(used, record.core_percent, most=most)
    used = total - card.memory_free
    ratio_used = -(-used * WHOLE_PERCENT // total)  # up: bytes came from a ratio by rounding down
    by_ratio = _part(ratio_used + demand.memory_ratio_percent, WHOLE_PERCENT, most=most)
    by_bytes = _part(used + demand.memory_bytes, total, most=most)
    return (by_ratio + by_bytes) // 2


def _part(used: int, total: int, *, most: bool) -> int:
    """Return the percentage used or left of one resource; 0 when there is none of it."""
    if not total:
        return 0
    used = min(used, total)
    return (used if most else total - used) * WHOLE_PERCENT // total
