"""A kubepods tree of the machine's own cgroup v1, under a parent of its own, with processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.cgroup_trees import FakeTree, Layout
from tests.support.node.room import CGROUPS, check_machine

LAYOUT: Final = Layout(version=1, driver="cgroupfs", runtime="containerd")
_WRITTEN: Final = 0x2 | 0x4 | 0x8
"""IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE."""
_HEAD: Final = struct.Struct("iIII")


class RealTree(FakeTree):
    """The kernel plays itself."""

    def __init__(self, name: str) -> None:  # nothing of the fake one's folders is made
        self.parents = [CGROUPS / controller / name for controller in ("cpuset", "cpu")]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for parent in self.parents:
            parent.mkdir()
            self._fill(parent)
        self.layout = LAYOUT
        self.cpuset, self.cpu = (parent / LAYOUT.top for parent in self.parents)
        self.cpus = (self.parents[0] / "cpuset.cpus").read_text().strip()
        self.make("")

    def run(self, path: str) -> int:
        """Let a process run in a cgroup, and return its pid."""
        started = self.running[path] = subprocess.Popen(["sleep", "3600"])
        assert self.cpu is not None
        for root in (self.cpuset, self.cpu):
            (root / path / "cgroup.procs").write_text(str(started.pid))
        return started.pid

    def stop(self, path: str) -> None:
        """End it."""
        started = self.running.pop(path, None)
        if started is not None:
            started.kill()
            started.wait()

    def remove(self, path: str) -> None:
        """Take a cgroup away, with its process."""
        self.stop(path)
        assert self.cpu is not None
        for root in (self.cpuset, self.cpu):
            _removed(root / path)

    def end(self) -> None:
        """Take everything away."""
        for path in [*self.running]:
            self.stop(path)
        for parent in self.parents:
            for folder, _, _ in os.walk(parent, topdown=False):
                _removed(Path(folder))

    def _one(self, path: str) -> None:
        for parent in self.parents:
            made = parent / LAYOUT.top / path
            if not made.is_dir():
                made.mkdir()
                self._fill(made)

    def _fill(self, folder: Path) -> None:
        """Give a cgroup what that above it has, as kubelet and runc do."""
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (folder / name).exists():
                (folder / name).write_text((folder.parent / name).read_text())


def _removed(folder: Path) -> None:
    until = time.monotonic() + 20
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError:  # its last process is just ending
            assert time.monotonic() < until, folder
            time.sleep(0.02)


@contextlib.contextmanager
def real_tree() -> Iterator[RealTree]:
    """Make a tree until the block ends. Raises NoRoomError: this machine lets us not."""
    check_machine()
    tree = RealTree(f"tenure-cpus-{os.getpid()}")
    try:
        yield tree
    finally:
        tree.end()


@contextlib.contextmanager
def writes_to(folders: list[Path]) -> Iterator[list[str]]:
    """Collect the names of files of these folders that anybody writes in the meantime."""
    kernel = ctypes.CDLL(None, use_errno=True)
    handle = kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    for folder in folders:
        assert kernel.inotify_add_watch(handle, str(folder).encode(), _WRITTEN) >= 0
    found: list[str] = []
    yield found
    with contextlib.suppress(BlockingIOError):
        while events := os.read(handle, 65_536):
            at = 0
            while at < len(events):
                length = _HEAD.unpack_from(events, at)[3]
                at += _HEAD.size
                found.append(events[at : at + length].rstrip(b"\0").decode())
                at += length
    os.close(handle)
