"""`tenure ledger clear`: what a lost node's Pods held is over, by somebody's word."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ledger.domain.errors import InputError
from tenure.opening import opened, taken_over
from tenure.options import LedgerUrl

if TYPE_CHECKING:
    from ledger.domain.log.state import NodeState
    from ledger.store.open import Ledger


_HOLDER: Final = "tenure ledger clear"


def register(group: typer.Typer) -> None:
    """Add the command to `tenure ledger`."""
    group.command("clear")(clear)


def clear(
    *,
    node: Annotated[str, typer.Argument(help="A lost node's name or UID.")],
    reason: Annotated[str, typer.Option("--reason", help="Who made sure that nothing runs, how.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which holders would be ended.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """
    Say that nothing runs any more which a lost node's Pods held: their cards and CPUs open.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger clear gpu-0042 --reason "powered off, ticket 12" --ledger tenure.db
    """
    from ledger.domain.log.state import LOST

    if not reason.strip():
        raise InputError("say who made sure that nothing runs, and how", field="--reason")
    with opened(ledger, mode="read" if dry_run else "write") as source:
        found = _lost(source, node)
        verb = "would end" if dry_run else "ended"
        if not dry_run:
            _record(source, found, reason)
    for state in found:
        for held in state.everyone():
            if held.phase == LOST:
                pod = f"pod={held.namespace}/{held.pod_name}, pod_uid={held.pod_uid}"
                sys.stdout.write(f"{verb}: node={state.name}, node_uid={state.uid}, {pod}\n")


def _lost(source: Ledger, node: str) -> list[NodeState]:
    """Return the Nodes of this name or UID with lost holders, in the order of their UIDs."""
    from ledger.domain.log.state import LOST
    from ledger.store.reading.timetravel import load_state

    nodes = load_state(source).state.nodes
    named = [state for _, state in sorted(nodes.items()) if node in {state.name, state.uid}]
    if not named:
        raise InputError(f"no such node: node={node}")
    found = [s for s in named if any(held.phase == LOST for held in s.everyone())]
    if not found:
        raise InputError(f"nothing is held by a lost Pod of this node: node={node}")
    return found


def _record(source: Ledger, found: list[NodeState], reason: str) -> None:
    import getpass

    from ledger.domain.log.events import ACT, NodeCleared
    from ledger.domain.log.recorded import NewEvent

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
