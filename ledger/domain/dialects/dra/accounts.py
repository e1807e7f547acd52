"""
Which accounts the devices of a node's pools are: what is one card, what a part is of it.

Rule: docs/adr/0025, docs/contracts/dra.md, 4.

Worked example, one card. A node's pool lists `gpu-0` (uuid GPU-a, all of set-0), its partitions
`gpu-0-mig-1` and `-2` (parentUUID GPU-a) and another driver the same card as `hami-0` (uuid GPU-a).

    device        tells                 is
    gpu-0         GPU-a, set-0          all of card GPU-a, and every counter of set-0
    gpu-0-mig-1   parent GPU-a, set-0   a part of card GPU-a, and the counters that it consumes
    gpu-0-mig-2   likewise              likewise
    hami-0        GPU-a                 all of card GPU-a
    gpu-1         nothing but its name  untold: it may be gpu-0 by another name

set-0 has 98 multiprocessors and 7 slices. A partition that consumes 14 of the former and slice 1 is
14 % of the card's core (14 of 98). Seven of them are 98 %: what fits by counters fits by core.
Two that consume slice 1 are refused by the account of slice 1, whatever the card has left.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from re import compile as pattern
from typing import Final, Literal

from ledger.domain.bounds import NAME_MAX
from ledger.domain.devices import COUNTER, GPU, WHOLE_PERCENT, DeviceRecord, DeviceTopology
from ledger.domain.dialects.dra import objects
from ledger.domain.dialects.dra.cpus import CPU_DRIVER

_CORE_COUNTERS: Final = ("multiprocessors", objects.CORES)
_NUMBER: Final = pattern(r"([0-9]{1,4})$")
_NUMA: Final = pattern(r"[0-9]{1,4}")

UntoldDevices = Literal["refuse", "record"]
Key = tuple[str, str, str]
"""What an allocation calls a device: driver, pool, name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """
    Whose devices are accounted for, and how those are of which no metal can be told.

    Attributes:
        drivers: whose devices are looked at, all but CPUs as GPUs; None = every driver's.
        untold: `refuse` a device that is known by its name alone, or `record` it by that name.
    """

    drivers: Container[str] | None = None
    untold: UntoldDevices = "refuse"

    def type_of(self, driver: str) -> str | None:
        """Return the device type of a driver's accounts, None where it is not listed."""
        is_listed = self.drivers is None or driver in self.drivers
        return GPU if is_listed and driver != CPU_DRIVER else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPart:
    """What one device is of one card: all of it, or a part."""

    card: DeviceRecord
    whole: bool
    core_percent: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccounts:
    """
    The accounts of one device.

    Attributes:
        parts: of its cards; several where it consumes counters of several cards.
        counters: with how much of each it consumes.
        shared: capacity by name, of a device that several claims may have: cores and memory are of
            its card, every other one is an account, and cores that whole percents can't tell.
        is_shared: several claims may have parts of it.
    """

    parts: tuple[CardPart, ...]
    counters: tuple[tuple[DeviceRecord, int], ...] = ()
    shared: Mapping[str, DeviceRecord] = field(default_factory=dict)
    capacity: objects.Amounts = field(default_factory=dict)
    is_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccounts:
    """
    The accounts of a node's pools.

    Attributes:
        records: what the inventory has to say of them beside its own devices, by type and minor.
        devices: by what allocations call them.
        untold: devices that are known by name alone.
    """

    records: tuple[DeviceRecord, ...]
    devices: Mapping[Key, DeviceAccounts]
    untold: frozenset[Key] = frozenset()


@dataclass(frozen=True, slots=True)
class _Found:
    key: Key
    device: objects.SlicedDevice
    device_type: str


def accounts_of(
    node: str,
    pools: Iterable[objects.Pool],
    inventory: Sequence[DeviceRecord] = (),
    listed: Listed = Listed(),
) -> NodeAccounts:
    """
    Return the accounts of a node's devices. Pure: ties go to drivers, pools and names in order.

    Args:
        inventory: what is known of the node already, given by claims or not; a card that is in it,
            by id or by PCI address, is that account and keeps its minor.
    """
    pools = sorted(pools, key=lambda pool: pool.key)
    found = [
        _Found((pool.driver, pool.name, device.name), device, device_type)
        for pool in pools
        if (device_type := listed.type_of(pool.driver)) is not None
        for device in sorted(pool.devices, key=lambda each: each.name)
        if device.node == node
    ]
    sets = {
        (pool.driver, pool.name, name): amounts
        for pool in pools
        for name, amounts in pool.counters.items()
    }
    cards, untold = _cards(found, sets, _Minors(inventory), listed)
    counters = _Minors(inventory)
    devices = {
        each.key: _accounts(each, cards, sets, counters) for each in found if each.key not in untold
    }
    used = {
        (record.device_type, record.device_id): record
        for accounts in devices.values()
        for record in (
            *(part.card for part in accounts.parts),
            *(counter for counter, _ in accounts.counters),
            *accounts.shared.values(),
        )
    }
    own = {(each.device_type, each.device_id) for each in inventory if not each.by_claims}
    return NodeAccounts(
        records=tuple(
            sorted(
                (record for name, record in used.items() if name not in own),
                key=lambda record: record.key,
            )
        ),
        devices=devices,
        untold=frozenset(untold),
    )


class _Minors:
    """Gives accounts their minors: those that they had, then those that they ask for, then free."""

    def __init__(self, inventory: Iterable[DeviceRecord]) -> None:
        self._known = {(each.device_type, each.device_id): each for each in inventory}
        self._by_bus = {
            (each.device_type, each.topology.bus_id): each
            for each in self._known.values()
            if each.topology is not None and each.topology.bus_id
        }
        self._taken = {each.key for each in self._known.values()}

    def known(
        self, device_type: str, ids: Iterable[str], buses: Iterable[str]
    ) -> DeviceRecord | None:
        """Return the account that is known by one of these ids or addresses."""
        by_id = (self._known.get((device_type, each)) for each in ids)
        by_bus = (self._by_bus.get((device_type, each)) for each in buses)
        return next((each for each in (*by_id, *by_bus) if each is not None), None)

    def free(self, device_type: str, wanted: int | None) -> int:
        """Return a minor that nobody has: the one asked for, else the smallest."""
        minor = wanted if wanted is not None and (device_type, wanted) not in self._taken else 0
        while (device_type, minor) in self._taken:
            minor += 1
        self._taken.add((device_type, minor))
        return minor

    def counter(self, name: str, capacity: int) -> DeviceRecord:
        """Return the account of a counter; one that is known keeps its minor."""
        device_id = bounded(name)
        known = self._known.get((COUNTER, device_id))
        minor = self.free(COUNTER, None) if known is None else known.minor
        record = self._known[COUNTER, device_id] = DeviceRecord(
            device_type=COUNTER,
            minor=minor,
            device_id=device_id,
            memory_bytes=capacity,
            by_claims=True,
        )
        return record


def bounded(name: str) -> str:
    """Return a name that a key of an index has room for; of a longer one its end is a hash."""
    if len(name) <= NAME_MAX:
        return name
    return f"{name[: NAME_MAX - 65]}/{sha256(name.encode()).hexdigest()}"


def _said(found: _Found, name: str) -> str:
    attributes = found.device.attributes
    return attributes.get(name) or attributes.get(f"{found.key[0]}/{name}", "")


def _signs(found: _Found) -> Iterator[tuple[str, ...]]:
    """Yield what tells which metal a device is; of several counter sets none tells it."""
    for name in ("uuid", "parentUUID"):
        if said := _said(found, name):
            yield "id", said
    bus = found.device.attributes.get(objects.PCI_BUS_ID, "") or _said(found, "pciBusID")
    if bus:
        yield "bus", bus
    if len(found.device.consumes) == 1:
        yield "set", *found.key[:2], found.device.consumes[0][0]


def _cards(
    found: Sequence[_Found], sets: Mapping[Key, objects.Amounts], minors: _Minors, listed: Listed
) -> tuple[dict[tuple[str, ...], DeviceRecord], set[Key]]:
    """Return the card of every sign, and the devices without one."""
    parents: dict[tuple[str, ...], tuple[str, ...]] = {}

    def root(sign: tuple[str, ...]) -> tuple[str, ...]:
        while parents.setdefault(sign, sign) != sign:
            sign = parents[sign]
        return sign

    untold: set[Key] = set()
    groups: dict[tuple[str, ...], list[_Found]] = {}
    signs: dict[Key, list[tuple[str, ...]]] = {}
    for each in found:
        told = [(each.device_type, *sign) for sign in _signs(each)]
        if not told and each.device.consumes:
            told = []  # each of its sets is a card
        elif not told and listed.untold == "record":
            told = [(each.device_type, "name", *each.key)]
        elif not told:
            untold.add(each.key)
        signs[each.key] = told
        for sign in told[1:]:
            parents[root(sign)] = root(told[0])
    for each in found:
        for sign in signs[each.key][:1]:
            groups.setdefault(root(sign), []).append(each)
        if len(each.device.consumes) > 1:
            for name, _ in each.device.consumes:
                groups.setdefault(root((each.device_type, "set", *each.key[:2], name)), [])
    cards = {}
    for top, members in sorted(groups.items(), key=lambda item: _order(item[0], item[1])):
        cards[top] = _card(top, members, sets, minors)
    return {sign: cards[root(sign)] for sign in list(parents) if root(sign) in cards}, untold


def _order(top: tuple[str, ...], members: Sequence[_Found]) -> tuple[object, ...]:
    return (not members, members[0].key if members else (), top)


def _is_part(found: _Found, sets: Mapping[Key, objects.Amounts]) -> bool:
    if _said(found, "parentUUID"):
        return True
    return any(
        amount < total
        for name, amounts in found.device.consumes
        for counter, total in sets.get((*found.key[:2], name), {}).items()
        for amount in (amounts.get(counter, 0),)
    )


def _card(
    top: tuple[str, ...],
    members: Sequence[_Found],
    sets: Mapping[Key, objects.Amounts],
    minors: _Minors,
) -> DeviceRecord:
    """Return the account of a card: the one that is known, else one of what its devices say."""
    device_type = top[0]
    wholes = [each for each in members if not _is_part(each, sets)]
    ids = [_said(each, "uuid") for each in wholes] + [_said(each, "parentUUID") for each in members]
    ids = [each for each in dict.fromkeys(ids) if each]
    buses = [sign[1] for each in members for sign in _signs(each) if sign[0] == "bus"]
    of_sets = sorted(
        {(*each.key[:2], name) for each in members for name, _ in each.device.consumes[:1]}
    )
    if top[1] == "set":
        of_sets = [(top[2], top[3], top[4])]
    last = ["/".join(each) for each in of_sets] or ["/".join(top[2:])]
    names = [bounded(each) for each in (*ids, *buses, *last)]
    known = minors.known(device_type, names, buses)
    if known is not None and not known.by_claims:
        return known
    models = [_said(each, "productName") or _said(each, "model") for each in (*wholes, *members)]
    models = [model for model in models if model]
    first = max(wholes, key=lambda each: each.device.capacity.get(objects.MEMORY, 0), default=None)
    number = _NUMBER.search(first.device.name) if first is not None else None
    memories = [each.device.capacity.get(objects.MEMORY, 0) for each in wholes or members]
    memories += [sets.get(each, {}).get(objects.MEMORY, 0) for each in of_sets]
    minor = (
        known.minor
        if known is not None
        else minors.free(device_type, int(number[1]) if number else None)
    )
    return DeviceRecord(
        device_type=device_type,
        minor=minor,
        device_id=known.device_id if known is not None else names[0],
        model=models[0] if models else "",
        memory_bytes=max(memories, default=0),
        topology=_place(buses[0] if buses else "", members),
        unique_id=bool(ids),
        by_claims=True,
    )


def _place(bus_id: str, members: Sequence[_Found]) -> DeviceTopology | None:
    root = next((said for each in members if (said := _said_of(each, objects.PCIE_ROOT))), "")
    numa = next((said for each in members if (said := _said_of(each, objects.NUMA_NODE))), "")
    node = int(numa) if _NUMA.fullmatch(numa) else -1
    if not (bus_id or root or node >= 0):
        return None
    return DeviceTopology(bus_id=bus_id, pcie_id=root, numa_node=node)


def _said_of(found: _Found, name: str) -> str:
    return found.device.attributes.get(name, "") or _said(found, name.rpartition("/")[2])


def _accounts(
    found: _Found,
    cards: Mapping[tuple[str, ...], DeviceRecord],
    sets: Mapping[Key, objects.Amounts],
    minors: _Minors,
) -> DeviceAccounts:
    device, kind = found.device, found.device_type
    counters = tuple(
        (minors.counter("/".join((*found.key[:2], name, counter)), total), amount)
        for name, amounts in device.consumes
        for counter, amount in sorted(amounts.items())
        if amount
        for total in (sets.get((*found.key[:2], name), {}).get(counter, 0),)
    )
    shared = {
        name: minors.counter("/".join((*found.key, name)), capacity)
        for name, capacity in sorted(device.capacity.items())
        if device.is_shared
        and name != objects.MEMORY
        and not (name == objects.CORES and _is_in_percents(capacity))
    }
    if len(device.consumes) > 1:
        parts = tuple(
            _part_of_set(found, cards[kind, "set", *found.key[:2], name], (name, amounts), sets)
            for name, amounts in device.consumes
        )
    else:
        sign = next(iter(_signs(found)), ("name", *found.key))
        card = cards[kind, *sign]
        whole = not _is_part(found, sets)
        part = _part_of_set(found, card, next(iter(device.consumes), None), sets)
        memory = device.capacity.get(objects.MEMORY, part.memory_bytes)
        parts = (
            CardPart(
                card=card,
                whole=whole,
                core_percent=card.core_percent if whole else part.core_percent,
                memory_bytes=card.memory_bytes if whole else min(memory, card.memory_bytes),
            ),
        )
    return DeviceAccounts(
        parts=parts,
        counters=counters,
        shared=shared,
        capacity=device.capacity,
        is_shared=device.is_shared,
    )


def _is_in_percents(cores: int) -> bool:
    """Tell whether a core is whole percents of the card, so that their sum is never too little."""
    return cores > 0 and WHOLE_PERCENT % cores == 0


def _part_of_set(
    found: _Found,
    card: DeviceRecord,
    consumed: tuple[str, objects.Amounts] | None,
    sets: Mapping[Key, objects.Amounts],
) -> CardPart:
    """Return what a device is of a card by the counters that it consumes of the card's set."""
    if consumed is None:
        return CardPart(card=card, whole=False, core_percent=0, memory_bytes=0)
    name, amounts = consumed
    totals = sets.get((*found.key[:2], name), {})
    return CardPart(
        card=card,
        whole=False,
        core_percent=core_of(amounts, totals) * card.core_percent // WHOLE_PERCENT,
        memory_bytes=min(amounts.get(objects.MEMORY, 0), card.memory_bytes),
    )


def core_of(amounts: objects.Amounts, totals: objects.Amounts) -> int:
    """
    Return the core percent that counters are of a card, rounded down, so that parts never exceed.

    By the counter that counts cores, else the mean over all of the set's: of 4 slices with memory
    of 8 in all, one slice and 2 of memory are (25 + 0 + 0 + 0 + 100 x 2 / 8) / 5, 10 %.
    """
    for name in _CORE_COUNTERS:
        if totals.get(name):
            return min(WHOLE_PERCENT, amounts.get(name, 0) * WHOLE_PERCENT // totals[name])
    counted = {name: total for name, total in totals.items() if total}
    if not counted:
        return 0
    # Over one denominator, so that nothing is rounded before the end.
    product = 1
    for total in counted.values():
        product *= total
    parts = sum(amounts.get(name, 0) * (product // total) for name, total in counted.items())
    return min(WHOLE_PERCENT, parts * WHOLE_PERCENT // (product * len(counted)))
