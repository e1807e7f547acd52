"""
A ledger that someone changed with every means at hand is told from the one that was signed.

The tampering here is thorough: triggers are taken away and put back, hashes, chain, head and tree
are computed anew, so that the file proves itself. Only what was kept elsewhere shows it.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import stat
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import structs

from ledger.domain.log.events import LedgerEvent, PodReleased, encode_event
from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.hashing import GENESIS, chain_hash
from ledger.domain.proofs.merkle import includes, is_prefix
from ledger.signing import Checkpoint, Note
from ledger.store.open import Ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.checkpoints import store_checkpoint
from ledger.store.proving.tree import TileGrower
from ledger.store.proving.verify import verify
from ledger.store.reading.read import envelope_of
from tenure import offline
from tests.support.cli import Answer, CommandLine
from tests.support.log_proofs import kept_checkpoint, leaf_hash
from tests.support.stores import (
    ORIGIN,
    Clock,
    PostgresStore,
    SqliteStore,
    bound,
    node,
    refused,
    released,
    reserved,
    share,
    start,
)

EVENTS = 300
POD_EVENTS: list[LedgerEvent] = [
    node(gpus=2),
    reserved("a", share(0, 60)),  # position 3
    bound("a"),
    reserved("b", share(1, 40)),
    refused("c"),
    released("a"),  # position 7
    released("b"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A ledger, its key, and what was kept outside of it when it had EVENTS events."""

    store: SqliteStore
    cli: CommandLine
    folder: Path

    @property
    def public(self) -> str:
        """The verifier key."""
        return (self.folder / "key.pub").read_text().strip()

    @property
    def note(self) -> Path:
        """The checkpoint."""
        return self.folder / "note"

    @property
    def export(self) -> Path:
        """All events, with the same checkpoint."""
        return self.folder / "ledger.jsonl.gz"

    def verify(self, *more: str) -> Answer:
        """Run `tenure verify` against what was kept."""
        return self.cli.ask("verify", "--public-key", self.public, "-o", "json", *more)

    def findings(self, *more: str) -> list[tuple[int | None, str]]:
        """Return what verify finds; it must find something."""
        answer = self.verify(*more)
        assert answer.code == 1, answer
        found = json.loads(answer.out)["findings"]
        return [(each["position"], each["finding"]) for each in found]


def grow(store: SqliteStore, events: int) -> None:
    """Record Pods that come and go, then refusals up to that many events."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(*POD_EVENTS))
        left = events - writer.head.position
        writer.append(clock.all(*(refused(f"r-{number}") for number in range(left))))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what is made once, by the first test that needs it."""
    return tmp_path_factory.mktemp("signed")


@pytest.fixture
def signed(
    original: Path,
    empty_ledger: SqliteStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Signed:
    """A ledger of EVENTS events, signed and exported: a copy of one that is made once."""
    if not any(original.iterdir()):
        sign(empty_ledger.copy(original / "ledger.db"), original / "kept", capsys)
    store = SqliteStore(path=original / "ledger.db").copy(tmp_path / "ledger.db")
    folder = shutil.copytree(original / "kept", tmp_path / "kept")
    return Signed(store=store, cli=CommandLine(store.path, capsys), folder=folder)


def sign(store: SqliteStore, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Record EVENTS events, sign and export them; what is kept is put into `folder`."""
    grow(store, EVENTS)
    cli = CommandLine(store.path, capsys)
    folder.mkdir()
    made = cli.run("ledger", "key", "new", "--name", "k-1", "--out", str(folder / "key"))
    assert made.code == 0, made
    (folder / "key.pub").write_text(made.out)
    kept = Signed(store=store, cli=cli, folder=folder)
    key = str(folder / "key")
    answer = cli.ask("ledger", "checkpoint", "--key", key, "--out", str(kept.note))
    assert answer.out == kept.note.read_text()
    assert cli.ask("ledger", "export", "--out", str(kept.export), "--key", key).code == 0
    proved = kept.verify("--checkpoint", str(kept.note), "--export", str(kept.export))
    assert proved.code == 0
    size, root = kept.note.read_text().splitlines()[1:3]
    told = json.loads(proved.out)["checkpoints"]
    assert [each["note"] for each in told] == [str(kept.note), str(kept.export)]
    assert {(each["size"], each["root"]) for each in told} == {(int(size), b64decode(root).hex())}


def without_rules(store: SqliteStore, change: Callable[[sqlite3.Connection], None]) -> None:
    """Change the file with its triggers gone, and put them back as they were."""
    with store.raw() as raw:
        rules = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in rules:
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute("BEGIN")
        change(raw)
        raw.execute("COMMIT")
        for _, text in rules:
            raw.execute(text)


def rewrite(store: SqliteStore, change: Callable[[list[Envelope]], list[Envelope]]) -> None:
    """Write another history: every hash, the head, the tree and all projections follow from it."""

    def work(raw: sqlite3.Connection) -> None:
        rows = raw.execute("SELECT * FROM ledger_events ORDER BY position").fetchall()
        raw.execute("DELETE FROM ledger_events")
        chain, edge, versions, at_us = GENESIS, TileGrower(), dict[str, int](), 0
        raw.execute("DELETE FROM ledger_tiles")
        for position, old in enumerate(change([envelope_of(row) for row in rows]), 1):
            versions[old.stream] = versions.get(old.stream, 0) + 1
            at_us = max(old.at_us, at_us + 1)
            each = structs.replace(
                old, position=position, stream_version=versions[old.stream], at_us=at_us
            )
            leaf = leaf_hash(each)
            chain = chain_hash(chain, leaf)
            for tile in edge.append(leaf):
                raw.execute("INSERT INTO ledger_tiles VALUES (?, ?, ?)", tile)
            raw.execute(
                f"INSERT INTO ledger_events VALUES ({','.join('?' * 15)})",
                (
                    position,
                    each.stream,
                    each.stream_version,
                    each.event_type,
                    each.body,
                    each.actor,
                    each.epoch,
                    each.causation_position,
                    each.correlation_id,
                    each.idempotency_key,
                    bytes.fromhex(each.args_hash),
                    each.at_us,
                    each.wall_us,
                    leaf,
                    chain,
                ),
            )
        last = edge.tree.size
        raw.execute(
            "UPDATE ledger_head SET position=?, at_us=?, chain_hash=?", (last, at_us, chain)
        )
        raw.execute("UPDATE ledger_tree SET size = ?, range = ?", (last, edge.tree.to_bytes()))

    without_rules(store, work)
    with store.open() as ledger:
        rebuild(ledger)
        report = verify(ledger)
    assert report.ok, f"the new history proves itself: {report.findings}"


def edited(events: list[Envelope]) -> list[Envelope]:
    """Say another reason for the end at position 8."""
    told = PodReleased(pod_uid="uid-a", attempt=1, node_uid="uid-n-1", reason="evicted")
    return [structs.replace(e, body=encode_event(told)) if e.position == 7 else e for e in events]


def deleted(events: list[Envelope]) -> list[Envelope]:
    """Leave out the refusal at position 6."""
    return [each for each in events if each.position != 6]


def reordered(events: list[Envelope]) -> list[Envelope]:
    """Say that position 200 was before position 100."""
    moved = [events[99], events[199]]
    rest = [each for each in events if each not in moved]
    return [*rest[:99], moved[1], *rest[99:198], moved[0], *rest[198:]]


def truncated(events: list[Envelope]) -> list[Envelope]:
    """Cut the last ten events off."""
    return events[:-10]


@pytest.mark.parametrize(
    ("change", "position"),
    [(edited, 7), (deleted, 6), (reordered, 100), (truncated, 291)],
    ids=["edit", "delete", "reorder", "truncate the tail"],
)
def test_a_history_written_anew_is_not_the_signed_one(
    signed: Signed, change: Callable[[list[Envelope]], list[Envelope]], position: int
) -> None:
    """The checkpoint alone tells; with the export, the first bad position is named."""
    rewrite(signed.store, change)

    assert signed.cli.ask("verify").code == 0, "the file alone shows nothing"
    by_note = signed.findings("--checkpoint", str(signed.note))
    by_export = signed.findings("--checkpoint", str(signed.note), "--export", str(signed.export))

    if change in {truncated, deleted}:
        cut = EVENTS - (10 if change is truncated else 1)
        text = f"the ledger ends at position {cut}, before the checkpoint's 300"
        assert by_note[0][0] == cut + 1
        assert by_note[0][1].startswith(text)
    else:
        text = (
            "the events are not those that the checkpoint of size 300 signed: the first that"
            " differs is one of the positions 1 to 300"
        )
        assert by_note == [(1, text)]
    assert by_export[0][0] == position


@pytest.mark.parametrize(
    ("statements", "position", "words"),
    [
        (["UPDATE ledger_events SET actor = 'x' WHERE position = 77"], 77, "altered"),
        (["DELETE FROM ledger_events WHERE position = 77"], 77, "events are missing"),
        (
            [
                "UPDATE ledger_events SET position = -1 WHERE position = 77",
                "UPDATE ledger_events SET position = 77 WHERE position = 78",
                "UPDATE ledger_events SET position = 78 WHERE position = -1",
            ],
            77,
            "altered",
        ),
        (["DELETE FROM ledger_events WHERE position > 290"], 291, "before the checkpoint's 300"),
    ],
    ids=["edit", "delete", "reorder", "truncate the tail"],
)
def test_plain_tampering_names_its_position(
    signed: Signed, statements: list[str], position: int, words: str
) -> None:
    """A change of rows without new hashes is found too, at the first one."""

    def work(raw: sqlite3.Connection) -> None:
        for statement in statements:
            raw.execute(statement)

    without_rules(signed.store, work)

    found = signed.findings("--checkpoint", str(signed.note))
    assert found[0][0] == position
    assert words in found[0][1]


def test_an_older_copy_is_not_the_signed_ledger(signed: Signed, tmp_path: Path) -> None:
    """A backup proves itself, and ends before what was signed after it."""
    backup = signed.store.copy(tmp_path / "backup.db")
    with signed.store.open() as ledger:
        start(ledger)
    note = tmp_path / "later"
    key = str(signed.folder / "key")
    signed.cli.ask("ledger", "checkpoint", "--key", key, "--out", str(note))
    for side in signed.store.path.parent.glob(f"{signed.store.path.name}-*"):
        side.unlink()
    shutil.copy(backup.path, signed.store.path)

    assert signed.verify("--checkpoint", str(signed.note)).code == 0, "signed before the backup"
    [(position, text)] = signed.findings("--checkpoint", str(note))
    assert position == 301
    assert text == (
        "the ledger ends at position 300, before the checkpoint's 301:"
        " its tail was cut off, or it is an older copy"
    )


def test_several_checkpoints_narrow_the_place_down(signed: Signed, tmp_path: Path) -> None:
    """What an earlier checkpoint signed is sound; the first bad position is behind it."""
    notes = []
    for size in (50, 150, 250):
        out = tmp_path / f"{size}.jsonl.gz"
        key = str(signed.folder / "key")
        more = ["--to", str(size), "--key", key, "--out", str(out)]
        assert signed.cli.ask("ledger", "export", *more).code == 0
        note = tmp_path / f"{size}.note"
        note.write_text(offline.read(out).note)
        notes += ["--checkpoint", str(note)]
    rewrite(signed.store, reordered)

    [(position, text)] = signed.findings(*notes)
    assert position == 51
    assert text.endswith("is one of the positions 51 to 150")


def test_a_note_of_another_key_or_ledger_is_refused(signed: Signed, tmp_path: Path) -> None:
    """Whose key it is and which ledger it is about are looked at first."""
    other = signed.cli.run("ledger", "key", "new", "--name", "k-1", "--out", str(tmp_path / "o"))
    answer = signed.cli.ask(
        "verify", "--checkpoint", str(signed.note), "--public-key", other.out.strip()
    )
    assert answer.code == 1
    assert "the checkpoint is not signed by this key" in answer.out

    changed = tmp_path / "changed"
    changed.write_text(signed.note.read_text().replace("\n300\n", "\n299\n"))
    assert signed.verify("--checkpoint", str(changed)).code == 1
    changed.write_text("no note at all")
    assert signed.verify("--checkpoint", str(changed)).code == 2
    assert signed.cli.ask("verify", "--checkpoint", str(signed.note)).code == 2


def test_a_ledger_of_another_origin_is_found(signed: Signed, tmp_path: Path) -> None:
    """The same key may sign several ledgers; a checkpoint is of one."""
    other = SqliteStore(path=tmp_path / "other.db")
    with other.open("create") as ledger:
        writer = ledger.start_epoch("test", "simulation/other", "1")
        writer.append(Clock().all(*(refused(f"r-{number}") for number in range(EVENTS))))
    answer = CommandLine(other.path, signed.cli.capture).ask(
        "verify", "--checkpoint", str(signed.note), "--public-key", signed.public
    )
    assert answer.code == 1
    assert f"is of another ledger: origin={ORIGIN}" in " ".join(answer.out.split())


@pytest.mark.parametrize(
    ("empty", "words"),
    [
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(bytes(4_096)), "file is not a database"),
        (lambda path: (path.unlink(), sqlite3.connect(path).execute("CREATE TABLE x (y)")),
         "its tables are missing"),
    ],
    ids=["cut to nothing", "zeros", "another database"],
)  # fmt: skip
def test_an_emptied_ledger_is_not_the_signed_one(
    signed: Signed, empty: Callable[[Path], object], words: str
) -> None:
    """The answer is no, for what was kept says how many events there were; 2 without it."""
    empty(signed.store.path)
    for kept, told in (
        (("--checkpoint", str(signed.note)), "there is no ledger, and the checkpoint says 300"),
        (("--export", str(signed.export)), "and the export has events up to 300"),
    ):
        answer = signed.verify(*kept)
        assert (answer.code, words in answer.out, told in answer.out) == (1, True, True), answer
    assert signed.cli.ask("verify").code == 2
    noise = signed.note.with_name("noise")
    noise.write_text("no note at all")
    assert signed.verify("--checkpoint", str(noise)).code == 2


def test_an_emptied_database_is_not_the_signed_ledger(
    postgres_store: PostgresStore, signed: Signed
) -> None:
    """On a server too."""
    with postgres_store.raw() as raw:
        raw.execute("DROP SCHEMA public CASCADE")
        raw.execute("CREATE SCHEMA public")
    signed.cli.capture.readouterr()
    kept = ["--checkpoint", str(signed.note), "--public-key", signed.public]
    answer = signed.cli.run("verify", *kept, "--ledger", postgres_store.url)
    assert (answer.code, "the checkpoint says 300 events" in answer.out) == (1, True), answer
    assert signed.cli.run("verify", "--ledger", postgres_store.url).code == 2


def test_a_key_file_is_for_its_owner_alone(signed: Signed) -> None:
    """Mode 0600, never overwritten, and never printed."""
    key = signed.folder / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_text()
    answer = signed.cli.run("ledger", "key", "new", "--name", "k-1", "--out", str(key))
    assert answer.code == 2
    assert key.read_text() == before
    assert before.strip() not in answer.out + answer.err


def test_proofs_hold_without_the_ledger(signed: Signed) -> None:
    """The printed JSON is all that the RFC's algorithms need, with the signed root."""
    answer = signed.cli.ask("ledger", "prove", "42", "--from", "200")
    told = json.loads(answer.out)
    root = bytes.fromhex(told["root"])
    inclusion, consistency = told["inclusion"], told["consistency"]

    assert offline.read(signed.export).root == root
    assert includes(
        leaf=offline.read(signed.export).leaves[41],
        index=inclusion["leaf_index"],
        size=told["size"],
        root=root,
        proof=[bytes.fromhex(each) for each in inclusion["proof"]],
    )
    assert is_prefix(
        first=200,
        first_root=bytes.fromhex(consistency["root"]),
        second=told["size"],
        second_root=root,
        proof=[bytes.fromhex(each) for each in consistency["proof"]],
    )
    assert signed.cli.ask("ledger", "prove", "301").code == 2
    assert signed.cli.ask("ledger", "prove", "1", "--from", "301").code == 2


def test_the_offline_verifier_needs_the_file_and_the_key_alone(signed: Signed) -> None:
    """As its own process: proved, with what was proved."""
    command = [sys.executable, "-m", "tenure.offline", str(signed.export), "--public-key"]
    done = subprocess.run([*command, signed.public], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done
    assert done.stdout == (
        f"proved: 300 events of {ORIGIN}, positions 1 to 300, signed by {signed.public}\n"
    )


def test_a_part_of_a_ledger_is_proved_too(signed: Signed, tmp_path: Path) -> None:
    """An export from the middle carries what the root needs of the events before it."""
    out = tmp_path / "part.gz"
    key = str(signed.folder / "key")
    span = ["--from", "100", "--to", "280"]
    answer = signed.cli.ask("ledger", "export", *span, "--out", str(out), "--key", key)

    assert answer.code == 0, answer
    export = offline.check(out, signed.public)
    assert (export.first, export.last, len(export.leaves)) == (100, 280, 181)
    assert signed.verify("--export", str(out)).code == 0
    again = signed.cli.ask("ledger", "export", "--out", str(out), "--key", key)
    assert again.code == 2, "an export is never overwritten"


def test_an_export_can_carry_a_note_that_was_signed_before(signed: Signed, tmp_path: Path) -> None:
    """Without the key at hand: the checkpoint says where the file ends."""
    with signed.store.open() as ledger:
        start(ledger)
    out = tmp_path / "noted.gz"
    answer = signed.cli.ask("ledger", "export", "--out", str(out), "--checkpoint", str(signed.note))
    assert answer.code == 0, answer
    assert offline.check(out, signed.public).last == EVENTS

    bare = tmp_path / "bare.gz"
    assert signed.cli.ask("ledger", "export", "--to", "300", "--out", str(bare)).code == 0
    with pytest.raises(offline.NotProvedError, match="holds no checkpoint"):
        offline.check(bare, signed.public)
    assert offline.check(bare, signed.public, signed.note.read_text()).last == EVENTS


def rewritten(path: Path, lines: list[bytes]) -> Path:
    """Write an export with other lines."""
    out = path.with_name("changed.gz")
    out.write_bytes(gzip.compress(b"".join(lines)))
    return out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [*lines[:76], lines[76].replace(b"test", b"tset"), *lines[77:]],
         "altered: position=76"),
        (lambda lines: [*lines[:77], *lines[78:]], "an event is missing: position=77"),
        (lambda lines: [*lines[:77], lines[78], lines[77], *lines[79:]], "position=77, found=78"),
        (lambda lines: [*lines[:290], lines[-1]], "events are missing: last=300, position=290"),
        (lambda lines: lines[:-1], "holds no checkpoint"),
        (lambda lines: [*lines, lines[-2]], "a line follows the checkpoint: position=301"),
        (lambda lines: [lines[0].replace(b"simulation/test", b"ledger/c-1"), *lines[1:]],
         "the checkpoint is of another ledger"),
        (lambda lines: [b"{}\n", *lines[1:]], "not an export"),
        (lambda lines: [*lines[:5], b"[]\n", *lines[6:]], "position 5 is not a JSON object"),
        (lambda lines: [*lines[:5], lines[5][:-9]], "cut off inside of a line"),
    ],
    ids=[
        "an altered event",
        "a missing event",
        "two events in another order",
        "a missing tail",
        "no checkpoint",
        "something behind the end",
        "another origin",
        "no header",
        "a line of something else",
        "a cut line",
    ],
)  # fmt: skip
def test_a_changed_export_is_not_proved(
    signed: Signed, change: Callable[[list[bytes]], list[bytes]], words: str
) -> None:
    """The offline verifier names what is wrong first, and where."""
    lines = gzip.decompress(signed.export.read_bytes()).splitlines(keepends=True)
    out = rewritten(signed.export, change(lines))

    with pytest.raises(offline.NotProvedError, match=words):
        offline.check(out, signed.public)


def test_an_export_of_a_body_in_another_form_is_not_proved(signed: Signed) -> None:
    """Though its hashes hold: what readers could read differently is no event."""
    lines = gzip.decompress(signed.export.read_bytes()).splitlines(keepends=True)
    before, event = json.loads(lines[-3]), json.loads(lines[-2])
    event["body"] = event["body"].replace("{", '{"z":1,', 1)
    words = {name: event[name] for name in event if name not in {"leaf_hash", "chain_hash"}}
    leaf = leaf_hash(Envelope(**words))
    chain = chain_hash(bytes.fromhex(before["chain_hash"]), leaf)
    event |= {"leaf_hash": leaf.hex(), "chain_hash": chain.hex()}
    out = rewritten(signed.export, [*lines[:-2], json.dumps(event).encode() + b"\n", lines[-1]])

    with pytest.raises(offline.NotProvedError, match="not canonical JSON: position=300"):
        offline.read(out)


def test_a_damaged_export_is_not_proved(signed: Signed, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever byte of the file is another, it is not what was signed, or reads the same."""
    data = signed.export.read_bytes()
    told = offline.check(signed.export, signed.public)
    out = signed.export.with_name("damaged.gz")
    for at in range(0, len(data), max(1, len(data) // 40)):
        out.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        if offline.main([str(out), "--public-key", signed.public]) == 0:
            assert offline.check(out, signed.public) == told
    capsys.readouterr()


def test_trust_follows_the_keys(signed: Signed, tmp_path: Path) -> None:
    """Whoever trusts the first key accepts what the next one signs, and no longer the first."""
    cli, old, new = signed.cli, str(signed.folder / "key"), str(tmp_path / "k-2")
    public = cli.run("ledger", "key", "new", "--name", "k-2", "--out", new).out.strip()
    answer = cli.ask("ledger", "key", "rotate", "--old", old, "--new", new)
    assert answer.out == f"position 302: {public} follows {signed.public}\n"

    by_new, by_old = tmp_path / "by-new", tmp_path / "by-old"
    cli.ask("ledger", "checkpoint", "--key", new, "--out", str(by_new))
    cli.ask("ledger", "checkpoint", "--key", old, "--out", str(by_old))

    assert signed.verify("--checkpoint", str(by_new), "--checkpoint", str(signed.note)).code == 0
    refusal = signed.verify("--checkpoint", str(by_old))
    assert refusal.code == 1
    assert f"not signed by this key: key={public}" in refusal.out
    out = tmp_path / "rotated.gz"
    assert cli.ask("ledger", "export", "--out", str(out), "--key", new).code == 0
    assert offline.check(out, signed.public).key == public
    assert offline.check(out, public).key == public


def test_a_key_that_was_followed_hands_nothing_on_again(signed: Signed, tmp_path: Path) -> None:
    """The second rotation from one key is refused, before anything is written."""
    cli, old = signed.cli, str(signed.folder / "key")
    for name in ("k-2", "k-3"):
        cli.run("ledger", "key", "new", "--name", name, "--out", str(tmp_path / name))
    cli.ask("ledger", "key", "rotate", "--old", old, "--new", str(tmp_path / "k-2"))

    again = cli.ask("ledger", "key", "rotate", "--old", old, "--new", str(tmp_path / "k-3"))

    assert again.code == 2
    assert "the old key signs no more: k-2+" in " ".join(again.err.split())
    onwards = cli.ask(
        "ledger", "key", "rotate", "--old", str(tmp_path / "k-2"), "--new", str(tmp_path / "k-3")
    )
    assert onwards.code == 0


@pytest.mark.parametrize("key", [b"\xff\xfe", None], ids=["no text", "no file"])
def test_a_key_that_cannot_be_read_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: bytes | None
) -> None:
    """One message with a next step, and no traceback."""
    if key is not None:
        (tmp_path / "key").write_bytes(key)

    assert offline.main(["export.gz", "--public-key", str(tmp_path / "key")]) == 2
    assert "next: " in capsys.readouterr().err


def test_a_rotation_that_the_old_key_did_not_sign_hands_nothing_on(
    signed: Signed, tmp_path: Path
) -> None:
    """Whoever can write the ledger can't make himself the signer."""
    cli = signed.cli
    thief, key = str(tmp_path / "thief"), str(tmp_path / "k-9")
    cli.run("ledger", "key", "new", "--name", "k-1", "--out", thief)
    cli.run("ledger", "key", "new", "--name", "k-9", "--out", key)
    assert cli.ask("ledger", "key", "rotate", "--old", thief, "--new", key).code == 0
    note, out = tmp_path / "note-9", tmp_path / "nine.gz"
    cli.ask("ledger", "checkpoint", "--key", key, "--out", str(note))
    cli.ask("ledger", "export", "--out", str(out), "--key", key)

    assert signed.verify("--checkpoint", str(note)).code == 1
    with pytest.raises(offline.NotProvedError, match="not signed by the trusted key"):
        offline.check(out, signed.public)


def test_a_checkpoint_kept_in_the_ledger_is_compared_too(signed: Signed) -> None:
    """The ledger's own checkpoints make a rewritten history show itself."""
    note = signed.note.read_text()

    def kept(ledger: Ledger) -> str | None:
        with ledger.connection.begin():
            return kept_checkpoint(ledger.connection)

    with signed.store.open() as ledger:
        assert kept(ledger) is None
        checkpoint = Checkpoint.parse(Note.parse(note).text)
        store_checkpoint(start(ledger), checkpoint, note, wall_us=0)
        assert kept(ledger) == note
        assert verify(ledger).ok
    with pytest.raises(AssertionError, match="the ledger's own checkpoint of size 300"):
        rewrite(signed.store, edited)
