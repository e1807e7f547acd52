"""Folders laid out as kubelet and container runtimes lay out cgroups, with files as a kernel's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONTAINERS: Final = {
    ("containerd", "cgroupfs"): "{id}",
    ("containerd", "systemd"): "cri-containerd-{id}.scope",
    ("cri-o", "cgroupfs"): "crio-{id}",
    ("cri-o", "systemd"): "crio-{id}.scope",
}
"""How a runtime calls the cgroup of a container, by the driver."""


def uid_of(number: int) -> str:
    """Return the UID of a Pod."""
    return f"0b7c8a51-1111-4222-8333-{number:012x}"


def id_of(number: int) -> str:
    """Return the id of a container."""
    return f"{number:064x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Who names the cgroups, and of which version they are."""

    version: int
    driver: str
    runtime: str

    @property
    def top(self) -> str:
        """Return what kubepods is called."""
        return "kubepods.slice" if self.driver == "systemd" else "kubepods"

    def pod(self, uid: str, of_class: str = "") -> str:
        """Return the path of a Pod's cgroup; `of_class` is empty for Guaranteed."""
        if self.driver == "cgroupfs":
            return "/".join(filter(None, (of_class, f"pod{uid}")))
        words = "-".join(filter(None, ("kubepods", of_class)))
        last = f"{words}-pod{uid.replace('-', '_')}.slice"
        return f"{words}.slice/{last}" if of_class else last

    def container(self, container_id: str) -> str:
        """Return what a container's cgroup is called."""
        return CONTAINERS[self.runtime, self.driver].format(id=container_id)


class FakeTree:
    """A tree in a folder; nobody plays the kernel: what is written is what is there."""

    def __init__(self, folder: Path, layout: Layout, cpus: str = "0-3") -> None:
        self.layout = layout
        self.cpuset = folder / "cpuset" / layout.top
        self.cpu = folder / "cpu" / layout.top if layout.version == 1 else None
        self.cpus = cpus
        for one in filter(None, (self.cpuset, self.cpu)):
            one.parent.mkdir(parents=True)
        self.make("")

    def make(self, path: str) -> str:
        """Make a cgroup, with those above it, and return its path."""
        steps = path.split("/") if path else []
        for at in range(len(steps) + 1):
            self._one("/".join(steps[:at]))
        return path

    def pod(self, number: int, of_class: str = "", containers: Iterable[int] = ()) -> str:
        """Make a Pod's cgroup and those of its containers, and return its path."""
        path = self.make(self.layout.pod(uid_of(number), of_class))
        for one in containers:
            self.make(f"{path}/{self.layout.container(id_of(one))}")
        return path

    def remove(self, path: str) -> None:
        """Take a cgroup away that has none below."""
        for root in filter(None, (self.cpuset, self.cpu)):
            for file in (root / path).iterdir():
                file.unlink()
            (root / path).rmdir()

    def says(self, path: str, file: str = "cpuset.cpus") -> str:
        """Return what a file says."""
        root = self.cpu if self.cpu is not None and file.startswith("cpu.") else self.cpuset
        return (root / path / file).read_text().strip()

    def say(self, path: str, text: str, file: str = "cpuset.cpus") -> None:
        """Write a file, as somebody else."""
        root = self.cpu if self.cpu is not None and file.startswith("cpu.") else self.cpuset
        (root / path / file).write_text(text)

    def _one(self, path: str) -> None:
        made = self.cpuset / path
        if made.is_dir():
            return
        made.mkdir()
        files = {"cpuset.cpus": self.cpus, "cpuset.mems": "0", "cgroup.procs": "1\n"}
        if self.layout.version == 2:
            files |= {
                "cgroup.controllers": "cpuset cpu\n",
                "cgroup.events": "populated 1\nfrozen 0\n",
                "cpuset.cpus.effective": self.cpus,
                "cpuset.mems.effective": "0",
                "cpuset.cpus.exclusive": "",
                "cpuset.cpus.partition": "member\n",
                "cpu.max": "max 100000\n",
            }
        for name, text in files.items():
            (made / name).write_text(text)
        if self.cpu is not None:
            (self.cpu / path).mkdir()
            (self.cpu / path / "cpu.cfs_quota_us").write_text("-1\n")
            (self.cpu / path / "cpu.cfs_period_us").write_text("100000\n")
