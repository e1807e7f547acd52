"""Writes of a plan: in order, read back, and what the kernel refuses has a name."""

from __future__ import annotations

import errno
import os

import pytest

from agent.cpus.applying import Refusal, apply
from agent.cpus.tree import GoneError
from agent.decide.cgroups import CgroupFile, Write


class Kernel:
    """Files of cgroups, some of which take nothing."""

    def __init__(self) -> None:
        self.says: dict[tuple[str, str], str] = {}
        self.refuses: dict[str, int] = {}
        self.turns: dict[str, str] = {}
        self.asked: list[str] = []

    def write(self, path: str, file: CgroupFile, value: str) -> None:
        """Take a value, or refuse it."""
        self.asked.append(path)
        if path == "gone":
            raise GoneError(path)
        if path in self.refuses:
            raise OSError(self.refuses[path], os.strerror(self.refuses[path]))
        self.says[path, file] = self.turns.get(path, value)

    def text(self, path: str, file: CgroupFile) -> str:
        """Return what is there."""
        return self.says[path, file]


def write(path: str, value: str = "0-1", file: CgroupFile = CgroupFile.CPUS) -> Write:
    """Return a write."""
    return Write(path=path, file=file, value=value)


def test_writes_are_made_in_their_order_and_read_back() -> None:
    """In the kernel's spelling, which joins ranges."""
    kernel = Kernel()
    kernel.turns["b"] = "0-3"
    writes = [write("b", "0,1,2-3"), write("a")]

    applied = apply(kernel, writes)

    assert (applied.done, applied.refused) == (tuple(writes), ())
    assert kernel.asked == ["b", "a"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EBUSY, Refusal.CHILD_HAS_MORE),
        (errno.EACCES, Refusal.OUTSIDE_PARENT),
        (errno.ENOSPC, Refusal.EMPTY_WITH_TASKS),
        (errno.ERANGE, Refusal.NO_SUCH_CPU),
        (errno.EINVAL, Refusal.NOT_TAKEN),
        (errno.EROFS, Refusal.NOT_TAKEN),
    ],
    ids=str,
)
def test_what_the_kernel_refuses_has_a_name_and_ends_nothing(number: int, reason: Refusal) -> None:
    """The next write is tried all the same."""
    kernel = Kernel()
    kernel.refuses["a"] = number
    applied = apply(kernel, [write("a"), write("b")])
    [refused] = applied.refused
    assert (refused.about, refused.reason) == (str(write("a")), reason)
    assert applied.done == (write("b"),)


def test_a_file_that_says_otherwise_is_not_in_force() -> None:
    """A partition that the kernel calls invalid, say."""
    kernel = Kernel()
    kernel.turns["a"] = "root invalid (Cpu list in cpuset.cpus not exclusive)"
    applied = apply(kernel, [write("a", "root", CgroupFile.PARTITION)])
    [refused] = applied.refused
    assert refused.reason is Refusal.READS_OTHERWISE
    assert "invalid" in refused.words
    assert not applied.done


def test_a_cgroup_that_has_ended_is_nobodys_fault() -> None:
    """Containers end at any time."""
    applied = apply(Kernel(), [write("gone"), write("b")])
    assert (applied.done, applied.refused) == ((write("b"),), ())
