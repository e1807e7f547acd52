"""
Flip one byte of one recorded event in a copy of a ledger, to see `tenure verify` name it.

    python -m tenure.tamper LEDGER COPY

Works on the bytes of the file, not through the database, which would refuse.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

MARK: Final = b'"pod_name":"'
"""Stands in the body of every reservation, in front of a name."""


def flip_one_byte(ledger: Path, copy: Path) -> int:
    """
    Copy `ledger` to `copy` with one letter of one Pod's name changed; return where in the file.

    The write-ahead log is left behind: a ledger that was closed has everything in its file.
    """
    if copy.exists() and copy.samefile(ledger):
        raise SystemExit(f"{copy}: the copy would overwrite the ledger itself")
    content = bytearray(ledger.read_bytes())
    places = content.count(MARK)
    if not places:
        raise SystemExit(f"{ledger}: no reservation to alter")
    offset = -1
    for _ in range(places // 2 + 1):
        offset = content.index(MARK, offset + 1)
    offset += len(MARK)
    content[offset] ^= 1
    copy.write_bytes(content)
    return offset


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m tenure.tamper LEDGER COPY")
    where = flip_one_byte(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{sys.argv[2]}: changed the byte at {where:,}")  # noqa: T201 - this is the command line
