import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from ledger.domain.errors import (
    CapacityError,
    CorruptLedgerError,
    FencedError,
    InputError,
    UnknownEventError,
)
from tenure.exits import AnswerIsNo, printable, run, with_next
from tests.support.process import ROOT


def app_that(act: Callable[[], None]) -> typer.Typer:
    """A command line whose only command does `act`."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(number: int = 0) -> None:
        assert number == 0
        act()

    return app


def raising(error: BaseException) -> Callable[[], None]:
    """Return a command body that raises."""

    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(AnswerIsNo(), 1, id="the answer is no"),
        pytest.param(InputError("not a number", field="spec.x"), 2, id="unreadable input"),
        pytest.param(FileNotFoundError(2, "No such file", "a.db"), 2, id="a missing file"),
        pytest.param(UnknownEventError("newer"), 2, id="a ledger of a newer version"),
        pytest.param(CorruptLedgerError("broken", position=3), 2, id="a broken ledger"),
        pytest.param(FencedError("another writer"), 2, id="another writer"),
        pytest.param(CapacityError("second holder"), 3, id="a wrong decision of ours"),
        pytest.param(ZeroDivisionError("ours"), 3, id="a bug"),
        pytest.param(KeyboardInterrupt(), 130, id="interrupted"),
        pytest.param(typer.Exit(1), 1, id="a command's own exit code"),
    ],
)
def test_an_ending_has_its_exit_code(error: BaseException, code: int) -> None:
    """0, 1 and 2 mean what cli.md says; our own failures are told apart from the user's."""
    assert run(app_that(raising(error)), []) == code


def test_a_reader_that_went_away_ends_the_command_quietly() -> None:
    """`tenure ... | head` leaves no message behind, whatever Python flushes at its exit."""
    program = (
        "import sys, typer\n"
        "from tenure.exits import run\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def many() -> None:\n"
        "    for _ in range(100_000): print('line')\n"
        "sys.exit(run(app, []))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_a_process_without_its_streams_does_its_work(closed: str, tmp_path: Path) -> None:
    """What it would say is lost, what it opens meanwhile is not written over."""
    program = (
        "import sys, typer, pathlib\n"
        "from tenure.exits import note, run\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def work() -> None:\n"
        "    with open('kept', 'w') as file:\n"
        "        print('out'); note('beside'); file.write('kept')\n"
        "sys.exit(run(app, []))\n"
    )
    (tmp_path / "work.py").write_text(program)
    path = f"PYTHONPATH={ROOT}"
    line = f"{path} {sys.executable} {tmp_path / 'work.py'} {closed}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, check=False, capture_output=True)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kept").read_text() == "kept"


def test_success_is_zero() -> None:
    """A command that returns has done what was asked."""
    assert run(app_that(lambda: None), []) == 0


def test_an_error_is_one_message_and_one_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Place, field and fact on one line, then the step to take; stdout stays clean."""
    error = InputError("not a quantity", field="spec.cpu", place="pods.yaml:7")

    run(app_that(raising(with_next(error, "write it as 500m or 2"))), [])

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "error: pods.yaml:7: spec.cpu: not a quantity",
        "next: write it as 500m or 2",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--nonsense"], id="an unknown option"),
        pytest.param(["--number", "x"], id="a value of another type"),
        pytest.param(["extra"], id="an argument too many"),
    ],
)
def test_wrong_usage_exits_2_and_points_to_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is one message and names the help of that command."""
    code = run(app_that(lambda: None), arguments)

    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert lines[0].startswith("error: ")
    assert lines[1] == "next: see `tenure --help`"


def test_a_bug_shows_no_traceback_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users see one line and where to report it; TENURE_DEBUG=1 shows the rest."""
    app = app_that(raising(ZeroDivisionError("ours")))
    run(app, [])
    plain = capsys.readouterr().err
    monkeypatch.setenv("TENURE_DEBUG", "1")
    run(app, [])
    debug = capsys.readouterr().err

    assert "Traceback" not in plain
    assert "internal error" in plain
    assert "TENURE_DEBUG=1" in plain
    assert "Traceback" in debug


def test_a_name_cannot_steer_the_terminal() -> None:
    """Control characters of names in files are spelled out; line breaks stay."""
    assert printable("a\x1b[31mb\x07\nc") == "a\\x1b[31mb\\x07\nc"
