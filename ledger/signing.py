"""
Signed checkpoints: who vouches for which tree, in texts that other tools read too.

Rule: C2SP signed-note and tlog-checkpoint, Ed25519 (RFC 8032); keys in the text form of Go's
checksum database. No SQL and no files: texts in, texts out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger.domain.annotations.signed import Checker
from ledger.domain.annotations.wire import is_number
from ledger.domain.errors import InputError
from ledger.domain.proofs.merkle import HASH_BYTES

_ED25519: Final = b"\x01"
_KEY_BYTES: Final = 32
_SIGNED_MAX: Final = 4_096
"""Signatures that `OwnKey` knows again."""
_PRIVATE: Final = "PRIVATE+KEY+"
_DASH: Final = "\u2014 "
_ROTATION: Final = "tenure key rotation"
_LOST: Final = "tenure lost "
"""How an extension line of a checkpoint begins that names positions which a recovery named lost."""
NOTE_BYTES_MAX: Final = 1_000_000
"""A longer text is no note (C2SP signed-note)."""


@dataclass(frozen=True, kw_only=True)  # no slots: ids are worked out once
class PublicKey:
    """
    A verifier key: `name+hash+base64`, the hash over name and key as 8 hex digits.

    Rule: C2SP signed-note, "Verifier keys" and "Signatures".
    """

    name: str
    key: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a verifier key. Raises InputError: it is none, or has another hash than it says."""
        name, _, rest = text.strip().partition("+")
        digest, _, encoded = rest.partition("+")
        data = _decoded(encoded)
        if len(data) != 1 + _KEY_BYTES or data[:1] != _ED25519:
            raise InputError("not an Ed25519 verifier key: expected name+hash+base64")
        key = cls(name=_key_name(name), key=data[1:])
        if key.key_hash.hex() != digest:
            raise InputError(f"the verifier key has another hash than it says: name={name}")
        return key

    @property
    def key_hash(self) -> bytes:
        """The first 4 bytes of SHA-256(name || newline || 0x01 || key)."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.key).digest()[:4]

    @cached_property
    def key_id(self) -> str:
        """The id by which a signature names its key: `name+hash`."""
        return f"{self.name}+{self.key_hash.hex()}"

    def __str__(self) -> str:
        encoded = base64.b64encode(_ED25519 + self.key).decode()
        return f"{self.key_id}+{encoded}"

    def accepts(self, message: bytes, signature: bytes) -> bool:
        """Tell whether the signature over the message is of this key."""
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class PrivateKey:
    """A signer key: `PRIVATE+KEY+name+hash+base64`. Keep its text in a file of mode 0600."""

    name: str
    _key: Ed25519PrivateKey

    @classmethod
    def new(cls, name: str) -> Self:
        """Make a key. Raises InputError: a name with spaces or plus signs, or none."""
        return cls(name=_key_name(name), _key=Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a signer key. Raises InputError as `PublicKey.parse`, without the key in it."""
        text = text.strip()
        name, _, rest = text.removeprefix(_PRIVATE).partition("+")
        digest, _, encoded = rest.partition("+")
        data = _decoded(encoded)
        if (
            not text.startswith(_PRIVATE)
            or len(data) != 1 + _KEY_BYTES
            or not data.startswith(_ED25519)
        ):
            raise InputError("not an Ed25519 signer key: expected PRIVATE+KEY+name+hash+base64")
        key = cls(name=_key_name(name), _key=Ed25519PrivateKey.from_private_bytes(data[1:]))
        if key.public.key_hash.hex() != digest:
            raise InputError(f"the signer key has another hash than it says: name={name}")
        return key

    def text(self) -> str:
        """Return the key as it is kept in its file, without a newline."""
        encoded = base64.b64encode(_ED25519 + self._key.private_bytes_raw()).decode()
        return f"{_PRIVATE}{self.name}+{self.public.key_hash.hex()}+{encoded}"

    def __repr__(self) -> str:
        return f"PrivateKey(name={self.name!r})"

    @cached_property
    def public(self) -> PublicKey:
        """The verifier key that belongs to it."""
        return PublicKey(name=self.name, key=self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the signature over the message, 64 bytes."""
        return self._key.sign(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One signature line of a note."""

    name: str
    key_hash: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A text that ends in a newline, and who signed it."""

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a signed note. Raises InputError: it is none by C2SP signed-note."""
        if len(text.encode(errors="replace")) > NOTE_BYTES_MAX or any(
            (each < " " and each != "\n") or each == "\x7f" for each in text
        ):
            raise InputError("not a signed note: it is too long or has control characters")
        body, blank, lines = text.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise InputError("not a signed note: expected a text, an empty line and signatures")
        signatures = tuple(_signature(line) for line in lines[:-1].split("\n"))
        return cls(text=body + "\n", signatures=signatures)

    def is_signed_by(self, key: PublicKey) -> bool:
        """Tell whether this key signed the text; a wrong signature under its name is no."""
        found = [
            each.signature
            for each in self.signatures
            if (each.name, each.key_hash) == (key.name, key.key_hash)
        ]
        return bool(found) and all(key.accepts(self.text.encode(), each) for each in found)

    def has_signature_of(self, key: PublicKey) -> bool:
        """Tell whether a signature of this key holds, whatever else stands under its name."""
        return any(key.accepts(self.text.encode(), each.signature) for each in self.signatures)


def sign_note(text: str, *keys: PrivateKey) -> str:
    """Return `text`, which ends in a newline, as a note signed by every key (C2SP signed-note)."""
    assert text.endswith("\n"), text
    assert keys, "a signed note has a signature"
    lines = [
        f"{_DASH}{key.name} "
        + base64.b64encode(key.public.key_hash + key.sign(text.encode())).decode()
        for key in keys
    ]
    return text + "\n" + "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """
    What a checkpoint says: the first `size` events of `origin` have this Merkle root.

    Rule: C2SP tlog-checkpoint.
    """

    origin: str
    size: int
    root: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a checkpoint; further lines are extensions. Raises InputError: it is none."""
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1] != "" or not lines[0] or "" in lines[:-1]:
            raise InputError("not a checkpoint: expected origin, size and root, a line each")
        root = _decoded(lines[2])
        size = lines[1]
        if not (size.isascii() and size.isdigit() and str(int(size[:20])) == size):
            raise InputError(f"the size of a checkpoint is a number: size={size[:40]}")
        if len(root) != HASH_BYTES:
            raise InputError("the root of a checkpoint is 32 bytes in base64")
        return cls(origin=lines[0], size=int(size), root=root)

    def text(self) -> str:
        """Return the text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def with_lost(text: str, lost: Iterable[tuple[int, int]]) -> str:
    """Return the text of a checkpoint that says which positions are known to have been lost."""
    return text + "".join(f"{_LOST}{first}-{last}\n" for first, last in sorted(set(lost)))


def is_lost(text: str, size: int) -> bool:
    """Tell whether a checkpoint's text says that what stood at this position was lost."""
    for line in text.split("\n")[3:]:
        first, dash, last = line.removeprefix(_LOST).partition("-")
        are_positions = is_number(first, 18) and is_number(last, 18)
        if not (line.startswith(_LOST) and dash and are_positions):
            continue
        if int(first) <= size <= int(last):
            return True
    return False


def rotation_text(origin: str, old: PublicKey, new: PublicKey) -> str:
    """Return the text that the old key and the new one sign when one follows the other."""
    return f"{_ROTATION}\n{origin}\n{old}\n{new}\n"


def is_rotation(note: str, *, origin: str, old_key: str, new_key: str) -> bool:
    """Tell whether both keys signed that, in this ledger, the new one follows the old one."""
    try:
        old, new = PublicKey.parse(old_key), PublicKey.parse(new_key)
        signed = Note.parse(note)
    except InputError:
        return False
    text = rotation_text(origin, old, new)
    return signed.text == text and signed.is_signed_by(old) and signed.is_signed_by(new)


def published(keys: Iterable[PublicKey]) -> dict[str, str]:
    """Return verifier keys as the data of a ConfigMap, which a node's agent keeps as a file."""
    return {f"{key.key_hash.hex()}.vkey": str(key) for key in keys}


def trusting(data: Mapping[str, str]) -> Checker:
    """Return a check by these published keys. Raises InputError: a value that is no key."""
    keys: dict[str, PublicKey] = {}
    for name, text in sorted(data.items()):
        try:
            key = PublicKey.parse(text)
        except InputError as error:
            raise error.within(f"data[{name}]") from error
        keys[key.key_id] = key

    def check(key_id: str, message: bytes, signature: bytes) -> bool:
        key = keys.get(key_id)
        return key is not None and key.accepts(message, signature)

    return check


class OwnKey:
    """
    The key that we sign with, and who tells whether it or an older one signed what comes back.

    What was signed here is known again, letter for letter and once, in place of verifying it, which
    takes three times as long as to sign. Of anything else the signature has to hold.

    Args:
        older: keys that were ours, and are trusted still.
    """

    def __init__(self, key: PrivateKey, older: Iterable[PublicKey] = ()) -> None:
        self._key = key
        self._check = trusting(published([key.public, *older]))
        self._signed: dict[bytes, None] = {}  # oldest first

    @property
    def public(self) -> PublicKey:
        """The verifier key that belongs to it."""
        return self._key.public

    def sign(self, message: bytes) -> bytes:
        """Return the signature over the message, 64 bytes."""
        signature = self._key.sign(message)
        self._signed[_mark(message, signature)] = None
        if len(self._signed) > _SIGNED_MAX:
            del self._signed[next(iter(self._signed))]
        return signature

    def check(self, key_id: str, message: bytes, signature: bytes) -> bool:
        """Tell whether a key of ours signed the message; a `Checker`."""
        mark = _mark(message, signature)
        if key_id == self.public.key_id and mark in self._signed:
            del self._signed[mark]
            return True
        return self._check(key_id, message, signature)


def _mark(message: bytes, signature: bytes) -> bytes:
    """Return what tells a message with its signature, by a length in front, from every other."""
    return hashlib.sha256(b"%d\n%b%b" % (len(signature), signature, message)).digest()


def _key_name(name: str) -> str:
    if not name or "+" in name or any(each.isspace() or not each.isprintable() for each in name):
        raise InputError(f"the name of a key is a word without spaces and plus signs: name={name}")
    return name


def _decoded(text: str) -> bytes:
    """Return what standard base64 says, empty for what is not the one way to write it."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return data if base64.b64encode(data).decode() == text else b""


def _signature(line: str) -> Signature:
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    data = _decoded(encoded)
    if not line.startswith(_DASH) or not name or "+" in name or len(data) < 5:
        raise InputError("not a signed note: a signature line is a dash, a name and base64")
    return Signature(name=name, key_hash=data[:4], signature=data[4:])
