"""
A checkpoint that the ledger keeps and that is false: withdrawn by an event, it counts for nothing.

Rule: docs/proof.md, "A checkpoint that is false". What a trusted key signed nobody withdraws.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.domain.log.events import CheckpointStored, CheckpointWithdrawn, encode_event
from ledger.signing import Checkpoint, PrivateKey, PublicKey, sign_note
from ledger.store.mending.acts import note_hash
from ledger.store.mending.voiding import declare_void, false_checkpoint, impossible_event, withdraw
from ledger.store.open import Ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.checkpoints import checkpoint_at
from ledger.store.proving.tree_proof import KeptCheckpoint
from ledger.store.proving.verify import VerifyReport, verify
from tests.support.archives import changed, move
from tests.support.cli import CommandLine
from tests.support.forging import forge, put_in_checkpoint
from tests.support.log_proofs import kept_checkpoint
from tests.support.stores import Clock, SqliteStore, Store, node, refused, reserved, share, start

TRUSTED = PrivateKey.new("cluster-1")
THIEF = PrivateKey.new("thief")


def fill(store: Store) -> None:
    """Make a ledger with a holder: events 1 to 3."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 60))))


def checkpoint(store: Store, size: int, **changes: object) -> Checkpoint:
    """Return the checkpoint of that size, with some words changed."""
    with store.open("read") as ledger:
        return replace(checkpoint_at(ledger, size), **changes)  # type: ignore[arg-type]


def signed(told: Checkpoint, *keys: PrivateKey) -> str:
    """Return the note of a checkpoint."""
    return sign_note(told.text(), *keys)


def take_back(store: Store, size: int, *trusted: PublicKey) -> int:
    """Withdraw the checkpoint of that size, by somebody who trusts these keys."""
    with store.open() as ledger:
        found = false_checkpoint(ledger, size, trusted)
        return withdraw(start(ledger, "tenure ledger withdraw"), found, "put in", wall_us=0)


def proved(store: Store, *trusted: PublicKey) -> VerifyReport:
    """Verify, as somebody who trusts these keys."""
    with store.open("read") as ledger:
        return verify(ledger, witness=KeptCheckpoint(keys=trusted))


def kept(ledger: Ledger) -> str | None:
    """Return the last checkpoint that counts."""
    with ledger.connection.begin():
        return kept_checkpoint(ledger.connection)


def withdrawn_positions(store: Store) -> list[tuple[object, ...]]:
    """Return what the view says of each checkpoint."""
    with store.raw() as raw:
        rows = raw.execute("SELECT size, withdrawn_position FROM audit_checkpoints ORDER BY size")
        return [tuple(row) for row in rows.fetchall()]


FALSE_ROWS = {
    "no note": lambda _: "garbage",
    "no checkpoint": lambda _: sign_note("garbage\n", THIEF),
    "another root": lambda told: signed(replace(told, root=bytes(32)), THIEF),
    "another ledger": lambda told: signed(replace(told, origin="ledger/other"), THIEF),
    "another size": lambda told: signed(replace(told, size=2), THIEF),
}


@pytest.mark.parametrize("words", FALSE_ROWS.values(), ids=FALSE_ROWS)
def test_a_false_checkpoint_stops_verify_until_it_is_withdrawn(
    store: Store, words: object, tmp_path: Path
) -> None:
    """The row stays, the report names it with its reason, and every other reader goes on."""
    fill(store)
    right = signed(checkpoint(store, 2), TRUSTED)
    put_in_checkpoint(store, 2, right)
    put_in_checkpoint(store, 3, words(checkpoint(store, 3)))  # type: ignore[operator]
    assert not proved(store).ok

    at = take_back(store, 3, TRUSTED.public)

    for trusted in ((), (TRUSTED.public,)):
        report = proved(store, *trusted)
        assert report.findings == ()
        (withdrawal,) = report.withdrawn
        assert (withdrawal.position, withdrawal.event.size) == (at, 3)
        assert withdrawal.event.keys == (str(TRUSTED.public),)
        assert (withdrawal.actor, withdrawal.event.reason) == ("tenure ledger withdraw", "put in")
    with store.open() as ledger:
        assert kept(ledger) == right
        assert rebuild(ledger).equal
        clock = Clock(now_us=ledger.head().at_us)
        start(ledger, "next").append([clock.new(refused("r"), key=f"r{n}") for n in range(300)])
        move(ledger, tmp_path)
    assert proved(store).findings == ()
    assert withdrawn_positions(store) == [(2, None), (3, at)]


def test_bytes_that_are_no_text_are_withdrawn_too(sqlite_store: SqliteStore) -> None:
    """SQLite takes them as text; the row is named, and no reader stops there."""
    fill(sqlite_store)
    changed(sqlite_store, "INSERT INTO ledger_checkpoints VALUES (3, CAST(x'ff' AS TEXT))")
    take_back(sqlite_store, 3)
    assert proved(sqlite_store).findings == ()


def test_a_row_of_no_event_stops_verify_until_it_is_withdrawn(sqlite_store: SqliteStore) -> None:
    """Put in past the rules, and right by its words: nobody recorded that it is kept."""
    fill(sqlite_store)
    note = signed(checkpoint(sqlite_store, 3), THIEF)
    changed(sqlite_store, f"INSERT INTO ledger_checkpoints VALUES (3, '{note}')")
    (finding,) = proved(sqlite_store).findings
    assert finding.text.endswith("is of no event: ledger_checkpoints: key=(3,), note")


def test_an_event_that_stores_what_is_not_there_can_be_void(store: Store) -> None:
    """It is named at its position, and its words count for nothing then."""
    fill(store)
    event = CheckpointStored(size=3, note="gone")
    at = forge(store, event.event_type, encode_event(event))
    (finding,) = proved(store).findings
    assert str(finding).startswith(f"position {at}: ledger_checkpoints lacks the row")
    with store.open() as ledger:
        declare_void(start(ledger, "void"), impossible_event(ledger, at), "mine", wall_us=0)
    assert proved(store).findings == ()


@pytest.mark.parametrize("keep", [False, True])
def test_the_command_keeps_a_checkpoint_in_the_ledger_only_if_asked(
    sqlite_store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, keep: bool
) -> None:
    """The note is the same that it prints; without it the ledger stays as it was."""
    fill(sqlite_store)
    cli = CommandLine(sqlite_store.path, capsys)
    cli.run("ledger", "key", "new", "--name", "k-1", "--out", str(tmp_path / "key"))
    words = ("ledger", "checkpoint", "--key", str(tmp_path / "key"))
    answer = cli.ask(*words, *(["--keep"] if keep else []))
    with sqlite_store.open("read") as ledger:
        assert kept(ledger) == (answer.out if keep else None)
        assert ledger.head().position == (5 if keep else 3)
    assert proved(sqlite_store).findings == ()


@pytest.mark.parametrize("key", [TRUSTED, THIEF])
def test_a_checkpoint_that_is_right_is_never_withdrawn(store: Store, key: PrivateKey) -> None:
    """Whoever signed it: past the command, `verify` names the event, and a void undoes that."""
    fill(store)
    note = signed(checkpoint(store, 3), key)
    put_in_checkpoint(store, 3, note)
    refusal = r"that (the events bear out|a trusted key signed)"
    with store.open() as ledger, pytest.raises(InputError, match=refusal):
        false_checkpoint(ledger, 3, [TRUSTED.public])
    with store.open() as ledger, pytest.raises(InputError, match="keeps no such checkpoint"):
        false_checkpoint(ledger, 2, [TRUSTED.public])

    event = CheckpointWithdrawn(size=3, note_hash=note_hash(note.encode()), keys=(), reason="mine")
    at = forge(store, event.event_type, encode_event(event))

    report = proved(store)
    assert [each.position for each in report.findings] == [at]
    assert report.withdrawn == ()
    with store.open() as ledger:
        declare_void(start(ledger, "void"), impossible_event(ledger, at), "mine", wall_us=0)
        assert kept(ledger) == note
    assert proved(store).findings == ()
    assert withdrawn_positions(store) == [(3, None)]


def test_a_withdrawal_that_nobody_can_read_stops_nobody_once_it_is_void(store: Store) -> None:
    """The view says of every checkpoint again that it counts."""
    fill(store)
    put_in_checkpoint(store, 3, signed(checkpoint(store, 3), TRUSTED))
    words = '{"keys":[],"note_hash":"","reason":"","size":"x"}'
    at = forge(store, "checkpoint.withdrawn.v1", words)
    with store.open() as ledger:
        declare_void(start(ledger, "void"), impossible_event(ledger, at), "mine", wall_us=0)
    assert proved(store).findings == ()
    assert withdrawn_positions(store) == [(3, None)]


def test_what_a_trusted_key_signed_is_not_withdrawn_into_silence(store: Store) -> None:
    """
    A history that was written anew stays found: not by the command, not past it.

    Beside its true signature the note has false ones, and the event names a key of its writer's.
    """
    fill(store)
    before = checkpoint(store, 3, root=bytes(32))
    note = signed(before, THIEF, TRUSTED) + signed(before, THIEF).rpartition("\n\n")[2].replace(
        "thief", "cluster-1"
    )
    put_in_checkpoint(store, 3, note)
    with store.open() as ledger, pytest.raises(InputError, match="that a trusted key signed"):
        false_checkpoint(ledger, 3, [TRUSTED.public])
    with store.open() as ledger, pytest.raises(InputError, match="no key is trusted"):
        false_checkpoint(ledger, 3, [])

    stranger = PrivateKey.new("stranger").public
    event = CheckpointWithdrawn(
        size=3, note_hash=note_hash(note.encode()), keys=(str(stranger),), reason="mine"
    )
    at = forge(store, event.event_type, encode_event(event))

    report = proved(store, TRUSTED.public)
    assert report.withdrawn == ()
    assert {each.position for each in report.findings} == {at, 1}
    assert "the ledger's own checkpoint of size 3" in str(report.findings)
    (named,) = proved(store).withdrawn  # whom nobody tells whom to trust is told whom it was tried
    assert named.event.keys == (str(stranger),)


def test_a_signed_note_in_the_wrong_row_is_compared_all_the_same(store: Store) -> None:
    """Only that it is in that row is withdrawn; what it says of its own size is not."""
    fill(store)
    right, wrong = checkpoint(store, 2), checkpoint(store, 2, root=bytes(32))
    put_in_checkpoint(store, 3, signed(right, TRUSTED))
    take_back(store, 3, TRUSTED.public)
    assert proved(store, TRUSTED.public).findings == ()
    put_in_checkpoint(store, 4, signed(wrong, TRUSTED))
    take_back(store, 4, TRUSTED.public)
    (finding,) = proved(store, TRUSTED.public).findings
    assert "own checkpoint of size 2" in finding.text


def test_a_withdrawal_of_what_is_not_there_is_named(store: Store) -> None:
    """It says which words are withdrawn; others of that size count."""
    fill(store)
    put_in_checkpoint(store, 3, "garbage")
    event = CheckpointWithdrawn(size=3, note_hash="ab" * 32, keys=(), reason="mine")
    at = forge(store, event.event_type, encode_event(event))
    assert {each.position for each in proved(store).findings} == {None, at}


def test_a_ledger_that_does_not_prove_itself_withdraws_nothing(store: Store) -> None:
    """Where an event was altered nobody can say what the events bear out."""
    fill(store)
    put_in_checkpoint(store, 3, "garbage")
    odd = forge(store, "pod.bound.v1", '{"attempt":1,"attempt":1,"node_uid":"n","pod_uid":"a"}')
    with store.open() as ledger, pytest.raises(InputError, match=f"prove itself: position {odd}"):
        false_checkpoint(ledger, 3, [])


def test_the_command_says_what_is_wrong_and_withdraws_it(
    sqlite_store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run changes nothing; `verify` says afterwards what, by whom and why, and ends 0."""
    fill(sqlite_store)
    put_in_checkpoint(sqlite_store, 2, signed(checkpoint(sqlite_store, 2, root=bytes(32)), THIEF))
    put_in_checkpoint(sqlite_store, 3, "garbage")
    public = tmp_path / "key.pub"
    public.write_text(f"{TRUSTED.public}\n")
    cli = CommandLine(sqlite_store.path, capsys)
    words = ("ledger", "withdraw", "--reason", "put in by hand", "--public-key", str(public))

    dry = cli.ask(*words, "2", "--dry-run")
    assert (dry.code, "would be withdrawn" in dry.out) == (0, True), dry
    assert "own checkpoint of size 2" in dry.out
    assert cli.ask("verify").code == 1
    assert [cli.ask(*words, size).code for size in ("2", "3", "1")] == [0, 0, 2]
    answer = cli.ask("verify", "--public-key", str(public))
    assert answer.code == 0, answer
    line = "checkpoint of size 3 withdrawn at position 9 by tenure ledger withdraw: put in by hand,"
    assert f"{line} not signed by {TRUSTED.public}\n" in answer.out
    document = json.loads(cli.ask("verify", "-o", "json").out)
    assert [each["size"] for each in document["withdrawn"]] == [2, 3]
