"""Whatever an export says is covered by its signature, or the offline verifier refuses it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.proofs.hashing import chain_hash
from tenure.admin.export import export
from tenure.offline import NotProvedError, check
from tests.support.archives import KEY, archive_up_to, history
from tests.support.stores import Clock, SqliteStore

Lines = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """One ledger's export, an export of its end, and the second file of its archive."""

    whole: Path
    part: Path
    segment: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Signed files of a ledger of some 560 events."""
    folder = tmp_path_factory.mktemp("offline")
    store, key = SqliteStore(path=folder / "ledger.db"), folder / "key"
    key.write_text(KEY.text())
    with store.open("create") as ledger:
        history(ledger, Clock())
    for name, first in (("whole", 1), ("part", 300)):
        export(
            ledger=store.url, out=folder / name, first=first, last=None, key=key, checkpoint=None
        )
    with store.open() as ledger:
        archive_up_to(ledger, folder, 256)
        archive_up_to(ledger, folder, 512)
    segment = folder / "segment-000000000257-000000000512.jsonl.gz"
    return Files(whole=folder / "whole", part=folder / "part", segment=segment)


def texts(path: Path) -> list[str]:
    """Return the lines of a file."""
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def refused(path: Path, lines: list[str], words: str) -> None:
    """Expect that a file of these lines is not proved."""
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    with pytest.raises(NotProvedError, match=words):
        check(path, str(KEY.public))


def test_the_files_are_sound(made: Files) -> None:
    """What is tampered with below proves itself; a part says nothing of the chain."""
    for path in (made.whole, made.part, made.segment):
        check(path, str(KEY.public))
    assert not any("chain_hash" in line for line in map(json.loads, texts(made.part)))


@pytest.mark.parametrize("name", ["whole", "segment"])
def test_a_chain_from_a_false_start_is_refused(made: Files, tmp_path: Path, name: str) -> None:
    """Every link fits the one before it, and the first is not the one there was."""
    lines: Lines = [json.loads(line) for line in texts(getattr(made, name))]
    value = bytes(31) + b"\x01"
    lines[0]["chain_hash"] = value.hex()
    for line in lines:
        if "leaf_hash" in line:
            value = chain_hash(value, bytes.fromhex(line["leaf_hash"]))
            line["chain_hash"] = value.hex()
    words = "the chain does not begin with 32 zero bytes|the chain is not the one that was signed"
    refused(tmp_path / "false", [json.dumps(line) for line in lines], words)


def _with(word: str) -> Callable[[str], str]:
    return lambda line: f"{line[:-1]},{word}}}"


@pytest.mark.parametrize("at", [0, 7, -2, -1], ids=["header", "event", "last but one", "note"])
@pytest.mark.parametrize("name", ["whole", "part", "segment"])
def test_a_word_that_nothing_signs_is_refused(
    made: Files, tmp_path: Path, name: str, at: int
) -> None:
    """A reader of the file may take it for a part of what was proved."""
    lines = texts(getattr(made, name))
    lines[at] = _with('"cleared_by":"auditor"')(lines[at])
    refused(tmp_path / "more", lines, "a word that is not signed: cleared_by")


@pytest.mark.parametrize("at", [0, 7, -2, -1], ids=["header", "event", "last but one", "note"])
@pytest.mark.parametrize("name", ["whole", "part", "segment"])
def test_a_word_said_twice_is_refused(made: Files, tmp_path: Path, name: str, at: int) -> None:
    """One reader takes the first, another one the last."""
    lines = texts(getattr(made, name))
    key, value = next(iter(json.loads(lines[at]).items()))
    lines[at] = f'{{"{key}":"another",{json.dumps({key: value})[1:-1]},{lines[at][1:]}'
    refused(tmp_path / "twice", lines, f"says a word twice: {key}")


def test_a_part_that_speaks_of_the_chain_is_refused(made: Files, tmp_path: Path) -> None:
    """The chain before its first event is nothing that its signature covers."""
    lines = texts(made.part)
    lines[0] = _with(f'"chain_hash":"{"0" * 64}"')(lines[0])
    refused(tmp_path / "chain", lines, "a word that is not signed: chain_hash")


def test_another_root_in_the_header_is_refused(made: Files, tmp_path: Path) -> None:
    """A file of an archive names its root, which is the signed one."""
    lines = texts(made.segment)
    header = json.loads(lines[0]) | {"root": "0" * 64}
    refused(tmp_path / "root", [json.dumps(header), *lines[1:]], "the header names another root")


def test_a_hash_is_written_in_one_way(made: Files, tmp_path: Path) -> None:
    """Spaces and capitals say the same to one reader alone."""
    lines = texts(made.part)
    header = json.loads(lines[0])
    header["range"][0] = header["range"][0].upper()
    refused(tmp_path / "capitals", [json.dumps(header), *lines[1:]], "not a hash of 32 bytes")


def test_a_false_note_inside_is_refused_beside_a_true_one(made: Files, tmp_path: Path) -> None:
    """Whoever names a note of his own still reads the file's."""
    lines = texts(made.whole)
    note = json.loads(lines[-1])["checkpoint"]
    forged = tmp_path / "forged"
    text = "\n".join([*lines[:-1], json.dumps({"checkpoint": note.replace("\n5", "\n6", 1)}), ""])
    forged.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(NotProvedError, match="not signed by the trusted key"):
        check(forged, str(KEY.public), note)


@pytest.mark.parametrize("word", ["state", "checkpoint"])
def test_a_last_line_that_is_no_text_is_refused(made: Files, tmp_path: Path, word: str) -> None:
    """The state and the note are texts."""
    lines = texts(made.segment)
    at = -2 if word == "state" else -1
    lines[at] = json.dumps({word: [json.loads(lines[at])[word]]})
    refused(tmp_path / "list", lines, f"{word} is not text")
