"""
The same cgroups where systemd makes them, as kubelet and runc with the driver `systemd` ask it to.

Runs in the guest, as root, below a systemd that is the first process. A Pod is a slice, a container
a scope to which its cgroup is delegated. What kubelet's static CPU manager gives is said to systemd
as `AllowedCPUs` and written into the cgroup, as runc does both.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.guest.kubelet_tree import CONTROLLERS, KubeletTree, OnStart, write

_SECONDS: Final = 60.0
_WAITS: Final = ("/run/busybox", "sleep", "86400")
"""A scope begins with a process; the one that computes joins it."""


class SystemdTree(KubeletTree):
    """What kubelet has let systemd make on this machine."""

    def __init__(self, form: str, on_start: OnStart) -> None:
        self._waiting: dict[Path, subprocess.Popen[bytes]] = {}
        super().__init__(form, on_start, systemd=True)

    def reload(self) -> None:
        """Let systemd read all units again, and write what it writes then."""
        _systemctl("daemon-reload")
        _systemctl("show", "--property=Version")  # it answers once that is done

    def start(self, uid: str, name: str, cpus: str = "") -> str:
        """Start a container as a scope of systemd's, and return its id."""
        made = super().start(uid, name, cpus)
        if cpus:
            self.update(uid, name, cpus)
        return made

    def update(self, uid: str, name: str, cpus: str) -> None:
        """Tell systemd, and write it."""
        scope = self.container_path(uid, name).name
        _systemctl("set-property", "--runtime", scope, f"AllowedCPUs={cpus}")
        super().update(uid, name, cpus)

    def _make(self, path: Path) -> None:
        """Start a slice, as kubelet does for all Pods, for a class and for a Pod, or a scope."""
        folder = self.tops[0] / path
        if path.suffix == ".scope":
            unit = (f"--unit={path.name}", f"--slice={path.parent.name}", "--property=Delegate=yes")
            self._waiting[path] = process = subprocess.Popen(
                ("systemd-run", "--scope", "--quiet", *unit, *_WAITS), stdin=subprocess.DEVNULL
            )
            _until(lambda: str(process.pid) in _members(folder), f"no scope: {path}")
            folder = folder.parent
        else:
            _systemctl("start", path.name)
        above = [folder, *folder.parents]
        for one in reversed(above[: above.index(self.tops[0]) + 1]):
            write(one / "cgroup.subtree_control", CONTROLLERS)

    def _remove(self, path: Path) -> None:
        """End what is left there; systemd takes a scope away by itself."""
        if path.suffix == ".scope":
            write(self.tops[0] / path / "cgroup.kill", "1")
            with self._waiting.pop(path) as process:
                process.wait(_SECONDS)
        else:
            _systemctl("stop", path.name)
        _until(lambda: not (self.tops[0] / path).exists(), f"it stays: {path}")


def _members(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.procs").read_text().split()
    except OSError:
        return []


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def _systemctl(*words: str) -> None:
    subprocess.run(
        ["systemctl", *words],
        check=True,
        timeout=_SECONDS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
