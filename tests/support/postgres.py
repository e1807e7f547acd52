"""A real Postgres for the tests: one server per test process, one database per test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import make_url

URL_VARIABLE: Final = "TENURE_TEST_POSTGRES_URL"
_NEEDED: Final = (
    "these tests need Postgres: `apt install postgresql`, or give the URL of a server's superuser"
    f" in {URL_VARIABLE}"
)
_START_SECONDS: Final = 30.0
_numbers: Final = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server, by the URL of its superuser."""

    base: str

    def url(self, database: str) -> str:
        """Return the URL of one database."""
        return make_url(self.base).set(database=database).render_as_string(hide_password=False)

    @contextmanager
    def connected(self, database: str) -> Iterator[psycopg.Connection[Any]]:
        """Connect as the superuser, past the store; every statement is a transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            yield connection

    def run(self, statement: str) -> None:
        """Execute one statement about databases or roles."""
        with self.connected("postgres") as connection:
            connection.execute(statement.encode())

    def new_database(self, template: str = "template0") -> str:
        """Make a database, a copy of `template`, and return its name."""
        name = f"tenure_{os.getpid()}_{next(_numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, database: str) -> None:
        """Drop a database and whoever is still in it."""
        self.run(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@contextmanager
def running() -> Iterator[Server]:
    """Yield the server that the environment names, or one of our own for the time being."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield Server(base=given)
        return
    owner = _owner()
    # Not below pytest's own folders: only root may enter those, and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="tenure-pg-"))
    try:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        yield from _served(folder, owner)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> pwd.struct_passwd:
    """Return who runs the server: ourselves, or somebody without rights if we are root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.fail(f"nobody but root is there to run Postgres. {_NEEDED}", pytrace=False)


def _program(name: str) -> str:
    """Return the path of one of the server's programs, newest version first."""
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"),
        key=lambda path: float(path.parts[-3]),
        reverse=True,
    )
    found = str(versions[0]) if versions else shutil.which(name)
    if found is None:
        pytest.fail(f"no program {name}. {_NEEDED}", pytrace=False)
    return found


def _served(folder: Path, owner: pwd.struct_passwd) -> Iterator[Server]:
    data, log = folder / "data", folder / "log"
    words: dict[str, Any] = {"cwd": folder}
    if os.geteuid() == 0:
        words |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    made = ["-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"]
    subprocess.run(
        [_program("initdb"), *made, "--no-sync"], check=True, stdout=subprocess.DEVNULL, **words
    )
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": folder,
        "unix_socket_permissions": "0700",
        "fsync": "on",
        "max_connections": "200",
        "shared_buffers": "64MB",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [_program("postgres"), "-D", str(data), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop the server
            **words,
        )
    try:
        server = Server(base=f"postgresql://postgres@/postgres?host={folder}")
        _wait(server, process, log)
        yield server
    finally:
        _stop(process)


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers."""
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            server.run("SELECT 1")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"Postgres did not start:\n{log.read_text()}", pytrace=False)
            time.sleep(0.05)
        else:
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server: at once for its clients, but in order for its files."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
