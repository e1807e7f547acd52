"""
`tenure ledger void`, `withdraw`, `correct-time` and `clear`: say what a ledger has wrong.

Each takes the ledger over and records one act; `clear` is a live service's act where one runs. What
was recorded before stays.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.domain.bounds import bounds_of
from ledger.domain.errors import InputError
from tenure.keys import public_key
from tenure.live.place import Place, asks
from tenure.opening import opened, taken_over
from tenure.options import LedgerUrl
from tenure.times import iso_time

if TYPE_CHECKING:
    from ledger.domain.log.state import NodeState
    from ledger.store.open import Ledger

_SHIFT_MIN, _SHIFT_MAX = bounds_of("shift_seconds")


def void(
    *,
    position: Annotated[int, typer.Argument(min=1, help="Of an event that `verify` names.")],
    reason: Annotated[str, typer.Option("--reason", help="Who found it, and why it can't be.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say whether the event may be declared void.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """
    Declare an event void that `verify` names as impossible. It stays in the log.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger void 4711 --reason "put in by hand, see ticket 12" --ledger tenure.db
    """
    from ledger.store.mending.voiding import declare_void, impossible_event

    with opened(ledger, mode="read" if dry_run else "write") as source:
        event = impossible_event(source, position)
        for finding in event.findings:
            sys.stdout.write(f"{finding}\n")
        if dry_run:
            sys.stdout.write(f"would be void: position={position}, {event.event_type}\n")
            return
        writer, wall_us = taken_over(source, "tenure ledger void")
        at = declare_void(writer, event, reason, wall_us=wall_us)
    sys.stdout.write(f"void: position={position}, {event.event_type}, by the event at {at}\n")


def withdraw(
    *,
    size: Annotated[int, typer.Argument(min=0, help="Of a kept checkpoint that `verify` names.")],
    reason: Annotated[str, typer.Option("--reason", help="Who found it, and why it is false.")],
    public_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--public-key",
            metavar="VKEY",
            help="A key that is trusted, or its file; again for another. None of them signed it.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say whether it may be withdrawn.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """
    Withdraw a checkpoint that the ledger keeps and its events do not bear out. It stays there.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger withdraw 300 --public-key cluster-1.pub --reason "put in, ticket 12"
    """
    from ledger.store.mending.voiding import false_checkpoint, withdraw

    trusted = [public_key(text) for text in public_keys or ()]
    with opened(ledger, mode="read" if dry_run else "write") as source:
        found = false_checkpoint(source, size, trusted)
        for finding in found.findings:
            sys.stdout.write(f"{finding}\n")
        if dry_run:
            sys.stdout.write(f"would be withdrawn: the checkpoint of size {size}\n")
            return
        writer, wall_us = taken_over(source, "tenure ledger withdraw")
        at = withdraw(writer, found, reason, wall_us=wall_us)
    sys.stdout.write(f"withdrawn: the checkpoint of size {size}, by the event at {at}\n")


def correct_time(
    *,
    first: Annotated[int, typer.Option("--first", min=1, help="First position with a wrong time.")],
    last: Annotated[int, typer.Option("--last", min=1, help="Last position of that clock.")],
    shift: Annotated[
        int,
        typer.Option(
            "--shift",
            min=_SHIFT_MIN,
            max=_SHIFT_MAX,
            help="Seconds to add to what the clock said; below 0 for one that was ahead.",
        ),
    ],
    reason: Annotated[str, typer.Option("--reason", help="Who found it, and how far it was off.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which times these would be.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """
    Say when events really were that a wrong clock recorded. Their recorded times stay.

    What comes behind them counts by its own clock. Takes the ledger over: a process that writes it
    meanwhile is fenced.

    Example: tenure ledger correct-time --first 12 --last 12 --shift -31536000 --reason "ticket 12"
    """
    from ledger.domain.log.events import TimeCorrected
    from ledger.store.mending.correcting import check_correction, correct

    event = TimeCorrected(first=first, last=last, shift_seconds=shift, reason=reason)
    with opened(ledger, mode="read" if dry_run else "write") as source:
        from_us, to_us = check_correction(source, event)
        what = f"positions {first} to {last}, from {iso_time(from_us)} to {iso_time(to_us)}"
        if dry_run:
            sys.stdout.write(f"would be corrected: {what}\n")
            return
        writer, wall_us = taken_over(source, "tenure ledger correct-time")
        at = correct(writer, event, wall_us=wall_us)
    sys.stdout.write(f"corrected: {what}, by the event at {at}\n")


@asks(but=("namespace",))
def clear(
    node: Annotated[str, typer.Argument(help="A lost node's name or UID.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Who made sure that nothing runs, how.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which holders would be ended.")
    ] = False,
    place: Place,
) -> None:
    """
    Say that nothing runs any more which a lost node's Pods held: their cards and CPUs open.

    The live service does it, in your name. Where none runs, --ledger takes the ledger over: a
    process that writes it meanwhile is fenced.

    Example: tenure ledger clear gpu-0042 --reason "powered off, ticket 12" --live
    """
    if not reason.strip():
        raise InputError("say who made sure that nothing runs, and how", field="--reason")
    verb = "would end" if dry_run else "ended"
    if place.service is not None:
        for one in place.service.clear(node, reason=reason, dry_run=dry_run):
            words = ", ".join(f"{key}={one[key]}" for key in ("node", "node_uid", "pod", "pod_uid"))
            sys.stdout.write(f"{verb}: {words}\n")
        return
    with opened(place.ledger, mode="read" if dry_run else "write") as source:
        found = _lost(source, node)
        if not dry_run:
            _record(source, found, reason)
    for state in found:
        for held in state.lost_holdings():
            pod = f"pod={held.namespace}/{held.pod_name}, pod_uid={held.pod_uid}"
            sys.stdout.write(f"{verb}: node={state.name}, node_uid={state.uid}, {pod}\n")


def _lost(source: Ledger, node: str) -> list[NodeState]:
    """Return the Nodes of this name or UID with lost holders, in the order of their UIDs."""
    from ledger.store.reading.timetravel import load_state

    nodes = load_state(source).state.nodes
    named = [state for _, state in sorted(nodes.items()) if node in {state.name, state.uid}]
    if not named:
        raise InputError(f"no such node: node={node}")
    found = [state for state in named if state.lost_holdings()]
    if not found:
        raise InputError(f"nothing is held by a lost Pod of this node: node={node}")
    return found


def _record(source: Ledger, found: list[NodeState], reason: str) -> None:
    import getpass

    from scheduler.record import events

    writer, wall_us = taken_over(source, "tenure ledger clear")
    number = writer.head.position
    new = (events.node_cleared(state, reason, wall_us, number) for state in found)
    writer.append([events.by(getpass.getuser(), one) for one in new])
