"""`tenure ledger void`: an impossible event counts for nothing."""

from __future__ import annotations

import sys
from typing import Final

from tenure.asking.opening import opened, taken_over

_HOLDER: Final = "tenure ledger void"


def answer_void(*, position: int, reason: str, dry_run: bool, ledger: str | None) -> None:
    """
    Declare the event at a position void, if `verify` names it as impossible.

    Raises:
        InputError: there is no such event, or it is a good one.
    """
    from ledger.store.mending.voiding import declare_void, impossible_event

    with opened(ledger, mode="read" if dry_run else "write") as source:
        event = impossible_event(source, position)
        for finding in event.findings:
            sys.stdout.write(f"{finding}\n")
        if dry_run:
            sys.stdout.write(f"would be void: position={position}, {event.event_type}\n")
            return
        writer, wall_us = taken_over(source, _HOLDER)
        at = declare_void(writer, event, reason, wall_us=wall_us)
    sys.stdout.write(f"void: position={position}, {event.event_type}, by the event at {at}\n")
