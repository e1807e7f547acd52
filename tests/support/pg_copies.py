"""Copies of a ledger by `pg_dump`, as `docs/postgres.md` says to make them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, Literal

from tests.support.postgres import Server, choose, embedded, installed
from tests.support.stores import PostgresStore

Form = Literal["plain", "custom"]
_SECONDS_MAX: Final = 120


def dumped(source: PostgresStore, target: Server, form: Form = "custom") -> PostgresStore:
    """Return a copy in a new database of `target`, which has the roles already."""
    copy = PostgresStore(server=target, database=target.new_database())
    words = _run("pg_dump", f"--format={form}", "--dbname", source.url)
    if form == "plain":
        _run("psql", "-q", "-v", "ON_ERROR_STOP=1", "--dbname", copy.url, given=words)
    else:
        _run("pg_restore", "--exit-on-error", "--dbname", copy.url, given=words)
    return copy


def give_roles(source: Server, target: Server) -> None:
    """Make the roles of one server on another, which says that it has its superuser already."""
    roles = _run("pg_dumpall", "--roles-only", "--dbname", source.base)
    _run("psql", "-q", "--dbname", target.base, given=roles)


def _run(program: str, *arguments: str, given: bytes = b"") -> bytes:
    """Return what a program of the server's own version says."""
    programs = choose(None, installed(), embedded())
    assert isinstance(programs, Path), programs
    return subprocess.run(
        [programs / program, *arguments],
        check=True,
        input=given,
        stdout=subprocess.PIPE,
        timeout=_SECONDS_MAX,
    ).stdout
