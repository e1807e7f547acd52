import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer

from tenure.cli import VERBS, app
from tenure.exits import run
from tests.support.process import ROOT, environment, tenure

pytestmark = pytest.mark.integration

HEAVY: Final = (
    "asyncio",
    "numpy",
    "sqlalchemy",
    "alembic",
    "yaml",
    "jinja2",
    "kubernetes_asyncio",
)


def command_lines() -> Iterator[list[str]]:
    """Yield every command of the command line, as its words."""

    def walk(command: object, words: list[str]) -> Iterator[list[str]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield words
            return
        for name, inner in below.items():
            yield from walk(inner, [*words, name])

    yield from walk(typer.main.get_command(app), [])


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("tenure.serving.agent", ()),
        ("tenure.serving.scheduler", ("psycopg", "pydantic", "tenure.query")),
    ],
)
def test_a_service_carries_no_command_line_along(module: str, names: tuple[str, ...]) -> None:
    """Once it has read its own it needs it no more; nor what its options do not ask for."""
    unneeded = ("typer", "rich", "tenure.cli", *names)
    loaded = f"[name for name in {unneeded!r} if name in sys.modules]"
    done = _python(f"import sys, {module}, {module}_alone\nprint({loaded})\n")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--help"], id="of all commands"),
        pytest.param(["simulate", "--help"], id="of one command"),
        pytest.param(["ledger", "--help"], id="of a group"),
        pytest.param(["serve", "agent", "--help"], id="of a service"),
    ],
)
def test_help_is_light(arguments: list[str]) -> None:
    """Neither numpy, SQLAlchemy nor a Kubernetes client is imported to print a help text."""
    program = (
        "import sys\n"
        "from tenure.cli import app\n"
        "from tenure.exits import run\n"
        f"code = run(app, {arguments!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = _python(program)

    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert "Usage: tenure" in done.stdout


def test_one_verb_is_imported_and_no_other() -> None:
    """A command line asks for one; the others are as long to import as many a command takes."""
    others = [at.partition(":")[0] for verb, at in VERBS.items() if at and verb != "certs"]
    done = _python(
        "import sys\n"
        "from tenure.cli import app\n"
        "from tenure.exits import run\n"
        "run(app, ['certs', 'status', '--help'])\n"
        f"print([name for name in {others!r} if name in sys.modules], file=sys.stderr)\n"
    )
    assert done.stderr == "[]\n", done.stdout
    assert "Usage: tenure certs status" in done.stdout


DATABASES: Final = ("sqlalchemy", "alembic", "ledger.store")
UNNEEDED: Final = {
    "tenure.serving.webhook": (
        *DATABASES,
        *("numpy", "jinja2", "agent", "scheduler.decide", "scheduler.record", "scheduler.cluster"),
    ),
    "agent": (
        *DATABASES,
        *("numpy", "pydantic", "kubernetes_asyncio"),
        *("scheduler", "webhook", "certs.issue", "certs.material", "tenure"),
    ),
}
"""What a process does not use that runs many times over: on nodes, beside the API server."""


@pytest.mark.parametrize("package", UNNEEDED)
def test_a_process_imports_what_it_needs_and_no_more(package: str) -> None:
    """All of its modules together: no database, no arrays, nothing of other processes."""
    program = (
        "import importlib, pkgutil, sys\n"
        f"found = importlib.import_module({package!r})\n"
        "for one in pkgutil.walk_packages(getattr(found, '__path__', ()), found.__name__ + '.'):\n"
        "    importlib.import_module(one.name)\n"
        f"print([name for name in {UNNEEDED[package]!r} if name in sys.modules])\n"
    )
    done = _python(program)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_missing_ledger_is_named_before_a_database_is_imported(tmp_path: Path) -> None:
    """Whoever mistyped its name is told so at once, whatever was asked."""
    commands = ["status", "drift", "verify", "usage", "who gpu-a", "map"]
    commands += ["ledger sql x", "ledger rebuild"]
    program = (
        "import sys\n"
        "from tenure.cli import app\n"
        "from tenure.exits import run\n"
        f"for command in {commands!r}:\n"
        "    code = run(app, [*command.split(), '--ledger', 'none.db'])\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    print(command, code, heavy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.splitlines() == [f"{command} 2 []" for command in commands], done.stderr
    assert done.stderr.count("none.db: no such ledger") == len(commands)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words)) for words in command_lines()]
)
def test_every_command_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A help text without an example leaves the reader guessing."""
    from tenure.exits import run

    assert run(app, [*words, "--help"]) == 0
    assert "xample" in capsys.readouterr().out


def groups() -> Iterator[list[str]]:
    """Yield every group of commands, as its words."""
    yield []
    yield from ([*words[:-1]] for words in command_lines() if len(words) > 1)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(list(words), id=" ".join(words) or "all")
        for words in dict.fromkeys(map(tuple, [*groups(), *command_lines()]))
    ],
)
def test_no_help_is_wider_than_a_terminal_or_cut(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of variables and URLs are there to be copied."""
    monkeypatch.setenv("COLUMNS", "80")

    assert run(app, [*words, "-h"]) == 0

    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    listed = text.partition("Commands:")[2].splitlines()
    assert not [line for line in listed if line.endswith("...")]
    assert "\u2026" not in text


def test_help_names_what_to_begin_with_and_where_a_ledger_may_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For a newcomer; and Postgres for who has one."""
    assert run(app, []) == 2
    first = capsys.readouterr()
    assert run(app, ["who", "-h"]) == 0

    assert "kubectl get nodes,pods -A -o json | tenure map -" in first.out + first.err
    assert "postgresql://user@host/database" in capsys.readouterr().out


def test_no_arguments_print_the_help(tmp_path: Path) -> None:
    """It is wrong usage, so the exit code is 2; the text is not an error message."""
    done = tenure(cwd=tmp_path)

    assert done.returncode == 2
    assert "Usage: tenure" in done.stdout + done.stderr
    assert "error" not in done.stderr.lower()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--version"], "tenure "),
        (["-h"], "Usage: tenure [OPTIONS] COMMAND"),
        (["help"], "Usage: tenure [OPTIONS] COMMAND"),
        (["who", "-h"], "Usage: tenure who"),
        (["help", "ledger", "replay"], "Usage: tenure ledger replay"),
    ],
)
def test_what_people_type_first_is_answered(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version and help under each of their usual names."""
    assert run(app, arguments) == 0
    assert says in capsys.readouterr().out


def test_help_of_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With where to look."""
    assert run(app, ["help", "ledger", "veryfi"]) == 2
    assert "no such command: 'veryfi'" in capsys.readouterr().err


def _python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
