"""Which node we are, out of our own token, and whose signatures it believes."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Final

import msgspec

from agent.https import token_in
from ledger.domain.annotations.signed import Checker
from ledger.domain.errors import InputError
from ledger.signing import trusting

_SUFFIX: Final = ".vkey"
_KEYS_MAX: Final = 64
_PARTS: Final = 3
_NO_NODE: Final = (
    "the token says no node: take the one that kubelet mounts, of Kubernetes 1.32 or later"
)


class _Named(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Bound(msgspec.Struct):
    node: _Named = msgspec.field(default_factory=_Named)
    pod: _Named = msgspec.field(default_factory=_Named)


class _Claims(msgspec.Struct):
    bound: _Bound = msgspec.field(default_factory=_Bound, name="kubernetes.io")


def node_of_token(path: Path) -> tuple[str, str]:
    """
    Return name and UID of the node that a token was mounted on.

    Nobody but kubelet writes the file, so its signature is the API server's to check; and the word
    is there when no API server is.

    Raises:
        InputError: no token, or one of no node: not mounted by kubelet, or by one before 1.32.
    """
    node = _bound(path).node
    if not node.name or not node.uid:
        raise InputError(_NO_NODE, place=str(path))
    return node.name, node.uid


def pod_of_token(path: Path) -> tuple[str, str]:
    """Return name and UID of the token's Pod, empty = in none. Raises InputError: no token."""
    pod = _bound(path).pod
    return pod.name, pod.uid


def _bound(path: Path) -> _Bound:
    parts = token_in(path).split(".")
    if len(parts) != _PARTS:
        raise InputError(_NO_NODE, place=str(path))
    try:
        words = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(words, type=_Claims).bound
    except (binascii.Error, ValueError, RecursionError) as error:
        raise InputError(f"{_NO_NODE}: {error}", place=str(path)) from error


class ProofKeys:
    """The public keys of a folder, a ConfigMap's own form; read again when it changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: tuple[tuple[int, int, int], Checker] | None = None

    def check(self, key: str, message: bytes, signature: bytes) -> bool:
        """Tell whether a published key signed it. Raises InputError: no readable key there."""
        return self._checker()(key, message, signature)

    def _checker(self) -> Checker:
        try:
            now = self._folder.stat()  # kubelet changes a link in it when the ConfigMap changes
            version = (now.st_ino, now.st_mtime_ns, now.st_nlink)
            if self._made is None or self._made[0] != version:
                files = sorted(self._folder.glob(f"*{_SUFFIX}"))[:_KEYS_MAX]
                data = {file.name: file.read_text(encoding="utf-8").strip() for file in files}
                if not data:
                    raise InputError("no public key of proofs is there", place=str(self._folder))
                self._made = (version, trusting(data))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"can't be read: {error}", place=str(self._folder)) from error
        return self._made[1]
