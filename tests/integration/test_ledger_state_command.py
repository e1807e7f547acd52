"""`tenure ledger state` and `snapshot`: the morning of the sample ledger, at any moment of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.ledgers import morning, write_ledger


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the ledger of one morning."""
    return CommandLine(write_ledger(tmp_path / "morning.db", morning()), capsys)


def held(line: CommandLine, *arguments: str) -> list[tuple[str, str]]:
    """Return (node, pod) of every holding that the command prints."""
    document: dict[str, Any] = json.loads(line.ask("ledger", "state", *arguments, "-o", "json").out)
    return [
        (node["node"], holding["pod"]) for node in document["nodes"] for holding in node["holdings"]
    ]


def test_the_state_at_a_time_is_who_held_what_then(line: CommandLine) -> None:
    """08:10 nb-7, 09:00 train-0 too, 10:00 nb-7 leaves, 12:00 legacy is found."""
    assert held(line, "--at", "2026-03-02T08:09:59Z") == []
    assert held(line, "--at", "2026-03-02T08:10:00Z") == [("gpu-a", "nb-7")]
    assert held(line, "--at", "2026-03-02T09:59:00Z") == [("gpu-a", "nb-7"), ("gpu-a", "train-0")]
    assert held(line) == [("gpu-a", "train-0"), ("gpu-b", "legacy")]
    assert held(line, "--position", "0") == []
    assert held(line, "--position", "5") == [("gpu-a", "nb-7")]


def test_a_table_names_devices_and_cpus(line: CommandLine) -> None:
    """One line per holding, cards that nobody can name included."""
    answer = line.ask("ledger", "state")
    assert answer.out.splitlines() == [
        "after event 11",
        "NODE   POD         KIND      PHASE     DEVICES  CPUS  EVENT",
        "gpu-a  ml/train-0  granted   reserved  gpu/1    0-1       6",
        "gpu-b  old/legacy  observed  observed  gpu/?    -        11",
    ]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--position", "99"), "no such position: position=99, head=11"),
        (("--position", "1", "--at", "now"), "--at and --position exclude each other"),
        (("--at", "yesterday"), "--at"),
    ],
)
def test_a_moment_that_is_none_is_an_error(
    line: CommandLine, arguments: tuple[str, ...], fact: str
) -> None:
    """One message, exit 2."""
    answer = line.ask("ledger", "state", *arguments)
    assert answer.code == 2
    assert fact in answer.err


def test_a_snapshot_is_used_from_then_on(line: CommandLine) -> None:
    """The state is the same, folded from the snapshot; the ledger still proves itself."""
    before = held(line)
    taken = json.loads(line.ask("ledger", "snapshot", "-o", "json").out)
    document = json.loads(line.ask("ledger", "state", "-o", "json").out)

    assert taken["position"] == document["snapshot_position"] == 12
    assert held(line) == before
    assert line.ask("verify").code == 0


def test_there_is_nothing_to_snapshot_in_an_empty_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger that nobody wrote to, and one in a database of its own, are refused."""
    line = CommandLine(tmp_path / "new.db", capsys)
    assert line.ask("ledger", "init").code == 0
    assert "nothing was recorded yet" in line.ask("ledger", "snapshot").err
    answer = line.run("ledger", "snapshot", "--ledger", "postgresql:///tenure")
    assert (answer.code, "by the process that writes it" in answer.err) == (2, True)
