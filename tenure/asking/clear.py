"""`tenure ledger clear`: what a lost node's Pods held is over, by somebody's word."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Final

from ledger.domain.errors import InputError
from ledger.domain.log.events import ACT, NodeCleared
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state import LOST
from tenure.asking.opening import opened, taken_over

if TYPE_CHECKING:
    from ledger.domain.log.state import NodeState
    from ledger.store.open import Ledger

_HOLDER: Final = "tenure ledger clear"


def answer_clear(*, node: str, reason: str, dry_run: bool, ledger: str | None) -> None:
    """
    Record the act for every lost Node of this name or UID, and say which holders it ends.

    Rule: design section 4, "One account per physical device".

    Raises:
        InputError: no reason, or no Node of that name whose Pods are lost.
    """
    if not reason.strip():
        raise InputError("say who made sure that nothing runs, and how", field="--reason")
    with opened(ledger, mode="read" if dry_run else "write") as source:
        found = _lost(source, node)
        verb = "would end" if dry_run else "ended"
        if not dry_run:
            _record(source, found, reason)
    for state in found:
        for held in state.holdings.values():
            if held.phase == LOST:
                pod = f"pod={held.namespace}/{held.pod_name}, pod_uid={held.pod_uid}"
                sys.stdout.write(f"{verb}: node={state.name}, node_uid={state.uid}, {pod}\n")


def _lost(source: Ledger, node: str) -> list[NodeState]:
    """Return the Nodes of this name or UID with lost holders, in the order of their UIDs."""
    from ledger.store.reading.timetravel import load_state

    nodes = load_state(source).state.nodes
    named = [state for _, state in sorted(nodes.items()) if node in {state.name, state.uid}]
    if not named:
        raise InputError(f"no such node: node={node}")
    found = [s for s in named if any(held.phase == LOST for held in s.holdings.values())]
    if not found:
        raise InputError(f"nothing is held by a lost Pod of this node: node={node}")
    return found


def _record(source: Ledger, found: list[NodeState], reason: str) -> None:
    writer, wall_us = taken_over(source, _HOLDER)
    writer.append(
        [
            NewEvent(
                stream=f"node/{state.uid}",
                event=NodeCleared(
                    node_uid=state.uid, node_name=state.name, evidence=ACT, reason=reason
                ),
                actor=getpass.getuser(),
                idempotency_key=f"clear:{state.uid}:{writer.head.position}",
                wall_us=wall_us,
            )
            for state in found
        ]
    )
