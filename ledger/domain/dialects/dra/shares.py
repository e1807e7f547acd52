"""What an allocation holds of which accounts, whether that fits, and who is there already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from ledger.domain.annotations.wire import a_quantity
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.dialects.dra.accounts import Key, NodeAccounts
from ledger.domain.dialects.dra.objects import CORES, MEMORY
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import GRANTED, Holding, NodeState
from ledger.domain.quantity import NANO

UNTOLD: Final = "DeviceUntold"
"""Nothing but its name says which metal a device is."""
UNLISTED: Final = "DeviceUnlisted"
"""No whole pool of the node lists the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What an allocation holds: one share of each account, ordered by type and minor."""

    shares: tuple[DeviceShare, ...]
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A device whose accounts can't be told, by `UNTOLD` or `UNLISTED`."""

    reason: str
    device: Key

    def __str__(self) -> str:
        name = "/".join(self.device)
        if self.reason == UNTOLD:
            return (
                f"{name} tells no UUID, parent UUID, PCI address or counters: it may be another"
                " device by another name"
            )
        return f"{name} is in no whole pool of its node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """
    An account that has not got what is asked, and who holds of it.

    Attributes:
        fact: in numbers, such as `asks 100 percent core, 50 left`.
        holders: granted and observed, in the order in which they came.
    """

    device: DeviceRecord
    fact: str
    holders: tuple[Holding, ...]


def shares_of(results: Iterable[ClaimResult], accounts: NodeAccounts) -> Shares | Untold:
    """Return what an allocation holds, results on one account summed (docs/contracts/dra.md, 4)."""
    found: dict[tuple[str, int], tuple[DeviceRecord, DeviceShare]] = {}

    def add(record: DeviceRecord, core: int, memory: int, *, exclusive: bool = False) -> None:
        share = DeviceShare(
            device_type=record.device_type,
            minor=record.minor,
            device_id=record.device_id,
            core_percent=core,
            memory_bytes=memory,
            exclusive=exclusive,
        )
        if record.key in found:
            share = _sum(found[record.key][1], share)
        found[record.key] = (record, share)

    for result in results:
        key = (result.driver, result.pool, result.device)
        if result.admin:
            continue
        device = accounts.devices.get(key)
        if device is None:
            return Untold(reason=UNTOLD if key in accounts.untold else UNLISTED, device=key)
        # What a share does not name it has all of; what nobody else can have it has whole.
        is_share = device.is_shared and bool(result.consumed or result.share_id)
        consumed = {**device.capacity} | {
            name: -(-a_quantity(amount, name).nanos // NANO)
            for name, amount in result.consumed.items()
        }
        for part in device.parts:
            if is_share:
                cores = device.capacity.get(CORES, 0)
                core = consumed.get(CORES, 0) * part.core_percent // cores if cores else 0
                add(part.card, core, consumed.get(MEMORY, 0))
            else:
                add(part.card, part.core_percent, part.memory_bytes, exclusive=part.whole)
        for record, amount in device.counters:
            add(record, 0, amount)
        for name, record in device.shared.items():
            add(record, 0, consumed[name] if is_share else record.memory_bytes)
    ordered = sorted(found.values(), key=lambda each: each[1].key)
    return Shares(
        shares=tuple(_with_ratio(record, share) for record, share in ordered),
        models=tuple(record.model for record, _ in ordered),
    )


def _sum(one: DeviceShare, other: DeviceShare) -> DeviceShare:
    return structs.replace(
        one,
        core_percent=one.core_percent + other.core_percent,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        exclusive=one.exclusive or other.exclusive,
        instances=one.instances + other.instances,
    )


def _with_ratio(record: DeviceRecord, share: DeviceShare) -> DeviceShare:
    total = record.memory_bytes
    ratio = share.memory_bytes * WHOLE_PERCENT // total if total else 0
    return structs.replace(share, memory_ratio_percent=ratio)


def holders_of(node: NodeState, device: DeviceRecord) -> tuple[Holding, ...]:
    """Return who holds of a device, granted or observed, in the order in which they came."""
    name = (device.device_type, device.device_id)
    found = (
        holding
        for holding in node.everyone()
        if device.device_type in holding.unknown_types
        or any((share.device_type, share.device_id) == name for share in holding.shares)
    )
    return tuple(sorted(found, key=lambda holding: holding.opened_position))


def first_taken(node: NodeState, shares: Sequence[DeviceShare]) -> Taken | None:
    """
    Return the first account that has not got what is asked; None where all of it fits.

    It says before an append what the constraint would say. `node` comes without what the shares
    take the place of.
    """
    records = {(each.device_type, each.device_id): each for each in node.devices}
    for share in shares:
        record = records.get((share.device_type, share.device_id))
        if record is None:
            gone = DeviceRecord(
                device_type=share.device_type, minor=share.minor, device_id=share.device_id
            )
            return Taken(device=gone, fact="is not in the node's inventory", holders=())
        holders = holders_of(node, record)
        fact = _short(node, record, share, holders)
        if fact:
            return Taken(device=record, fact=fact, holders=holders)
    return None


def _short(
    node: NodeState, record: DeviceRecord, share: DeviceShare, holders: Sequence[Holding]
) -> str:
    """Return what an account lacks for a share, in the order of the database's rules."""
    if node.lost:
        return "its node is lost"
    if not record.healthy:
        return "is unhealthy"
    if any(record.device_type in each.unknown_types for each in holders):
        return "may be held by somebody whose device nobody can name"
    name = (share.device_type, share.device_id)
    there = [
        (each, held)
        for each in holders
        for held in each.shares
        if (held.device_type, held.device_id) == name
    ]
    core = record.core_percent - sum(held.core_percent for _, held in there)
    memory = record.memory_bytes - sum(held.memory_bytes for _, held in there)
    if any(held.exclusive for each, held in there if each.kind == GRANTED):
        return "is held alone"
    if share.exclusive and there:
        return "is asked for alone and has holders"
    if share.core_percent > core:
        return f"asks {share.core_percent} percent core, {max(0, core)} left"
    if share.memory_bytes > memory:
        return f"asks {share.memory_bytes} bytes memory, {max(0, memory)} left"
    by_others = [held for each, held in there if each.kind != GRANTED]
    if by_others and (
        sum(held.core_percent for held in by_others) >= record.core_percent
        or 0 < record.memory_bytes <= sum(held.memory_bytes for held in by_others)
    ):
        return "is held by others"
    nothing = not share.core_percent and not share.memory_bytes
    if nothing and (core <= 0 or (record.memory_bytes and memory <= 0)):
        return "has nothing left"
    return ""
