"""The process dies at any moment; the ledger is sound, and the run goes on where it was."""

import json
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.store.open import open_ledger
from tests.support.cli import Answer, CommandLine
from tests.support.forked import Forked

pytestmark = pytest.mark.integration

NODES: Final = 40
PODS: Final = 1000
SECONDS_MAX: Final = 600


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace that fills its nodes."""
    folder = tmp_path_factory.mktemp("trace")
    nodes = [f"n{i},64000,262144,{4 if i % 2 else 2},T4" for i in range(NODES)]
    pods = [f"p{i},2000,4096,1,{(250, 400, 1000)[i % 3]}," for i in range(PODS)]
    head = "sn,cpu_milli,memory_mib,gpu,model"
    (folder / "nodes.csv").write_text("\n".join([head, *nodes, ""]), encoding="utf-8")
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
    (folder / "pods.csv").write_text("\n".join([head, *pods, ""]), encoding="utf-8")
    return folder


def command(ledger: str, batch: int) -> list[str]:
    """Return the arguments of the run."""
    inputs = ["--openb-nodes", "nodes.csv", "--openb-pods", "pods.csv", "--policy", "fgd"]
    return ["simulate", *inputs, "--ledger", ledger, "--batch", str(batch), "-o", "json"]


def positions(ledger: Path) -> int:
    """Return how far a ledger is, as another process sees it."""
    try:
        connection = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
        try:
            (count,) = connection.execute("SELECT position FROM ledger_head").fetchone()
        finally:
            connection.close()
    except sqlite3.Error:
        return 0
    return int(count)


def kill_in_the_middle(folder: Path, ledger: str, batch: int) -> None:
    """Start the run and kill it as soon as it has decided some hundred Pods, and not all."""
    deadline, words = time.monotonic() + SECONDS_MAX, folder / "words"
    while time.monotonic() < deadline:
        child = Forked(command(ledger, batch), words, cwd=folder, stdout=folder / "out")
        while positions(folder / ledger) < NODES + 300 and child.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait(SECONDS_MAX)
        if child.returncode == -signal.SIGKILL:
            return
        assert child.returncode == 0, words.read_text("utf-8")
        for path in folder.glob(f"{ledger}*"):  # on a busy machine it may end before we look
            path.unlink()
    raise AssertionError("it always ended before it was killed")


def events(ledger: Path) -> list[tuple[str, str]]:
    """Return key and body of every event but the epochs."""
    with open_ledger(str(ledger), mode="read") as opened:
        return [
            (event.envelope.idempotency_key, event.envelope.body)
            for event in opened.read_events()
            if not event.envelope.event_type.startswith("epoch.")
        ]


def answer(done: Answer) -> dict[str, Any]:
    """Return the placements of a run that ended well."""
    assert done.code == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    return document


@pytest.mark.parametrize(
    "batch", [pytest.param(1, id="a commit per decision"), pytest.param(50, id="50 per commit")]
)
def test_a_killed_run_is_sound_and_goes_on(
    files: Path,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    After SIGKILL the proof holds, and --resume ends like an uninterrupted run.

    Nothing is decided twice or otherwise, and what was promised before stays promised.
    """
    monkeypatch.chdir(files)
    whole, parts = f"whole-{batch}.db", f"parts-{batch}.db"
    line = CommandLine(files / parts, capsys)
    expected = answer(line.run(*command(whole, batch)))

    kill_in_the_middle(files, parts, batch)
    kept = events(files / parts)
    proof = line.ask("verify")
    resumed = answer(line.run(*command(parts, batch), "--resume"))

    assert NODES + 300 - batch <= len(kept) < len(events(files / whole))
    assert proof.code == 0, proof.out + proof.err
    assert resumed["placements"] == expected["placements"]
    assert events(files / parts) == events(files / whole)
    assert events(files / parts)[: len(kept)] == kept
    assert line.ask("verify").code == 0
