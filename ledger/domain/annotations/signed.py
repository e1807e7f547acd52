"""
Signed words in an annotation: what is said, by which key, and the signature over it.

Rule: design section 8, "Restore". Making and checking a signature is the caller's, so that no key
and no cryptography is in here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Final

from ledger.domain.annotations.wire import annotation_path, dump, load
from ledger.domain.errors import InputError
from ledger.domain.proofs.canonical import canonical_json

BYTES_MAX: Final = 256 * 1024
"""The API server's limit for all annotations of an object together."""

Signer = Callable[[bytes], bytes]
Checker = Callable[[str, bytes, bytes], bool]
"""(key id, message, signature) -> the signature is that key's, and the key is one we trust."""

# <annotation>: {"<word>":{...},"key":"tenure.example+9c56cc51",
#   "signature":"<base64, 64 bytes of Ed25519>"}


def _message(annotation: str, said: str) -> bytes:
    """
    Return the bytes under the signature: the annotation's name, then canonical JSON.

    The name keeps a text that was signed for one annotation from being taken for another's.
    """
    return f"{annotation}\n{said}".encode()


def encode_signed(
    annotation: str, word: str, words: Mapping[str, object], *, key: str, sign: Signer
) -> dict[str, str]:
    """Write the annotation, signed with the key of that id."""
    said = canonical_json(words)
    signature = base64.b64encode(sign(_message(annotation, said))).decode()
    parts = {word: said, "key": dump(key), "signature": dump(signature)}
    text = ",".join(f'"{name}":{parts[name]}' for name in sorted(parts))
    return {annotation: f"{{{text}}}"}


def decode_signed(
    annotation: str, word: str, text: str, *, check: Checker, version: int
) -> Mapping[str, object]:
    """
    Return what an annotation says; nothing of it is looked at before its signature holds.

    Raises:
        InputError: not JSON, longer than an annotation can be, a signature that does not hold or
            is of no key we trust, or a format of a newer release.
    """
    path = annotation_path(annotation)
    if len(text) > BYTES_MAX:
        raise InputError(f"longer than an annotation can be: {len(text)}", field=path)
    envelope = load(text, path)
    if not isinstance(envelope, dict) or envelope.keys() != {word, "key", "signature"}:
        raise InputError(f"must be an object of {word}, key and signature", field=path)
    words, key, written = envelope[word], envelope["key"], envelope["signature"]
    if not isinstance(words, dict) or not isinstance(key, str) or not isinstance(written, str):
        raise InputError("must be an object, a key id and a signature", field=path)
    try:
        signature = base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("not base64", field=f"{path}.signature") from error
    try:
        message = _message(annotation, canonical_json(words))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", field=path) from error
    if not check(key, message, signature):
        raise InputError(f"the signature does not hold: key={key}", field=path)
    if words.get("format") != version:
        fact = f"a format that this release does not know: format={words.get('format')}"
        raise InputError(fact, field=f"{path}.{word}")
    return words
