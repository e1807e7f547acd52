"""The archivist dies at any moment; the ledger has everything, in the log or in a proved file."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ledger.store.archives.archive import orphans
from ledger.store.archives.segments import segments_of
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from tests.support.archives import afterwards, history, move
from tests.support.stores import Clock, PostgresStore, SqliteStore, Store, start

KILLS = 6
ROOT = Path(__file__).parents[2]


def test_killed_at_random_moments_nothing_is_lost(tmp_path: Path) -> None:
    """After every SIGKILL the ledger verifies; run again, the archivist finishes."""
    rng = random.Random(5)
    whole = SqliteStore(path=tmp_path / "whole.db")
    whole.open("create").close()
    with whole.open() as ledger:
        history(ledger, Clock(), events=520)
    undisturbed = whole.copy(tmp_path / "undisturbed.db")
    began = time.perf_counter()
    with undisturbed.open() as ledger:
        move(ledger, tmp_path)
    took = time.perf_counter() - began
    for kill in range(KILLS):
        folder = tmp_path / str(kill)
        folder.mkdir()
        store = whole.copy(folder / "ledger.db")
        command = [sys.executable, "-m", "tests.support.crashing_archive", str(store.path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as archivist:
            assert archivist.stdout is not None
            assert archivist.stdout.readline() == b"begin\n"
            time.sleep((kill + rng.random()) / KILLS * 1.2 * took)
            archivist.kill()
        with store.open() as ledger:
            report = verify(ledger, segments=folder)
            assert report.findings == ()
            assert report.events >= 520
            with ledger.connection.begin():
                done = len(segments_of(ledger.connection))
            if not done:
                move(ledger, folder)
            assert orphans(ledger, folder) == ()
            assert verify(ledger, segments=folder).findings == ()
        assert len(list(folder.glob("segment-*"))) == 1
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, empty_postgres: PostgresStore) -> Store:
    """A ledger without events, on each database."""
    if request.param == "postgres":
        return empty_postgres.copy()
    made = SqliteStore(path=tmp_path / "ledger.db")
    made.open("create").close()
    return made


def test_a_file_without_its_transaction_is_reported_and_replaced(
    store: Store, tmp_path: Path
) -> None:
    """As a death between the two leaves them: the file is there, and the ledger knows nothing."""
    clock = Clock()
    with store.open() as ledger:
        history(ledger, clock, events=300)
    copy = store.copy(tmp_path / "copy.db")
    folder = tmp_path / "files"
    folder.mkdir()
    with copy.open() as ledger:
        lost = move(ledger, folder)
    left = lost.path.with_name("left")
    shutil.copy(lost.path, left)
    with store.open() as ledger:
        assert verify(ledger).findings == ()
        assert orphans(ledger, folder) == (lost.path,)
        start(ledger, "service").append(afterwards(clock))
        again = move(ledger, folder)
        assert (again.path, again.path.read_bytes()) == (lost.path, left.read_bytes())
        assert orphans(ledger, folder) == ()
        assert verify(ledger, segments=folder).findings == ()
        assert rebuild(ledger, segments=folder).equal
