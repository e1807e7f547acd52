"""A ledger that a newer release wrote: every command says so and what to do, and leaves it be."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import typer

from ledger.domain.errors import InputError
from ledger.signing import PrivateKey
from ledger.store import schema
from ledger.store.open import open_ledger
from ledger.store.service import open_service
from tenure.cli import app
from tenure.serving.scheduling.ledger import beginning_of
from tests.support.cli import CommandLine
from tests.support.postgres import Server
from tests.support.stores import PostgresStore

NEWER = str(int(schema.REVISIONS[-1]) + 1).zfill(4)
SAID = (
    f"written by a newer version of tenure: schema={NEWER},"
    f" this version reads {schema.REVISIONS[-1]}"
)
STEP = (
    "next: use the tenure that wrote it, or a newer one: this version neither reads it"
    " nor changes it"
)
REASON = ("--reason", "because")
ARGUMENTS = {
    "simulate": ("EXAMPLE", "--resume"),
    "check": ("--config", "examples/settings/cluster.yaml"),
    "who": ("train",),
    "why": ("train",),
    "defrag plan": ("ml/train",),
    "ledger sql": ("SELECT 1",),
    "ledger recover": ("--public-key", "PUBLIC", "--pods", "PODS"),
    "ledger checkpoint": ("--key", "KEY"),
    "ledger prove": ("1",),
    "ledger export": ("--out", "OUT"),
    "ledger archive": ("--to", "FOLDER", "--key", "KEY", "--keep", "1"),
    "ledger void": ("1", *REASON),
    "ledger withdraw": ("1", *REASON),
    "ledger correct-time": ("--first", "1", "--last", "1", "--shift", "1", *REASON),
    "ledger clear": ("n1", *REASON),
    "ledger key rotate": ("--old", "KEY", "--new", "NEW"),
}
"""What a command needs besides, to come as far as its ledger."""
ELSEWHERE = {"serve scheduler"}
"""It asks its cluster first whose ledger that has to be."""


def commands() -> Iterator[str]:
    """Yield every command that takes a ledger."""

    def walk(command: object, words: tuple[str, ...]) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            if any("--ledger" in option.opts for option in getattr(inner, "params", ())):
                yield " ".join((*words, name))
            yield from walk(inner, (*words, name))

    yield from walk(typer.main.get_command(app), ())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ledger of a newer schema, keys, and what else commands are given."""
    key = PrivateKey.new("tenure")
    (tmp_path / "key").write_text(key.text())
    (tmp_path / "new").write_text(PrivateKey.new("newer").text())
    (tmp_path / "public").write_text(str(key.public))
    (tmp_path / "pods.json").write_text('{"apiVersion": "v1", "kind": "PodList", "items": []}')
    path = tmp_path / "newer.db"
    open_ledger(str(path), mode="create").close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = ?", (NEWER,))
    return tmp_path


@pytest.mark.parametrize("command", sorted(set(commands()) - ELSEWHERE))
def test_a_newer_ledger_asks_for_a_newer_tenure(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Its revision, the one that is read here, and the next step; exit 2, and nothing changes."""
    path = folder / "newer.db"
    before = path.read_bytes()
    paths = {
        "KEY": str(folder / "key"),
        "NEW": str(folder / "new"),
        "PUBLIC": str(folder / "public"),
        "PODS": str(folder / "pods.json"),
        "OUT": str(folder / "out.gz"),
        "FOLDER": str(folder),
        "EXAMPLE": "examples/nvidia.yaml",
    }
    words = [paths.get(word, word) for word in ARGUMENTS.get(command, ())]
    answer = CommandLine(path, capsys).ask(*command.split(), *words)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-2:] == [f"error: {path}: {SAID}", STEP]
    assert path.read_bytes() == before


def test_a_service_does_not_start_on_a_newer_ledger(folder: Path) -> None:
    """What opens it for the scheduler says the same, and waits for nothing."""
    path = str(folder / "newer.db")

    async def start() -> None:
        async with open_service(path, write=True):
            pass

    for act in (lambda: asyncio.run(start()), lambda: beginning_of(path, "ledger/of-a-cluster")):
        with pytest.raises(InputError, match=SAID) as refusal:
            act()
        assert f"next: {refusal.value.__notes__[0]}" == STEP


def test_a_newer_ledger_on_a_server_asks_for_a_newer_tenure(
    postgres: Server, empty_postgres: PostgresStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """On Postgres the same words, to read and to write."""
    store = empty_postgres.copy()
    with store.raw() as raw:
        raw.execute("UPDATE alembic_version SET version_num = %s", (NEWER,))
    for command in ("verify", "status", "ledger upgrade", "ledger rebuild", "ledger init"):
        line = CommandLine(Path("unused"), capsys)
        answer = line.run(*command.split(), "--ledger", store.url)
        assert answer.code == 2, command
        assert SAID in answer.err, command
        assert answer.err.splitlines()[-1] == STEP, command
    postgres.drop(store.database)
