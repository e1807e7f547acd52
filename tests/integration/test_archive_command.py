"""`tenure ledger archive`, and the commands that take the archive's folder, as people run them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ledger.store.open import open_ledger
from tenure import offline
from tenure.exits import NOT_COMPARED
from tests.support.archives import archive_silently, history, rewrite
from tests.support.cli import CommandLine
from tests.support.stores import Clock


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on a ledger of 2,000 events, a key and a folder."""
    path = tmp_path / "ledger.db"
    with open_ledger(str(path), mode="create") as ledger:
        history(ledger, Clock(), events=2_000)
    command = CommandLine(path, capsys)
    made = command.run("ledger", "key", "new", "--name", "k", "--out", str(tmp_path / "key"))
    (tmp_path / "key.pub").write_text(made.out)
    (tmp_path / "archive").mkdir()
    return command


def archived(line: CommandLine, *arguments: str) -> str:
    """Archive and return what was printed."""
    folder = line.ledger.parent
    options = ("--to", str(folder / "archive"), "--key", str(folder / "key"))
    answer = line.ask("ledger", "archive", *options, *arguments)
    assert answer.code == 0, answer
    return answer.out


def test_events_move_and_every_command_says_where_they_are(line: CommandLine) -> None:
    """Verify tells what it did not read, and reads it from the folder; so do state and rebuild."""
    folder = line.ledger.parent / "archive"
    assert archived(line, "--keep", "500").startswith(
        "events 1 to 1,280 moved, 5 of them stay in the log too: "
    )
    answer = line.ask("verify")
    assert answer.code == 0
    assert "0 over-commits at every position from 1,281 on, projection = fold" in answer.out
    assert (
        "events 1 to 1,280 are in an archive: their hashes were proved, and rows that ended there"
        " are those that the log commits to; their words and the capacity at each were not read"
        in " ".join(answer.out.split())
    )
    document = json.loads(line.ask("verify", "-o", "json").out)
    assert (document["ok"], document["outcome"]) == (True, "proved")
    assert (document["archived_unread"], document["not_compared"]) == (1_280, [])
    whole = line.ask("verify", "--segments", str(folder), "-o", "json")
    assert (whole.code, json.loads(whole.out)["archived_unread"]) == (0, 0)
    refused = line.ask("ledger", "state", "--position", "77")
    assert refused.code == 2
    assert "the event is in an archive: position=77, archived=1-1280, file=segment-" in refused.err
    assert "next: name the folder of the archive" in refused.err
    assert line.ask("ledger", "state", "--position", "77", "--segments", str(folder)).code == 0
    refused = line.ask("ledger", "rebuild")
    assert (refused.code, "positions=1-1280" in refused.err) == (2, True)
    assert line.ask("ledger", "rebuild", "--segments", str(folder)).code == 0
    refused = line.ask("ledger", "export", "--out", str(folder / "x.gz"))
    assert (refused.code, "in an archive" in refused.err) == (2, True)
    assert line.ask("ledger", "prove", "77", "--from", "50").code == 0
    assert line.ask("who", "n-1/0").code == 0
    assert line.ask("usage").code == 0


def test_a_ledger_that_can_not_be_compared_is_not_called_proved(line: CommandLine) -> None:
    """An exit code of its own, and which rows; with the files it is proved."""
    folder = line.ledger.parent / "archive"
    with open_ledger(str(line.ledger), mode="write") as ledger:
        archive_silently(ledger, folder, 256)

    answer = line.ask("verify")
    document = json.loads(line.ask("verify", "-o", "json").out)

    assert answer.code == NOT_COMPARED == 4
    assert "NOT COMPARED" in answer.out
    assert "the log has no digest of rows that ended in 1 to 256" in " ".join(answer.out.split())
    assert (document["ok"], document["outcome"]) == (False, "not compared")
    (unknown,) = document["not_compared"]
    assert (unknown["first"], unknown["last"]) == (1, 256)
    assert "ledger_refusals" in unknown["tables"]
    assert line.ask("verify", "--segments", str(folder)).code == 0


def test_what_may_go_is_named_by_position_time_or_number(line: CommandLine) -> None:
    """Whole blocks of 256; the second file goes on behind the first, then there is nothing."""
    assert "events 1 to 256 moved" in archived(line, "--before", "400")
    assert "events 257 to 512 moved" in archived(line, "--before", "2026-03-02T00:10:00Z")
    assert "events 513 to 1,792 moved" in archived(line, "--keep", "0")
    assert archived(line, "--keep", "0").startswith("nothing to archive: no whole 256 events")
    folder = line.ledger.parent / "archive"
    assert len(list(folder.iterdir())) == 3
    answer = line.ask("verify", "--segments", str(folder))
    assert answer.code == 0, answer


def test_one_file_and_the_public_key_prove_themselves(
    line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The offline verifier needs nothing else; a changed state is told as well as an event."""
    archived(line, "--before", "400")
    archived(line, "--before", "600")
    folder = line.ledger.parent
    key = str(folder / "key.pub")
    for path in sorted((folder / "archive").iterdir()):
        assert offline.main([str(path), "--public-key", key]) == 0
        assert "proved: 256 events of simulation/test, positions" in capsys.readouterr().out
    rewrite(path, lambda lines: [*lines[:-2], {"state": lines[-2]["state"] + " "}, lines[-1]])
    assert offline.main([str(path), "--public-key", key]) == 1
    words = "NOT PROVED: the state is not the one that was signed: position=512"
    assert words in capsys.readouterr().out
    rewrite(path, lambda lines: [*lines[:-2], lines[-1]])
    assert offline.main([str(path), "--public-key", key]) == 1
    assert "the state behind the last event is missing" in capsys.readouterr().out


def test_the_ledger_becomes_smaller(line: CommandLine) -> None:
    """What a VACUUM gives back: nine tenths of the events' own room, with their keys kept."""

    def room() -> int:
        with closing(sqlite3.connect(line.ledger, isolation_level=None)) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raw.execute("VACUUM")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return line.ledger.stat().st_size

    before = room()
    archived(line, "--keep", "0")
    assert room() < 0.6 * before
    assert line.ask("verify").code == 0


def test_what_is_in_the_way_is_said_with_the_next_step(line: CommandLine) -> None:
    """No folder, no limit, both limits, another file under the name; nothing is moved."""
    folder = line.ledger.parent
    key = ("--key", str(folder / "key"))
    to = ("--to", str(folder / "archive"))
    answer = line.ask("ledger", "archive", "--to", str(folder / "none"), *key, "--keep", "1")
    assert (answer.code, "no such folder" in answer.err) == (2, True)
    for limits in ((), ("--keep", "1", "--before", "400")):
        answer = line.ask("ledger", "archive", *to, *key, *limits)
        assert (answer.code, "one of --before and --keep says how far" in answer.err) == (2, True)
    other = folder / "archive" / "segment-000000000001-000000000256.jsonl.gz"
    other.write_bytes(b"mine")
    answer = line.ask("ledger", "archive", *to, *key, "--before", "400")
    assert (answer.code, "a file with other events is in the way" in answer.err) == (2, True)
    assert other.read_bytes() == b"mine"
    assert list(other.parent.iterdir()) == [other]
    other.unlink()
    assert json.loads(line.ask("verify", "-o", "json").out)["archived_unread"] == 0


def test_an_unfinished_archive_is_reported(line: CommandLine) -> None:
    """A file whose transaction never came is named, and what it holds is still in the log."""
    copy = line.ledger.with_name("copy.db")
    copy.write_bytes(line.ledger.read_bytes())
    archived(line, "--before", "400")
    line.ledger.write_bytes(copy.read_bytes())
    folder = line.ledger.parent
    options = ("--to", str(folder / "archive"), "--key", str(folder / "key"), "--before", "600")
    answer = line.ask("ledger", "archive", *options)
    assert answer.code == 0
    assert "no segment of this ledger, its events are still in the log" not in answer.out
    assert "no segment of this ledger names this file" in answer.err
    assert "segment-000000000001-000000000256" in answer.err
