"""
The kubepods tree of this machine, read and written by descriptors of its own folders.

No path is joined: each cgroup is opened by its name in the one above, and a link is no cgroup. So
nothing outside of the tree is reached, whatever its names are. What did not change since the last
look is not read again: the kernel tells that (inotify).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from agent.decide.cgroups import NO_QUOTA, CgroupFile, CgroupNow, CgroupTree, CgroupVersion
from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.errors import InputError

CGROUPS_MAX: Final = 16_384
NESTED_MAX: Final = 256
"""Below one container, which may make cgroups of its own."""
DEPTH_MAX: Final = 16
_PERIOD: Final = "cpu.cfs_period_us"
_USAGE: Final = "cpuacct.usage"
_OF_CPU: Final = frozenset({CgroupFile.QUOTA, _PERIOD, _USAGE})
"""Of v1's hierarchy of cpu."""
_BYTES_MAX: Final = 8192
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_UID: Final = "[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
_POD: Final = re.compile(rf"(?:[a-z0-9-]+-)?pod({_UID})(?:\.slice)?")
"""`podUID`; of systemd `kubepods-burstable-podUID.slice`, with `_` for `-`."""
_CONTAINER: Final = re.compile(r"(?:(?:cri-containerd|crio|docker)-)?([0-9a-f]{64})(?:\.scope)?")
"""Of either driver. `crio-conmon-ID.scope` is of its Pod, and no container's."""
_CLASS: Final = re.compile(r"(?:[a-z0-9-]+-)?(?:burstable|besteffort)(?:\.slice)?")
_GONE: Final = (errno.ENOENT, errno.ENODEV)
_MASK: Final = 0x2 | 0x100 | 0x200 | 0x01000000
"""A file was written; something was made in it, or taken away; only folders."""
_OVERFLOW: Final = 0x4000
_HEAD: Final = struct.Struct("iIII")
_EVENTS_BYTES: Final = 65_536


class GoneError(Exception):
    """The cgroup has ended: nothing is to be done about it."""


@dataclass(slots=True, kw_only=True)
class _Cgroup:
    """An open cgroup; `quota`: of the same one in the hierarchy of cpu, -1 = not open."""

    now: CgroupNow
    handle: int
    inode: int
    watches: list[int]
    quota: int = -1
    is_read: bool = False
    below: dict[str, _Cgroup] = field(default_factory=dict)

    def all(self) -> Iterator[_Cgroup]:
        """Yield it and all below."""
        yield self
        for one in self.below.values():
            yield from one.all()


class Changes:
    """
    The folders that changed since the last time.

    Attributes:
        handle: can be read once one has.
    """

    def __init__(self) -> None:
        """Begin. Raises OSError: this user watches too much already."""
        self._kernel = ctypes.CDLL(None, use_errno=True)
        self.handle: Final[int] = self._called(
            self._kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        )

    def add(self, folder: int) -> int:
        """Watch an open folder, and return its number. Raises OSError."""
        path = f"/proc/self/fd/{folder}".encode()
        return self._called(self._kernel.inotify_add_watch(self.handle, path, _MASK))

    def read(self) -> set[int] | None:
        """Return the numbers of folders that changed; None = too many did to tell them."""
        found: set[int] = set()
        lost = False
        while True:
            try:
                events = os.read(self.handle, _EVENTS_BYTES)
            except BlockingIOError:
                return None if lost else found
            at = 0
            while at < len(events):
                number, mask, _, length = _HEAD.unpack_from(events, at)
                lost = lost or bool(mask & _OVERFLOW)
                found.add(number)
                at += _HEAD.size + length

    def close(self) -> None:
        """Watch nothing more."""
        os.close(self.handle)

    def _called(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


class Kubepods:
    """
    The tree below kubelet's `kubepods`.

    Attributes:
        cut: paths below which there are more cgroups than are looked at.
    """

    def __init__(self, folder: Path, cpu: Path | None, kernel: tuple[int, int]) -> None:
        """
        Open it.

        Args:
            folder: kubepods, of cgroup v2 or of the hierarchy of cpuset.
            cpu: v1: the same in the hierarchy of cpu; None = quotas are not looked at.

        Raises:
            InputError: it is no such folder.
        """
        self.cut: set[str] = set()
        self._by_path: dict[str, _Cgroup] = {}
        self._nested: Counter[str] = Counter()  # by container
        self._by_watch: dict[int, _Cgroup] = {}
        self._dirty: set[str] = set()
        try:
            self._changes = Changes()
            self._cpu = -1 if cpu is None else os.open(cpu, _FOLDER)
            self._top = self._opened("", "", "", os.open(folder, _FOLDER))
        except OSError as error:
            raise InputError(f"no cgroup of Pods: {error}", place=str(folder)) from error
        with os.scandir(self._top.handle) as entries:
            there = {each.name for each in entries}
        if CgroupFile.CPUS not in there:
            raise InputError("no cgroup with cpuset", place=str(folder))
        version = CgroupVersion.V2 if "cgroup.controllers" in there else CgroupVersion.V1
        self._tree = CgroupTree(version=version, kernel=kernel)
        self._look_at(self._top)

    @property
    def changed(self) -> int:
        """Return a descriptor that can be read once something changed."""
        return self._changes.handle

    def close(self) -> None:
        """Let go of it."""
        self._forget(self._top)
        self._changes.close()
        if self._cpu >= 0:
            os.close(self._cpu)

    def look(self, *, whole: bool = False) -> CgroupTree:
        """
        Return the tree as it is now.

        Args:
            whole: every cgroup is read again: of what the kernel changes by itself, as when a CPU
                is taken offline, nobody is told.

        Raises:
            InputError: a file is not as the kernel writes it, or kubepods itself has ended.
        """
        changed, there = self._changes.read(), self._by_watch
        if whole or changed is None:
            changed = set(there)
        self._dirty.update(there[number].now.path for number in changed & there.keys())
        for path in sorted(self._dirty):  # what is above comes first
            self._dirty.discard(path)
            if path in self._by_path:
                self._look_at(self._by_path[path])
        found = [one.now for _, one in sorted(self._by_path.items()) if one.is_read]
        if self.cut and self._tree.version is CgroupVersion.V1:  # tasks may be where nobody looks
            found = [replace(one, populated=True) if one.path in self.cut else one for one in found]
        return replace(self._tree, cgroups=tuple(found))

    def write(self, path: str, file: CgroupFile, value: str) -> None:
        """
        Write a file of a cgroup: kubepods or one below.

        Raises:
            GoneError: it has ended.
            OSError: the kernel does not take it.
        """
        with self._folder(path, file) as folder, _opening(folder, file, _WRITE) as handle:
            self._dirty.update(each.now.path for each in self._by_path[path].all())
            os.write(handle, f"{value}\n".encode())  # no bytes are no write

    def used_us(self, path: str) -> int:
        """Return the CPU time of a cgroup's tasks, microseconds. Raises GoneError, OSError."""
        if self._tree.version is CgroupVersion.V1:
            return int(self.text(path, _USAGE)) // 1000
        return int(self.text(path, "cpu.stat").split()[1])  # usage_usec comes first

    def text(self, path: str, file: str) -> str:
        """Return what a file of a cgroup says. Raises GoneError, OSError."""
        with self._folder(path, file) as folder:
            return _text(folder, file)

    @contextmanager
    def _folder(self, path: str, file: str) -> Iterator[int]:
        if path not in self._by_path:
            raise GoneError(path)
        try:
            yield self._folder_of(self._by_path[path], file)
        except OSError as error:
            if error.errno in _GONE:
                raise GoneError(path) from error
            raise

    # --- what is there --------------------------------------------------------------------------

    def _look_at(self, one: _Cgroup) -> None:
        """Read a cgroup and what is new below it; forget what has ended."""
        self._dirty.add(one.now.path)  # until all of that is done
        one.is_read = False
        inodes: dict[str, int] = {}
        try:
            one.now = self._read(one)
            with os.scandir(one.handle) as entries:
                inodes = {
                    each.name: each.inode()
                    for each in entries
                    if each.is_dir(follow_symlinks=False)
                }
            one.is_read = True
        except OSError as error:
            if error.errno not in _GONE:
                raise
            if one is self._top:
                raise InputError("the cgroup of all Pods has ended", place="kubepods") from error
        for name, below in [*one.below.items()]:
            if inodes.get(name) != below.inode:
                self._forget(one.below.pop(name))
        self.cut.discard(one.now.path)
        for name in sorted(inodes.keys() - one.below.keys()):
            self._enter(one, name)
        if self._cpu < 0 or one.quota >= 0:  # v1: made in one hierarchy after the other
            self._dirty.discard(one.now.path)

    def _enter(self, one: _Cgroup, name: str) -> None:
        above = one.now
        depth = above.path.count("/") + 1 if above.path else 0
        pod = None if above.pod_uid or depth > 1 else _POD.fullmatch(name)
        if not (above.pod_uid or pod or (depth == 0 and _CLASS.fullmatch(name))):
            return  # not kubelet's
        if (
            len(self._by_path) >= CGROUPS_MAX
            or depth >= DEPTH_MAX
            or (above.container and self._nested[above.container] > NESTED_MAX)
        ):
            self.cut.add(above.path)
            return
        container = _CONTAINER.fullmatch(name) if above.pod_uid else None
        path = f"{above.path}/{name}" if above.path else name
        uid = pod[1].replace("_", "-") if pod else above.pod_uid
        nested = above.container or (container[1] if container else "")
        with suppress(FileNotFoundError, NotADirectoryError):  # it has just ended
            handle = os.open(name, _FOLDER, dir_fd=one.handle)
            one.below[name] = self._opened(path, uid, nested, handle)
            self._look_at(one.below[name])

    def _opened(self, path: str, pod_uid: str, container: str, handle: int) -> _Cgroup:
        watch, inode = self._watched(handle), os.fstat(handle).st_ino
        now = CgroupNow(
            path=path, pod_uid=pod_uid, container=container, cpus=EMPTY, effective=EMPTY
        )
        one = _Cgroup(now=now, handle=handle, inode=inode, watches=[watch])
        self._nested[container] += 1
        self._by_watch[watch] = self._by_path[path] = one
        return one

    def _watched(self, handle: int) -> int:
        """Return the number of a folder's watch. Raises OSError: the folder is closed."""
        try:
            return self._changes.add(handle)
        except OSError:
            os.close(handle)
            raise

    def _forget(self, one: _Cgroup) -> None:
        for each in [*one.all()]:
            self._by_path.pop(each.now.path, None)
            self.cut.discard(each.now.path)
            self._dirty.discard(each.now.path)
            self._nested[each.now.container] -= 1
            for watch in each.watches:
                self._by_watch.pop(watch, None)
            for handle in {each.handle, each.quota} - {-1}:
                os.close(handle)

    # --- what files say -------------------------------------------------------------------------

    def _read(self, one: _Cgroup) -> CgroupNow:
        """Return what a cgroup says. Raises OSError, InputError: it is not as the kernel writes."""
        here = one.handle
        if one is self._top:
            _text(here, CgroupFile.CPUS)  # kubelet turns the controller on: else it has ended
        cpus, mems = _list(here, CgroupFile.CPUS), _list(here, CgroupFile.MEMS)
        now = replace(one.now, cpus=cpus, effective=cpus, mems=mems, effective_mems=mems)
        if self._tree.version is CgroupVersion.V1:
            now = replace(now, populated=bool(_text(here, "cgroup.procs", 1)))
            with suppress(FileNotFoundError):
                if self._cpu >= 0:
                    folder = self._folder_of(one, CgroupFile.QUOTA)
                    files = CgroupFile.QUOTA, _PERIOD
                    quota, period = (int(_text(folder, name)) for name in files)
                    now = replace(now, quota=quota, period=period)
            return now
        quota_text, _, period_text = _text_or(here, CgroupFile.MAX, "max 100000").partition(" ")
        return replace(
            now,
            effective=_list(here, "cpuset.cpus.effective"),
            effective_mems=_list(here, "cpuset.mems.effective"),
            quota=NO_QUOTA if quota_text == "max" else int(quota_text),
            period=int(period_text),
            exclusive=_list(here, CgroupFile.EXCLUSIVE),
            partition=_text_or(here, CgroupFile.PARTITION),
            populated="populated 1" in _text_or(here, "cgroup.events"),
        )

    def _folder_of(self, one: _Cgroup, file: str) -> int:
        """Return the open folder that has a file of a cgroup. Raises OSError."""
        if file not in _OF_CPU:
            return one.handle
        if one.quota < 0:
            here = os.dup(self._cpu)
            for name in filter(None, one.now.path.split("/")):
                try:
                    below = os.open(name, _FOLDER, dir_fd=here)
                finally:
                    os.close(here)
                here = below
            one.watches.append(self._watched(here))
            self._by_watch[one.watches[-1]], one.quota = one, here
        return one.quota


@contextmanager
def _opening(folder: int, name: str, flags: int) -> Iterator[int]:
    handle = os.open(name, flags, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def _text(folder: int, name: str, bytes_max: int = _BYTES_MAX) -> str:
    with _opening(folder, name, _READ) as handle:
        return os.read(handle, bytes_max).decode(errors="replace").strip()


def _text_or(folder: int, name: str, otherwise: str = "") -> str:
    try:
        return _text(folder, name)
    except FileNotFoundError:  # a controller that is not on, or a kernel that is older
        return otherwise


def _list(folder: int, name: str) -> CpuSet:
    return parse_cpuset(_text_or(folder, name))


def version_of_kernel(release: str) -> tuple[int, int]:
    """Return major and minor of a release such as `6.12-rc1`. Raises InputError: it has none."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None:
        raise InputError(f"no release of a kernel: {release!r}")
    return int(numbers[1]), int(numbers[2])
