"""Who holds cards that no inventory has, each by where its holding stands in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.resources import TYPE_GPU
from ledger.store.reading.report_rows import Device, HealthRow, HoldingRow, Span, UnplacedRow
from scheduler.usage.cluster_now import MIB
from scheduler.usage.machines import DeviceKey
from scheduler.usage.picture import (
    CardGroup,
    DeviceNow,
    HolderNow,
    NodeNow,
    Picture,
    Unplaced,
    cards_of,
    gpu_groups,
)
from scheduler.usage.plugins import is_cut, plugged
from scheduler.usage.unplaced import Unlisted

POSITION: Final = "\0@"
"""What stands before a position that is a UID: no object has such a one."""
ALONE: Final = 0
"""In place of a position, of what a claim holds and no Pod tells of."""
_AWAY: Final = "allocated to a claim whose Pods do not run"
_NOT_TOLD: Final = "no slice lists it, and no claim tells of it"
_Keys = dict[tuple[str, int], list[DeviceKey]]
"""Node UID and place of a group among the node's -> its cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfOthers:
    """
    One holding of cards that no inventory has, opened by the event at `position`.

    Attributes:
        node: UID.
        number: place of `group` among the node's groups.
        place: of its device in the group; None where nobody knows which.
    """

    position: int
    node: str
    number: int
    group: CardGroup
    place: int | None
    holder: HolderNow | Unplaced

    @property
    def device(self) -> DeviceNow | None:
        """Return its device; None where nobody knows which."""
        return None if self.place is None else self.group.devices[self.place]


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersRows:
    """
    Cards that no inventory has, and what was held of them, as rows like those of a ledger.

    Attributes:
        devices: of these nodes, those of the inventory with the others.
        nodes: UIDs of the nodes that have such cards.
        apart: the keys of the cards that no inventory has; `given`: of those that others hand out,
            not of ill ones that NVIDIA's plugin withholds.
        used: all that was held, with its model: what hours are counted by.
        passing: the keys of cards that are there only while somebody holds them; `absent`: when
            they are not.
    """

    nodes: AbstractSet[str] = frozenset()
    devices: Sequence[Device] = ()
    health: Sequence[HealthRow] = ()
    holdings: Sequence[HoldingRow] = ()
    unplaced: Sequence[Unlisted] = ()
    apart: AbstractSet[DeviceKey] = frozenset()
    given: AbstractSet[DeviceKey] = frozenset()
    used: Sequence[Unlisted] = ()
    passing: AbstractSet[DeviceKey] = frozenset()
    absent: Sequence[HealthRow] = ()


def rows_of_others(
    picture: Picture, opened: Mapping[int, UnplacedRow], devices: Sequence[Device], since: Span
) -> OthersRows:
    """
    Return the cards of a picture as rows; they have been there, and closed, from the beginning.

    Args:
        picture: of all nodes that have such cards, with all who ever held any.
        opened: where a holding begins -> its row.
    """
    kept, health, keys = _cards(picture, devices, since)
    holdings, unplaced, used = _held(picture, opened, keys)
    passing = frozenset(
        key
        for node in picture.nodes
        for number, group in enumerate(gpu_groups(node))
        for key, card in zip(keys.get((node.uid, number), ()), cards_of(group), strict=False)
        if not card.lasts
    )
    return OthersRows(
        nodes=frozenset(node.uid for node in picture.nodes),
        devices=kept,
        health=health,
        holdings=holdings,
        unplaced=unplaced,
        apart=frozenset(key for some in keys.values() for key in some),
        given=frozenset(
            key
            for node in picture.nodes
            for number, group in enumerate(gpu_groups(node))
            if not group.is_inventoried
            for key in keys.get((node.uid, number), ())
        ),
        used=used,
        passing=passing,
        absent=[row for key in sorted(passing) for row in _absences(key, holdings, since)],
    )


def _absences(key: DeviceKey, holdings: Iterable[HoldingRow], since: Span) -> Iterator[HealthRow]:
    """Yield when a card was not there, of those that are there only while somebody holds them."""
    edges = [(since.first_at_us, 1, 0)]
    for row in holdings:
        if (row.node_uid, row.device_type, row.minor) == key:
            edges.append((row.opened_at_us, row.position, 1))
            if row.closed_at_us is not None and row.closed_position is not None:
                edges.append((row.closed_at_us, row.closed_position, -1))
    holders = 0
    for at_us, position, change in sorted(edges):
        before, holders = holders, holders + change
        if bool(before) != bool(holders) or not change:
            yield HealthRow(
                position=position,
                at_us=at_us,
                node_uid=key[0],
                device_type=key[1],
                minor=key[2],
                healthy=bool(holders),
                reason="" if holders else _NOT_TOLD,
            )


def _cards(
    picture: Picture, devices: Sequence[Device], since: Span
) -> tuple[list[Device], list[HealthRow], _Keys]:
    """Return the devices of these nodes, which of them are closed, and the keys of the others'."""
    kept: list[Device] = []
    health: list[HealthRow] = []
    by_node: dict[str, list[Device]] = {}
    for device in devices:
        by_node.setdefault(device.node_uid, []).append(device)
    keys: _Keys = {}
    for node in picture.nodes:
        groups = gpu_groups(node)
        mine = by_node.get(node.uid, [])
        if groups and not any(group.is_inventoried for group in groups):
            # what is inventoried there are units, and no cards
            mine = [each for each in mine if each.device_type != TYPE_GPU or each.device_id]
        kept += mine
        taken = {each.minor for each in mine if each.device_type == TYPE_GPU}
        for number, group in enumerate(groups):
            cards = [
                card
                for card in cards_of(group)
                if not (group.is_inventoried and card.minor in taken)
            ]
            for card in cards:
                row = _device(node, group, card, max(taken, default=-1) + 1)
                taken.add(row.minor)
                kept.append(row)
                key = (node.uid, TYPE_GPU, row.minor)
                keys.setdefault((node.uid, number), []).append(key)
                if not card.is_good or any(holder.lost for holder in card.holders):
                    health.append(
                        HealthRow(
                            position=1,
                            at_us=since.first_at_us,
                            node_uid=node.uid,
                            device_type=TYPE_GPU,
                            minor=row.minor,
                            healthy=False,
                            reason=card.closed or _AWAY,
                        )
                    )
    return kept, health, keys


def _held(
    picture: Picture, opened: Mapping[int, UnplacedRow], keys: _Keys
) -> tuple[list[HoldingRow], list[Unlisted], list[Unlisted]]:
    """Return who held which card, who held some that nobody can name, and both for their hours."""
    holdings: list[HoldingRow] = []
    used: list[Unlisted] = []
    unplaced: dict[tuple[int, str], Unlisted] = {}
    for each in others_of(picture):
        told, holder = opened.get(each.position), each.holder
        if told is None:
            continue
        among = tuple(keys.get((each.node, each.number), ()))
        held = Unlisted(
            row=told,
            cards=1,
            percent=holder.level_percent,
            model=each.group.model,
            among=among,
            card=None if each.place is None else among[each.place],
        )
        if isinstance(holder, HolderNow):
            assert held.card is not None, each
            holdings.append(_holding(told, held.card, holder))
            used.append(held)
            continue
        held = replace(held, cards=holder.cards)
        before = unplaced.get((each.position, holder.unit))
        if before is not None:  # one holding, of cards of several models
            model = held.model if held.model == before.model else ""
            held = replace(before, model=model, among=(*before.among, *among))
        unplaced[each.position, holder.unit] = held
    return holdings, [*unplaced.values()], [*used, *unplaced.values()]


def _device(node: NodeNow, group: CardGroup, card: DeviceNow, minor: int) -> Device:
    return Device(
        node_uid=node.uid,
        node_name=node.name,
        device_type=TYPE_GPU,
        minor=minor,
        device_id=card.id,
        model=group.model,
        core_capacity_percent=card.capacity_percent,
        memory_capacity_bytes=(group.memory_mib or 0) * MIB,
        core_used_percent=0,
        memory_used_bytes=0,
        tenants=len(card.holders),
        healthy=card.healthy,
        closed_reason=card.closed or "",
    )


def _holding(row: UnplacedRow, key: DeviceKey, holder: HolderNow) -> HoldingRow:
    core = holder.core_percent or 0
    return HoldingRow(
        position=row.position,
        node_uid=key[0],
        device_type=key[1],
        minor=key[2],
        namespace=row.namespace,
        pod_name=row.pod_name,
        pod_uid=row.pod_uid,
        core_percent=core,
        memory_bytes=(holder.memory_mib or 0) * MIB,
        memory_ratio_percent=0 if core else holder.level_percent,
        exclusive=int(holder.whole),
        kind="observed",
        policy="",
        end_reason=row.end_reason,
        opened_at_us=row.opened_at_us,
        closed_at_us=row.closed_at_us,
        closed_position=row.closed_position,
        counted_until_us=row.counted_until_us,
    )


def has_others(facts: RecordedNode, labels: Mapping[str, str]) -> bool:
    """Tell whether a node has cards that no inventory has, or units that are no cards."""
    systems = facts.systems
    if systems.cards or systems.claims or systems.capacity or systems.unread:
        return True
    if facts.dialects is None:
        return False
    return is_cut(plugged(systems, labels, facts.dialects))


def others_of(picture: Picture) -> Iterator[OfOthers]:
    """Yield what is held of cards that are not inventoried, of Pods that have a position as UID."""
    for node in picture.nodes:
        for number, group in enumerate(gpu_groups(node)):
            if group.is_inventoried:
                continue
            held: list[tuple[int | None, HolderNow | Unplaced]] = [
                (place, holder)
                for place, device in enumerate(group.devices)
                for holder in device.holders
            ]
            held += ((None, pod) for pod in group.unplaced)
            for place, holder in held:
                is_alone = isinstance(holder, HolderNow) and bool(holder.state)
                if is_alone or holder.uid.startswith(POSITION):
                    yield OfOthers(
                        position=ALONE if is_alone else int(holder.uid.removeprefix(POSITION)),
                        node=node.uid,
                        number=number,
                        group=group,
                        place=place,
                        holder=holder,
                    )
