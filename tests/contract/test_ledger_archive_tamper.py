"""Whatever is done to an archive's files, or to what the ledger kept of them, is told and where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.errors import InputError
from ledger.domain.log.events import PodReserved
from ledger.domain.proofs.hashing import chain_hash, row_leaf
from ledger.domain.request.requests import PodSnapshot
from ledger.signing import sign_note
from ledger.store.archives.archive import orphans
from ledger.store.ddl.sqlite_triggers import TRIGGERS, named
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.checkpoints import checkpoint_at, store_checkpoint
from ledger.store.proving.verify import VerifyReport, verify
from ledger.store.reading.timetravel import state_at
from tenure.offline import NotProvedError, check
from tests.support.archives import KEY, changed, history, move, rewrite
from tests.support.stores import (
    Clock,
    SqliteStore,
    node,
    refused,
    released,
    reserved,
    share,
    start,
)

Lines = list[dict[str, Any]]
AT = 300
"""The position that is tampered with, in the second segment."""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, empty_ledger: SqliteStore) -> SqliteStore:
    """A ledger of 600 events whose first 512 are in two files beside it."""
    folder = tmp_path_factory.mktemp("archive")
    store = empty_ledger.copy(folder / "ledger.db")
    with store.open() as ledger:
        writer = history(ledger, Clock(), events=260)
        move(ledger, folder)
        writer = start(ledger, "next")
        clock = Clock(now_us=ledger.head().at_us)
        clock.made = 1_000
        for number in range(160):
            writer.append(clock.all(reserved(f"q{number}", share(2, 10)), released(f"q{number}")))
        move(ledger, folder)
    return store


@pytest.fixture
def archive(moved: SqliteStore, tmp_path: Path) -> SqliteStore:
    """A copy of it that a test may do anything to."""
    for path in moved.path.parent.glob("segment-*"):
        shutil.copy(path, tmp_path)
    return moved.copy(tmp_path / "ledger.db")


def files(store: SqliteStore) -> list[Path]:
    """Return the files, in the order of their positions."""
    return sorted(store.path.parent.glob("segment-*"))


def proved(store: SqliteStore) -> VerifyReport:
    """Verify with the files."""
    with store.open("read") as ledger:
        return verify(ledger, segments=store.path.parent)


def edited(lines: Lines) -> Lines:
    """Change a word of one event."""
    lines[AT - 256]["actor"] = "somebody"
    return lines


def written_anew(lines: Lines) -> Lines:
    """Change a word of one event, and every hash behind it."""
    lines = edited(lines)
    chain = bytes.fromhex(lines[AT - 256 - 1]["chain_hash"])
    for line in lines[AT - 256 : -2]:
        words = {**line, "args_hash": bytes.fromhex(line["args_hash"])}
        names = (
            *("position", "stream", "stream_version", "event_type", "body", "actor", "epoch"),
            *("causation_position", "correlation_id", "idempotency_key", "args_hash", "at_us"),
            "wall_us",
        )
        leaf = row_leaf(tuple(words[name] for name in names))
        chain = chain_hash(chain, leaf)
        line["leaf_hash"], line["chain_hash"] = leaf.hex(), chain.hex()
    return lines


def reordered(lines: Lines) -> Lines:
    """Let two events change places."""
    at = AT - 256
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    return lines


def left_out(lines: Lines) -> Lines:
    """Leave one event out."""
    return lines[: AT - 256] + lines[AT - 256 + 1 :]


def shortened(lines: Lines) -> Lines:
    """Cut the events off behind one."""
    return lines[: AT - 256]


def other_state(lines: Lines) -> Lines:
    """Change what was known at the end."""
    lines[-2]["state"] = lines[-2]["state"].replace('"epoch":', '"epoch": ', 1)
    return lines


def test_the_files_prove_themselves_and_the_ledger(archive: SqliteStore) -> None:
    """What the tests below tamper with is sound."""
    assert len(files(archive)) == 2
    for path in files(archive):
        export = check(path, str(KEY.public))
        assert (export.last - export.first, export.origin) == (255, "simulation/test")
    assert proved(archive).findings == ()


@pytest.mark.parametrize(
    ("change", "position", "words"),
    [
        (edited, AT, "the event was altered"),
        (written_anew, AT, "the event is another than was archived"),
        (reordered, AT, "events are missing"),
        (left_out, AT, "events are missing"),
        (shortened, AT, "the segment file is cut off"),
        (other_state, None, "not the file that was archived"),
    ],
)
def test_a_changed_file_is_told_with_its_first_bad_position(
    archive: SqliteStore, change: Callable[[Lines], Lines], position: int | None, words: str
) -> None:
    """By verify with the files and by the offline verifier; nothing else reads such a file."""
    path = files(archive)[1]
    rewrite(path, change)
    found = proved(archive).findings
    assert (found[0].position, words in found[0].text) == (position, True), found
    assert any("not the file that was archived" in each.text for each in found)
    with pytest.raises(NotProvedError):
        check(path, str(KEY.public))
    with archive.open() as ledger:
        assert verify(ledger).findings == ()
        for ask in (
            lambda: state_at(ledger, 400, segments=path.parent),
            lambda: rebuild(ledger, segments=path.parent),
        ):
            with pytest.raises(InputError, match="not the file that was archived"):
                ask()


def test_a_file_cut_in_the_middle_is_told(archive: SqliteStore) -> None:
    """By bytes, as a full disk or a broken copy leaves it."""
    path = files(archive)[1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = proved(archive).findings
    assert found[0].position is not None
    assert 257 <= found[0].position <= 512
    assert "the segment file is damaged" in found[0].text
    with pytest.raises(NotProvedError, match="damaged"):
        check(path, str(KEY.public))


def test_files_that_changed_places_are_told(archive: SqliteStore) -> None:
    """Each holds other events than its segment."""
    first, second = files(archive)
    first.rename(first.with_name("x"))
    second.rename(first)
    first.with_name("x").rename(second)
    found = proved(archive).findings
    assert (found[0].position, "the file holds other events" in found[0].text) == (1, True)


def test_a_missing_file_is_told(archive: SqliteStore) -> None:
    """With the first position that nobody can read."""
    files(archive)[1].unlink()
    found = proved(archive).findings
    assert found[0].position == 257
    assert "No such file" in found[0].text


def test_a_file_of_another_history_is_told(archive: SqliteStore, tmp_path: Path) -> None:
    """A copy of the ledger that went on differently archives under the same name."""
    other = SqliteStore(path=tmp_path / "other" / "ledger.db")
    other.path.parent.mkdir()
    other.open("create").close()
    with other.open() as ledger:
        history(ledger, Clock(now_us=Clock().now_us + 1), events=600)
        move(ledger, other.path.parent)
    older = files(other)[0]
    rewrite(
        older, lambda lines: [{**lines[0], "first": 1, "last": 256}, *lines[1:257], *lines[-2:]]
    )
    shutil.copy(older, files(archive)[0])
    found = proved(archive).findings
    assert (found[0].position, "is another than was archived" in found[0].text) == (2, True)


INVENTED = (
    "INSERT INTO ledger_events SELECT 0, stream, stream_version, event_type, body, actor, epoch,"
    " causation_position, correlation_id, 'x', args_hash, at_us, wall_us, leaf_hash, chain_hash"
    " FROM ledger_events WHERE position = 2"
)
"""An event before the first one."""


@pytest.mark.parametrize(
    ("statement", "position", "words"),
    [
        ("UPDATE ledger_segments SET digest = zeroblob(32) WHERE first = 257", None, "archive"),
        ("UPDATE ledger_segments SET root = zeroblob(32) WHERE first = 1", 256, "root"),
        ("UPDATE ledger_segments SET chain_hash = zeroblob(32) WHERE first = 1", 256, "chain"),
        ("UPDATE ledger_segments SET state = zeroblob(9) WHERE first = 257", 512, "damaged"),
        ("DELETE FROM ledger_segments WHERE first = 257", 257, "events are missing"),
        ("DELETE FROM ledger_segments WHERE first = 1", 257, "events are missing"),
        ("DELETE FROM ledger_archived WHERE position = 300", 300, "lacks its idempotency key"),
        (
            "UPDATE ledger_archived SET idempotency_key = 'free' WHERE position = 300",
            None,
            "the archived keys are not those of the events",
        ),
        (
            "UPDATE ledger_events SET body = replace(body, 'n-1', 'n-7') WHERE position = 2",
            2,
            "the event was altered",
        ),
        ("DELETE FROM ledger_events WHERE position = 2", 2, "lacks its idempotency key"),
        ("DELETE FROM ledger_tiles WHERE number = 1", 257, "a tile is missing"),
        ("UPDATE ledger_segments SET file_name = 'x' WHERE first = 257", None, "file_name="),
        ("UPDATE ledger_segments SET at_us = 1 WHERE first = 1", 256, "at_us is another"),
        (
            "UPDATE ledger_segments SET state = CAST(state || x'00' AS BLOB) WHERE first = 1",
            256,
            "damaged",
        ),
        ("UPDATE ledger_planned_cards SET pod_uid = 'x'", 13, "pod_uid='x' (the events say"),
        ("UPDATE ledger_segments SET state = zeroblob(9) WHERE first = 1", 256, "damaged"),
        ("UPDATE ledger_events SET position = 0 WHERE position = 2", None, "lacks its"),
        (INVENTED, 0, "the log begins at position 1"),
        (
            "UPDATE ledger_events SET event_type = 'x' WHERE event_type LIKE 'segment.a%'",
            None,
            "the event does not archive the segment up to 256",
        ),
    ],
)
def test_what_the_ledger_kept_of_archived_events_is_proved(
    archive: SqliteStore, statement: str, position: int | None, words: str
) -> None:
    """Without any file: segments, keys, kept events and tiles are held against the log."""
    changed(archive, statement)
    with archive.open("read") as ledger:
        found = verify(ledger).findings
    assert any(words in each.text for each in found), found
    if position is not None:
        assert min(each.position for each in found if each.position is not None) <= position


def test_a_checkpoint_stays_sound_beside_a_damaged_word_of_its_event(
    archive: SqliteStore,
) -> None:
    """The stream of an event is no part of what a stored checkpoint is compared with."""
    with archive.open() as ledger:
        writer = start(ledger)
        checkpoint = checkpoint_at(ledger)
        store_checkpoint(writer, checkpoint, sign_note(checkpoint.text(), KEY), wall_us=0)
        position = ledger.head().position
    words = f"stream = CAST(x'ff' AS TEXT) WHERE position = {position}"
    changed(archive, f"UPDATE ledger_events SET {words}")
    with archive.open("read") as ledger:
        found = verify(ledger).findings
    assert [each.position for each in found] == [position, None], found


def test_who_shares_a_cpu_with_nobody_does_so_over_an_archive(
    sqlite_store: SqliteStore, tmp_path: Path
) -> None:
    """An LSE Pod ends behind the cut; then two others may share, and beside it none."""
    clock = Clock()
    with sqlite_store.open() as ledger:
        start(ledger).append(clock.all(node(cpus=4, refs=2), _lse("a", cpu=0), _lse("b", cpu=1)))
        start(ledger, "next").append(clock.all(*(refused(f"p-{number}") for number in range(260))))
        move(ledger, tmp_path)
        writer = start(ledger, "last")
        writer.append(clock.all(released("a"), reserved("c", cpus=(0,)), reserved("d", cpus=(0,))))
        assert verify(ledger).findings == ()
        with sqlite_store.raw() as raw:
            raw.execute("DROP TRIGGER ledger_cpu_holdings_insert")
        writer.append(clock.all(reserved("e", cpus=(1,))))
    with sqlite_store.raw() as raw:
        raw.execute(next(t for t in TRIGGERS if named(t) == "ledger_cpu_holdings_insert"))
    with sqlite_store.open("read") as ledger:
        found = [str(each) for each in verify(ledger).findings]
    assert len(found) == 1, found
    assert "cpu n-1/cpu/1 of an LSE Pod was promised to a second holder" in found[0]


def _lse(name: str, *, cpu: int) -> PodReserved:
    return reserved(name, cpus=(cpu,), snapshot=PodSnapshot(qos="LSE"))


def test_an_archived_holding_that_was_forged_needs_the_files(archive: SqliteStore) -> None:
    """A row that was open at the cut is compared with the state there, without any file."""
    changed(archive, "UPDATE ledger_reservations SET namespace = 'x' WHERE position = 4")
    with archive.open("read") as ledger:
        found = verify(ledger).findings
    assert found[0].position == 4
    assert "ledger_reservations is not what the events say" in found[0].text


def test_a_file_that_no_segment_names_is_reported(archive: SqliteStore) -> None:
    """Such as one whose transaction never came; files of other ledgers are not ours to name."""
    first = files(archive)[0]
    orphan = first.with_name("segment-000000000513-000000000768.jsonl.gz")
    shutil.copy(first, orphan)
    stranger = first.with_name("segment-000000000769-000000001024.jsonl.gz")
    shutil.copy(first, stranger)
    rewrite(stranger, lambda lines: [{**lines[0], "origin": "ledger/other"}, *lines[1:]])
    with archive.open("read") as ledger:
        assert orphans(ledger, first.parent) == (orphan,)


def test_a_tile_without_hashes_is_no_traceback(archive: SqliteStore) -> None:
    """Of an archived ledger too, where the proof begins with the tiles."""
    with archive.raw() as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("DROP TRIGGER ledger_tiles_no_update")
        raw.execute("UPDATE ledger_tiles SET hashes = x'' WHERE number = 0")
    with archive.open("read") as ledger:
        texts = [each.text for each in verify(ledger).findings]
    assert "ledger_tiles: key=(0, 0), it breaks the rule length(hashes) = 8192" in texts
