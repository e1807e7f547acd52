"""
A machine of its own in QEMU: 8 CPUs with SMT, two sockets that are NUMA nodes, a chosen kernel.

It is emulated without KVM, so that it runs wherever QEMU does, at a tenth of the speed. Its root is
this machine's, read only; what a command writes to /run (where TMPDIR is), /var/lib and /var/log is
the guest's own, and gone with it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.support.guest import attendant
from tests.support.guest.initrd import BOX, PLACE, SHARE, initrd
from tests.support.guest.programs import BOOT, SYSTEMD, Kernel, busybox, kernel, qemu, systemd
from tests.support.process import ROOT

CPUS: Final = 8
CGROUPS: Final = Path("/sys/fs/cgroup")
BOOT_SECONDS: Final = 240.0
_SLACK_SECONDS: Final = 60.0
"""What a command may take beyond its own bound before the guest counts as hung."""
_NODE_DISTANCE: Final = 21
_ARGUMENTS: Final = (
    *("console=ttyS0", "quiet", "panic=-1"),
    # The machine beneath may be busy: a CPU that does not come on for seconds is no fault.
    *("nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1"),
    *("mitigations=off", "apparmor=0", "audit=0"),
    "noautogroup",  # commands are sessions of their own, between which `nice` would mean nothing
)
_CONTROLLERS: Final = ("cpuset", "cpu,cpuacct", "memory", "pids", "devices", "freezer", "blkio")
_ENVIRONMENT: Final = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    *("HOME=/run/tmp", "TMPDIR=/run/tmp", "PYTHONDONTWRITEBYTECODE=1"),
)
_UNITS: Final = "/run/units"
_OWN_UNITS: Final = ("/run/systemd/system.control", "/run/systemd/transient")
"""Where systemd writes those that it is asked for while it runs."""


class CgroupForm(StrEnum):
    """Which hierarchy has the CPU sets."""

    V1 = "v1"
    V2 = "v2"


class GuestError(Exception):
    """The guest did not start, ended, or does not answer; with the end of its console."""


class CommandError(Exception):
    """A command in the guest failed; with what it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A command at work in the guest."""

    guest: Guest
    key: str
    seconds: float

    def file(self, ending: str) -> Path:
        """Return the file of what it gives or takes, on this machine."""
        return self.guest.box / f"{self.key}.{ending}"

    def stop(self) -> None:
        """End it with all processes of its session; only the first call does something."""
        self.file("stop").touch()

    def wait(self) -> int:
        """
        Return its code once it has ended; `attendant.LATE` if its time was up.

        Raises:
            GuestError: the guest itself does not answer.
        """
        self.guest.until(self.file("end"), self.seconds + _SLACK_SECONDS)
        return int(self.file("end").read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """
    A guest that takes commands.

    Attributes:
        release: its kernel's major and minor.
        box: the folder that it shares with this machine.
    """

    release: str
    form: CgroupForm
    folder: Path
    process: subprocess.Popen[bytes]
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def box(self) -> Path:
        """Return the shared folder, on this machine."""
        return self.folder / BOX

    def start(
        self,
        *command: str | Path,
        seconds: float = 120.0,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Running:
        """Start a command in the checkout, as root, for so many seconds at most."""
        running = Running(guest=self, key=f"{next(self._numbers):06}", seconds=seconds)
        running.file("in").write_text(stdin)
        asked = {
            "command": [str(word) for word in command],
            "seconds": seconds,
            "cwd": str(ROOT),
            "environment": {"PYTHONPATH": str(ROOT), **(environment or {})},
        }
        new = running.file("new")
        new.write_text(json.dumps(asked))
        new.rename(running.file("ask"))
        return running

    def run(
        self,
        *command: str | Path,
        seconds: float = 120.0,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """
        Run a command to its end, and return what it wrote.

        Raises:
            CommandError: it failed, or its time was up.
        """
        running = self.start(*command, seconds=seconds, stdin=stdin, environment=environment)
        code = running.wait()
        out, err = (running.file(ending).read_text() for ending in ("out", "err"))
        if code:
            words = shlex.join(map(str, command))[:200]
            raise CommandError(f"code={code}: {words}\n{out[-2_000:]}\n{err[-4_000:]}")
        return out

    def python(self, module: str, *arguments: str | Path, seconds: float, stdin: str = "") -> str:
        """Run a module of the checkout by this very Python."""
        return self.run(sys.executable, "-m", module, *arguments, seconds=seconds, stdin=stdin)

    def until(self, path: Path, seconds: float) -> None:
        """
        Wait until the guest has made a file of the box.

        Raises:
            GuestError: it has not in that time, or has ended.
        """
        end = time.monotonic() + seconds
        while not path.exists():
            if self.process.poll() is not None:
                raise GuestError(f"the guest has ended: {self._console()}")
            if time.monotonic() > end:
                raise GuestError(f"the guest does not answer: file={path.name}: {self._console()}")
            time.sleep(0.02)

    def _console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")[-2_000:]


@contextlib.contextmanager
def guest(
    folder: Path,
    release: str,
    form: CgroupForm,
    *,
    memory_mib: int = 1536,
    modules: Sequence[str] = BOOT,
    by_systemd: bool = False,
) -> Iterator[Guest]:
    """
    Boot a guest, and end it with the block; it also ends with the process that booted it.

    Args:
        memory_mib: what it may take of this machine, halved over its NUMA nodes.
        modules: of the kernel, with what they stand on.
        by_systemd: this machine's systemd is the first process, and has one service: ours.

    Raises:
        MissingProgramError: this machine lacks a program; with what to install.
        GuestError: it does not come up.
    """
    found = kernel(release)
    box = folder / BOX
    box.mkdir(parents=True)
    (folder / "initrd").write_bytes(initrd(busybox(), found.modules(modules)))
    if by_systemd:
        systemd()
    (box / "begin").write_text(_beginning(form, by_systemd=by_systemd))
    (box / "begin").chmod(0o755)
    command = ("setpriv", "--pdeathsig", "KILL", *_qemu(folder, found, form, memory_mib))
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
        )
    made = Guest(release=release, form=form, folder=folder, process=process)
    try:
        made.until(box / "up", BOOT_SECONDS)
        yield made
    finally:
        process.kill()
        process.wait()


def _qemu(folder: Path, found: Kernel, form: CgroupForm, memory_mib: int) -> list[str]:
    arguments = (*_ARGUMENTS, *(["cgroup_no_v1=all"] if form is CgroupForm.V2 else []))
    half = memory_mib // 2
    command = [qemu(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    # CPUs take turns on one thread: a kernel that patches its code for a CPU that runs at the time
    # ends in a panic on QEMU 7.2.
    command += ["-machine", "q35", "-accel", "tcg,thread=single"]
    # With an AMD's name the emulated CPU has no SMT siblings.
    command += ["-cpu", "max,vendor=GenuineIntel"]
    command += ["-smp", f"{CPUS},sockets=2,cores=2,threads=2", "-m", f"{half * 2}M"]
    for node, cpus in enumerate(("0-3", "4-7")):
        command += ["-object", f"memory-backend-ram,id=m{node},size={half}M"]
        command += ["-numa", f"node,nodeid={node},cpus={cpus},memdev=m{node}"]
    command += ["-numa", f"dist,src=0,dst=1,val={_NODE_DISTANCE}"]
    for tag, path, more in ((SHARE, Path("/"), ",readonly=on"), (BOX, folder / BOX, "")):
        shared = f"local,id={tag},path={path},security_model=none,multidevs=remap{more}"
        command += ["-fsdev", shared, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    command += ["-kernel", str(found.image), "-initrd", str(folder / "initrd")]
    command += ["-serial", "stdio", "-append", " ".join(arguments)]
    return command


def _beginning(form: CgroupForm, *, by_systemd: bool) -> str:
    """Return the guest's first process: cgroups, then the attendant; with its end all ends."""
    attends = f"{shlex.quote(sys.executable)} -I {shlex.quote(attendant.__file__)} {PLACE}"
    if form is CgroupForm.V2:
        mounts = [
            f"$b mount -t cgroup2 none {CGROUPS}",
            f"echo '+cpuset +cpu +memory +pids' > {CGROUPS}/cgroup.subtree_control",
        ]
    else:
        mounts = [f"$b mount -t tmpfs none {CGROUPS}"]
        for controllers in _CONTROLLERS:
            at = CGROUPS / controllers
            mounts += [f"$b mkdir {at}", f"$b mount -t cgroup -o {controllers} none {at}"]
    lines = [
        "#!/run/busybox sh",
        "b=/run/busybox",
        *(f"export {each}" for each in _ENVIRONMENT),
        "$b mkdir /run/tmp",
        "$b ip link set lo up",
        *mounts,
        *(_to_systemd(attends) if by_systemd else [f"{attends} &", "attendant=$!"]),
        f"echo up > {PLACE}/up",
        "wait $attendant",
        "$b poweroff -f",
    ]
    return "\n".join(lines) + "\n"


def _to_systemd(attends: str) -> list[str]:
    """Return what becomes systemd, which looks for units and generators in folders of ours."""
    environment = " ".join(f'"{each}"' for each in _ENVIRONMENT)
    unit = (
        "[Unit]\nDefaultDependencies=no\n[Service]\nTimeoutSec=infinity\nTasksMax=infinity\n"
        f"Environment={environment}\nExecStart={attends}\n"
        f"ExecStartPost=/run/busybox touch {PLACE}/up\n"
    )
    target = "[Unit]\nDefaultDependencies=no\nWants=attendant.service\n"
    return [
        f"$b mkdir -p {_UNITS}/none {' '.join(_OWN_UNITS)}",
        f"$b printf %s {shlex.quote(unit)} > {_UNITS}/attendant.service",
        f"$b printf %s {shlex.quote(target)} > {_UNITS}/guest.target",
        f"export SYSTEMD_UNIT_PATH={':'.join((*_OWN_UNITS, _UNITS))}",
        f"export SYSTEMD_GENERATOR_PATH={_UNITS}/none",
        f"export SYSTEMD_ENVIRONMENT_GENERATOR_PATH={_UNITS}/none",
        f"exec {SYSTEMD} --system --unit=guest.target --log-target=console",
    ]
