"""The cluster at one moment: from a ledger's rows, or from the objects of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.domain.devices import level_percent
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import APP, pod_total
from ledger.domain.log.events import PodObserved, decode_event
from ledger.domain.nodes import NodeFacts
from ledger.domain.quantity import parse_quantity
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.resources import TYPE_GPU, WHOLE_CARD_NAMES
from ledger.store.reading.report_rows import Device, HealthRow, HolderRow, Node, UnknownRow
from scheduler.usage.model import WHOLE, CardNow, MappedNode

GONE: Final = "gone"
"""The closed reason of a device that left its node; another may have its minor now."""

DeviceKey = tuple[str, str, int]
"""Node UID, device type, minor."""


@dataclass(slots=True)
class _Held:
    """What is held of one device so far."""

    percent: int = 0
    tenants: int = 0
    core_asked: bool = False

    def add(self, core_percent: int, memory_ratio_percent: int) -> None:
        self.percent += level_percent(core_percent, memory_ratio_percent)
        self.tenants += 1
        self.core_asked = self.core_asked or core_percent > 0

    def card(self, key: tuple[str, int], model: str, capacity: int, *, closed: bool) -> CardNow:
        return CardNow(
            device_type=key[0],
            minor=key[1],
            model=model,
            level_percent=min(WHOLE, self.percent * WHOLE // (capacity or WHOLE)),
            by_memory=self.tenants > 0 and not self.core_asked,
            tenants=self.tenants,
            unhealthy=closed,
        )


_NOTHING = _Held()


def cluster_now_of_ledger(
    nodes: Iterable[Node],
    devices: Iterable[Device],
    holders: Iterable[HolderRow],
    closed: Mapping[DeviceKey, str],
    unknown: Iterable[UnknownRow],
) -> tuple[MappedNode, ...]:
    """
    Return the nodes of a ledger at the moment that `holders` and `unknown` were asked for.

    `closed` names the devices that take no grants then, with the reason.
    """
    nodes, devices = list(nodes), [each for each in devices if each.closed_reason != GONE]
    places = places_of(devices)
    held: dict[DeviceKey, _Held] = {}
    for holder in holders:
        if holder.device_type is not None and holder.minor is not None:
            key = (holder.node_uid, holder.device_type, holder.minor)
            share = held.setdefault(places.get(holder.device_no or 0, key), _Held())
            share.add(holder.core_percent, holder.memory_ratio_percent)
    cards: dict[str, list[CardNow]] = {}
    for device in devices:
        key = (device.node_uid, device.device_type, device.minor)
        card = held.get(key, _NOTHING).card(
            key[1:], device.model, device.core_capacity_percent, closed=key in closed
        )
        cards.setdefault(device.node_uid, []).append(card)
    machines = {node.node_uid: node.machine_no or node.node_uid for node in nodes}
    strangers: dict[int | str, list[PodObserved]] = {}
    for row in unknown:
        event = decode_event(PodObserved.event_type, row.body)
        assert isinstance(event, PodObserved), row
        strangers.setdefault(machines[row.node_uid], []).append(event)
    return tuple(
        _node(
            node.node_name,
            cards.get(node.node_uid, []),
            strangers.get(machines[node.node_uid], []),
        )
        for node in nodes
    )


def places_of(devices: Iterable[Device]) -> dict[int, DeviceKey]:
    """
    Return where devices are now, by number.

    Rule: design section 4, "One account per physical device": a holding is of the device, by
    whichever Node and minor it was given.
    """
    return {
        device.device_no: (device.node_uid, device.device_type, device.minor)
        for device in devices
        if device.device_no
    }


def cluster_now_of_objects(
    nodes: Sequence[NodeFacts], observed: Iterable[PodObserved]
) -> tuple[MappedNode, ...]:
    """Return the nodes of a cluster with what its running Pods hold, in input order."""
    held: dict[DeviceKey, _Held] = {}
    strangers: dict[str, list[PodObserved]] = {}
    for event in observed:
        for share in event.shares:
            key = (event.node_uid, share.device_type, share.minor)
            held.setdefault(key, _Held()).add(share.core_percent, share.memory_ratio_percent)
        strangers.setdefault(event.node_uid, []).append(event)
    return tuple(
        _node(
            node.name,
            [
                held.get((node.uid, *device.key), _NOTHING).card(
                    device.key, device.model, device.core_percent, closed=not device.healthy
                )
                for device in node.devices
            ],
            strangers.get(node.uid, []),
        )
        for node in nodes
    )


def closed_at(changes: Iterable[HealthRow], at_us: int | None) -> dict[DeviceKey, str]:
    """Return the devices that were closed at a moment (None = now), with the reason."""
    closed: dict[DeviceKey, str] = {}
    for change in changes:
        if at_us is not None and change.at_us > at_us:
            continue
        key = (change.node_uid, change.device_type, change.minor)
        if change.healthy:
            closed.pop(key, None)
        else:
            closed[key] = change.reason
    return closed


def unknown_cards(event: PodObserved) -> int:
    """
    Return how many cards a Pod holds that nobody can name: as many as it asked for, whole.

    Rule: design section 3, the whole Pod's request, where the event has no number of its own.

    At least 1 for a Pod on an unknown card, 0 for any other.
    """
    if TYPE_GPU not in event.unknown_types:
        return 0
    asked = _whole_cards(event.snapshot)
    named = sum(1 for share in event.shares if share.device_type == TYPE_GPU)
    return event.counted.get(TYPE_GPU) or max(1, asked - named)


def _whole_cards(snapshot: PodSnapshot) -> int:
    kinds = snapshot.kinds
    cards = dict.fromkeys(kinds, 0)  # in starting order
    for key, amount in snapshot.original.items():
        container, _, resource = key.partition(".")
        if resource in WHOLE_CARD_NAMES:
            cards[container] = cards.get(container, 0) + _count(amount)
    parts = ((kinds.get(name, APP), {TYPE_GPU: count}) for name, count in cards.items())
    return pod_total(parts).get(TYPE_GPU, 0)


def _count(amount: str) -> int:
    try:
        return max(0, parse_quantity(amount).ceil())
    except InputError:
        return 0


def _node(name: str, cards: Sequence[CardNow], observed: Sequence[PodObserved]) -> MappedNode:
    cards = sorted(
        cards, key=lambda card: (card.device_type != TYPE_GPU, card.device_type, card.minor)
    )
    strangers = [event for event in observed if unknown_cards(event)]
    free = sum(1 for card in cards if card.device_type == TYPE_GPU and not card.tenants)
    return MappedNode(
        name=name,
        cards=tuple(cards),
        unknown_holders=tuple(f"{event.namespace}/{event.pod_name}" for event in strangers),
        unknown_cards=min(free or len(cards), sum(unknown_cards(event) for event in strangers)),
    )
