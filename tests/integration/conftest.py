from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import Object
from tests.support.process import ROOT, tenure
from tests.support.simulating import NOW, Simulate


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Make a folder whose path leaves room for a socket's name, however deep the test's own is."""
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        yield Path(folder)


@pytest.fixture
def line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Return a command line that no ledger is there for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_LEDGER", raising=False)
    return CommandLine(tmp_path / "none.db", capsys)


@pytest.fixture
def simulate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Simulate:
    """
    Return what runs `tenure simulate` over objects, with settings, and reads its JSON.

    Whatever was decided is decided again from the ledger alone, and must be equal.
    """
    monkeypatch.chdir(tmp_path)

    def run(*objects: Object, **settings: Mapping[str, object]) -> dict[str, Any]:
        Path("in.json").write_text(json.dumps({"kind": "List", "items": objects}), "utf-8")
        words = {"apiVersion": "tenure.sh/v1alpha1", "kind": "SchedulerConfiguration", **settings}
        Path("settings.json").write_text(json.dumps(words), "utf-8")
        number = len(list(tmp_path.glob("run-*.db")))
        line = CommandLine(tmp_path / f"run-{number}.db", capsys)
        done = line.ask(
            "simulate", "in.json", "--config", "settings.json", "--now", NOW, "-o", "json"
        )
        assert done.code == 0, done.err
        replayed = line.ask("ledger", "replay")
        assert replayed.code == 0, (replayed.out, replayed.err)
        document: dict[str, Any] = json.loads(done.out)
        return document

    return run


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the small demonstration once, for all workers; return its directory and its words."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory, words = place / "demo", place / "demo.txt"
    with (place / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not words.exists():
            done = tenure("demo", "--size", "small", "--out", directory, cwd=ROOT)
            assert done.returncode == 0, done.stderr
            words.write_text(done.stdout, "utf-8")
    return directory, words.read_text("utf-8")
