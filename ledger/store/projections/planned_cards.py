"""The places of planned groups as rows: which cards wait for whom, and when that ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from ledger.domain.devices import GPU
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import GroupPlanned, PlannedMember
from ledger.store import schema
from ledger.store.projections.inventory import KnownDevice, KnownNode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCardRow:
    """One open row of `ledger_planned_cards`."""

    position: int
    device_no: int
    node_uid: str
    group: str
    pod_uid: str


class PlannedCardRows:
    """The open places, one per card."""

    def __init__(self, places: Iterable[PlannedCardRow] = ()) -> None:
        self._by_device = {place.device_no: place for place in places}

    def close_group(self, group: str) -> list[PlannedCardRow]:
        """Forget the places of a group, and return them."""
        return self._close([each for each in self._by_device.values() if each.group == group])

    def close_pod(self, pod_uid: str, node_uid: str) -> list[PlannedCardRow]:
        """Forget the places that wait for a Pod on a node, and return them."""
        taken = (pod_uid, node_uid)
        found = [e for e in self._by_device.values() if (e.pod_uid, e.node_uid) == taken]
        return self._close(found)

    def open(
        self, position: int, event: GroupPlanned, nodes: Mapping[str, KnownNode]
    ) -> list[PlannedCardRow]:
        """
        Remember the places of a plan, and return them in the order of their cards.

        Raises:
            CapacityError: a card is not there, or named twice.
        """
        found: dict[int, PlannedCardRow] = {}
        for member, device in _cards(event, nodes):
            if device.number in found:
                fact = f"pod_uid={member.pod_uid}, node_uid={member.node_uid}"
                card = f"{GPU}/{device.minor}"
                raise CapacityError(f"the plan names a card twice: {fact}, card={card}")
            found[device.number] = PlannedCardRow(
                position=position,
                device_no=device.number,
                node_uid=member.node_uid,
                group=event.group,
                pod_uid=member.pod_uid,
            )
        self._by_device |= found
        return [found[number] for number in sorted(found)]

    def _close(self, places: list[PlannedCardRow]) -> list[PlannedCardRow]:
        for place in places:
            del self._by_device[place.device_no]
        return places


def _cards(
    event: GroupPlanned, nodes: Mapping[str, KnownNode]
) -> Iterator[tuple[PlannedMember, KnownDevice]]:
    for member in event.members:
        node = nodes.get(member.node_uid)
        for minor in member.whole:
            device = node.listed(GPU, minor) if node else None
            if device is None:
                raise CapacityError(
                    f"no such card: pod={member.namespace}/{member.pod_name},"
                    f" group={event.group}, node_uid={member.node_uid}, card={GPU}/{minor}"
                )
            yield member, device


_place, _node = schema.ledger_planned_cards.c, schema.ledger_nodes.c


def load_places(connection: Connection) -> PlannedCardRows:
    """Return the places that the table has open."""
    columns = (_place.position, _place.device_no, _node.node_uid, _place.group_name, _place.pod_uid)
    query = (
        select(*columns)
        .join_from(schema.ledger_planned_cards, schema.ledger_nodes)
        .where(_place.closed_position.is_(None))
    )
    return PlannedCardRows(
        PlannedCardRow(
            position=position, device_no=number, node_uid=uid, group=group, pod_uid=pod_uid
        )
        for position, number, uid, group, pod_uid in connection.execute(query)
    )
