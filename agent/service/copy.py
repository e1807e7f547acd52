"""
A copy of the service's word on the node's own disk, for starts while the service is away.

    {"format": 1, "sha256": "<of the next line>"}
    {"at": 1772409601, "boot_id": "...", "ended": {}, "holdings": [...], "position": 1017, ...}

The second line is what the service answers (docs/contracts/agents.md). It is believed when every
holding in it is proved for this node (`agent.decide.believing`); the checksum only tells what a
failing disk did from what somebody else wrote.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from agent.decide.node_holdings import NodeHoldings, all_holdings
from agent.durable import write_durably
from agent.service.wire import read_holdings, written
from ledger.domain.errors import InputError

FILE_NAME: Final = "holdings.copy"
FORMAT: Final = 1
BYTES_MAX: Final = 32 * 2**20


class _Head(msgspec.Struct):
    format: int
    sha256: str


class _Beside(msgspec.Struct):
    at: int
    boot_id: str
    ended: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """
    An earlier word of the service.

    Attributes:
        at: when the service said so, in seconds since the epoch by this node's clock.
        boot_id: of the start of the machine in which it was heard.
    """

    known: NodeHoldings
    at: int
    boot_id: str


class CopyFile:
    """The file of the copy, for nobody but us to read or write."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder / FILE_NAME

    def write(self, copy: Copy) -> None:
        """Put a copy in the place of the last one, at once and on disk. Raises OSError."""
        beside = {"at": copy.at, "boot_id": copy.boot_id, "ended": copy.known.ended}
        body = written(copy.known, **beside)
        head = msgspec.json.encode(_Head(format=FORMAT, sha256=hashlib.sha256(body).hexdigest()))
        write_durably(self.path, head + b"\n" + body + b"\n")

    def read(self) -> Copy | None:
        """
        Return the copy; None where there is none. Whether to believe it is another question.

        Raises:
            InputError: it can't be read, others may write it, or it is not what was written.
        """
        try:
            content = self._content()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"can't be read: {error}", place=str(self.path)) from error
        head, _, body = content.partition(b"\n")
        body = body.removesuffix(b"\n")
        try:
            said = msgspec.json.decode(head, type=_Head)
            if said.format != FORMAT:
                raise InputError(f"an unknown format: value={said.format}", place=str(self.path))
            if hashlib.sha256(body).hexdigest() != said.sha256:
                raise InputError("torn: its checksum is another", place=str(self.path))
            origin, position, held = read_holdings(body)
            beside = msgspec.json.decode(body, type=_Beside)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"torn: {error}", place=str(self.path)) from error
        known = replace(all_holdings(origin, position, held), ended=beside.ended)
        return Copy(known=known, at=beside.at, boot_id=beside.boot_id)

    def _content(self) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise InputError("not a file of ours", place=str(self.path))
            if found.st_mode & 0o077:
                raise InputError("others may read or write it", place=str(self.path))
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise InputError(f"too large: bytes_max={BYTES_MAX}", place=str(self.path))
        return content
