from __future__ import annotations

import ast
import re
from functools import cache
from typing import Final

from tests.support.proposals import DOCS, PAGE, ROOT, Shown, State, Statement, render, statements

ALL: Final = statements()
TOPICS: Final = re.findall(r"^\| (.+?) \| ", (DOCS / "DIVERGENCES.md").read_text(), re.MULTILINE)
PROVED: Final = {State.HOLDS, State.DIFFERS}
EXPLAINED: Final = {State.DIFFERS, State.BROKEN, State.VAGUE}
FOLDERS: Final = (("tests/node/", Shown.NODE), ("tests/e2e/", Shown.LIVE), ("", Shown.OFFLINE))
"""Where a test lies, and what it shows a statement on: the strongest first."""

RUNNING: Final = (
    "agent/",
    "certs/",
    "scheduler/bind/",
    "scheduler/decide/answers.py",
    "scheduler/decide/extender.py",
    "scheduler/gate/",
    "scheduler/service/",
    "tenure/kube/",
    "tenure/serving/",
    "webhook/",
)
"""Where a webhook, a live scheduler or an agent is built, and what these write and answer."""


@cache
def collected(path: str) -> frozenset[str]:
    """Return the names of a file's test functions, if pytest would collect the file."""
    file = ROOT / path
    if not (path.startswith("tests/") and file.name.startswith("test_") and file.is_file()):
        return frozenset()
    body = ast.parse(file.read_text()).body
    return frozenset(part.name for part in body if isinstance(part, ast.FunctionDef))


def test_the_page_is_made_of_the_file() -> None:
    """Write it anew with `python -m tests.support.proposals`."""
    assert PAGE.read_text() == render(ALL)


def test_every_test_that_is_named_would_run() -> None:
    """By its file and function; a test that was renamed is named anew here."""
    named = [test.partition("::") for row in ALL for test in row.tests]

    assert [
        f"{path}::{name}"
        for path, _, name in named
        if not name.startswith("test_") or name not in collected(path)
    ] == []


def test_every_file_that_is_named_is_there() -> None:
    """Where a statement is built can be opened."""
    assert [path for row in ALL for path in row.built if not (ROOT / path).is_file()] == []


def test_every_divergence_is_a_row_of_its_own() -> None:
    """What differs says by which row, as far as no other row begins so."""
    notes = {row.note for row in ALL if row.state is State.DIFFERS}

    assert [note for note in notes if sum(topic.startswith(note) for topic in TOPICS) != 1] == []


def test_no_statement_is_listed_twice() -> None:
    """Under its heading."""
    listed = [(row.proposal, row.heading, row.says) for row in ALL]

    assert len(set(listed)) == len(listed)


def test_every_statement_says_what_its_state_needs() -> None:
    """A promise has its file and its test, and what is none has its reason."""
    assert [row for row in ALL if not is_complete(row)] == []


def test_every_statement_says_where_its_strongest_test_shows_it() -> None:
    """The folders of its tests decide; a row without tests says nothing."""
    assert [row for row in ALL if row.shown is not strongest(row.tests)] == []


def test_what_a_running_part_serves_is_shown_on_a_running_cluster() -> None:
    """A service that never ran shows no user anything."""
    served = [row for row in ALL if row.state in PROVED and is_served(row)]

    assert served
    assert [row for row in served if row.shown is Shown.OFFLINE] == []


def is_served(row: Statement) -> bool:
    """Tell whether a running part serves a statement, by the files where it is built."""
    return any(path.startswith(RUNNING) for path in row.built)


def strongest(tests: tuple[str, ...]) -> Shown:
    """Return the closest to a running cluster that any of the tests is."""
    found = (shown for folder, shown in FOLDERS for test in tests if test.startswith(folder))
    return next(found, Shown.NOWHERE)


def is_complete(row: Statement) -> bool:
    """Whether every column is filled that the state asks for, and no other."""
    return (
        all((row.proposal, row.heading, row.says))
        and bool(row.note) == (row.state in EXPLAINED)
        and (row.state not in PROVED or bool(row.built and row.tests))
        and (row.state is not State.UNTESTED or bool(row.built and not row.tests))
    )
