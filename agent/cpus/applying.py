"""Writes of a plan, each read back; what the kernel refuses has a name, and ends nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from agent.cpus.tree import GoneError
from agent.decide.cgroups import CgroupFile, Problem, Write


class Refusal(StrEnum):
    """Why a file does not say what was written."""

    CHILD_HAS_MORE = "ChildHasMore"  # v1: one below has CPUs that it would lose: it was born since
    OUTSIDE_PARENT = "OutsideParent"  # v1: the cgroup above lacks some of them
    EMPTY_WITH_TASKS = "EmptyWithTasks"
    NO_SUCH_CPU = "NoSuchCPU"
    NOT_TAKEN = "NotTaken"  # any other answer of the kernel
    READS_OTHERWISE = "ReadsOtherwise"  # it was taken, and says something else


_NAMES: Final = {
    errno.EBUSY: Refusal.CHILD_HAS_MORE,
    errno.EACCES: Refusal.OUTSIDE_PARENT,
    errno.ENOSPC: Refusal.EMPTY_WITH_TASKS,
    errno.ERANGE: Refusal.NO_SUCH_CPU,
}


class Files(Protocol):
    """The cgroups' files. Both raise GoneError and OSError."""

    def write(self, path: str, file: CgroupFile, value: str) -> None:
        """Write one."""

    def text(self, path: str, file: CgroupFile) -> str:
        """Return what one says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What came of writes: which are in force, and which are not; ended cgroups are neither."""

    done: tuple[Write, ...] = ()
    refused: tuple[Problem, ...] = ()


def apply(files: Files, writes: Iterable[Write]) -> Applied:
    """Write in order and read back; one that is refused keeps no later one from being tried."""
    done, refused = [], []
    for write in writes:
        try:
            files.write(write.path, write.file, write.value)
            said = files.text(write.path, write.file)
        except GoneError:
            continue
        except OSError as error:
            reason = _NAMES.get(error.errno or 0, Refusal.NOT_TAKEN)
            words = error.strerror or str(error)
            refused.append(Problem(about=str(write), reason=reason, words=words))
            continue
        if write.is_read_back(said):
            done.append(write)
        else:
            words, reason = f"wanted={write.value!r}, says={said!r}", Refusal.READS_OTHERWISE
            refused.append(Problem(about=str(write), reason=reason, words=words))
    return Applied(done=tuple(done), refused=tuple(refused))
