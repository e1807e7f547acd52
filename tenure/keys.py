"""Key files: what signs, and what a signature is checked with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ledger.domain.errors import InputError

if TYPE_CHECKING:
    from ledger.signing import PrivateKey, PublicKey


def private_key(path: Path) -> PrivateKey:
    """Read a signer key's file. Raises InputError: it has none; the message never quotes it."""
    from ledger.signing import PrivateKey

    try:
        return PrivateKey.parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError("not a signer key", place=str(path)) from error
    except InputError as error:
        raise error.at(str(path)) from None


def public_key(text: str) -> PublicKey:
    """Read a verifier key, or the file that has one. Raises InputError: it is none."""
    from ledger.signing import PublicKey

    path = Path(text)
    if "+" in text and not path.is_file():
        return PublicKey.parse(text)
    try:
        return PublicKey.parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError("not a verifier key", place=text) from error
    except InputError as error:
        raise error.at(text) from None
