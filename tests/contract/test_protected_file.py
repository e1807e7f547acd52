"""A file that may not be written or read is said to be that, not to be no ledger."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledger.domain.errors import BusyError, TenureError
from ledger.store import profile
from ledger.store.open import Mode, open_ledger
from tests.support.stores import Clock, SqliteStore, node, start

NOBODY = 65_534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user reaches."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
        path.chmod(0o700)


@pytest.fixture
def ledger(folder: Path, empty_ledger: SqliteStore) -> SqliteStore:
    """A ledger there."""
    store = empty_ledger.copy(folder / "ledger.db")
    with store.open() as opened:
        start(opened).append(Clock().all(node()))
    return store


def as_another_user(work: Callable[[], object]) -> str:
    """Do something as a user whom the file's mode holds for; return what it fails with."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def run() -> None:
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            sender.send(f"done: {work()}")
        except (TenureError, OSError) as error:
            sender.send(f"{type(error).__name__}: {error}")

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    assert receiver.poll(30), "no answer"
    told: str = receiver.recv()
    process.join()
    return told


def asked(store: SqliteStore, mode: Mode) -> Callable[[], object]:
    """Return what opens the ledger, and writes where it may."""

    def work() -> object:
        with open_ledger(store.url, mode=mode) as opened:
            return start(opened).head.position if mode == "write" else opened.head().position

    return work


@pytest.mark.parametrize(
    ("file_mode", "mode", "words"),
    [
        (0o444, "read", "done: 2"),
        (0o444, "write", "the file or its folder is protected: attempt to write a readonly"),
        (0o666, "write", "the file or its folder is protected"),
        (0o000, "read", "the file or its folder is protected: unable to open"),
        (0o000, "write", "the file or its folder is protected: unable to open"),
    ],
    ids=["read", "write", "write in its folder", "read what is closed", "write what is closed"],
)
def test_a_protected_file_is_told(
    ledger: SqliteStore, folder: Path, file_mode: int, mode: Mode, words: str
) -> None:
    """Readable by all it is read; else the protection is named, with the file."""
    ledger.path.chmod(file_mode)
    folder.chmod(0o555)
    told = as_another_user(asked(ledger, mode))
    assert words in told
    assert "not a ledger" not in told


def test_a_ledger_that_is_held_when_it_is_opened_is_busy(
    ledger: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer changes how the file is journalled, which needs it alone."""
    monkeypatch.setattr(profile, "ALWAYS", ("PRAGMA busy_timeout = 10", *profile.ALWAYS[1:]))
    with ledger.raw() as raw:
        raw.execute("PRAGMA journal_mode = DELETE")
        raw.execute("BEGIN EXCLUSIVE")
        with pytest.raises(BusyError, match="another process writes this ledger"):
            ledger.open("write")
