"""
A process that folds a ledger's state for `snapshots`, which starts it and ends it.

It is told the ledger's URL, says that it is ready, is told a position, and answers with digest,
size and text of the state there.
"""

from __future__ import annotations

import sys
from typing import BinaryIO, Final

from ledger.domain.log.state import Folding
from ledger.store.open import open_ledger
from ledger.store.reading.read import replay
from ledger.store.reading.snapshots import picture_of
from ledger.store.reading.timetravel import load_state

READY: Final = b"ready\n"
DIGEST_BYTES: Final = 32
SIZE_BYTES: Final = 8


def fold(asked: BinaryIO, answer: BinaryIO) -> None:
    """Fold to the head, then to a position once it is asked for. Raises LedgerError."""
    url = asked.readline().decode().rstrip("\n")
    with open_ledger(url, mode="read") as ledger:
        loaded = load_state(ledger)
        folding = Folding(loaded.state)
        answer.write(READY)
        answer.flush()
        line = asked.readline()
        if not line:
            return
        position = int(line)
        more = position - loaded.position
        for at, event in replay(ledger.connection, after=loaded.position, limit=more):
            folding.add(at, event)
    picture = picture_of(position, folding.state)
    answer.write(picture.digest + len(picture.body).to_bytes(SIZE_BYTES) + picture.body)
    answer.flush()


if __name__ == "__main__":
    fold(sys.stdin.buffer, sys.stdout.buffer)
