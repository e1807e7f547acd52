"""
Cgroups of Pods on the kernel's own hierarchies, made as kubelet and runc make them, each with work.

Runs in the guest, as root. A container has one process that computes for a while and sleeps for a
while; a sandbox has one that sleeps.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.guest.switches import COMM

CGROUPS: Final = Path("/sys/fs/cgroup")
CLASSES: Final = {"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}
SANDBOX: Final = "POD"
_BUSY_SECONDS: Final = 0.002
IDLE_SECONDS: Final = 0.1
CONTROLLERS: Final = "+cpuset +cpu +memory +pids"

OnStart = Callable[[int, str], None]


@dataclass(slots=True, kw_only=True)
class MadePod:
    """
    One Pod's cgroups.

    Attributes:
        containers: name -> id; the sandbox is SANDBOX.
    """

    uid: str
    kube_qos: str
    containers: dict[str, str] = field(default_factory=dict)


class KubeletTree:
    """
    What kubelet has made on this machine.

    Attributes:
        processes: id of a container -> its process.

    Args:
        form: v1 or v2, which hierarchy has the CPU sets.
        on_start: is called with a process and its cgroup before it runs there.
        systemd: names are systemd's, as its driver has them.
        idle: how long a container sleeps after each two milliseconds of work.
    """

    def __init__(
        self,
        form: str,
        on_start: OnStart,
        *,
        systemd: bool = False,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self.form = form
        self.processes: dict[str, int] = {}
        self._on_start = on_start
        self._idle = idle
        self.pods: dict[str, MadePod] = {}
        self._systemd = systemd
        self._made = 0
        self.tops = [CGROUPS / "cpuset", CGROUPS / "cpu,cpuacct"] if form == "v1" else [CGROUPS]
        for name in ("", *filter(None, CLASSES.values())):
            self._make(self._class_path(name))

    @property
    def kubepods(self) -> str:
        """Return the name of the cgroup that has all Pods."""
        return "kubepods.slice" if self._systemd else "kubepods"

    @property
    def tree(self) -> Path:
        """Return the folder of that cgroup, in the hierarchy of CPU sets."""
        return self.tops[0] / self.kubepods

    def make_pod(self, uid: str, kube_qos: str) -> MadePod:
        """Make a Pod's cgroup and its sandbox in it."""
        self.pods[uid] = MadePod(uid=uid, kube_qos=kube_qos)
        self._make(self.pod_path(uid))
        self.start(uid, SANDBOX)
        return self.pods[uid]

    def start(self, uid: str, name: str, cpus: str = "") -> str:
        """
        Start a container, and return its id.

        Args:
            cpus: what kubelet's static CPU manager gives it; it says so before the process runs.
        """
        self._made += 1
        made = f"{self._made:064x}"
        self.pods[uid].containers[name] = made
        path = self.container_path(uid, name)
        self._make(path)
        if cpus:
            write(self.tops[0] / path / "cpuset.cpus", cpus)
        gate, opened = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(opened)
            _work(gate, self._idle if name != SANDBOX else None)
        os.close(gate)
        for top in self.tops:
            write(top / path / "cgroup.procs", str(child))
        self.processes[made] = child
        self._on_start(child, str(self.tops[0] / path))
        os.close(opened)
        return made

    def update(self, uid: str, name: str, cpus: str) -> None:
        """Let kubelet's static CPU manager give a container other CPUs."""
        write(self.tops[0] / self.container_path(uid, name) / "cpuset.cpus", cpus)

    def stop(self, uid: str, name: str) -> None:
        """End a container and remove its cgroup; the Pod stays."""
        path = self.container_path(uid, name)
        child = self.processes.pop(self.pods[uid].containers.pop(name))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self._remove(path)

    def end_pod(self, uid: str) -> None:
        """End a Pod with all that it has."""
        for name in list(self.pods[uid].containers):
            self.stop(uid, name)
        self._remove(self.pod_path(uid))
        del self.pods[uid]

    def end(self) -> None:
        """End all Pods and remove every cgroup."""
        for uid in list(self.pods):
            self.end_pod(uid)
        for name in (*filter(None, CLASSES.values()), ""):
            self._remove(self._class_path(name))

    def folders(self, uid: str, *, with_sandbox: bool = False) -> dict[str, Path]:
        """Return the folders of a Pod's containers by name, in the hierarchy of CPU sets."""
        return {
            name: self.tops[0] / self.container_path(uid, name)
            for name in self.pods[uid].containers
            if with_sandbox or name != SANDBOX
        }

    def pod_path(self, uid: str) -> Path:
        """Return a Pod's cgroup below the top of a hierarchy."""
        of_class = CLASSES[self.pods[uid].kube_qos]
        if not self._systemd:
            return self._class_path(of_class) / f"pod{uid}"
        stem = f"kubepods-{of_class}" if of_class else "kubepods"
        return self._class_path(of_class) / f"{stem}-pod{uid.replace('-', '_')}.slice"

    def container_path(self, uid: str, name: str) -> Path:
        """Return a container's cgroup below the top of a hierarchy."""
        made = self.pods[uid].containers[name]
        return self.pod_path(uid) / (f"cri-containerd-{made}.scope" if self._systemd else made)

    def _class_path(self, of_class: str) -> Path:
        if not self._systemd:
            return Path(self.kubepods, of_class)
        return Path(self.kubepods, f"kubepods-{of_class}.slice" if of_class else "")

    def _make(self, path: Path) -> None:
        """Make a cgroup in every hierarchy; runc gives it its parent's CPUs and nodes on v1."""
        for top in self.tops:
            made = top / path
            made.mkdir()
            if self.form == "v2":
                write(made.parent / "cgroup.subtree_control", CONTROLLERS)
            elif top.name == "cpuset":
                for name in ("cpuset.mems", "cpuset.cpus"):
                    write(made / name, (made.parent / name).read_text().strip())

    def _remove(self, path: Path) -> None:
        for top in self.tops:
            until = time.monotonic() + 20.0
            while True:
                try:
                    (top / path).rmdir()
                    break
                except OSError:  # its last process is just going
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.005)


def write(path: Path, text: str) -> None:
    """Write in one call, for a part of a value is another value."""
    opened = os.open(path, os.O_WRONLY)
    try:
        os.write(opened, f"{text}\n".encode())
    finally:
        os.close(opened)


def _work(gate: int, idle: float | None) -> None:
    """Be a container's process until somebody ends it, once it is in its cgroup."""
    try:
        os.read(gate, 1)
        Path("/proc/self/comm").write_text(COMM)
        while True:
            until = time.monotonic() + (0.0 if idle is None else _BUSY_SECONDS)
            while time.monotonic() < until:
                pass
            if idle != 0.0:
                time.sleep(3600.0 if idle is None else idle)
    finally:
        os._exit(1)


def cpus_of(text: str) -> set[int]:
    """Return the CPUs of a list such as 0-3,6."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def text_of(cpus: Iterable[int]) -> str:
    """Return CPUs as the kernel takes them."""
    return ",".join(map(str, sorted(cpus)))
