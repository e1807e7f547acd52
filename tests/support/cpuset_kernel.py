"""
The kernel's cpuset and CFS quota as it answers writes, on cgroup v1 and v2, in memory.

By measurements on a host (v1) and in a guest (v2), and for partitions by the kernel's own
documentation and code of 6.7 and 6.10. It shares no code with what plans or applies writes: CPUs
are plain sets of numbers here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

Numbers = frozenset[int]
NONE: Numbers = frozenset()


def numbers(text: str) -> Numbers:
    """Read a list as the kernel does; EINVAL if it is none."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise OSError(errno.EINVAL, "Invalid argument")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def listed(found: Numbers) -> str:
    """Print a list, each number by itself: readers have to take that, too."""
    return ",".join(map(str, sorted(found)))


@dataclass
class Group:
    """One cgroup; what is asked for it, and how it is as a partition."""

    cpus: Numbers = NONE
    mems: Numbers = NONE
    exclusive: Numbers = NONE
    partition: str = "member"
    granted: Numbers = NONE
    quota: int = -1
    tasks: bool = False


class Kernel:
    """
    A machine's cgroups: paths from the root of the hierarchy, which is the empty path.

    Args:
        version: 1 or 2.
        release: such as (6, 12); partitions that are not next to the root are known since 6.7.
    """

    def __init__(self, version: int, release: tuple[int, int], cpus: int, mems: int = 1) -> None:
        self.version = version
        self.release = release
        self.possible = frozenset(range(cpus))
        self.online = self.possible
        self.mems = frozenset(range(mems))
        self.groups: dict[str, Group] = {"": Group(cpus=self.possible, mems=self.mems)}
        self.writes = 0

    # What a reader sees.

    def text(self, path: str, file: str) -> str:
        """Return what a file says; ENOENT where the kernel has none."""
        group = self._group(path)
        match file:
            case "cpuset.cpus":
                return listed(group.cpus) + "\n"
            case "cpuset.mems":
                return listed(group.mems) + "\n"
            case "cpuset.cpus.effective" if self.version == 2:
                return listed(self.effective(path)) + "\n"
            case "cpuset.effective_cpus" if self.version == 1:
                return listed(self.effective(path)) + "\n"
            case "cpuset.mems.effective":
                return listed(self.effective_mems(path)) + "\n"
            case "cpuset.cpus.exclusive" if self._has_exclusive():
                return listed(group.exclusive) + "\n"
            case "cpuset.cpus.partition" if self.version == 2 and path:
                return group.partition + "\n"
            case "cpu.cfs_quota_us" if self.version == 1:
                return f"{group.quota}\n"
            case "cpu.max" if self.version == 2:
                return f"{'max' if group.quota < 0 else group.quota} 100000\n"
        raise OSError(errno.ENOENT, "No such file or directory")

    def effective(self, path: str) -> Numbers:
        """Return the CPUs that tasks of a cgroup may use."""
        group = self._group(path)
        if self.version == 1:
            return group.cpus
        if not path:
            return self.online - self._parted()
        if self._is_valid(group):
            return group.granted & self.online
        above = self.effective(above_of(path))
        return group.cpus & above or above

    def effective_mems(self, path: str) -> Numbers:
        """Return the memory nodes that tasks of a cgroup may use."""
        group = self._group(path)
        if self.version == 1 or not path:
            return group.mems
        above = self.effective_mems(above_of(path))
        return group.mems & above or above

    def leaves(self) -> Iterator[str]:
        """Return the cgroups with tasks."""
        return (path for path, group in self.groups.items() if group.tasks)

    # What others do.

    def mkdir(self, path: str, *, tasks: bool = False) -> None:
        """Make a cgroup as a runtime does: on v1 with what the one above has."""
        above = self._group(above_of(path))
        if path in self.groups:
            raise OSError(errno.EEXIST, "File exists")
        self.groups[path] = Group(tasks=tasks)
        if self.version == 1:
            self.groups[path].cpus, self.groups[path].mems = above.cpus, above.mems

    def rmdir(self, path: str) -> None:
        """End a cgroup and all below; a partition gives its CPUs back."""
        for one in [one for one in self.groups if one == path or one.startswith(f"{path}/")]:
            del self.groups[one]

    def offline(self, cpu: int) -> None:
        """Take a CPU off: on v1 every cgroup loses it for good."""
        self.online -= {cpu}
        if self.version == 1:
            for group in self.groups.values():
                group.cpus -= {cpu}

    # What a writer gets.

    def write(self, path: str, file: str, value: str) -> None:
        """Write a file; OSError with the kernel's own number if it refuses."""
        self.writes += 1
        self.text(path, file)  # ENOENT
        if not path:
            raise OSError(errno.EACCES, "Permission denied")
        match file:
            case "cpuset.cpus":
                self._set_cpus(path, numbers(value))
            case "cpuset.mems":
                self._set_mems(path, numbers(value))
            case "cpuset.cpus.exclusive":
                self._set_exclusive(path, numbers(value))
            case "cpuset.cpus.partition":
                self._set_partition(path, value)
            case "cpu.cfs_quota_us":
                self._set_quota(path, int(value))
            case "cpu.max":
                first = value.partition(" ")[0]
                self._group(path).quota = -1 if first == "max" else int(first)
            case _:
                raise OSError(errno.EACCES, "Permission denied")

    def _set_cpus(self, path: str, cpus: Numbers) -> None:
        group = self._group(path)
        if cpus - self.possible:
            raise OSError(errno.ERANGE, "Numerical result out of range")
        if self.version == 1 and cpus - self.online:
            raise OSError(errno.EINVAL, "Invalid argument")
        if self.version == 1 and any(self.groups[one].cpus - cpus for one in self._below(path)):
            raise OSError(errno.EBUSY, "Device or resource busy")
        if not cpus and group.cpus and self._is_populated(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.version == 1 and cpus - self._group(above_of(path)).cpus:
            raise OSError(errno.EACCES, "Permission denied")
        group.cpus = cpus
        for one in self._beside(path):
            if self._is_valid(self.groups[one]) and self._claimed(path) & self._claimed(one):
                self._invalidate(one, "Cpu list in cpuset.cpus not exclusive")
        self._check_partitions(path)

    def _set_mems(self, path: str, mems: Numbers) -> None:
        group = self._group(path)
        if mems - self.mems:
            raise OSError(errno.EINVAL, "Invalid argument")
        if self.version == 1 and any(self.groups[one].mems - mems for one in self._below(path)):
            raise OSError(errno.EBUSY, "Device or resource busy")
        if not mems and group.mems and self._is_populated(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.version == 1 and mems - self._group(above_of(path)).mems:
            raise OSError(errno.EACCES, "Permission denied")
        group.mems = mems

    def _set_exclusive(self, path: str, cpus: Numbers) -> None:
        group = self._group(path)
        if cpus - self.possible:
            raise OSError(errno.ERANGE, "Numerical result out of range")
        for one in self._beside(path) if cpus else ():
            other = self.groups[one]
            if self.release < (6, 10) or self._is_valid(other) or self._is_valid(group):
                refused = bool(self._claimed(one) & cpus)
            else:
                refused = bool(other.exclusive & cpus) or (
                    not other.exclusive and bool(other.cpus) and other.cpus <= cpus
                )
            if refused:
                raise OSError(errno.EINVAL, "Invalid argument")
        group.exclusive = cpus
        self._check_partitions(path)

    def _set_partition(self, path: str, value: str) -> None:
        group = self._group(path)
        if value == "member":
            group.partition = value
            return
        if value not in {"root", "isolated"}:
            raise OSError(errno.EINVAL, "Invalid argument")
        granted = self._granted_exclusive(path)
        reason = ""
        if self._is_valid(group):
            return
        if not group.cpus and not (group.exclusive and self.release >= (6, 10)):
            reason = "cpuset.cpus is empty"
        elif not granted or granted & self._parted() or self.effective("") <= granted:
            reason = "Parent is not a partition root"
        elif not granted & self.online:
            reason = "Invalid cpu list in cpuset.cpus"
        elif any(self._claimed(one) & granted for one in self._beside(path)):
            reason = "Cpu list in cpuset.cpus not exclusive"
        group.partition = f"{value} invalid ({reason})" if reason else value
        group.granted = NONE if reason else granted

    def _set_quota(self, path: str, quota: int) -> None:
        before, self._group(path).quota = self._group(path).quota, quota
        for one in self.groups:
            if self.groups[one].quota >= 0 and self.groups[one].quota > self._quota_above(one):
                self._group(path).quota = before
                raise OSError(errno.EINVAL, "Invalid argument")

    def _quota_above(self, path: str) -> float:
        while path:
            path = above_of(path)
            if path and self.groups[path].quota >= 0:
                return self.groups[path].quota
        return float("inf")

    def _check_partitions(self, changed: str) -> None:
        for path, group in self.groups.items():
            if not self._is_valid(group) or not f"{path}/".startswith(f"{changed}/"):
                continue
            now = self._granted_exclusive(path)
            if path == changed and now and not (now - group.granted) & self._parted():
                group.granted = now
            elif not group.granted <= now:
                self._invalidate(path, "Invalid cpu list in cpuset.cpus.exclusive")

    def _invalidate(self, path: str, reason: str) -> None:
        group = self._group(path)
        group.partition = f"{group.partition} invalid ({reason})"

    def _granted_exclusive(self, path: str) -> Numbers:
        if not path:
            return self.possible
        group = self._group(path)
        granted = group.exclusive & self._granted_exclusive(above_of(path))
        return granted & group.cpus if self.release < (6, 10) else granted

    def _claimed(self, path: str) -> Numbers:
        group = self._group(path)
        return group.exclusive or group.cpus

    def _parted(self) -> Numbers:
        parted = (group.granted for group in self.groups.values() if self._is_valid(group))
        return NONE.union(*parted)

    def _has_exclusive(self) -> bool:
        return self.version == 2 and self.release >= (6, 7)

    def _is_valid(self, group: Group) -> bool:
        return group.partition in {"root", "isolated"}

    def _is_populated(self, path: str) -> bool:
        below = (group for one, group in self.groups.items() if one.startswith(f"{path}/"))
        return self._group(path).tasks or any(group.tasks for group in below)

    def _below(self, path: str) -> list[str]:
        return [one for one in self.groups if one and above_of(one) == path and one != path]

    def _beside(self, path: str) -> list[str]:
        return [one for one in self._below(above_of(path)) if one != path]

    def _group(self, path: str) -> Group:
        if path not in self.groups:
            raise OSError(errno.ENOENT, "No such file or directory")
        return self.groups[path]


def above_of(path: str) -> str:
    """Return the path of the cgroup above."""
    return path.rpartition("/")[0]
