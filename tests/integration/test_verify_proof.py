"""`tenure verify --proof`: one event shown to be in a ledger that is not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Answer, CommandLine
from tests.support.stores import Clock, SqliteStore, node, released, reserved, share, start

pytestmark = pytest.mark.integration

AT = 20
Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Kept:
    """What an auditor has: a proof, checkpoints and a public key. The ledger is gone."""

    folder: Path
    line: CommandLine

    def read(self, name: str = "proof") -> dict[str, Any]:
        """A proof as it was printed."""
        document: dict[str, Any] = json.loads((self.folder / name).read_text())
        return document

    def check(
        self,
        proof: dict[str, Any] | str | None = None,
        *more: str,
        checkpoints: tuple[str, ...] = ("now",),
        key: str = "public",
    ) -> Answer:
        """Check a proof, changed or not."""
        path = self.folder / "changed"
        text = (self.folder / "proof").read_text() if proof is None else proof
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        notes = [w for each in checkpoints for w in ("--checkpoint", str(self.folder / each))]
        public = ("--public-key", str(self.folder / key))
        return self.line.run("verify", "--proof", str(path), *notes, *public, *more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger's proof and checkpoints; then it is taken away."""
    folder = tmp_path_factory.mktemp("kept")
    store = SqliteStore(path=folder / "ledger.db")
    store.open("create").close()
    clock = Clock()

    def run(*words: str) -> str:
        from subprocess import run as started
        from sys import executable

        command = [executable, "-m", "tenure", *words]
        return started(command, capture_output=True, text=True, check=True).stdout

    for name in ("public", "other"):
        key = folder / f"{name}.key"
        (folder / name).write_text(run("ledger", "key", "new", "--name", "k", "--out", str(key)))
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node("n-1"))])
        for number in range(12):
            writer.append([clock.new(reserved(f"p{number}", share(0, 50)))])
            writer.append([clock.new(released(f"p{number}"))])
            if number == 4:
                sign(run, store.url, folder, "then")
    sign(run, store.url, folder, "now")
    other = ("--key", str(folder / "other.key"), "--out", str(folder / "false"))
    run("ledger", "checkpoint", *other, "--ledger", store.url)
    proof = run("ledger", "prove", str(AT), "--from", "12", "--ledger", store.url)
    (folder / "proof").write_text(proof)
    shutil.rmtree(folder / "ledger.db", ignore_errors=True)
    for path in folder.glob("ledger.db*"):
        path.unlink()
    return folder


def sign(run: Callable[..., str], url: str, folder: Path, name: str) -> None:
    """Sign the ledger as it is."""
    key = str(folder / "public.key")
    run("ledger", "checkpoint", "--key", key, "--out", str(folder / name), "--ledger", url)


@pytest.fixture
def kept(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Kept:
    """What was kept, and a folder without a ledger."""
    monkeypatch.chdir(made)
    monkeypatch.delenv("TENURE_LEDGER", raising=False)
    return Kept(made, CommandLine(made / "none.db", capsys))


def test_a_proof_says_which_event_is_in_the_ledger(kept: Kept) -> None:
    """In one sentence, with position, event, tree and key; the words for programs."""
    size = kept.read()["size"]
    answer = kept.check()

    assert answer.code == 0, answer
    first, then = answer.out.splitlines()
    assert first.startswith(f"position {AT}: pod.released.v1 of node/uid-n-1, at 2026-03-02T")
    assert f"is among the first {size} events of simulation/test, signed by k+" in first
    assert then.startswith("the first 12 events, root ")
    assert then.endswith(", are their beginning")
    told = json.loads(kept.check(None, "-o", "json").out)
    assert (told["ok"], told["position"], told["findings"]) == (True, AT, [])
    assert json.loads(told["event"]["body"])["pod_uid"].startswith("uid-p")


def test_an_older_checkpoint_says_that_the_ledger_grew(kept: Kept) -> None:
    """Given beside the newer one, where it is of the older tree of the proof."""
    answer = kept.check(checkpoints=("now", "then"))

    assert (answer.code, "signed too, are their beginning" in answer.out) == (0, True), answer
    alone = kept.check(checkpoints=("then",))
    assert (alone.code, "no checkpoint is of the tree that is proved" in alone.out) == (1, True)


def lie(path: str, value: object) -> Change:
    """Put something else at a place of the proof."""

    def change(proof: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        where = proof
        for name in parents:
            where = where[name]
        where[last] = value

    return change


def another_path(proof: dict[str, Any]) -> None:
    """The path of another leaf."""
    proof["inclusion"]["proof"][0] = "00" * 32


def shorter(proof: dict[str, Any]) -> None:
    """Without its last hash."""
    proof["inclusion"]["proof"].pop()


def moved(proof: dict[str, Any]) -> None:
    """Said of another position, index and all."""
    proof["inclusion"] |= {"position": AT - 1, "leaf_index": AT - 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lie("inclusion.leaf_hash", "ab" * 32),
            "the event's words give another leaf hash",
            id="wrong leaf",
        ),
        pytest.param(lie("root", "ab" * 32), "the root is another", id="wrong root"),
        pytest.param(lie("size", 25), "the checkpoint is of another size", id="wrong size"),
        pytest.param(lie("origin", "ledger/x"), "of another ledger", id="another ledger"),
        pytest.param(lie("event.actor", "x"), "another leaf hash", id="another word"),
        pytest.param(lie("event.body", "{}"), "another leaf hash", id="another body"),
        pytest.param(lie("event.at_us", 1), "another leaf hash", id="another time"),
        pytest.param(lie("event.at_us", 10**30), "another leaf hash", id="no time"),
        pytest.param(lie("inclusion.leaf_index", 3), "not the leaf", id="wrong index"),
        pytest.param(lie("consistency.root", "ab" * 32), "not shown to be", id="older root"),
        pytest.param(lie("consistency.size", 11), "not shown to be", id="older size"),
        pytest.param(another_path, "the path does not lead", id="wrong path"),
        pytest.param(shorter, "the path does not lead", id="short path"),
        pytest.param(moved, "the event is of another position", id="moved"),
    ],
)
def test_a_lie_is_not_proved(kept: Kept, change: Change, said: str) -> None:
    """Exit 1, and why."""
    proof = kept.read()
    change(proof)
    answer = kept.check(proof)

    assert answer.code == 1, answer
    assert "NOT PROVED" in answer.out.splitlines()[0]
    assert said in answer.out
    told = json.loads(kept.check(proof, "-o", "json").out)
    assert told["ok"] is False
    assert any(said in each for each in told["findings"])


def test_without_its_words_a_leaf_alone_is_proved(kept: Kept) -> None:
    """As of an event in an archive; a leaf that is not there is not."""
    proof = kept.read()
    del proof["event"]
    answer = kept.check(proof)
    assert (answer.code, "its words are not in the proof" in answer.out) == (0, True), answer
    proof["inclusion"]["leaf_hash"] = "ab" * 32
    answer = kept.check(proof)
    assert (answer.code, "the path does not lead" in answer.out) == (1, True), answer


@pytest.mark.parametrize(
    ("checkpoints", "key"), [(("false",), "public"), (("now",), "other")], ids=["note", "key"]
)
def test_what_another_key_signed_is_no_witness(
    kept: Kept, checkpoints: tuple[str, ...], key: str
) -> None:
    """Though it is called alike, and says the truth."""
    answer = kept.check(checkpoints=checkpoints, key=key)

    assert (answer.code, "is not signed by this key" in answer.out) == (1, True), answer


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda text: text[: len(text) // 2], "not a proof", id="truncated"),
        pytest.param(
            lambda text: text.replace('"size"', '"size": 1, "size"', 1),
            "the key 'size' stands twice",
            id="a key twice",
        ),
        pytest.param(lambda text: text + text, "not a proof", id="two proofs"),
        pytest.param(lambda _: "", "not a proof", id="nothing"),
        pytest.param(lambda _: "[]", "not a proof", id="a list"),
        pytest.param(
            lambda text: text.replace('"origin"', '"more": 1, "origin"'), "more", id="a name more"
        ),
        pytest.param(lambda text: text.replace(": 20,", ": 20.0,"), "not a proof", id="a float"),
        pytest.param(lambda text: text.replace(": 20,", ": true,"), "not a proof", id="a truth"),
        pytest.param(
            lambda text: text.replace('"actor": "', '"actor": "\\ud800'),
            "not a proof",
            id="no text",
        ),
        pytest.param(
            lambda text: text.replace('"root": "', '"root": "AB'), "not a proof", id="no hash"
        ),
    ],
)
def test_what_is_no_proof_is_unreadable(kept: Kept, spoil: Callable[[str], str], said: str) -> None:
    """Exit 2 with the file, and what prints one."""
    answer = kept.check(spoil((kept.folder / "proof").read_text()))

    assert (answer.code, answer.out) == (2, ""), answer
    assert said in answer.err
    assert "changed" in answer.err
    assert "tenure ledger prove" in answer.err


def test_a_proof_needs_what_was_signed_and_by_whom(kept: Kept) -> None:
    """And nothing else: no ledger is opened."""
    proof = ("verify", "--proof", str(kept.folder / "proof"))
    note, key = ("--checkpoint", str(kept.folder / "now")), ("--public-key", "public")
    for words in ((), note, key, (*note, *key, "--ledger", "x.db")):
        assert kept.line.run(*proof, *words).code == 2
    assert kept.line.run(*proof, *note, *key).code == 0
    missing = kept.line.run("verify", "--proof", "missing", *note, *key)
    assert (missing.code, "missing" in missing.err) == (2, True)
