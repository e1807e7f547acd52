"""
Steps on cgroups, as lines of text, and what the kernel answers to each.

Runs in the guest, with the standard library alone. A line is one of

    make PATH               a cgroup, given its parent's CPUs and memory nodes on v1, as runc does
    remove PATH
    write PATH FILE VALUE   FILE is one of FILES; `-` writes nothing at all
    read PATH FILE          answers what is there
    join PATH               starts a process that sleeps in the cgroup
    tasks PATH              answers the CPUs that this process may run on
    leave PATH              ends the processes there
    cpu NUMBER on|off       a CPU comes or goes

An answer is empty, a value, or the name of the error.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

FILES: Final = {
    "v1": {
        "cpus": "cpuset.cpus",
        "mems": "cpuset.mems",
        "effective": "cpuset.effective_cpus",
    },
    "v2": {
        "cpus": "cpuset.cpus",
        "mems": "cpuset.mems",
        "effective": "cpuset.cpus.effective",
        "exclusive": "cpuset.cpus.exclusive",
        "granted": "cpuset.cpus.exclusive.effective",
        "partition": "cpuset.cpus.partition",
    },
}
"""Short words for the kernel's files, by the form of the hierarchy."""
_FOLLOWS_SECONDS: Final = 3.0
_CPUS: Final = Path("/sys/devices/system/cpu")


class RealCgroups:
    """The kernel's own cgroups, at the top of the hierarchy."""

    def __init__(self, form: str, hierarchy: Path) -> None:
        self._form = form
        self._root = hierarchy
        self._made: list[Path] = []
        self._processes: dict[str, list[int]] = {}

    def answers(self, lines: Iterable[str]) -> list[str]:
        """Take steps, and return what each of them answers."""
        return [self._answer(line) for line in lines]

    def clear(self) -> None:
        """End all processes, remove all cgroups, and bring all CPUs back."""
        for path in list(self._processes):
            self._end(path)
        for made in reversed(self._made):
            with contextlib.suppress(FileNotFoundError):
                made.rmdir()
        for switch in _CPUS.glob("cpu[0-9]*/online"):
            if switch.read_text().strip() == "0":
                switch.write_text("1")

    def _answer(self, line: str) -> str:
        try:
            return self._do(*line.split())
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _do(self, act: str, where: str, *more: str) -> str:
        path = self._root / where
        match act, more:
            case "make", ():
                self._make(path)
            case "remove", ():
                path.rmdir()
            case "write", (name, value):
                _write(path / self._file(name), "" if value == "-" else value)
            case "read", (name,):
                return (path / self._file(name)).read_text().strip()
            case "join", ():
                self._join(where)
            case "tasks", ():
                return _allowed(self._processes[where][0])
            case "leave", ():
                self._end(where)
            case "cpu", (state,):
                self._switch(where, on=state == "on")
            case _:
                raise AssertionError(f"no such step: {act} {where} {more}")
        return ""

    def _file(self, name: str) -> str:
        """Return a file of the kernel's; one that this form lacks has its v2 name."""
        return FILES[self._form].get(name, FILES["v2"][name])

    def _make(self, path: Path) -> None:
        path.mkdir()
        self._made.append(path)
        if self._form == "v1":
            for name in ("cpuset.mems", "cpuset.cpus"):
                _write(path / name, (path.parent / name).read_text().strip())
        else:
            _write(path.parent / "cgroup.subtree_control", "+cpuset")

    def _join(self, where: str) -> None:
        child = os.fork()
        if child == 0:
            try:
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        try:
            _write(self._root / where / "cgroup.procs", str(child))
        except OSError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        self._processes.setdefault(where, []).append(child)

    def _end(self, where: str) -> None:
        for process in self._processes.pop(where, []):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        procs = self._root / where / "cgroup.procs"
        _until(lambda: not procs.exists() or not procs.read_text().strip())

    def _switch(self, cpu: str, *, on: bool) -> None:
        """Turn a CPU on or off, and wait for the hierarchy's root; a partition may have it."""
        _write(_CPUS / f"cpu{cpu}" / "online", str(int(on)))
        effective = self._root / FILES[self._form]["effective"]
        with contextlib.suppress(TimeoutError):
            _until(lambda: (int(cpu) in _numbers(effective.read_text())) == on, _FOLLOWS_SECONDS)


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, "it does not come")
        time.sleep(0.002)


def _allowed(process: int) -> str:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.split()[1]
    raise AssertionError("a status without CPUs")


def _write(path: Path, text: str) -> None:
    """Write in one call, for a part of a value is another value."""
    opened = os.open(path, os.O_WRONLY)
    try:
        os.write(opened, f"{text}\n".encode())
    finally:
        os.close(opened)


def run(form: str, hierarchy: Path, scripts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Take the steps of each script on cgroups of its own, and return the answers."""
    came = {}
    for name, lines in scripts.items():
        cgroups = RealCgroups(form, hierarchy)
        try:
            came[name] = cgroups.answers(lines)
        finally:
            cgroups.clear()
    return came


if __name__ == "__main__":
    json.dump(run(sys.argv[1], Path(sys.argv[2]), json.load(sys.stdin)), sys.stdout)
