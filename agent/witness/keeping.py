"""
Files of others that can't be trusted, kept aside for whoever looks into it.

Kubelet's own file stays where it is: it is kubelet's, and is written anew. What is kept is a copy.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT_MAX: Final = 8
"""Of each file; the oldest goes."""
BYTES_MAX: Final = 1 << 20
"""As much of a file is kept: its beginning."""
_SUFFIX: Final = ".corrupt"


class Quarantine:
    """A folder of our own with copies of what could not be trusted; no content is kept twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, name: str, content: bytes) -> Path | None:
        """
        Keep a copy of a file; return where it is, None where that content is there already.

        Raises:
            OSError: it can't be written.
        """
        digest = hashlib.sha256(content).hexdigest()[:16]
        path = self._folder / f"{name}.{digest}{_SUFFIX}"
        if path.exists():
            return None
        self._folder.mkdir(mode=0o700, exist_ok=True)
        there = sorted(self._folder.glob(f"{name}.*{_SUFFIX}"), key=_age)
        for old in there[: max(0, len(there) - KEPT_MAX + 1)]:
            old.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileExistsError), os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(content[:BYTES_MAX])
        return path


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
