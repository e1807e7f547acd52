"""
A room of its own on this machine: mounts, processes and cgroups that end with the test run.

Its first process waits for the end of its standard input, which is ours: when we are gone, however,
it ends, and with it every process and mount in the room. Only empty cgroups may be left, and the
next room takes them away.

    .venv/bin/python -m tests.support.node.room     # says why there can be none, and fails
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
SECONDS: Final = 300.0
_PRIVATE: Final = (
    *("unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--mount-proc"),
)
_NAME: Final = re.compile(r"tenure-node-([0-9]+)-[0-9]+")
_numbers: Final = itertools.count(1)
_SYSCTLS: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
)
"""What kubelet sets for the whole machine; in the room it sets files of the room's."""
_BOOT_ID: Final = "kernel/random/boot_id"


class NoRoomError(Exception):
    """This machine gives no room for a node; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """
    Where a node's programs run.

    Attributes:
        pid: of the first process, by this machine's numbers.
        cgroup: the name of the room's cgroup under each controller.
        lib: what is /var/lib inside.
    """

    folder: Path
    pid: int
    cgroup: str
    lib: Path

    @property
    def boot_id(self) -> Path:
        """Return the file of what kubelet takes for this start of the machine."""
        return self.folder / _BOOT_ID.replace("/", "-")

    def boot(self) -> None:
        """Let what starts from now on believe that the machine has started anew."""
        self.boot_id.write_text(f"{uuid.uuid4()}\n")

    def within(self, *command: str | Path) -> list[str]:
        """Return the command that runs another one in the room."""
        entered = ("nsenter", "--target", str(self.pid), "--mount", "--pid", "--")
        return [*entered, *map(str, command)]


@contextlib.contextmanager
def room(folder: Path) -> Iterator[Room]:
    """
    Make a room until the block ends.

    Raises:
        NoRoomError: this machine does not let us.
    """
    check_machine()
    binds = {name: folder / name.strip("/").replace("/", "-") for name in ("/var/lib", "/var/log")}
    for made in binds.values():
        made.mkdir()
    lines = ["set -e", *(f"mount --bind '{made}' {at}" for at, made in binds.items())]
    lines.append("mount -t tmpfs none /run")
    for name in (*_SYSCTLS, _BOOT_ID):
        copy = folder / name.replace("/", "-")
        copy.write_text(Path("/proc/sys", name).read_text())
        lines.append(f"mount --bind '{copy}' /proc/sys/{name}")
    lines += ["echo made", "read -r _ || :"]
    name = f"tenure-node-{os.getpid()}-{next(_numbers)}"
    _sweep()
    with _cgroups(name), _first(*_PRIVATE, "sh", "-c", "\n".join(lines)) as pid:
        yield Room(folder=folder, pid=pid, cgroup=name, lib=binds["/var/lib"])


def check_machine() -> None:
    """
    Tell whether a node can run here.

    Raises:
        NoRoomError: with what to do.
    """
    if os.geteuid() != 0:
        raise NoRoomError("a node runs as root alone: run `make node` as root")
    missing = [name for name in ("unshare", "nsenter", "mount") if shutil.which(name) is None]
    if missing:
        raise NoRoomError(f"install util-linux: missing={','.join(missing)}")
    if subprocess.run([*_PRIVATE, "true"], capture_output=True, check=False).returncode:
        raise NoRoomError("this machine gives no namespaces: run `make node` with CAP_SYS_ADMIN")
    if not os.access(CGROUPS / "cpuset" / "cpuset.cpus", os.W_OK):
        raise NoRoomError(
            "the node's tests know cgroup v1 alone: boot with systemd.unified_cgroup_hierarchy=0"
        )


@contextlib.contextmanager
def _first(*command: str) -> Iterator[int]:
    """Run the room's first process, and end it with all others in the room."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as outside:
        assert outside.stdout is not None
        assert outside.stdin is not None
        assert outside.stderr is not None
        if outside.stdout.readline() != "made\n":
            outside.stdin.close()
            raise NoRoomError(f"this machine gives no namespaces: {outside.stderr.read()[-500:]}")
        try:
            yield only_child(outside.pid)
        finally:
            outside.stdin.close()
            outside.wait(SECONDS)


def only_child(pid: int) -> int:
    """Return the one child of a process, by this machine's numbers."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    raise AssertionError(f"it has no child: pid={pid}")


@contextlib.contextmanager
def _cgroups(name: str) -> Iterator[None]:
    """Make a cgroup under every controller, and take it away with all below."""
    for controller in _controllers():
        made = controller / name
        made.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):  # an empty cpuset takes no process
            if (controller / setting).exists():
                (made / setting).write_text((controller / setting).read_text())
    try:
        yield
    finally:
        _remove(name)


def _sweep() -> None:
    """Take the cgroups away of rooms whose test run is no more."""
    for controller in _controllers():
        for made in controller.iterdir():
            owner = _NAME.fullmatch(made.name)
            if owner and not Path("/proc", owner[1]).exists():
                _remove(made.name)


def _remove(name: str) -> None:
    until = time.monotonic() + SECONDS
    for controller in _controllers():
        for folder, _, _ in os.walk(controller / name, topdown=False):
            while True:
                try:
                    Path(folder).rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # its last process is just ending
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)


def _controllers() -> list[Path]:
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


if __name__ == "__main__":
    try:
        check_machine()
    except NoRoomError as error:
        sys.exit(str(error))
