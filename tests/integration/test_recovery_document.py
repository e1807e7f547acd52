"""What docs/recovery.md shows is what the commands print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.recovery_scene import make_scene

DOCUMENT = Path(__file__).parents[2] / "docs" / "recovery.md"
BLOCKS = re.findall(r"^```\n(\$ tenure .*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
CHANGING = (r"i-[0-9a-f]{8}", r"\b[0-9a-f]{64}\b", r"\d+\.\d s")
"""A new incarnation's name, hashes that hold it, and how long something took."""


def shown() -> Iterator[tuple[list[str], list[str]]]:
    """Yield each command of the document in order, and the lines below it."""
    for block in BLOCKS:
        for part in re.split(r"^\$ tenure ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            yield shlex.split(command), lines


def fixed(line: str) -> str:
    """Return a line without what is new each time."""
    for pattern in CHANGING:
        line = re.sub(pattern, "*", line)
    return line.rstrip()


def test_the_shown_commands_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the document's order, on the scene that it tells; `...` stands for the rest."""
    scene = make_scene(tmp_path)
    monkeypatch.chdir(scene)
    cli = CommandLine(scene / "tenure.db", capsys)
    commands = list(shown())
    assert len(commands) == 4

    for words, lines in commands:
        answer = cli.run(*words)
        assert answer.code == 0, answer.err
        for said, line in zip_longest(answer.out.splitlines(), lines, fillvalue=""):
            if line == "...":
                break
            assert fixed(said) == fixed(line), (words, said, line)


def test_the_shown_witness_is_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The YAML of the document has the fields that the command takes, and no others."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    scene = make_scene(tmp_path)
    monkeypatch.chdir(scene)
    (scene / "shown.yaml").write_text(block)
    files = ("--pods", "pods.json", "--public-key", "tenure.vkey", "--witness", "shown.yaml")
    answer = CommandLine(scene / "tenure.db", capsys).run("ledger", "recover", *files)

    assert answer.code == 2
    assert "another origin: origin=simulation/morning, witnessed=ledger/0a4c3c52" in answer.err
