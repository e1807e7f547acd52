"""Files that the runtime, the vendor and kubelet share with us; no link is followed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import yaml

from agent import checkpoint
from agent.claim_checkpoint import PreparedClaim, read_claim_checkpoint
from agent.decide.slots import is_name
from agent.decide.slots_cdi import CardEdits, devices_shown, read_cards
from agent.documents import json_document, yaml_document
from agent.durable import read_regular
from ledger.domain.errors import InputError, TenureError

_PREFIX: Final = "tenure-"
_SUFFIX: Final = ".json"
_HALF: Final = ".tmp"


class OtherContentError(TenureError):
    """A name is written already, and means something else: it is never written again. Refuse."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"a name has another meaning already: path={path}")


class SpecFolder:
    """Our CDI specifications: one file for a name, whole or absent, never of two contents."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> frozenset[str]:
        """Return the names that have a meaning now."""
        found = (path.name for path in self._folder.glob(f"{_PREFIX}*{_SUFFIX}"))
        names = (name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in found)
        return frozenset(name for name in names if is_name(name))

    def write(self, name: str, content: str) -> bool:
        """
        Give a name its meaning; tell whether it had none.

        The same is written again, for a runtime may have missed that it appeared: one whose queue
        of file events ran over learns of the name by the next event alone.

        Raises:
            OtherContentError: it means something else.
            OSError: the file can't be written.
        """
        path = self._path(name)
        with self._beside(path, content) as whole:
            try:
                path.hardlink_to(whole)  # of two agents at once, as at an upgrade, one is first
            except FileExistsError:
                if read_file(path).decode(errors="replace") != content:
                    raise OtherContentError(path) from None
                whole.rename(path)
                return False
        return True

    def again(self, name: str) -> bool:
        """Write what a name means once more; tell whether it means something. Raises OSError."""
        try:
            content = read_file(self._path(name)).decode(errors="replace")
        except FileNotFoundError:
            return False
        self.write(name, content)
        return True

    @contextmanager
    def _beside(self, path: Path, content: str) -> Iterator[Path]:
        """Yield a file of our own with this content; the runtime reads none of its suffix."""
        handle, name = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=_HALF, dir=self._folder)
        whole = Path(name)
        try:
            with os.fdopen(handle, "w") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield whole
        finally:
            whole.unlink(missing_ok=True)

    def devices(self, name: str) -> frozenset[str] | None:
        """Return the ids of what a name shows; None where it has no meaning, or none of ours."""
        try:
            return devices_shown(read_file(self._path(name)).decode())
        except (OSError, ValueError, InputError):
            return None

    def remove(self, names: Iterable[str]) -> None:
        """Take names away that nobody will start with again, and what a writer's end left half."""
        halves = self._folder.glob(f"{_PREFIX}*{_HALF}")
        for path in (*map(self._path, names), *halves):
            with suppress(FileNotFoundError):
                path.unlink()

    def _path(self, name: str) -> Path:
        assert is_name(name), name
        return self._folder / f"{_PREFIX}{name}{_SUFFIX}"


class CardFiles:
    """How the vendors show their cards, from their CDI specifications; read again on a change."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._read: dict[Path, tuple[tuple[int, int, int], dict[str, CardEdits]]] = {}

    def cards(self) -> Mapping[str, CardEdits]:
        """Return each device's edits by its id. Raises InputError: a bad file or device twice."""
        result: dict[str, CardEdits] = {}
        for path in self._paths:
            for name, edits in self._of(path).items():
                if name in result:
                    raise InputError(f"two specifications show it: device={name}", place=str(path))
                result[name] = edits
        return result

    def _of(self, path: Path) -> dict[str, CardEdits]:
        try:
            now = path.stat()
            version = (now.st_ino, now.st_mtime_ns, now.st_size)
            if path not in self._read or self._read[path][0] != version:
                self._read[path] = (version, read_cards(_parsed(path)))
        except InputError as error:
            raise error.at(str(path)) from error
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise InputError(f"can't be read: {error}", place=str(path)) from error
        return self._read[path][1]


class CheckpointFile:
    """Kubelet's record of devices; its checksum takes 10 ms, so the same bytes are read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: (
            tuple[bytes, checkpoint.DeviceCheckpoint | checkpoint.CheckpointError] | None
        ) = None

    def read(self) -> checkpoint.DeviceCheckpoint:
        """Return what it says now. Raises CheckpointError: untrusted; OSError: unreadable."""
        content = read_file(self._path)
        if self._last is None or self._last[0] != content:
            try:
                self._last = (content, checkpoint.read_device_checkpoint(content))
            except checkpoint.CheckpointError as error:
                self._last = (content, error)
        if isinstance(self._last[1], checkpoint.CheckpointError):
            raise self._last[1].with_traceback(None)
        return self._last[1]


def claims_in(path: Path) -> tuple[PreparedClaim, ...]:
    """Return kubelet's claims. Raises CheckpointError: not to be trusted; OSError: unreadable."""
    return read_claim_checkpoint(read_file(path))


def read_file(path: Path) -> bytes:
    """Return a file's content, one byte more than `BYTES_MAX` at most; as `read_regular`."""
    return read_regular(path, checkpoint.BYTES_MAX + 1)


def _parsed(path: Path) -> object:
    content = read_file(path)
    if len(content) > checkpoint.BYTES_MAX:  # cut off there it might still be YAML
        raise InputError(f"too large: bytes_max={checkpoint.BYTES_MAX}")
    return json_document(content) if path.suffix == ".json" else yaml_document(content.decode())
