"""`tenure ledger withdraw`: a false checkpoint that the ledger keeps counts for nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from tenure.asking.checkpoint import public_key
from tenure.asking.opening import opened, taken_over

_HOLDER: Final = "tenure ledger withdraw"


def answer_withdraw(
    *, size: int, reason: str, public_keys: Sequence[str], dry_run: bool, ledger: str | None
) -> None:
    """
    Withdraw the checkpoint of a size, if `verify` names it and no trusted key signed it.

    Raises:
        InputError: there is no such checkpoint, it is right, or it was signed by a trusted key.
    """
    from ledger.store.mending.withdrawing import false_checkpoint, withdraw

    trusted = [public_key(text) for text in public_keys]
    with opened(ledger, mode="read" if dry_run else "write") as source:
        found = false_checkpoint(source, size, trusted)
        for finding in found.findings:
            sys.stdout.write(f"{finding}\n")
        if dry_run:
            sys.stdout.write(f"would be withdrawn: the checkpoint of size {size}\n")
            return
        writer, wall_us = taken_over(source, _HOLDER)
        at = withdraw(writer, found, reason, wall_us=wall_us)
    sys.stdout.write(f"withdrawn: the checkpoint of size {size}, by the event at {at}\n")
