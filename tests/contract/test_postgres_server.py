"""Which Postgres the tests run on: the one that is given, the system's, or one from a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.postgres import choose, embedded, installed, own_server

URL = "postgresql://me@/postgres?host=/run/postgresql"


def programs(folder: Path, *names: str) -> Path:
    """Make a folder with programs of these names, and return it."""
    folder.mkdir(parents=True)
    for name in names or ("initdb", "postgres"):
        (folder / name).touch(mode=0o755)
    return folder


def test_what_is_given_comes_first_and_what_is_packaged_last() -> None:
    """A URL beats the system's programs, and these beat those of a package."""
    system, packaged = [Path("/usr/lib/postgresql/15/bin")], [Path("/site/pginstall/bin")]
    assert choose(URL, system, packaged) == URL
    assert choose(None, system, packaged) == system[0]
    assert choose("", system, packaged) == system[0]
    assert choose(None, [], packaged) == packaged[0]


def test_nothing_at_all_is_a_failure_that_says_what_to_install() -> None:
    """No test is left out in silence."""
    with pytest.raises(
        pytest.fail.Exception, match=r"apt install postgresql.*requirements.postgres.txt"
    ):
        choose(None, [], [])


def test_the_newest_of_the_system_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are numbers, half an installation is none, and PATH is asked last."""
    for version in ("9.6", "15", "17"):
        programs(tmp_path / "lib" / version / "bin")
    programs(tmp_path / "lib" / "18" / "bin", "initdb")
    monkeypatch.setenv("PATH", str(programs(tmp_path / "path")))
    found = [str(folder.relative_to(tmp_path)) for folder in installed(tmp_path / "lib")]
    assert found == ["lib/17/bin", "lib/15/bin", "lib/9.6/bin", "path"]


def test_a_package_is_found_and_none_of_its_code_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its programs are all that we take of it; the newest that it has come first."""
    package = tmp_path / "carries_a_server"
    old, new = (programs(package / name / "bin") for name in ("pginstall", "pginstall18"))
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert embedded(("no_such_package", package.name)) == [new, old]
    assert package.name not in sys.modules


def test_a_server_of_our_own_listens_on_its_socket_as_nobody_special() -> None:
    """It is not root's, nobody else can reach it, and nothing of it is left."""
    with own_server() as own:
        with own.server.connected("postgres") as raw:
            shown = [raw.execute(f"SHOW {name}".encode()).fetchone() for name in SETTINGS]
        assert shown == [("",), ("0700",), (str(own.folder),)]
        assert own.process is not None
        assert Path(f"/proc/{own.process.pid}").stat().st_uid == own.owner.pw_uid != 0
    assert not own.folder.exists()


SETTINGS = ("listen_addresses", "unix_socket_permissions", "unix_socket_directories")
