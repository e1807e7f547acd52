"""
The cards of a cluster at one moment: who holds which, what is free, and what nobody can say.

Every command that tells how many cards there are, are held or are free tells it out of this. A
reader of another device system makes `CardGroup`s with `group_of`, so that free means one thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Final, Literal

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.resources import TYPE_GPU

LOST: Final = "lost"
"""Why a node of a ledger is closed whose object is gone."""
CLAIMED_TWICE: Final = "claimed twice"
"""Why a card is closed that two machines list, as the views of a ledger say it."""
UNUSED: Final = "no Pod uses it"
"""The state of a claim that holds on, where nobody knows more."""
OVER_HELD: Final = "over-held"
"""Why a card is closed whose holders have more than there is of it."""
Mode = Literal["whole", "replicas", "slices", "shares"]
"""How a group's cards are handed out: whole, as replicas or slices of them, or by amounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """How many cards: at least `least`, at most `most` (None = nobody can say how many)."""

    least: int
    most: int | None

    @property
    def exact(self) -> int | None:
        """Return the number where it is known, else None."""
        return self.least if self.least == self.most else None

    def cut(self, most: int) -> Many:
        """Return so many, but no more than that."""
        if self.most is None and most > self.least:
            return self
        return Many(
            least=min(self.least, most), most=most if self.most is None else min(most, self.most)
        )

    def __add__(self, other: Many) -> Many:
        """Return how many there are of both together."""
        most = None if self.most is None or other.most is None else self.most + other.most
        return Many(least=self.least + other.least, most=most)


def exactly(count: int) -> Many:
    """Return a number that is known."""
    return Many(least=count, most=count)


NONE: Final = exactly(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderNow:
    """
    One Pod's part of one device, or one claim's.

    Attributes:
        core_percent, memory_mib: None where it has no such figure.
        whole: it is alone on the device.
        level_percent: what it counts as; see `ledger.domain.devices.level_percent`.
        lost: with its node, or it does not run: it counts for nothing, and its card is not free.
        users: of a claim, the names of the Pods that use it; None of a Pod.
        state: of a claim that none uses, why it holds on.
    """

    namespace: str
    name: str
    uid: str
    core_percent: int | None = None
    memory_mib: int | None = None
    whole: bool = False
    level_percent: int = 0
    lost: bool = False
    users: tuple[str, ...] | None = None
    state: str = ""

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNow:
    """
    One device.

    Attributes:
        id: empty where nobody told one.
        minor: None where it has none; of a device without an id one that was given to it here.
        closed: why it takes no grants, None where it does.
        lasts: it is there whoever holds it; else its holders' claims alone tell of it.
    """

    id: str
    minor: int | None
    healthy: bool = True
    closed: str | None = None
    holders: tuple[HolderNow, ...] = ()
    capacity_percent: int = WHOLE_PERCENT
    lasts: bool = True

    @property
    def level_percent(self) -> int:
        """Return what is held of it, 0..100."""
        held = sum(holder.level_percent for holder in self.holders)
        return min(WHOLE_PERCENT, held * WHOLE_PERCENT // (self.capacity_percent or WHOLE_PERCENT))

    @property
    def by_memory(self) -> bool:
        """Tell whether it has holders and none of them asked for core."""
        return bool(self.holders) and not any(holder.core_percent for holder in self.holders)

    @property
    def is_good(self) -> bool:
        """Tell whether it could be given to somebody."""
        return self.healthy and self.closed is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """
    A Pod that holds cards of a node, and nobody knows which.

    Attributes:
        amount: of `unit`, a resource name or, where its request is not known, a device type.
        cards: how many cards that is: exactly so many, all to itself, where `is_counted` and
            these are whole, else so many at least, and others may be on them too.
        percent: what it counts as, of which a whole card is 100; None = whole cards.
    """

    namespace: str
    name: str
    uid: str
    amount: int
    unit: str
    cards: int = 1
    is_counted: bool = True
    percent: int | None = None

    @property
    def level_percent(self) -> int:
        """Return what it counts as: whole cards, where nobody can say less."""
        return WHOLE_PERCENT * self.cards if self.percent is None else self.percent

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """
    What a node offers of one resource, and what the Pods on it ask of it together.

    Attributes:
        is_least: of some Pods nobody can say what they ask of it.
    """

    allocatable: int
    held: int
    is_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CardGroup:
    """
    Like cards of one node.

    Attributes:
        device_type: `gpu`, or the type of what is no card, of which no sum is made.
        system: who hands them out, such as `nvidia`, `hami` or `koordinator`.
        memory_mib: of each; None = nobody said.
        cards: physical ones.
        free: healthy and without a holder.
        gettable: whole ones that a Pod which tolerates nothing could get there now.
        held: cards of which somebody has something, where `devices` and `unplaced` don't say how
            many that is.
        is_inventoried: its devices are in the node's inventory, as far as they are healthy.
    """

    device_type: str
    system: str
    model: str
    memory_mib: int | None
    mode: Mode
    cards: Many
    free: Many
    gettable: Many
    units: Mapping[str, Units] = field(default_factory=dict)
    devices: tuple[DeviceNow, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    held: Many | None = None
    is_inventoried: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """
    One node.

    Attributes:
        closed_because: why no Pod that tolerates nothing gets there; empty where one may.
        groups: GPUs first.
        not_looked_at: resources that it offers and nobody here understands.
        sums: cards, free and gettable of all its cards together, where its groups don't say it.
    """

    name: str
    uid: str = ""
    closed_because: tuple[str, ...] = ()
    groups: tuple[CardGroup, ...] = ()
    not_looked_at: Mapping[str, Units] = field(default_factory=dict)
    sums: Sums | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether a Pod that tolerates nothing may go there."""
        return not self.closed_because


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """How many cards there are, are free, and could be got."""

    cards: Many = NONE
    free: Many = NONE
    gettable: Many = NONE

    def __add__(self, other: Sums) -> Sums:
        """Return both together."""
        return Sums(
            cards=self.cards + other.cards,
            free=self.free + other.free,
            gettable=self.gettable + other.gettable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Double:
    """A device of which more is held than it has; `holders` as `namespace/name`."""

    node: str
    id: str
    minor: int | None
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradicted:
    """What one object says wrongly, or against another one; `object` is its kind and name."""

    object: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """
    The cards of a cluster at one moment.

    Attributes:
        is_part: only what some hold, of which nobody can say what became of the cards.
    """

    nodes: tuple[NodeNow, ...] = ()
    double: tuple[Double, ...] = ()
    contradictions: tuple[Contradicted, ...] = ()
    is_part: bool = False

    @property
    def summary(self) -> Sums:
        """Return the sums over all nodes, of cards alone."""
        return sum((sums_of(node) for node in self.nodes), Sums())

    @property
    def parts(self) -> Parts:
        """Return what became of the cards, of as many as there are at least."""
        return sum(map(parts_of, self.nodes), Parts())


def sums_of(node: NodeNow) -> Sums:
    """Return the sums over one node, of cards alone."""
    if node.sums is not None:
        return node.sums
    return sums_over(gpu_groups(node))


def sums_over(groups: Iterable[CardGroup]) -> Sums:
    """Return the sums over groups of a node; a Pod may hold cards of either of one system's."""
    systems: dict[tuple[str, bool], list[CardGroup]] = {}
    for group in groups:
        systems.setdefault((group.system, group.held is None), []).append(group)
    total = Sums()
    for (_, is_named), some in systems.items():
        unplaced = _unplaced_in(some)
        if is_named and len(some) > 1 and unplaced:
            devices = [card for group in some for card in group.devices]
            can_be_got = any(group.gettable != NONE for group in some)
            total += Sums(
                cards=exactly(len(devices)),
                free=free_of(devices, unplaced),
                gettable=gettable_of(devices, unplaced) if can_be_got else NONE,
            )
        else:
            for each in some:
                total += Sums(cards=each.cards, free=each.free, gettable=each.gettable)
    return total


def regrouped(
    group: CardGroup,
    devices: Sequence[DeviceNow],
    unplaced: Sequence[Unplaced],
    units: Mapping[str, Units],
) -> CardGroup:
    """Return a group with other cards, or other Pods on cards that nobody can name."""
    return replace(
        group,
        devices=tuple(devices),
        unplaced=tuple(unplaced),
        units=units,
        cards=exactly(len(devices)),
        free=free_of(devices, unplaced),
        gettable=gettable_of(devices, unplaced) if group.gettable != NONE else NONE,
        held=None,
    )


def gpu_groups(node: NodeNow) -> tuple[CardGroup, ...]:
    """Return the groups of a node that are cards."""
    return tuple(group for group in node.groups if group.device_type == TYPE_GPU)


def cards_of(group: CardGroup) -> tuple[DeviceNow, ...]:
    """Return the devices of a group; one that nobody described is like any other."""
    missing = group.cards.least - len(group.devices)
    return (*group.devices, *[DeviceNow(id="", minor=None)] * max(0, missing))


def of_others(picture: Picture) -> dict[str, list[HolderNow]]:
    """Return UID of a Pod -> what it holds of cards that no inventory has."""
    found: dict[str, list[HolderNow]] = {}
    for node in picture.nodes:
        for group in gpu_groups(node):
            for device in () if group.is_inventoried else group.devices:
                for holder in device.holders:
                    found.setdefault(holder.uid, []).append(holder)
    return found


def unplaced_on(node: NodeNow) -> tuple[Unplaced, ...]:
    """Return the Pods that hold cards of a node which nobody can name, of each resource once."""
    return _unplaced_in(gpu_groups(node))


def _unplaced_in(groups: Iterable[CardGroup]) -> tuple[Unplaced, ...]:
    found = (pod for group in groups for pod in group.unplaced)
    return tuple({(pod.uid, pod.path, pod.unit): pod for pod in found}.values())


def unplaced_cards(node: NodeNow) -> int:
    """Return how many cards they hold together, as far as the node has as many."""
    devices = [card for group in gpu_groups(node) for card in cards_of(group)]
    idle = sum(1 for card in devices if not card.holders)
    return min(idle or len(devices), sum(pod.cards for pod in unplaced_on(node)))


def held_cards(node: NodeNow) -> Many:
    """Return how many cards of a node somebody holds, whole or in part, known which or not."""
    told = [group.held for group in gpu_groups(node) if group.held is not None]
    groups = [group for group in gpu_groups(node) if group.held is None]
    devices = [card for group in groups for card in cards_of(group)]
    named = sum(1 for card in devices if card.holders)
    unplaced = sum(pod.cards for pod in _unplaced_in(groups))
    return sum(told, exactly(min(len(devices), named + unplaced)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """
    What became of cards at one moment, in percent of a card.

    Rule: docs/audit.md, "What became of a card", as `audit_capacity` says it over time.
    """

    allocated: int = 0
    stranded: int = 0
    idle: int = 0
    closed: int = 0

    @property
    def capacity(self) -> int:
        """Return what the cards have together."""
        return self.allocated + self.stranded + self.idle + self.closed

    def __add__(self, other: Parts) -> Parts:
        """Return both together."""
        return Parts(
            allocated=self.allocated + other.allocated,
            stranded=self.stranded + other.stranded,
            idle=self.idle + other.idle,
            closed=self.closed + other.closed,
        )


def parts_of(node: NodeNow) -> Parts:
    """
    Return what became of a node's cards; a lost node has none.

    Cards that nobody can name are idle ones as far as there are, then what is left of others, among
    those that an inventory has, or among the others.
    """
    if LOST in node.closed_because:
        return Parts()
    return sum(map(_parts_in, _by_inventory(node)), Parts())


def _by_inventory(node: NodeNow) -> tuple[list[CardGroup], list[CardGroup]]:
    """Return the groups of cards that an inventory has, and of the others."""
    groups = gpu_groups(node)
    ours = [each for each in groups if each.is_inventoried]
    return ours, [each for each in groups if not each.is_inventoried]


def _parts_in(groups: Sequence[CardGroup]) -> Parts:
    named = sum((_part(card) for group in groups for card in cards_of(group)), start=Parts())
    left = sum(pod.level_percent for pod in _unplaced_in(groups))
    return Parts(**with_unnamed(asdict(named), left))


def with_unnamed(parts: dict[str, int], percent: int) -> dict[str, int]:
    """Return parts where so much more is held of cards that nobody can name, idle ones first."""
    found, left = dict(parts), percent
    for name in ("idle", "stranded", "closed", "unknown"):
        taken = min(left, found.get(name, 0))
        if taken:
            found[name] -= taken
            found["allocated"] += taken
            left -= taken
    return found


def counted_percent(picture: Picture) -> dict[str, Fraction]:
    """
    Return Pod UID -> what it counts of cards, in percent of one, of Pods that hold any.

    Rule: docs/audit.md, GPU-hours.
    """
    found: dict[str, Fraction] = {}
    for node in picture.nodes:
        if LOST in node.closed_because:
            continue
        for groups in _by_inventory(node):
            for uid, part in _counted_in(groups):
                found[uid] = found.get(uid, Fraction()) + part
    return found


def _counted_in(groups: Sequence[CardGroup]) -> Iterator[tuple[str, Fraction]]:
    room = 0
    for card in (card for group in groups for card in cards_of(group)):
        holders = [holder for holder in card.holders if not holder.lost]
        room += card.capacity_percent - _allocated(card)
        parts = shared_out([each.level_percent for each in holders], card.capacity_percent)
        yield from zip((each.uid for each in holders), parts, strict=True)
    pods = _unplaced_in(groups)
    parts = shared_out([pod.level_percent for pod in pods], room)
    yield from zip((pod.uid for pod in pods), parts, strict=True)


def shared_out(asked: Sequence[int], room: int) -> list[Fraction]:
    """Return everybody's part of what there is: what he asked, or as much less as there is less."""
    together = max(1, room, sum(asked))
    return [Fraction(each) * (room if sum(asked) > room else together) / together for each in asked]


def _part(card: DeviceNow) -> Parts:
    held = _allocated(card)
    left = card.capacity_percent - held
    is_good = card.is_good or card.closed in {CLAIMED_TWICE, OVER_HELD}
    if not is_good or any(holder.lost for holder in card.holders):
        return Parts(allocated=held, closed=left)
    return Parts(allocated=held, stranded=left) if card.holders else Parts(idle=left)


def _allocated(card: DeviceNow) -> int:
    held = sum(holder.level_percent for holder in card.holders if not holder.lost)
    return min(card.capacity_percent, held)


def group_of(
    *,
    system: str,
    devices: Sequence[DeviceNow],
    is_open: bool,
    mode: Mode = "whole",
    model: str = "",
    memory_mib: int | None = None,
    units: Mapping[str, Units] | None = None,
    unplaced: Sequence[Unplaced] = (),
    device_type: str = TYPE_GPU,
    is_inventoried: bool = True,
) -> CardGroup:
    """Return a group of like devices that are all known, with what is free and what can be got."""
    return CardGroup(
        device_type=device_type,
        system=system,
        model=model,
        memory_mib=memory_mib,
        mode=mode,
        cards=exactly(len(devices)),
        free=free_of(devices, unplaced),
        gettable=gettable_of(devices, unplaced) if is_open else NONE,
        units=dict(units or {}),
        devices=tuple(devices),
        unplaced=tuple(unplaced),
        is_inventoried=is_inventoried,
    )


def free_of(devices: Sequence[DeviceNow], unplaced: Sequence[Unplaced]) -> Many:
    """
    Return how many of the devices are healthy and without a holder.

    Whoever is counted has cards of his own, and one that fails may be his. Whoever is not may share
    a card with somebody, where there is one that is held in part.
    """
    idle = [device for device in devices if not device.holders]
    good = sum(1 for device in idle if device.healthy)
    sick = len(idle) - good
    alone, together, apart = _unplaced_cards(devices, unplaced)
    return Many(
        least=max(0, good - alone - apart),
        most=max(0, good - max(0, alone + together - sick)),
    )


def gettable_of(devices: Sequence[DeviceNow], unplaced: Sequence[Unplaced]) -> Many:
    """
    Return how many of the devices somebody could get whole on a node that takes him.

    Rule: kube-scheduler's: of what is offered, so of healthy ones, less what is held, wherever.
    """
    idle = sum(1 for device in devices if device.is_good and not device.holders)
    alone, together, apart = _unplaced_cards(devices, unplaced)
    return Many(least=max(0, idle - alone - apart), most=max(0, idle - alone - together))


def _unplaced_cards(
    devices: Sequence[DeviceNow], unplaced: Sequence[Unplaced]
) -> tuple[int, int, int]:
    """
    Return how many cards are held by count, and how many beside them at least and at most.

    Those who are not counted share their cards with one another, or with holders of parts.
    """
    alone = sum(each.cards for each in unplaced if each.is_counted)
    others = [each.cards for each in unplaced if not each.is_counted]
    shared = any(device.holders and device.level_percent < WHOLE_PERCENT for device in devices)
    return alone, 0 if shared else max(others, default=0), sum(others)


def held_alone(picture: Picture, sees: Callable[[str], bool]) -> Picture:
    """Return the cards that somebody of these namespaces holds, and nothing of what is free."""
    nodes = []
    for node in picture.nodes:
        groups = [_held_alone(group, sees) for group in node.groups]
        kept = tuple(group for group in groups if group.devices or group.unplaced)
        if kept:
            nodes.append(replace(node, groups=kept, sums=None, not_looked_at={}))
    whose = {f"Node {node.name}" for node in picture.nodes} - {
        f"Node {node.name}" for node in nodes
    }
    said = tuple(each for each in picture.contradictions if each.object not in whose)
    return replace(picture, nodes=tuple(nodes), contradictions=said, is_part=True)


def _held_alone(group: CardGroup, sees: Callable[[str], bool]) -> CardGroup:
    seen = [
        replace(card, holders=tuple(each for each in card.holders if sees(each.namespace)))
        for card in group.devices
    ]
    devices = tuple(card for card in seen if card.holders)
    unplaced = tuple(each for each in group.unplaced if sees(each.namespace))
    cards = len(devices) + sum(each.cards for each in unplaced)
    return replace(
        group,
        devices=devices,
        unplaced=unplaced,
        cards=exactly(cards),
        free=NONE,
        gettable=NONE,
        units={},
    )
