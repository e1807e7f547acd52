"""
Whatever single value or row of a ledger is another than it was: `verify` finds it.

The edits are made by plain SQL past every rule, which stands again afterwards. They follow from the
schema: a table without a row here fails the test, so that a new one is edited too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from ledger.domain.errors import InputError
from ledger.signing import sign_note
from ledger.store.open import Ledger
from ledger.store.proving.checkpoints import checkpoint_at, store_checkpoint
from ledger.store.proving.verify import verify
from ledger.store.reading.snapshots import take_snapshot
from ledger.store.writing.append import Writer
from tests.support.archives import KEY, afterwards, history, move
from tests.support.campaign import print_figures
from tests.support.row_edits import Edit, Edits, PostgresEdits, SqliteEdits, chosen, edits_of
from tests.support.stores import (
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    refused,
    released,
    reserved,
    share,
    start,
)

SEED: Final = 34
ARCHIVE: Final = frozenset({"ledger_segments", "ledger_archived"})
SNAPSHOTS: Final = frozenset({"ledger_snapshots"})
CHECKPOINTS: Final = frozenset({"ledger_checkpoints"})


def plain(ledger: Ledger, folder: Path) -> None:
    """Record something of every kind, some of it open and some of it ended."""
    del folder
    history(ledger, Clock(), events=300)


def archived(ledger: Ledger, folder: Path) -> None:
    """Move 512 events to two files, and go on with what was open there."""
    _archived(ledger, folder)


def with_snapshots(ledger: Ledger, folder: Path) -> None:
    """Take two snapshots, the last one not at the end."""
    del folder
    clock = Clock()
    _snapshots(ledger, history(ledger, clock, events=300), clock)


def with_checkpoints(ledger: Ledger, folder: Path) -> None:
    """Keep two checkpoints, the last one not at the end."""
    del folder
    clock = Clock()
    _checkpoints(ledger, history(ledger, clock, events=300), clock)


def whole(ledger: Ledger, folder: Path) -> None:
    """All of it in one ledger, so that every table has a row."""
    writer, clock = _archived(ledger, folder)
    _snapshots(ledger, writer, clock)
    _checkpoints(ledger, writer, clock)


def long(ledger: Ledger, folder: Path) -> None:
    """So many events that rows are read in many pages."""
    del folder
    history(ledger, Clock(), events=6_100)


def _archived(ledger: Ledger, folder: Path) -> tuple[Writer, Clock]:
    clock = Clock()
    history(ledger, clock, events=260)
    move(ledger, folder)
    writer, clock.now_us = start(ledger, "next"), ledger.head().at_us
    for number in range(13):
        pods = [f"q{number}-{each}" for each in range(10)]
        lives = ((reserved(pod, share(2, 10)), released(pod)) for pod in pods)
        writer.append(clock.all(*(each for life in lives for each in life)))
    move(ledger, folder)
    writer = start(ledger, "third")
    writer.append(clock.all(*(each.event for each in afterwards(Clock()))))
    writer.append(clock.all(reserved("last", share(2, 20)), refused("too-late")))
    return writer, clock


def _snapshots(ledger: Ledger, writer: Writer, clock: Clock) -> None:
    for number in range(2):
        take_snapshot(ledger, writer, wall_us=0)
        writer.append([clock.new(refused(f"behind-{number}"))])


def _checkpoints(ledger: Ledger, writer: Writer, clock: Clock) -> None:
    for number in range(2):
        checkpoint = checkpoint_at(ledger)
        store_checkpoint(writer, checkpoint, sign_note(checkpoint.text(), KEY), wall_us=0)
        writer.append([clock.new(refused(f"signed-{number}"))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A kind of ledger, and the tables that are empty in it."""

    name: str
    record: Callable[[Ledger, Path], None]
    empty: frozenset[str]


SCENES: Final = (
    Scene(name="plain", record=plain, empty=ARCHIVE | SNAPSHOTS | CHECKPOINTS),
    Scene(name="archived", record=archived, empty=SNAPSHOTS | CHECKPOINTS),
    Scene(name="with snapshots", record=with_snapshots, empty=ARCHIVE | CHECKPOINTS),
    Scene(name="with checkpoints", record=with_checkpoints, empty=ARCHIVE | SNAPSHOTS),
    Scene(name="with all of it", record=whole, empty=frozenset()),
    Scene(name="beyond 6,000 events", record=long, empty=ARCHIVE | SNAPSHOTS | CHECKPOINTS),
)
WHOLE: Final = SCENES[4]
LONG: Final = SCENES[5]


@dataclass(slots=True)
class Tried:
    """What became of the edits of one ledger."""

    found: int = 0
    not_opened: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


Recorded = Callable[[Scene, str], AbstractContextManager[Edits]]


@pytest.fixture(scope="module")
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    """Gives a ledger of a kind, to be edited; each is recorded once."""
    made: dict[tuple[str, str], Store] = {}

    @contextmanager
    def edits(scene: Scene, database: str) -> Iterator[Edits]:
        folder = tmp_path_factory.mktemp("edits")
        store = made.get((scene.name, database))
        if store is None:
            name = {"sqlite": "empty_ledger", "postgres": "empty_postgres"}[database]
            empty: Store = request.getfixturevalue(name)
            store = made[scene.name, database] = empty.copy(folder / "ledger.db")
            with store.open() as ledger:
                scene.record(ledger, folder)
        if isinstance(store, SqliteStore):
            yield SqliteEdits(store=store, folder=folder / "edited")
        else:
            with store.raw() as raw:
                yield PostgresEdits(store=store, raw=raw)

    yield edits
    for store in made.values():
        if isinstance(store, PostgresStore):
            store.server.drop(store.database)


def is_lawful(edit: Edit) -> bool:
    """Tell whether anybody may do it: a snapshot is a cache, and may go."""
    return edit.table == "ledger_snapshots" and edit.kind == "row deleted"


def try_edit(edits: Edits, edit: Edit, tried: Tried) -> None:
    """Make the edit, and ask what `verify` says of it."""
    with edits.edited(edit) as store:
        if store is None:
            tried.refused += 1
            return
        try:
            with store.open("read") as ledger:
                report = verify(ledger)
        except InputError:
            tried.not_opened += 1
            return
        except Exception as error:  # noqa: BLE001 - a traceback is a wrong answer
            tried.wrong.append(f"{edit}: {error!r}")
            return
        tried.found += not report.ok
        if report.ok:
            tried.wrong.append(f"{edit}: nothing found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """
    How many edits are made of a kind of ledger.

    Attributes:
        each: of every table's columns, and rows deleted, doubled and invented.
        some: at most so many of all these.
        every_row: one of each value of each row instead, and one row of each other kind.
    """

    scene: Scene
    each: int | None = 1
    some: int | None = None
    every_row: bool = False

    def __str__(self) -> str:
        return f"{self.scene.name}{', every row' if self.every_row else ''}"


SAMPLE: Final = {
    "sqlite": Campaign(scene=WHOLE, some=30),
    "postgres": Campaign(scene=WHOLE, some=8),
}
"""What `make test` tries. Postgres is asked for its whole catalog each time, which takes long."""
WHOLE_CAMPAIGN: Final = {
    "sqlite": [
        *(Campaign(scene=scene) for scene in SCENES[:4]),
        Campaign(scene=WHOLE, each=3),
        Campaign(scene=LONG, some=60),
        Campaign(scene=WHOLE, each=None, every_row=True),
    ],
    "postgres": [
        *(Campaign(scene=scene, some=100) for scene in SCENES[:4]),
        Campaign(scene=WHOLE),
        Campaign(scene=LONG, some=30),
    ],
}


@pytest.mark.parametrize(
    ("database", "campaign"),
    [
        *(
            pytest.param(name, each, id=f"{name}, a sample", marks=pytest.mark.campaign_sample)
            for name, each in SAMPLE.items()
        ),
        *(
            pytest.param(name, each, id=f"{name}, {each}", marks=pytest.mark.slow)
            for name, campaigns in WHOLE_CAMPAIGN.items()
            for each in campaigns
        ),
    ],
)
def test_verify_finds_every_single_edit_of_a_row(
    database: str, campaign: Campaign, recorded: Recorded
) -> None:
    """A value that is another, a row that is gone, or there twice, or of what never was."""
    scene, rng, tried = campaign.scene, random.Random(SEED), Tried()
    with recorded(scene, database) as edits:
        tables = list(edits.tables.values())
        assert {rows.table for rows in tables if not rows.rows} == scene.empty
        assert {each.table for each in tables} > {"ledger_head", "alembic_version"}
        full = [rows for rows in tables if rows.rows]
        every = edits_of(full, rng, every_row=campaign.every_row)
        for edit in chosen(every, campaign.each, campaign.some, rng):
            if not is_lawful(edit):
                try_edit(edits, edit, tried)
    figures = {
        "edits": tried.found + tried.not_opened + len(tried.wrong),
        "not opened": tried.not_opened,
        "unseen": len(tried.wrong),
        "refused by the database": tried.refused,
    }
    print_figures(f"{database}, {campaign}", figures)
    assert not tried.wrong, "\n".join(tried.wrong)
    assert tried.found > tried.refused


NAMED: Final = {
    ("ledger_tree", "id"): r"ledger_tree: key=\(-?\d+,\), it breaks the rule id = 1",
    ("ledger_segments", "at_us"): r"ledger_segments: key=\(256,\), at_us is another",
    ("ledger_segments", "file_name"): r"ledger_segments: key=\(256,\), file_name=",
    ("ledger_segments", "state"): r"state at a segment's end is damaged: file=segment-000000000001",
    ("ledger_checkpoints", "row deleted"): r"ledger_checkpoints lacks the row .*: key=\(\d+,\)",
    ("ledger_checkpoints", "note"): r"ledger_checkpoints: key=\(\d+,\), note",
    ("ledger_events", "row doubled"): r"position 0: the log begins at position 1",
}
"""What is found of an edit of the first row of a table, by its column or its kind."""


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_an_edit_is_named_by_table_row_and_column(database: str, recorded: Recorded) -> None:
    """Whoever mends it knows where to look."""
    with recorded(WHOLE, database) as edits:
        every = edits_of(list(edits.tables.values()), random.Random(SEED))
        for (table, what), words in NAMED.items():
            rows = edits.tables[table]
            first, at = rows.rows[0], rows.columns.index(what) if what in rows.columns else 0
            edit = next(
                each
                for each in every[table, what]
                if (
                    each.old == first and (each.new is None or type(each.new[at]) is rows.types[at])
                )
                or (each.old is None and each.new and each.new[0] == first[0] - 1)
            )
            with edits.edited(edit) as store:
                assert store is not None, edit
                with store.open("read") as ledger:
                    found = verify(ledger).findings
            assert any(re.search(words, str(each)) for each in found), (str(edit), found)


def test_an_unknown_id_of_the_one_tree_is_found(recorded: Recorded) -> None:
    """NULL passes a CHECK, and Postgres can be made to take it as a key."""
    with recorded(WHOLE, "postgres") as edits:
        every = edits_of([edits.tables["ledger_tree"]], random.Random(SEED))
        (edit,) = (each for each in every["ledger_tree", "id"] if each.new and each.new[0] is None)
        with edits.edited(edit) as store:
            assert store is not None
            with store.open("read") as ledger:
                texts = [each.text for each in verify(ledger).findings]
    assert "ledger_tree: key=(None,), it breaks the rule id = 1" in texts
