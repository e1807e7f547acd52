"""What is advised once a command failed fits the database that it is about."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ledger.store.ddl.audit_views import VIEWS
from tests.support.cli import CommandLine
from tests.support.stores import Store, start


@pytest.mark.parametrize("failed", ["SELECT nothing", "DELETE FROM ledger_head", "SELEKT"])
def test_what_is_advised_works_there(
    store: Store, capsys: pytest.CaptureFixture[str], failed: str
) -> None:
    """The command of the advice names every view of the ledger that it is about."""
    line = CommandLine(Path("unused"), capsys)
    where = ("--ledger", store.url)
    refused = line.run("ledger", "sql", failed, *where)

    assert (refused.code, refused.out) == (2, "")
    _, _, advice = refused.err.splitlines()[-1].partition("the views to ask: ")
    program, *words = shlex.split(advice)
    assert program == "tenure"
    answer = line.run(*words, *where, "-o", "json")
    assert (answer.code, answer.err) == (0, f"ledger: {store.url}\n")
    assert {each["name"] for each in json.loads(answer.out)} >= set(VIEWS)


def test_another_ledger_is_made_where_that_one_is(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who would make a ledger where one is in use is told of a file, or of a database."""
    with store.open() as ledger:
        start(ledger)
    refused = CommandLine(Path("unused"), capsys).run("ledger", "init", "--ledger", store.url)

    assert refused.code == 2
    of_a_server = "next: make a new database with `createdb` and name that: --ledger URL"
    of_a_file = "next: name a file that does not exist yet: --ledger FILE"
    step = of_a_server if store.url.startswith("postgresql") else of_a_file
    assert refused.err.splitlines()[-1] == step
