"""Every table on a terminal of 80 columns: no line is longer, and nothing of it is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.support.cli import CommandLine
from tests.support.corpus import CORPUS, NOW, dumps
from tests.support.process import ROOT

pytestmark = pytest.mark.integration

WIDTH: Final = 80
QUICK: Final = {"dra-without-slices", "hami-shares", "mixed-five-systems", "nvidia-plain-phases"}
"""Dumps that every run looks at; the others are in `make slow`."""
EXAMPLES: Final = str(ROOT / "examples")
OF_A_LEDGER: Final = (
    ("map",),
    ("map", "--cpus"),
    ("pods", "--all"),
    ("top",),
    ("top", "--by", "namespace"),
    ("usage",),
    ("usage", "--by", "owner"),
    ("status",),
    ("verify",),
    ("drift",),
    ("ledger", "state"),
    ("ledger", "replay"),
    ("ledger", "sql", "SELECT * FROM audit_holdings LIMIT 5"),
    ("ledger", "sql", "SELECT * FROM audit_capacity_days LIMIT 5"),
)


@pytest.fixture
def line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """A command line on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    return CommandLine(tmp_path / "run.db", capsys)


@pytest.fixture
def demo(shown: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the small demonstration's ledger."""
    return Path(shutil.copy(shown[0] / "ledger.db", tmp_path / "demo.db"))


def too_long(text: str) -> list[str]:
    """Lines that are wider, but those that have a word which is as wide as the room for it."""
    return [
        each
        for each in text.splitlines()
        if len(each) > WIDTH and max(map(len, each.split())) <= WIDTH - len("    ")
    ]


def questions(ledger: Path) -> Iterator[tuple[str, ...]]:
    """Yield what can be asked of a ledger, by name of some node, card and Pods of each state."""
    yield from OF_A_LEDGER
    with closing(sqlite3.connect(ledger)) as connection:
        seen = connection.execute("SELECT DISTINCT node_name FROM audit_nodes LIMIT 1")
        nodes = [row[0] for row in seen]
        held = connection.execute("SELECT namespace, pod_name FROM audit_reservations LIMIT 1")
        waits = connection.execute(
            "SELECT namespace, pod_name, max(position) FROM audit_refusals GROUP BY message LIMIT 4"
        )
        pods = [f"{row[0]}/{row[1]}" for row in (*held, *waits)]
    for name in nodes:
        yield from (("who", name), ("who", f"{name}/0", "--history"), ("why", f"{name}/0"))
    yield from (("why", pod) for pod in pods)
    yield ("defrag", "plan", pods[-1])
    yield from (("who", pod) for pod in pods)


def test_no_table_of_the_demonstration_is_wider(demo: Path, line: CommandLine) -> None:
    """Every command over a week of 24 nodes; the longest Pods' names have 52 letters."""
    asked = {words: line.run(*words, "--ledger", str(demo)) for words in questions(demo)}

    assert not [words for words, answer in asked.items() if answer.code not in {0, 1, 2}]
    assert sum(answer.code == 0 for answer in asked.values()) > 0.9 * len(asked)
    found = {words: wide for words, answer in asked.items() if (wide := too_long(answer.out))}
    assert not found


@pytest.mark.parametrize(
    "dump",
    [
        pytest.param(dump, id=dump, marks=() if dump in QUICK else pytest.mark.slow)
        for dump in dumps()
    ],
)
def test_no_table_of_a_cluster_is_wider(dump: str, line: CommandLine) -> None:
    """The dump, and the ledger of its simulation."""
    path = str(CORPUS / dump / "dump.json")

    first: tuple[tuple[str, ...], ...] = (
        ("map", path),
        ("map", "--cpus", path),
        ("check", path),
        ("simulate", path, "--now", NOW, "--ledger", str(line.ledger)),
    )
    asked = {words: line.run(*words) for words in first}
    asked |= {(words,): line.ask(words) for words in ("map", "pods", "top", "usage")}

    assert asked["map", path].code == 0
    assert not [words for words, answer in asked.items() if answer.code not in {0, 1, 2}]
    found = {words: wide for words, answer in asked.items() if (wide := too_long(answer.out))}
    assert not found


def test_no_table_of_the_examples_is_wider(line: CommandLine) -> None:
    """What a newcomer types first."""
    for words in (("simulate", EXAMPLES), ("check", EXAMPLES), ("map", EXAMPLES)):
        answer = line.run(*words)
        assert answer.out
        assert not too_long(answer.out), words


def test_wide_and_a_pipe_have_each_row_on_one_line(
    demo: Path, line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cut and grep work on; only where nobody said how wide it may be, or it is asked for."""
    words = ("pods", "--waiting", "--ledger", str(demo))
    below = line.run(*words).out

    wide = line.run(*words, "-o", "wide").out
    monkeypatch.delenv("COLUMNS")
    piped = line.run(*words).out

    assert max(map(len, below.splitlines())) <= WIDTH
    assert len(wide.splitlines()) == len(piped.splitlines()) < len(below.splitlines())
    assert max(map(len, piped.splitlines())) > WIDTH
