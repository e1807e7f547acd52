"""A ledger that an earlier release wrote: it is told apart, brought up to date, and proved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.domain.events import decode_event
from ledger.store.migrate import upgrade
from ledger.store.open import Mode, open_ledger
from ledger.store.rebuild import rebuild
from ledger.store.timetravel import load_state
from ledger.store.verify import verify
from tests.support.cli import CommandLine
from tests.support.stores import Clock, SqliteStore, node

SAMPLES = Path(__file__).parents[1] / "samples" / "ledgers"
ORIGIN = "simulation/sample-0001"
EVENTS = "SELECT * FROM ledger_events ORDER BY position"
CHAIN = "7dab77a61e7fc99220b3882d1f37a41b87c2e6184d9a12d19b87b8f243b4ef8b"


@pytest.fixture
def old(tmp_path: Path) -> SqliteStore:
    """A ledger of revision 0001."""
    return SqliteStore(path=Path(shutil.copy(SAMPLES / "0001.db", tmp_path / "old.db")))


@pytest.mark.parametrize("mode", ["read", "write"])
def test_an_older_ledger_is_not_opened_as_if_it_were_new(old: SqliteStore, mode: Mode) -> None:
    """It is refused with the revision and the next step, and its file is left as it is."""
    before = old.path.read_bytes()
    with pytest.raises(InputError, match="older version of tenure: schema=0001") as caught:
        old.open(mode)

    assert "tenure ledger upgrade" in caught.value.__notes__[0]
    assert old.path.read_bytes() == before


@pytest.mark.parametrize("arguments", [("verify",), ("status",), ("ledger", "rebuild")])
def test_every_command_says_what_to_do_with_an_older_ledger(
    old: SqliteStore, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """One error, one next step: the upgrade."""
    answer = CommandLine(old.path, capsys).ask(*arguments)

    assert answer.code == 2
    assert "written by an older version of tenure: schema=0001" in answer.err
    assert "tenure ledger upgrade" in answer.err.splitlines()[-1]


def test_the_upgrade_changes_no_event_and_proves_itself(
    old: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """The events are the same bytes, the next writer fills the tree up, and all of it verifies."""
    with old.raw() as raw:
        before = raw.execute(EVENTS).fetchall()
    answer = CommandLine(old.path, capsys).ask("ledger", "upgrade")
    assert (answer.code, answer.out) == (0, "schema is that of this release\n")

    with old.raw() as raw:
        assert raw.execute(EVENTS).fetchall() == before
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("0002",)]
        assert raw.execute("SELECT size FROM ledger_tree").fetchone() == (0,)
    with old.open() as ledger:
        assert ledger.head().chain_hash.hex() == CHAIN
        assert rebuild(ledger).equal
        writer = ledger.start_epoch("test", ORIGIN, "0.2.0")
        writer.append([Clock().new(node("n-9"), key="after the upgrade")])
        assert verify(ledger).findings == ()
        head = ledger.head().position
    with old.raw() as raw:
        assert raw.execute("SELECT size FROM ledger_tree").fetchone() == (head,)
        assert raw.execute(EVENTS).fetchall()[: len(before)] == before


def test_a_second_upgrade_changes_nothing(old: SqliteStore) -> None:
    """A ledger of today may be upgraded again, by whoever is not sure."""
    for _ in range(2):
        with old.open("upgrade") as ledger:
            upgrade(ledger.connection)
            with old.raw() as raw:
                dump = list(raw.iterdump())
    with old.raw() as raw:
        assert list(raw.iterdump()) == dump


def test_every_recorded_event_still_decodes(old: SqliteStore) -> None:
    """Old words are read in today's, and fold into the state that the tables hold."""
    with old.raw() as raw:
        rows = raw.execute("SELECT event_type, body FROM ledger_events").fetchall()
    assert len(rows) == 32
    for event_type, body in rows:
        decode_event(event_type, body)

    with old.open("upgrade") as ledger:
        upgrade(ledger.connection)
        state = load_state(ledger).state
    held = {key for each in state.nodes.values() for key in each.holdings}
    assert held == {f"uid-{pod}/1" for pod in ("nb-2", "g-1", "ghost", "net", "after")} | {
        "uid-late/2"
    }


def test_a_ledger_with_events_is_not_taken_for_a_new_one(old: SqliteStore) -> None:
    """`create` refuses the sample, which has events."""
    with pytest.raises(InputError, match="the ledger is not empty"):
        open_ledger(old.url, mode="create")
