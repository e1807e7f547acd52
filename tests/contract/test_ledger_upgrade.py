"""A ledger from before the first release, and the upgrade of one of today."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.store.migrate import upgrade
from ledger.store.open import Mode
from tests.support.cli import CommandLine
from tests.support.stores import SqliteStore

SAMPLES = Path(__file__).parents[1] / "samples" / "ledgers"
REFUSAL = "written before the first release of tenure: schema=0001"


@pytest.fixture
def old(tmp_path: Path) -> SqliteStore:
    """A ledger of revision 0001, which was never released."""
    return SqliteStore(path=Path(shutil.copy(SAMPLES / "0001.db", tmp_path / "old.db")))


@pytest.mark.parametrize("mode", ["read", "write", "upgrade", "create"])
def test_a_ledger_from_before_the_first_release_is_refused(old: SqliteStore, mode: Mode) -> None:
    """It is refused with its revision and the next step, and its file is left as it is."""
    before = old.path.read_bytes()
    with pytest.raises(InputError, match=REFUSAL) as caught:
        old.open(mode)

    assert "into a new file" in caught.value.__notes__[0]
    assert old.path.read_bytes() == before


@pytest.mark.parametrize(
    "arguments", [("verify",), ("status",), ("ledger", "rebuild"), ("ledger", "upgrade")]
)
def test_every_command_says_so_of_such_a_ledger(
    old: SqliteStore, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """One error, one next step."""
    answer = CommandLine(old.path, capsys).ask(*arguments)

    assert answer.code == 2
    assert REFUSAL in answer.err
    assert "into a new file" in answer.err.splitlines()[-1]


def test_a_second_upgrade_changes_nothing(sqlite_store: SqliteStore) -> None:
    """A ledger of today may be upgraded again, by whoever is not sure."""
    with sqlite_store.raw() as raw:
        before = list(raw.iterdump())
    for _ in range(2):
        with sqlite_store.open("upgrade") as ledger:
            upgrade(ledger.connection)
    with sqlite_store.raw() as raw:
        assert list(raw.iterdump()) == before
