"""
What a guest is made of: QEMU of this machine, and kernels and busybox out of Debian's packages.

Packages are fetched by apt into the cache on first use and unpacked there; nothing is installed.

    .venv/bin/python -m tests.support.guest.programs 6.12   # fetch now; says what is missing
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.kube.binaries import MissingProgramError, alone, cache_root

KERNELS: Final = ("6.1", "6.12")
"""
Releases of Debian 12: its own, and the newer one that its security suite has beside it. The newer
one is built without the CPU sets of cgroup v1.
"""
BOOT: Final = ("virtio_pci", "9pnet_virtio", "9p")
"""Modules without which the guest finds no file of ours."""
NODE: Final = ("overlay", "bridge", "br_netfilter", "veth", "virtio_net")
"""Modules of a kubelet and its network."""
SYSTEMD: Final = Path("/usr/lib/systemd/systemd")
_QEMU: Final = "qemu-system-x86_64"
_FETCH_SECONDS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """
    One unpacked kernel.

    Attributes:
        release: major and minor, such as 6.12.
        folder: holds `vmlinuz` and `modules`, each module as `name.ko`.
    """

    release: str
    folder: Path

    @property
    def image(self) -> Path:
        """Return the kernel itself."""
        return self.folder / "vmlinuz"

    def modules(self, wanted: Iterable[str]) -> list[Path]:
        """Return modules with what they stand on, in the order in which they load."""
        return load_order(wanted, self.folder / "modules")


def qemu(environ: Mapping[str, str] = os.environ) -> str:
    """
    Return the emulator.

    Raises:
        MissingProgramError: this machine has none; with what to install.
    """
    found = shutil.which(_QEMU, path=environ.get("PATH"))
    if found is None:
        raise MissingProgramError(
            f"no {_QEMU} to run a guest in: apt-get install --no-install-recommends qemu-system-x86"
        )
    return found


def systemd() -> Path:
    """
    Return this machine's systemd, which a guest may have as its first process.

    Raises:
        MissingProgramError: this machine has none; with what to install.
    """
    if not SYSTEMD.exists():
        raise MissingProgramError(
            f"no {SYSTEMD} to boot a guest with: apt-get install --no-install-recommends systemd"
        )
    return SYSTEMD


def busybox(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Return a static busybox, fetched on first use.

    Raises:
        MissingProgramError: it can't be had; with what to do.
    """
    program = _folder(environ) / "busybox"
    with alone(program):
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=program.parent) as made:
                _unpack("busybox-static", Path(made))
                (Path(made) / "bin/busybox").rename(program)
    return program


def kernel(release: str, environ: Mapping[str, str] = os.environ) -> Kernel:
    """
    Return a kernel with its modules, fetched on first use.

    Raises:
        MissingProgramError: it can't be had; with what to do.
    """
    wanted = (*BOOT, *NODE)
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    folder = _folder(environ) / f"{release}-{digest}"
    with alone(folder):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as made:
                _unpack(_newest(release), Path(made))
                _pick(Path(made), wanted)
                (Path(made) / "kernel").rename(folder)
    return Kernel(release=release, folder=folder)


def load_order(wanted: Iterable[str], modules: Path) -> list[Path]:
    """Return the files of modules, each after all that it depends on."""
    ordered: dict[str, Path] = {}

    def add(name: str) -> None:
        path = modules / f"{name}.ko"
        if name in ordered or not path.exists():  # what has no file is part of the kernel
            return
        for needed in _depends(path.read_bytes()):
            add(needed)
        ordered[name] = path

    for name in wanted:
        add(name)
    return list(ordered.values())


def _depends(module: bytes) -> list[str]:
    """Return what a module's own record says that it stands on."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return [] if found is None else [_plain(name) for name in found[1].decode().split(",") if name]


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _pick(made: Path, wanted: Iterable[str]) -> None:
    """Leave the kernel, its configuration and the modules that are wanted, without compression."""
    kept = made / "kernel"
    (kept / "modules").mkdir(parents=True)
    (image,) = (made / "boot").glob("vmlinuz-*")
    (config,) = (made / "boot").glob("config-*")
    image.rename(kept / "vmlinuz")
    config.rename(kept / "config")
    files = {_plain(path.name.split(".")[0]): path for path in made.glob("**/*.ko*")}
    (built_in,) = made.glob("**/modules.builtin")
    inside = {_plain(Path(line).stem) for line in built_in.read_text().split()}
    todo = [name for name in wanted if name not in inside]
    while todo:
        name = todo.pop()
        target = kept / "modules" / f"{name}.ko"
        if target.exists():
            continue
        content = files[name].read_bytes()
        if files[name].suffix == ".xz":
            content = lzma.decompress(content)
        target.write_bytes(content)
        todo += _depends(content)


def _newest(release: str) -> str:
    """Return the name of the newest package of a release: signed, for PCs."""
    pattern = rf"^linux-image-{re.escape(release)}\.[0-9][^-]*(-[0-9]+)?-amd64$"
    found = [line.split()[0] for line in _apt("apt-cache", "search", "--names-only", pattern)]
    if not found:
        raise MissingProgramError(
            f"apt knows no kernel {release}: run `apt-get update`; Debian 12 has 6.1, and 6.12"
            " in its suite bookworm-security (package linux-image-6.12-amd64)"
        )
    return max(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def _unpack(package: str, made: Path) -> None:
    sys.stderr.write(f"fetching {package}, once\n")
    _apt("apt-get", "download", package, cwd=made)
    (fetched,) = made.glob("*.deb")
    _apt("dpkg", "-x", str(fetched), str(made))


def _apt(*command: str, cwd: Path | None = None) -> list[str]:
    try:
        done = subprocess.run(
            command, cwd=cwd, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS
        )
    except subprocess.CalledProcessError as error:
        why = error.stderr[-500:]
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    else:
        return done.stdout.splitlines()
    raise MissingProgramError(
        f"the guest is made of Debian's packages: run `apt-get update` on Debian 12:"
        f" command={' '.join(command)}: {why}"
    )


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_root(environ) / "guest"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{qemu()}\n{busybox()}\n")
        for one in sys.argv[1:] or KERNELS:
            sys.stdout.write(f"{kernel(one).folder}\n")
    except MissingProgramError as missing:
        sys.exit(str(missing))
