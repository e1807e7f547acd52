"""
With which other devices an allocation may be stored: each with one that is like it, and free.

Rule: docs/adr/0027. Devices are exchanged one for one: results on one device stay on one device,
results on two on two. So whatever a claim asks of its devices, by themselves or together, and does
not read off what names a single one, holds for those that it gets as for those that were written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from ledger.domain.devices import COUNTER, DeviceShare
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import NodeState

Device = tuple[str, str, str]
"""What an allocation calls a device: driver, pool, name."""
Results = tuple[ClaimResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """A device, and the minor of the card that it is all of, or that is given in shares by it."""

    name: str
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """
    A device of an allocation that may be exchanged.

    Attributes:
        share: what the allocation takes of its card.
        among: what it may be exchanged for, itself included; by name.
    """

    device: Device
    share: DeviceShare
    among: tuple[Alike, ...]


Place = Callable[[NodeState, Sequence[Unit], Collection[int]], Iterator[Mapping[Device, str]]]
"""
Yields what devices are to be called instead, the best first, given a node without what the claim
has, what may be exchanged, and minors of cards that are the claim's already.
"""


def device_of(result: ClaimResult) -> Device:
    """Return what a result calls its device."""
    return (result.driver, result.pool, result.device)


def exchanged(results: Results, names: Mapping[Device, str]) -> Results:
    """Return results with these devices called otherwise, and nothing else changed."""
    return tuple(
        structs.replace(one, device=names.get(device_of(one), one.device)) for one in results
    )


def may_stand_for(
    stored: Results, written: Results, among: Callable[[ClaimResult], Collection[str]]
) -> bool:
    """
    Tell whether an allocation may be stored where another one was written.

    Args:
        among: the names of the devices that a result's may be exchanged for.
    """
    if len(stored) != len(written):
        return False
    to: dict[Device, str] = {}
    for one, other in zip(written, stored, strict=True):
        if structs.replace(other, device=one.device, cpus=one.cpus) != one:
            return False
        if one.cpus and other.cpus != one.cpus:
            return False  # what is not written out is chosen here
        if other.device != one.device and other.device not in among(one):
            return False
        if to.setdefault(device_of(one), other.device) != other.device:
            return False
    return len({(key[:2], name) for key, name in to.items()}) == len(to)


def units_of(
    results: Results,
    alike: Callable[[Device], tuple[Alike, ...]],
    requests: Collection[str],
    shares: Callable[[Results], tuple[DeviceShare, ...] | None],
) -> tuple[tuple[Unit, ...], frozenset[int]]:
    """
    Return what of an allocation may be exchanged, and the minors of the cards that stay.

    Args:
        requests: those for which one device is as good as one that is like it.
        shares: what results take of accounts; None where it can't be told.
    """
    on: dict[Device, list[ClaimResult]] = {}
    for one in results:
        on.setdefault(device_of(one), []).append(one)
    units, kept = list[Unit](), set[int]()
    for device, there in on.items():
        of_cards = [each for each in shares(tuple(there)) or () if each.device_type != COUNTER]
        among = alike(device)
        is_free = all(one.request in requests and not one.admin for one in there)
        if is_free and len(of_cards) == 1 and len(among) > 1:
            units.append(Unit(device=device, share=of_cards[0], among=among))
        else:
            kept.update(each.minor for each in of_cards)
    return tuple(units), frozenset(kept)
