"""The steps of `cgroup_steps`, on the model of the kernel that planning is tested with."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from tests.support.cpuset_kernel import Kernel, above_of, listed, numbers
from tests.support.guest.cgroup_steps import FILES

_LISTS: Final = {"cpus", "mems", "effective", "exclusive"}
CPUS: Final = 8
NODES: Final = 2


class _Kernel(Kernel):
    """The model, and what of a kernel no test of plans needs."""

    def join(self, path: str) -> None:
        """Let a process into a cgroup."""
        if self.version == 1 and not self.effective(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.groups[path].tasks = True

    def usable(self, path: str) -> frozenset[int]:
        """Return what a process has; on v1 it moves up where its cgroup has no CPU left."""
        while path and not self.effective(path):
            path = above_of(path)
        return self.effective(path)

    def leave(self, path: str) -> None:
        """Let it end."""
        self.groups[path].tasks = False

    def remove(self, path: str) -> None:
        """Remove one cgroup."""
        if self._is_populated(path) or self._below(path):
            raise OSError(errno.EBUSY, "Device or resource busy")
        self.rmdir(path)

    def bring(self, cpu: int) -> None:
        """Bring a CPU back; on v1 to the top alone."""
        self.online |= {cpu}
        if self.version == 1:
            self.groups[""].cpus |= {cpu}


class ModelCgroups:
    """
    A kernel in memory.

    Args:
        form: v1 or v2.
        release: major and minor.
    """

    def __init__(self, form: str, release: str) -> None:
        major, minor = map(int, release.split("."))
        self._form = form
        self._kernel = _Kernel(int(form[1:]), (major, minor), CPUS, NODES)

    def answers(self, lines: Iterable[str]) -> list[str]:
        """Take steps, and return what each of them answers."""
        return [self._answer(line) for line in lines]

    def _answer(self, line: str) -> str:
        try:
            return self._do(*line.split())
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _do(self, act: str, path: str, *more: str) -> str:
        kernel = self._kernel
        match act, more:
            case "make", ():
                kernel.mkdir(path)
            case "remove", ():
                kernel.remove(path)
            case "write", (name, value):
                kernel.write(path, self._file(name), "" if value == "-" else value)
            case "read", (name,):
                return plain(name, kernel.text(path, self._file(name)))
            case "join", ():
                kernel.join(path)
            case "tasks", ():
                return plain("cpus", listed(kernel.usable(path)))
            case "leave", ():
                kernel.leave(path)
            case "cpu", ("on",):
                kernel.bring(int(path))
            case "cpu", ("off",):
                kernel.offline(int(path))
            case _:
                raise AssertionError(f"no such step: {act} {path} {more}")
        return ""

    def _file(self, name: str) -> str:
        return FILES[self._form].get(name, FILES["v2"][name])


def plain(name: str, text: str) -> str:
    """Return an answer as both are compared: lists as the kernel prints them, without reasons."""
    if name not in _LISTS or text.isupper():
        return text.partition(" (")[0].strip()
    runs: list[list[int]] = []
    for number in sorted(numbers(text)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
