"""The ledger's fold in the two forms that tests ask for it."""

from __future__ import annotations

from collections.abc import Iterable

from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.state import Folding, LedgerState, NodeState, node_uid_of


def apply(node: NodeState | None, position: int, event: LedgerEvent) -> NodeState | None:
    """Return the state of the node that an event is about behind it; others stay as they are."""
    uid = node_uid_of(event)
    if uid is None:
        return node
    folding = Folding(LedgerState(nodes={} if node is None else {uid: node}))
    folding.add(position, event)
    return folding.state.nodes.get(uid)


def fold(events: Iterable[tuple[int, LedgerEvent]]) -> dict[str, NodeState]:
    """Replay (position, event) pairs in order; return the nodes by UID."""
    folding = Folding()
    for position, event in events:
        folding.add(position, event)
    return dict(folding.state.nodes)
