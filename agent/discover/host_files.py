"""Small files of the host below one root, out of which no link leads."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BYTES_MAX: Final = 4096
"""A page: no attribute of sysfs is longer."""
_LINKS_MAX: Final = 40
"""As the kernel counts."""
_ENTRIES_MAX: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """
    The host's files, as they look to somebody for whom `root` is `/`.

    A link that begins with `/`, or leads above the root, goes on at the root: what is read lies
    below it whatever the tree holds. Paths are relative and have no `..` of their own.
    """

    root: Path

    def real(self, path: str) -> tuple[str, ...]:
        """Return the names from the root to `path`, links followed. Raises OSError: none, loop."""
        todo = list(reversed(path.split("/")))
        done: list[str] = []
        links = 0
        while todo:
            name = todo.pop()
            if name == "..":
                done = done[:-1]
                continue
            if name in {"", "."}:
                continue
            here = self.root.joinpath(*done, name)
            if not here.is_symlink():
                here.lstat()
                done.append(name)
                continue
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, "too many links", str(here))
            target = str(here.readlink())
            if target.startswith("/"):
                done = []
            todo.extend(reversed(target.split("/")))
        return tuple(done)

    def names(self, path: str) -> tuple[str, ...]:
        """Return what a folder holds, by name; nothing where there is no such folder."""
        try:
            found = sorted(each.name for each in self.root.joinpath(*self.real(path)).iterdir())
        except OSError:
            return ()
        return tuple(found[:_ENTRIES_MAX])

    def text(self, path: str) -> str:
        """
        Return a small file without the blanks around it.

        Raises:
            OSError: there is none, it can't be read, or it is no file.
            ValueError: it is no text.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(self.root.joinpath(*self.real(path)), flags)
        try:
            return os.read(handle, BYTES_MAX).decode().strip()
        finally:
            os.close(handle)

    def text_or(self, path: str, otherwise: str = "") -> str:
        """Return a small file, or something else where it can't be read."""
        try:
            return self.text(path)
        except (OSError, ValueError):
            return otherwise
