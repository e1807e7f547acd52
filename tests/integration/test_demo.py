"""The demonstration, as a newcomer runs it, with every line that it offers to copy."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.domain.log.events import RequestRefused
from ledger.store.open import open_ledger
from scheduler.cluster.snapshot import settings_of, snapshot_of_ledger
from scheduler.whatif.what_if import WhatIf
from tests.support.cli import CommandLine

ROOT = Path(__file__).parents[2]
TENURE = (sys.executable, "-c", "from tenure.cli import main; main()")


def _run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, check=False)


def _lines(shown: tuple[Path, str], start: str) -> list[str]:
    return [line.strip() for line in shown[1].splitlines() if line.strip().startswith(start)]


def test_it_ends_with_the_headline_and_leaves_ledger_and_report(shown: tuple[Path, str]) -> None:
    """What README promises: decided, placed, no card above 100 %, proved at every position."""
    directory, text = shown

    headline = r"1,000 Pods decided, \d+ placed, 0 cards ever above 100 %, proved at every position"
    assert re.search(headline, text)
    assert (directory / "ledger.db").is_file()
    assert (directory / "report.html").is_file()


def test_the_same_seed_leaves_the_same_chain(shown: tuple[Path, str], tmp_path: Path) -> None:
    """A virtual week has a virtual clock: no byte of the chain depends on the day of the run."""
    again = tmp_path / "again"
    assert _run(*TENURE, "demo", "--size", "small", "--out", str(again)).returncode == 0

    heads = set()
    for directory in (shown[0], again):
        with sqlite3.connect(directory / "ledger.db") as connection:
            heads |= set(connection.execute("SELECT position, chain_hash FROM ledger_head"))
        connection.close()
    assert len(heads) == 1


def test_the_page_usage_and_the_view_say_one_thing_by_allocated_and_stranded(
    shown: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean over the week, in words and figures, as the glossary has them."""
    ledger = shown[0] / "ledger.db"
    page = (shown[0] / "report.html").read_text("utf-8").replace("\u00a0", " ")
    told = json.loads(CommandLine(ledger, capsys).ask("usage", "-o", "json").out)
    with sqlite3.connect(ledger) as connection:
        words = "capacity", "used", "stranded", "idle", "closed", "unknown"
        sums = ", ".join(f"sum({word}_gpu_hours)" for word in words)
        ((whole, *parts),) = connection.execute(f"SELECT {sums} FROM audit_capacity_days")
    connection.close()

    percent = told["capacity_percent"]
    assert percent["stranded"] > 1
    assert list(percent.values()) == [round(part * 100 / whole, 1) for part in parts]
    for word in ("allocated", "stranded"):
        figure = rf"<dt>GPU {word}, mean</dt>\s*<dd>{percent[word]:.1f} %"
        assert re.search(figure, page), word
    caption = (
        f"{percent['allocated']:.1f} % were allocated and {percent['stranded']:.1f} % stranded"
    )
    assert page.count(caption) == 2  # seen, and read aloud


@pytest.mark.parametrize("command", ["who", "why", "usage", "map"])
def test_every_question_that_it_offers_has_an_answer(
    shown: tuple[Path, str],
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line to copy that fails would be the worst advertisement."""
    monkeypatch.chdir(ROOT)
    offered = _lines(shown, f".venv/bin/tenure {command} ")

    assert offered
    for line in offered:
        done = CommandLine(shown[0] / "ledger.db", capsys).run(*shlex.split(line)[1:])
        assert (done.code, bool(done.out)) == (0, True), done.err


def test_the_cheats_that_it_offers_are_refused_by_the_database(shown: tuple[Path, str]) -> None:
    """Plain sqlite3 is told which card and what is left of it, or which position."""
    lines = _lines(shown, "python3 -c")
    second_holder, another_history, _ = (shlex.split(line) for line in lines)

    full = _run(sys.executable, *second_holder[1:])
    edited = _run(sys.executable, *another_history[1:])

    card = _lines(shown, "# a second holder for ")[0].split()[5].rstrip(",")
    assert full.returncode != 0
    assert card in full.stderr
    assert re.search(r"(has 0 of 100 percent core left, 50 asked|has nothing left)", full.stderr)
    assert edited.returncode != 0
    assert "append-only: position 1000 cannot be changed" in edited.stderr


def test_one_flipped_byte_in_a_copy_is_named_by_verify(
    shown: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever edits the file behind the database's back is found, by position."""
    ledger, copy = shown[0] / "ledger.db", tmp_path / "copy.db"
    line = _lines(shown, "python3 -c")[2].replace(str(shown[0] / "copy.db"), str(copy))

    flipped = _run(sys.executable, *shlex.split(line)[1:])
    found = CommandLine(copy, capsys).ask("verify")
    intact = CommandLine(ledger, capsys).ask("verify")

    assert flipped.returncode == 0, flipped.stderr
    assert found.code == 1
    assert re.search(r"\d+ +the event was altered", found.out)
    assert "Traceback" not in found.err
    assert intact.code == 0


def test_a_ledger_that_no_demonstration_made_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demonstration clears its own directory, never someone's ledger."""
    precious = tmp_path / "ledger.db"
    precious.write_bytes(b"precious")

    done = CommandLine(precious, capsys).run("demo", "--size", "small", "--out", str(tmp_path))

    assert done.code == 2
    assert precious.read_bytes() == b"precious"


def test_nobody_is_told_to_free_what_would_never_do(shown: tuple[Path, str]) -> None:
    """Every remedy that it recorded is taken at its word: the node takes the Pod once empty."""
    with open_ledger(str(shown[0] / "ledger.db"), mode="read") as ledger:
        cluster = snapshot_of_ledger(ledger, None, settings_of(ledger))
        refused = [
            each.event for each in ledger.read_events() if isinstance(each.event, RequestRefused)
        ]
    opened = [
        replace(node, devices=tuple(replace(each, healthy=True) for each in node.devices))
        for node in cluster.nodes
    ]
    empty = WhatIf(opened, (), cluster.settings, by_count=True)
    numbers = {node.name: number for number, node in enumerate(opened)}
    freeing = {
        (event.pod_uid, reason.nearest_node): reason.remedy
        for event in refused
        for reason in event.reasons
        if reason.remedy.startswith(("release ", "end ", "free ", "open "))
    }

    in_vain = [
        (uid, node, remedy)
        for (uid, node), remedy in freeing.items()
        if not empty.fits_on(cluster.requests[uid], numbers[node])
    ]

    assert len(freeing) > 50
    assert in_vain == []
