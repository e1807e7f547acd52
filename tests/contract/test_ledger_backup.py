"""The ways of copying a ledger that the operations page names make a ledger that proves itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ledger.store.proving.verify import verify
from ledger.store.reading.snapshots import take_snapshot
from ledger.store.reading.timetravel import load_state
from tests.support.stores import Clock, SqliteStore, node, reserved, share, start


@pytest.mark.parametrize("way", ["vacuum into", "backup", "vacuum in place"])
def test_a_copy_of_a_ledger_in_use_proves_itself(
    sqlite_store: SqliteStore, tmp_path: Path, way: str
) -> None:
    """Made while the writer has it open, the copy has every commit, and takes the next one."""
    clock = Clock()
    copy = SqliteStore(path=tmp_path / "copy.db")
    with sqlite_store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node("n-1"), reserved("a", share(0, 50))))
        take_snapshot(ledger, writer, wall_us=clock.now_us)
        expected = load_state(ledger)
        with sqlite_store.raw() as raw, closing(sqlite3.connect(copy.path)) as target:
            if way == "vacuum into":
                raw.execute("VACUUM INTO ?", (str(copy.path),))
            elif way == "backup":
                raw.backup(target)
            else:
                raw.execute("VACUUM")
                copy = sqlite_store
        writer.append(clock.all(reserved("b", share(1, 50))))
        head = ledger.head().position
    with copy.open() as ledger:
        assert ledger.head().position == (head if way == "vacuum in place" else expected.position)
        assert way == "vacuum in place" or load_state(ledger) == expected
        start(ledger).append(clock.all(reserved("c", share(2, 50))))
        assert verify(ledger).findings == ()
