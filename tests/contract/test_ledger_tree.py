"""The Merkle tree moves in the commit that appends, and nothing else moves it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.event import listen

from ledger.domain.proofs.merkle import (
    CompactRange,
    compact_range,
    consistency_proof,
    includes,
    inclusion_proof,
    is_prefix,
)
from ledger.store.open import Ledger
from ledger.store.proving.checkpoints import prove_consistency
from ledger.store.proving.tree import node_reader, stored_range
from ledger.store.proving.verify import verify
from ledger.store.reading import tables
from tests.support.forging import put_in_checkpoint
from tests.support.stores import (
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    bound,
    node,
    refused,
    reserved,
    share,
    start,
)


def leaves(ledger: Ledger) -> list[bytes]:
    """Return the leaf hash of every event."""
    return [each.leaf_hash for each in ledger.read_events()]


def tree_over(hashes: list[bytes]) -> CompactRange:
    """Return the range over these leaves, without a database."""
    tree = CompactRange()
    for each in hashes:
        tree.append(each)
    return tree


def filled(store: Store, events: int) -> None:
    """Record that many events of no consequence behind the first one, in odd batches."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        left = events - writer.head.position
        while left:
            some = min(left, 97)
            writer.append([clock.new(refused(f"p-{clock.made}")) for _ in range(some)])
            left -= some


def without_tree(store: SqliteStore, size: int) -> None:
    """Leave the tree as a writer of the revision before would have left it: at that size."""
    with store.open("read") as ledger:
        tree = tree_over(leaves(ledger)[:size])
    with store.raw() as raw:
        rules = raw.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            " AND tbl_name IN ('ledger_tree', 'ledger_tiles')"
        ).fetchall()
        for name, _ in rules:
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute("UPDATE ledger_tree SET size = ?, range = ?", (size, tree.to_bytes()))
        raw.execute("DELETE FROM ledger_tiles WHERE (number + 1) << (8 * (level + 1)) > ?", (size,))
        for _, text in rules:
            raw.execute(text)


def test_the_tree_is_the_one_over_the_leaf_hashes(store: Store) -> None:
    """After every append, the stored range is that of all leaves."""
    with store.open() as ledger:
        writer = start(ledger)
        clock = Clock()
        for batch in ([node()], [reserved("a", share()), bound("a")], [refused("b")]):
            writer.append(clock.all(*batch))
            expected = tree_over(leaves(ledger))
            with ledger.connection.begin():
                found = stored_range(ledger.connection)
            assert found.size == expected.size == writer.head.position
            assert found.to_bytes() == expected.to_bytes()


def test_a_refused_append_leaves_the_tree(store: Store) -> None:
    """What is rolled back is not in the tree, and the writer goes on."""
    with store.open() as ledger:
        writer = start(ledger)
        clock = Clock()
        writer.append(clock.all(node(gpus=1), reserved("a", share(0, 80))))
        with pytest.raises(Exception, match="card"):
            writer.append(clock.all(reserved("b", share(0, 80))))
        writer.append(clock.all(refused("c")))
        root = tree_over(leaves(ledger)).root()
        with ledger.connection.begin():
            assert stored_range(ledger.connection).root() == root


def test_proofs_of_many_sizes_read_each_part_of_the_tree_once(store: Store) -> None:
    """Agents of 6,000 nodes keep checkpoints of dozens of sizes."""
    filled(store, 2_000)
    with store.open("read") as ledger:
        asked: list[str] = []
        listen(ledger.connection, "before_cursor_execute", lambda *words: asked.append(words[2]))
        few = prove_consistency(ledger, [1_990], 2_000)
        count = len(asked)
        many = prove_consistency(ledger, range(1_951, 1_991), 2_000)
        hashes = leaves(ledger)
    assert many[-1] == few[0]
    assert [one.root for one in many] == [
        tree_over(hashes[:size]).root() for size in range(1_951, 1_991)
    ]
    assert count < 40
    assert len(asked) < 8 * count


@pytest.mark.parametrize("size", [255, 256, 257, 700], ids=lambda size: f"with {size} events")
def test_proofs_from_tiles_and_events(store: Store, size: int) -> None:
    """Every event is proved in the stored tree, and every size is a prefix of it."""
    filled(store, size)
    with store.open("read") as ledger:
        hashes = leaves(ledger)
        root = tree_over(hashes).root()
        with ledger.connection.begin():
            read = node_reader(ledger.connection)
            for index in {*range(0, size, 37), size - 1}:
                proof = inclusion_proof(read, index, size)
                assert includes(leaf=hashes[index], index=index, size=size, root=root, proof=proof)
            for first in {1, 2, 200, 256, size - 1, size} & set(range(size + 1)):
                old = compact_range(read, first).root()
                assert old == tree_over(hashes[:first]).root()
                proof = consistency_proof(read, first, size)
                assert is_prefix(
                    first=first, first_root=old, second=size, second_root=root, proof=proof
                )


@pytest.mark.parametrize("size", [0, 100, 256, 300], ids=lambda size: f"left at {size}")
def test_a_tree_left_behind_is_caught_up(sqlite_store: SqliteStore, size: int) -> None:
    """What an older writer appended without the tree is filled in when the next epoch starts."""
    filled(sqlite_store, 600)
    without_tree(sqlite_store, size)
    with sqlite_store.open("read") as ledger:
        assert verify(ledger).ok, "a tree that is behind is allowed"
    with sqlite_store.open() as ledger:
        start(ledger)
        root = tree_over(leaves(ledger)).root()
        with ledger.connection.begin():
            assert stored_range(ledger.connection).root() == root
        assert verify(ledger).ok


@pytest.fixture(scope="module")
def full(empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger with a full tile and a checkpoint, which every test leaves as it was."""
    store = empty_postgres.copy()
    filled(store, 299)
    put_in_checkpoint(store, 7, "a note")
    yield store
    store.server.drop(store.database)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE ledger_tree SET size = 3", "the tree only grows: it has size 300"),
        ("UPDATE ledger_tree SET range = x''", "the tree only grows: it has size 300"),
        ("UPDATE ledger_tree SET size = 301", "the tree ends at the head, not at 301"),
        ("DELETE FROM ledger_tree", "trees are never deleted"),
        ("INSERT OR REPLACE INTO ledger_tree VALUES (1, 0, x'')", "there is one tree"),
        ("UPDATE ledger_tiles SET hashes = zeroblob(8192)", "a tile does not change: level 0"),
        ("DELETE FROM ledger_tiles", "tiles are never deleted"),
        (
            "INSERT OR REPLACE INTO ledger_tiles VALUES (0, 0, zeroblob(8192))",
            "not the next full tile: level 0, number 0",
        ),
        (
            "INSERT INTO ledger_tiles VALUES (0, 1, zeroblob(8192))",
            "not the next full tile: level 0, number 1",
        ),
        ("INSERT INTO ledger_checkpoints VALUES (301, 'x')", "up to the head: size 301"),
        ("INSERT OR REPLACE INTO ledger_checkpoints VALUES (7, 'x')", "larger tree than the last"),
        ("UPDATE ledger_checkpoints SET note = 'y'", "a checkpoint does not change: size 7"),
        ("DELETE FROM ledger_checkpoints", "checkpoints are never deleted"),
    ],
    ids=lambda value: value if "tenure" not in value else "",
)
def test_the_database_refuses_every_other_move(
    sqlite_store: SqliteStore, statement: str, words: str
) -> None:
    """Trees, tiles and checkpoints only grow, whoever opens the file."""
    filled(sqlite_store, 299)
    put_in_checkpoint(sqlite_store, 7, "a note")
    with sqlite_store.raw() as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        with pytest.raises(sqlite3.DatabaseError, match=words):
            raw.execute(statement)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE ledger_tree SET size = 3", "the tree only grows: it has size 300"),
        ("UPDATE ledger_tree SET range = ''", "the tree only grows: it has size 300"),
        ("UPDATE ledger_tree SET size = 301", "the tree ends at the head, not at 301"),
        ("DELETE FROM ledger_tree", "trees are never deleted"),
        ("TRUNCATE ledger_tree", "trees are never deleted"),
        ("INSERT INTO ledger_tree VALUES (1, 0, '')", "there is one tree"),
        ("UPDATE ledger_tiles SET number = 7", "a tile does not change: level 0, number 0"),
        ("DELETE FROM ledger_tiles", "tiles are never deleted"),
        ("TRUNCATE ledger_tiles", "tiles are never deleted"),
        (
            "INSERT INTO ledger_tiles VALUES (0, 1, decode(repeat('00', 8192), 'hex'))",
            "not the next full tile: level 0, number 1",
        ),
        ("INSERT INTO ledger_checkpoints VALUES (301, 'x')", "up to the head: size 301"),
        ("INSERT INTO ledger_checkpoints VALUES (6, 'x')", "larger tree than the last"),
        ("UPDATE ledger_checkpoints SET note = 'y'", "a checkpoint does not change: size 7"),
        ("DELETE FROM ledger_checkpoints", "checkpoints are never deleted"),
        ("TRUNCATE ledger_checkpoints", "checkpoints are never deleted"),
    ],
    ids=lambda value: value if "tenure" not in value else "",
)
def test_postgres_refuses_every_other_move(full: PostgresStore, statement: str, words: str) -> None:
    """Trees, tiles and checkpoints only grow there too, with the triggers of replication off."""
    with full.raw() as raw, raw.transaction(force_rollback=True):
        raw.execute("SET session_replication_role = replica")
        with pytest.raises(psycopg.DatabaseError, match=f"tenure ledger: .*{words}"):
            raw.execute(statement)


@pytest.mark.parametrize(
    ("statement", "position", "words"),
    [
        ("UPDATE ledger_tree SET range = zeroblob(length(range))", None, "the tree is not"),
        ("UPDATE ledger_tree SET size = 900", 601, "the tree is larger than the log"),
        ("UPDATE ledger_tiles SET hashes = zeroblob(8192) WHERE number = 1", 257, "tile"),
        ("DELETE FROM ledger_tiles WHERE number = 1", 257, "a tile is missing"),
        ("DELETE FROM ledger_tree", None, "the tree is missing"),
    ],
    ids=["other hashes", "another size", "another tile", "a tile less", "no tree"],
)
@pytest.mark.parametrize("page", [600, 300])
def test_verify_finds_another_tree(
    sqlite_store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    statement: str,
    position: int | None,
    words: str,
    page: int,
) -> None:
    """The tree and its tiles are computed again from the events, in however many pages."""
    monkeypatch.setattr(tables, "PAGE_ROWS", page)
    filled(sqlite_store, 600)
    with sqlite_store.raw() as raw:
        rules = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        raw.execute("PRAGMA ignore_check_constraints = ON")
        for name, _ in rules:
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute(statement)
        for _, text in rules:
            raw.execute(text)
    with sqlite_store.open("read") as ledger:
        report = verify(ledger)
    assert any(each.position == position and words in each.text for each in report.findings), (
        report.findings
    )
