"""
What is held by the domain's own fold, against the open rows of the tables.

A replay by the code that wrote the projections would repeat its mistakes; this fold shares none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Select, select

from ledger.domain.devices import DeviceShare
from ledger.domain.log.state import GRANTED, Folding, Holding, LedgerState, NodeState
from ledger.store import schema
from ledger.store.reading.tables import rows_of
from ledger.store.writing.statements import Row

_open = schema.ledger_reservations.c
_node, _device = schema.ledger_nodes.c, schema.ledger_devices.c
_part, _cpu = schema.ledger_holdings.c, schema.ledger_cpu_holdings.c
_slot = schema.ledger_slot_holdings.c

_HOLDERS: Final = (
    select(_open.position, _open.pod_uid, _open.attempt, _node.node_uid, _open.kind, _open.phase)
    .join_from(schema.ledger_reservations, schema.ledger_nodes, _node.node_no == _open.node_no)
    .where(_open.closed_position.is_(None))
)
_SHARES: Final = (
    select(
        _part.position,
        _part.kind,
        _device.device_type,
        _part.minor,
        _device.device_id,
        _part.core_percent,
        _part.memory_bytes,
        _part.exclusive,
    )
    .join_from(schema.ledger_holdings, schema.ledger_devices, _device.device_no == _part.device_no)
    .where(_part.closed_position.is_(None))
)
_CPUS: Final = select(_cpu.position, _cpu.kind, _cpu.cpu).where(_cpu.closed_position.is_(None))
_place = schema.ledger_planned_cards.c
_PLACES: Final = (
    select(_place.position, _node.node_uid, _place.group_name, _place.pod_uid)
    .join_from(schema.ledger_planned_cards, schema.ledger_nodes)
    .where(_place.closed_position.is_(None))
)
_SLOTS: Final = select(_slot.position, _slot.kind, _slot.slot).where(
    _slot.closed_position.is_(None)
)
_NOTHING: Final = LedgerState()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One open holding, in the words that the fold and the tables share."""

    holder: Row  # Pod UID, attempt, node UID, kind, phase
    shares: tuple[Row, ...]
    cpus: tuple[Row, ...]
    slots: tuple[Row, ...]


class HeldByFold:
    """Give it every event in order, then ask for the `differences`."""

    def __init__(self, connection: Connection, state: LedgerState = _NOTHING) -> None:
        self._connection = connection
        self._fold = Folding(state)
        self.add = self._fold.add

    @property
    def state(self) -> LedgerState:
        """What is folded so far."""
        return self._fold.state

    def differences(self) -> Iterator[tuple[int, str]]:
        """
        Yield (position, finding) for every holding that is open on one side only, or otherwise.

        Raises:
            UnreadableError: a table can't be read.
        """
        state = self.state
        folded = _folded(state)
        there = self._recorded(state)
        for position in sorted(folded.keys() | there.keys()):
            must, found = folded.get(position), there.get(position)
            if must is None:
                yield position, f"held in the tables, not by the fold: {found}"
            elif found is None:
                yield position, f"held by the fold, not in the tables: {must}"
            elif must != found:
                yield position, f"what is held is not what the fold says: {found}, fold={must}"
        yield from self._waiting(state)

    def _waiting(self, state: LedgerState) -> Iterator[tuple[int, str]]:
        must = Counter(
            (place.opened_position, place.node_uid, place.group, place.pod_uid)
            for place in state.planned_cards
        )
        found = Counter(self._rows(_PLACES))
        for place in sorted(must.keys() | found.keys()):
            if must[place] != found[place]:
                fact = f"place={place[1:]}, places={found[place]}, fold={must[place]}"
                yield place[0], f"what waits is not what the fold says: {fact}"

    def _recorded(self, state: LedgerState) -> dict[int, _Held]:
        named = {
            holding.opened_position: _named(node, holding)
            for node in state.nodes.values()
            for holding in node.everyone()
        }
        shares: dict[int, list[Row]] = defaultdict(list)
        for position, kind, device_type, minor, device_id, *amounts in self._rows(_SHARES):
            known = (device_type, minor) in named.get(position, ())
            place = (kind, device_type, minor, device_id if known else "")
            shares[position].append((*place, *amounts))
        cpus, slots = self._parts(_CPUS), self._parts(_SLOTS)
        return {
            position: _Held(
                holder=tuple(holder),
                shares=tuple(sorted(shares.get(position, ()))),
                cpus=tuple(sorted(cpus.get(position, ()))),
                slots=tuple(sorted(slots.get(position, ()))),
            )
            for position, *holder in self._rows(_HOLDERS)
        }

    def _parts(self, query: Select[Any]) -> dict[int, list[Row]]:
        parts: dict[int, list[Row]] = defaultdict(list)
        for position, *part in self._rows(query):
            parts[position].append(tuple(part))
        return parts

    def _rows(self, query: Select[Any]) -> Iterator[Row]:
        return rows_of(self._connection, query)


def _folded(state: LedgerState) -> dict[int, _Held]:
    return {
        holding.opened_position: _held(uid, holding, _named(node, holding))
        for uid, node in state.nodes.items()
        for holding in node.everyone()
    }


def _named(node: NodeState, holding: Holding) -> frozenset[tuple[str, int]]:
    """
    Return the places of the shares whose card is told by its id.

    A card without an id may be given one later, and what others hold may be on one nobody knows.
    """
    if holding.kind != GRANTED:
        return frozenset()
    ids = {(device.device_type, device.device_id) for device in node.devices if device.device_id}
    return frozenset(
        share.key for share in holding.shares if (share.device_type, share.device_id) in ids
    )


def _held(node_uid: str, holding: Holding, named: frozenset[tuple[str, int]]) -> _Held:
    kind = holding.kind
    slots = [slot for share in holding.shares for slot in share.vf_bus_ids]
    slots += [f"unknown/{name}" for name in holding.unknown_types]
    return _Held(
        holder=(holding.pod_uid, holding.attempt, node_uid, kind, holding.phase),
        shares=tuple(
            sorted(_share_row(kind, share, named=share.key in named) for share in holding.shares)
        ),
        cpus=tuple((kind, cpu) for cpu in holding.cpuset),
        slots=tuple(sorted((kind, slot) for slot in slots)),
    )


def _share_row(kind: str, share: DeviceShare, *, named: bool) -> Row:
    return (
        kind,
        share.device_type,
        share.minor,
        share.device_id if named else "",
        share.core_percent,
        share.memory_bytes,
        int(share.exclusive),
    )
