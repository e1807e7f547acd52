"""An archivist that says when it begins, to be killed at any moment; a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from ledger.store.open import open_ledger
from tests.support.archives import move

if __name__ == "__main__":
    path = Path(sys.argv[1])
    with open_ledger(str(path), mode="write") as ledger:
        sys.stdout.write("begin\n")
        sys.stdout.flush()
        move(ledger, path.parent)
