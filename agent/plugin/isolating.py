"""Whether this node can keep a container to its part of a card, and how."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from agent.decide.isolation import Provider, limited, limits_of
from agent.decide.slots_cdi import Edits
from agent.discover.host_files import HostFiles
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.errors import InputError

_LOCKS: Final = "locks"
"""The folder beside the library that containers share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The node's provider of isolation; `sizes`: known cards' bytes by id, `library`: its path."""

    provider: Provider
    host: HostFiles
    sizes: Callable[[], Mapping[str, int]]
    library: PurePosixPath

    def edits(self, devices: Sequence[ProvenDevice]) -> Edits:
        """
        Return what keeps a container to what it holds; nothing without a provider.

        Raises:
            UnknownSizeError: nobody knows yet whether it holds whole cards.
            InputError: the node lacks what the provider needs; with its path.
        """
        if self.provider is Provider.NONE:
            return {}
        limits = limits_of(devices, self.sizes())
        if not limits:
            return {}
        locks = self.library.parent / _LOCKS
        library = self._there(self.library, "library", stat.S_ISREG)
        return limited(limits, library=library, locks=self._there(locks, "folder", stat.S_ISDIR))

    def _there(self, path: PurePosixPath, what: str, is_one: Callable[[int], bool]) -> str:
        """Return a path of the node with no link in it; refuse one where there is no such thing."""
        try:
            names = self.host.real(str(path))
            if is_one(self.host.root.joinpath(*names).lstat().st_mode):
                return str(PurePosixPath("/", *names))
            fact = "it is something else"
        except OSError as error:
            fact = error.strerror or str(error)
        raise InputError(f"parts of cards can't be isolated: no {what}: {fact}", place=str(path))
