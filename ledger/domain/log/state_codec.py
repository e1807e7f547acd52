"""
Folded state as one canonical JSON text, and back: what a snapshot stores and commits to.

The same state is the same bytes wherever it was folded: everything without an order of its own is
sorted. A change of the form is a new `FORMAT`; a reader ignores snapshots of forms it doesn't know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ledger.domain.devices import DeviceRecord
from ledger.domain.log.codec import encode_value, read_value
from ledger.domain.log.layouts import read_with_cpus
from ledger.domain.log.planned_cards import PlannedCard
from ledger.domain.log.sharing import Sharing
from ledger.domain.log.state import Amount, Holding, LedgerState, NodeState
from ledger.domain.topology import Cpu

FORMAT: Final = "state.v3"
_PATH: Final = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    key: str
    holding: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cap:
    device_type: str
    minor: int
    device_id: str
    amount: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """`NodeState` with lists in place of its mappings; a test holds the fields together."""

    uid: str
    name: str
    devices: tuple[DeviceRecord, ...]
    cpus: tuple[Cpu, ...]
    cpu_ref_count_max: int
    holdings: tuple[_Held, ...]  # ordered by (opened_position, key)
    caps: tuple[_Cap, ...]  # ordered by unit
    system_uuid: str
    machine_id: str
    boot_id: str
    by_agent: bool
    lost: bool
    claims: tuple[_Held, ...]  # in the same order


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    nodes: tuple[_Node, ...]  # ordered by uid
    planned_cards: tuple[PlannedCard, ...]  # in the order in which they were opened


def encode_state(state: LedgerState) -> str:
    """Return the canonical JSON text of a state."""
    nodes = tuple(_node(state.nodes[uid]) for uid in sorted(state.nodes))
    return encode_value(_State(nodes=nodes, planned_cards=state.planned_cards))


def decode_state(text: str | bytes) -> LedgerState:
    """Return the state that `text` records; bytes are UTF-8. Raises InputError: it is no state."""
    read = read_with_cpus(_State, text, _PATH)
    if read is None or len(read[1]) != len(read[0].nodes):
        wire: _State = read_value(_State, text, _PATH)
        nodes = {node.uid: _folded(node, node.cpus) for node in wire.nodes}
    else:
        wire, layouts = read
        pairs = zip(wire.nodes, layouts, strict=True)
        nodes = {node.uid: _folded(node, cpus) for node, cpus in pairs}
    _share(nodes.values())
    return LedgerState(nodes=nodes, planned_cards=wire.planned_cards)


_HOLDING: Final = (
    "namespace",
    "kind",
    "phase",
    "cpuset",
    "cpu_milli",
    "memory_bytes",
    "holder",
)


def _share(nodes: Iterable[NodeState]) -> None:
    sharing = Sharing()
    for node in nodes:
        for device in node.devices:
            sharing.device(device)
        for held in node.everyone():
            sharing.words(held, *_HOLDING)
            for share in held.shares:
                sharing.share(share)


def state_digest(text: str) -> bytes:
    """Return the SHA-256 of the canonical text: what the log commits to."""
    return hashlib.sha256(text.encode()).digest()


_SAME: Final = tuple(
    item.name for item in fields(NodeState) if item.name not in {"holdings", "claims", "caps"}
)


def _node(node: NodeState) -> _Node:
    same: dict[str, Any] = {name: getattr(node, name) for name in _SAME}
    return _Node(
        holdings=_in_order(node.holdings),
        claims=_in_order(node.claims),
        caps=tuple(
            _Cap(device_type=unit[0], minor=unit[1], device_id=unit[2], amount=node.caps[unit])
            for unit in sorted(node.caps)
        ),
        **same,
    )


def _in_order(held: Mapping[str, Holding]) -> tuple[_Held, ...]:
    ordered = sorted(held.items(), key=lambda item: (item[1].opened_position, item[0]))
    return tuple(_Held(key=key, holding=holding) for key, holding in ordered)


def _folded(node: _Node, cpus: tuple[Cpu, ...]) -> NodeState:
    same: dict[str, Any] = {name: getattr(node, name) for name in _SAME if name != "cpus"}
    return NodeState(
        cpus=cpus,
        holdings={each.key: each.holding for each in node.holdings},
        claims={each.key: each.holding for each in node.claims},
        caps={(each.device_type, each.minor, each.device_id): each.amount for each in node.caps},
        **same,
    )
