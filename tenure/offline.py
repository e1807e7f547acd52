"""
Check an exported ledger, or one file of its archive, with nothing but the file and a public key.

    python -m tenure.offline FILE --public-key VKEY

Imports the standard library and `cryptography`, and none of our own modules: it shares no code with
what it checks, and can be copied elsewhere as it is. The format is described in docs/proof.md.
Exit 0: proved. Exit 1: not, and why, with the first bad position. Exit 2: wrong usage.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FORMAT: Final = "tenure.export.v1"
SEGMENT_FORMAT: Final = "tenure.segment.v1"
LINE_BYTES_MAX: Final = 1 << 28
_HASHED: Final = (
    "actor",
    "args_hash",
    "at_us",
    "causation_position",
    "correlation_id",
    "epoch",
    "event_type",
    "idempotency_key",
    "position",
    "stream",
    "stream_version",
    "wall_us",
)
_HEADER: Final = {"first", "format", "last", "origin", "range"}
_EVENT: Final = {*_HASHED, "body", "leaf_hash"}
_CHAINED: Final = {*_EVENT, "chain_hash"}
"""What a line says: all of it is computed again or signed, and nothing else rides along."""


class NotProvedError(Exception):
    """The file is not what was signed. The message says where it goes wrong first."""


@dataclass(frozen=True)
class Export:
    """
    What the words of a file say about themselves; nothing of it is signed yet.

    Attributes:
        root: the Merkle root over positions 1 to `last`.
        leaves: the leaf hashes of positions `first` to `last`.
        key: who signs at `last` for someone who trusts the key that `read` was given.
        note: the checkpoint at the end, empty without one.
        state: SHA-256, hex, of the state behind the last event; in a segment of an archive alone.
    """

    origin: str
    first: int
    last: int
    root: bytes
    leaves: Sequence[bytes]
    key: str
    note: str
    state: str = ""


def check(path: Path, public_key: str, checkpoint: str | None = None) -> Export:
    """
    Return what the file holds, once it is proved from its first event to its last.

    Args:
        path: what `tenure ledger export` wrote.
        public_key: the verifier key that is trusted, `name+hash+base64`; rotations are followed.
        checkpoint: a signed note for a file that holds none; the file's own must hold too.

    Raises:
        NotProvedError: the file says something that the signature does not cover.
    """
    if _key(public_key) is None:
        raise NotProvedError(f"not an Ed25519 verifier key: {public_key}")
    export = read(path, public_key)
    notes = [note for note in (checkpoint, export.note) if note]
    if not notes:
        raise NotProvedError("the file holds no checkpoint: name one with --checkpoint")
    for note in notes:
        _check_signed(export, note)
    return export


def read(path: Path, public_key: str = "") -> Export:
    """
    Return what the file holds, its hashes computed from its words; signatures are not looked at.

    Raises:
        NotProvedError: an event is missing, was altered, or does not follow from the one before.
    """
    lines = _lines(path)
    header = _object(next(lines, b""), "the header")
    chained = _expect_header(header)
    first, last, origin = _number(header, "first"), _number(header, "last"), header.get("origin")
    before = header.get("range")
    if first < 1 or not isinstance(before, list) or len(before) != (first - 1).bit_count():
        raise NotProvedError("the header's range does not belong to its first position")
    roots = [_hash(text, "range") for text in before]
    chain = _hash(header["chain_hash"], "chain_hash") if chained else b""
    if chained and first == 1 and chain != bytes(32):
        raise NotProvedError("the chain does not begin with 32 zero bytes: position=1")
    key, note, state = public_key, "", ""
    leaves: list[bytes] = []
    unreadable: dict[int, str] = {}  # position -> leaf hash, until an event declares it void
    for line in lines:
        position = first + len(leaves)
        if note:
            raise NotProvedError(f"a line follows the checkpoint: position={position}")
        record = _object(line, f"position {position}")
        if "checkpoint" in record:
            note = _text(record, "checkpoint")
            continue
        if state:
            raise NotProvedError(f"a line follows the state: position={position}")
        if "state" in record:
            state = _text(record, "state")
            continue
        leaf = _leaf(record, position, chained=chained)
        chain = hashlib.sha256(b"\x02" + chain + leaf).digest()
        if chained and record.get("chain_hash") != chain.hex():
            raise NotProvedError(f"the chain is broken: position={position}")
        _append(roots, position - 1, leaf)
        leaves.append(leaf)
        if not _canonical(record["body"]):
            unreadable[position] = leaf.hex()
        elif record["event_type"] == "position.voided.v1":
            void = json.loads(record["body"])
            if unreadable.get(void.get("position")) == void.get("leaf_hash"):
                unreadable.pop(void.get("position"), None)
        if record["event_type"] == "key.rotated.v1":
            key = _rotated(record["body"], str(origin), key)
    if first + len(leaves) - 1 != last:
        raise NotProvedError(f"events are missing: last={last}, position={first + len(leaves)}")
    for position in unreadable:
        raise NotProvedError(f"the body is not canonical JSON: position={position}")
    root = _root(roots)
    if header["format"] == SEGMENT_FORMAT:
        _expect_end(header, state, last, chain, root)
    elif state:
        raise NotProvedError(f"an export says no state: position={last}")
    digest = hashlib.sha256(state.encode(errors="surrogatepass")).hexdigest() if state else ""
    return Export(str(origin), first, last, root, leaves, key, note, digest)


def _expect_header(header: dict[str, Any]) -> bool:
    """
    Expect a header that says nothing but what is computed again; tell whether it has a chain.

    A part of a ledger has none: what the chain was before its first event, no signature covers.
    A file of an archive has one, for the state that its signature covers names the chain's end.
    """
    if header.get("format") not in {FORMAT, SEGMENT_FORMAT}:
        raise NotProvedError(f"not an export: format={header.get('format')!r}")
    archived = header["format"] == SEGMENT_FORMAT
    chained = archived or header.get("first") == 1
    chain, root = {"chain_hash"} if chained else set(), {"root"} if archived else set()
    _expect_words(header, _HEADER | chain | root, "the header")
    return chained


def _expect_end(header: dict[str, Any], state: str, last: int, chain: bytes, root: bytes) -> None:
    """Expect an archive's end to be where its events lead: the state is signed, and names both."""
    if not state:
        raise NotProvedError(f"the state behind the last event is missing: position={last}")
    end = _object(state.encode(errors="surrogatepass"), "the state")
    if (end.get("position"), end.get("chain_hash")) != (last, chain.hex()):
        raise NotProvedError(f"the chain is not the one that was signed: position={last}")
    if header["root"] != root.hex():
        raise NotProvedError(f"the header names another root: position={last}")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            while line := file.readline(LINE_BYTES_MAX):
                if not line.endswith(b"\n"):
                    raise NotProvedError("the file is cut off inside of a line")
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise NotProvedError(f"the file is damaged: {error}") from error


def _object(line: bytes, what: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        words = dict(pairs)
        if len(words) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise NotProvedError(f"{what} says a word twice: {twice}")
        return words

    try:
        value = json.loads(line, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise NotProvedError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise NotProvedError(f"{what} is not a JSON object")
    return value


def _expect_words(record: dict[str, Any], words: set[str], what: str) -> None:
    for name in sorted(words - record.keys()):
        raise NotProvedError(f"{what} lacks a word: {name}")
    for name in sorted(record.keys() - words):
        raise NotProvedError(f"{what} has a word that is not signed: {name}")


def _text(record: dict[str, Any], name: str) -> str:
    """Return what the line of a file's end says, which is one text."""
    _expect_words(record, {name}, f"the {name}")
    value = record[name]
    if not isinstance(value, str) or not value:
        raise NotProvedError(f"the {name} is not text")
    return value


def _number(record: dict[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int:
        raise NotProvedError(f"a number is missing: {name}")
    return value


def _hash(text: object, what: str) -> bytes:
    try:
        value = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        value = b""
    if len(value) != 32 or text != value.hex():
        raise NotProvedError(f"not a hash of 32 bytes in hex: {what}")
    return value


def _leaf(record: dict[str, Any], position: int, *, chained: bool) -> bytes:
    """Return the leaf hash that the words give; it must be the one that is recorded."""
    _expect_words(record, _CHAINED if chained else _EVENT, f"position {position}")
    if record.get("position") != position:
        found = record.get("position")
        raise NotProvedError(f"an event is missing: position={position}, found={found}")
    body = record["body"]
    if not isinstance(body, str):
        raise NotProvedError(f"the body is not text: position={position}")
    fields = {name: record[name] for name in _HASHED}
    fields["body_sha256"] = hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    leaf = hashlib.sha256(b"\x00" + text.encode(errors="surrogatepass")).digest()
    if record.get("leaf_hash") != leaf.hex():
        raise NotProvedError(f"the event was altered: position={position}")
    return leaf


def _canonical(body: str) -> bool:
    """Tell whether a body is the one text of what it says: no name twice, sorted, no spaces."""
    try:
        text = json.dumps(
            json.loads(body),
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
            sort_keys=True,
        )
    except (ValueError, RecursionError):
        return False
    return text == body


def _append(roots: list[bytes], size: int, leaf: bytes) -> None:
    """Grow a Merkle tree of `size` leaves, kept as the roots of its perfect subtrees (RFC 6962)."""
    while size & 1:
        leaf = hashlib.sha256(b"\x01" + roots.pop() + leaf).digest()
        size >>= 1
    roots.append(leaf)


def _root(roots: list[bytes]) -> bytes:
    if not roots:
        return hashlib.sha256(b"").digest()
    root = roots[-1]
    for left in reversed(roots[:-1]):
        root = hashlib.sha256(b"\x01" + left + root).digest()
    return root


def _rotated(body: str, origin: str, trusted: str) -> str:
    """Return the key that is trusted after a rotation: the new one, if both keys signed it."""
    try:
        event = _object(body.encode(errors="surrogatepass"), "a key rotation")
    except NotProvedError:
        return trusted
    old, new, note = (str(event.get(name)) for name in ("old_key", "new_key", "note"))
    text = f"tenure key rotation\n{origin}\n{old}\n{new}\n"
    both = old == trusted and all(_signed_text(note, key) == text for key in (old, new))
    return new if both else trusted


def _check_signed(export: Export, note: str) -> None:
    text = _signed_text(note, export.key)
    if text is None:
        raise NotProvedError(f"the checkpoint is not signed by the trusted key: {export.key}")
    origin, size, root, state = [*text.split("\n"), "", "", ""][:4]
    if origin != export.origin:
        raise NotProvedError(f"the checkpoint is of another ledger: origin={origin}")
    if size != str(export.last):
        raise NotProvedError(f"the checkpoint is of another size: size={size}, last={export.last}")
    if root != base64.b64encode(export.root).decode():
        between = f"1 to {export.last}"
        raise NotProvedError(f"the events are not those that were signed: positions={between}")
    if export.state and state != f"tenure state {export.state}":
        raise NotProvedError(f"the state is not the one that was signed: position={export.last}")


def _signed_text(note: str, verifier_key: str) -> str | None:
    """Return the text of a note (C2SP signed-note) if this key signed it."""
    key = _key(verifier_key)
    body, blank, lines = note.rpartition("\n\n")
    if key is None or not blank:
        return None
    name, digest, public = key
    text = body + "\n"
    for line in lines.split("\n"):
        signer, _, encoded = line.removeprefix("\u2014 ").partition(" ")
        data = _base64(encoded)
        if signer != name or data[:4] != digest:
            continue
        try:
            signed = text.encode(errors="surrogatepass")
            Ed25519PublicKey.from_public_bytes(public).verify(data[4:], signed)
        except InvalidSignature:
            return None
        return text
    return None


def _key(text: str) -> tuple[str, bytes, bytes] | None:
    """Return name, hash and key of a verifier key, or nothing."""
    name, _, rest = text.strip().partition("+")
    digest, _, encoded = rest.partition("+")
    data = _base64(encoded)
    named = name.encode(errors="surrogatepass")
    expected = hashlib.sha256(named + b"\n" + data).digest()[:4]
    if len(data) != 33 or data[:1] != b"\x01" or expected.hex() != digest:
        return None
    return name, expected, data[1:]


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tenure.offline", description=__doc__)
    parser.add_argument("file", type=Path, help="what `tenure ledger export` wrote")
    parser.add_argument("--public-key", required=True, metavar="VKEY", help="a key or its file")
    parser.add_argument("--checkpoint", type=Path, help="a signed note, for a file without one")
    options = parser.parse_args(arguments)
    try:
        key = options.public_key
        if "+" not in key:
            key = Path(key).read_text("utf-8")
        note = options.checkpoint.read_text("utf-8") if options.checkpoint else None
        proved = check(options.file, key.strip(), note)
    except NotProvedError as error:
        sys.stdout.write(f"NOT PROVED: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: {error.filename}: {error.strerror}\nnext: name a file that is\n")
        return 2
    except UnicodeDecodeError as error:
        sys.stderr.write(f"error: the key or the note is not text: {error.reason}\n")
        sys.stderr.write("next: give the verifier key that `tenure ledger key new` printed\n")
        return 2
    sys.stdout.write(
        f"proved: {len(proved.leaves):,} events of {proved.origin}, positions {proved.first} to"
        f" {proved.last}, signed by {proved.key}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
