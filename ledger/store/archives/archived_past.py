"""What the ledger itself still tells of archived events: who held what, chain values, attempts."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from ledger.domain.log.state import NodeState
from ledger.domain.proofs.hashing import GENESIS, chain_hash
from ledger.store import schema
from ledger.store.archives.archived_proof import tile_leaves
from ledger.store.archives.segments import end_of, last_segment

_reservations = schema.ledger_reservations.c


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPast:
    """
    What was before the first event that is in the log.

    Attributes:
        last: the last archived position, 0 for none.
        nodes: the folded nodes there.
        chains: chain values in hex, at the positions that were asked for.
        known: (Pod UID, attempt) of the reservations of the Pods that were asked for.
    """

    last: int = 0
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    chains: Mapping[int, str] = field(default_factory=dict)
    known: AbstractSet[tuple[str, int]] = frozenset()


def archived_past(
    connection: Connection, positions: AbstractSet[int], uids: AbstractSet[str]
) -> ArchivedPast:
    """
    Return what is known of archived events, in the transaction that is open.

    Raises:
        CorruptLedgerError: the segment, its state or a tile is damaged.
    """
    segment = last_segment(connection)
    if segment is None:
        return ArchivedPast()
    query = select(_reservations.pod_uid, _reservations.attempt).where(
        _reservations.position <= segment.last
    )
    known = {(uid, attempt) for uid, attempt in connection.execute(query) if uid in uids}
    chains: dict[int, str] = {}
    if any(position <= segment.last for position in positions):
        value = GENESIS
        for position, leaf in enumerate(tile_leaves(connection, segment.last), 1):
            value = chain_hash(value, leaf)
            if position in positions:
                chains[position] = value.hex()
    return ArchivedPast(
        last=segment.last, nodes=end_of(segment).folded().nodes, chains=chains, known=known
    )
