"""Commands for a ledger that is not there, or that nobody has written to: what to do is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.signing import PrivateKey
from ledger.store.open import open_ledger
from tests.support.cli import CommandLine

ON_A_LEDGER = [
    ["ledger", "upgrade"],
    ["ledger", "snapshot"],
    ["ledger", "rebuild"],
    ["ledger", "replay"],
    ["ledger", "prove", "1"],
    ["ledger", "checkpoint", "--key", "KEY"],
    ["ledger", "export", "--out", "OUT"],
    ["verify"],
    ["status"],
]
OF_EVENTS = [ON_A_LEDGER[4], ON_A_LEDGER[5], ON_A_LEDGER[6]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a key and nothing else."""
    (tmp_path / "key").write_text(PrivateKey.new("tenure").text())
    return tmp_path


def filled(words: list[str], folder: Path) -> list[str]:
    """Return a command with the paths of this test."""
    paths = {"KEY": str(folder / "key"), "OUT": str(folder / "out.gz")}
    return [paths.get(word, word) for word in words]


@pytest.mark.parametrize("words", ON_A_LEDGER, ids=" ".join)
def test_a_missing_ledger_is_named_with_the_way_to_name_another(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The path, and --ledger; nothing is made."""
    cli = CommandLine(folder / "none.db", capsys)
    answer = cli.ask(*filled(words, folder))

    assert answer.code == 2
    assert f"{folder / 'none.db'}: no such ledger" in answer.err
    assert "next: name one with --ledger FILE or TENURE_LEDGER" in answer.err
    assert [each.name for each in folder.iterdir()] == ["key"]


@pytest.mark.parametrize("words", OF_EVENTS, ids=" ".join)
def test_an_empty_ledger_has_nothing_to_prove_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """No proof, no note and no file is made of no events."""
    path = folder / "empty.db"
    open_ledger(str(path), mode="create").close()
    answer = CommandLine(path, capsys).ask(*filled(words, folder))

    assert answer.code == 2
    assert "the ledger has no events yet: nobody wrote to it" in answer.err
    assert "next: name a ledger with events: --ledger FILE" in answer.err
    assert answer.out == ""
    assert not (folder / "out.gz").exists()
