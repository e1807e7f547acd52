"""
A node's programs: kubelet, containerd, runc and what its images hold, built into a cache.

They are kept beside those of the control plane, a folder for each version of the module files.

    .venv/bin/python -m tests.support.node.programs     # build now, print the folder
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.kube.binaries import (
    MissingProgramError,
    alone,
    cache_root,
    go_build,
    go_program,
    version_flags,
    version_in,
)

_NODE: Final = Path(__file__).parents[2] / "node"
MODULES: Final = _NODE / "modules"
_DRIVER: Final = _NODE / "driver"
SHOW: Final = "show"
"""What the images of the tests hold: waits, or says what it sees."""
RUNTIME: Final = "runc-without-seccomp"
OLDER: Final = "1.6"
"""The containerd of Debian 12, beside our own."""
EXAMPLE_DRIVER: Final = "dra-example-kubeletplugin"
"""Kubernetes' own example of a driver, whose devices are there in name alone."""

_CONTAINERD: Final = "github.com/containerd/containerd/v2"
_NO_FILE_SYSTEMS: Final = "no_btrfs no_zfs no_devmapper no_aufs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """
    One program: where it is built, from which package, how.

    Attributes:
        c: whether it takes a C compiler.
    """

    folder: Path
    package: str
    flags: str = ""
    tags: str = ""
    c: bool = False


def builds() -> dict[str, Build]:
    """Return every program by its name."""
    kubelet, containerd = version_in(MODULES / "kubelet", "k8s.io/kubernetes"), _containerd()
    stamp = f"-X {_CONTAINERD}/version.Version={containerd}"
    made = {
        "kubelet": Build(
            folder=MODULES / "kubelet",
            package="k8s.io/kubernetes/cmd/kubelet",
            flags=version_flags(kubelet),
        ),
        "runc": Build(
            folder=MODULES / "runc",
            package="github.com/opencontainers/runc",
            flags="-extldflags -static",
            tags="netgo osusergo",
            c=True,
        ),
        SHOW: Build(folder=_NODE / "image", package="main.go"),
        RUNTIME: Build(folder=_NODE / "runtime", package="main.go"),
    }
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        made[name] = Build(
            folder=MODULES / "containerd",
            package=f"{_CONTAINERD}/cmd/{name}",
            flags=stamp,
            tags=_NO_FILE_SYSTEMS,
        )
    return made


def node_programs(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Return the folder that holds a node's programs, building them on first use (minutes).

    Raises:
        MissingProgramError: they are not there and can't be built; with what to install.
    """
    folder = node_folder(environ)
    if _missing(folder):
        with alone(folder):
            if _missing(folder):  # whoever held the lock before us may have built them
                _build(folder, go_program(environ), environ)
    return folder


def older_programs(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Return the same with Debian's containerd 1.6, which knows no CDI; fetched on first use.

    Raises:
        MissingProgramError: it is not there and can't be had; with what to do.
    """
    others = node_programs(environ)
    folder = others.with_name(f"{others.name}-containerd-{OLDER}")
    with alone(folder):
        if not (folder / "containerd").exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as made:
                _unpack(Path(made), folder)
                for program in others.iterdir():
                    if not (Path(made) / "usr/bin" / program.name).exists():
                        (Path(made) / "usr/bin" / program.name).symlink_to(program)
                (Path(made) / "usr/bin").rename(folder)
    return folder


def _unpack(made: Path, folder: Path) -> None:
    """Unpack Debian's package, and see that it is of the version that is meant."""
    commands = (
        ["apt-get", "download", "containerd"],
        ["sh", "-c", "dpkg -x containerd_*.deb ."],
        ["usr/bin/containerd", "--version"],
    )
    try:
        for command in commands:
            done = subprocess.run(
                command, cwd=made, check=True, capture_output=True, text=True, timeout=300
            )
        if f" {OLDER}." in done.stdout:
            return
        why = f"this one is {done.stdout.strip()}"
    except subprocess.CalledProcessError as error:
        why = error.stderr[-500:]
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    raise MissingProgramError(
        f"containerd {OLDER} is Debian 12's package `containerd`: run `apt-get update`, or put its"
        f" programs and links to those of {folder.parent} into {folder}: {why}"
    )


def node_folder(environ: Mapping[str, str]) -> Path:
    """Return where programs of exactly these module files and sources are kept."""
    sources = [*sorted(MODULES.glob("*/go.*")), *sorted(_NODE.glob("*/main.go"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return cache_root(environ) / "node" / digest[:16]


def example_driver(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Return the example driver's program, building it on first use (a minute).

    Raises:
        MissingProgramError: it is not there and can't be built; with what to install.
    """
    digest = hashlib.sha256((_DRIVER / "go.sum").read_bytes()).hexdigest()
    program = cache_root(environ) / "driver" / digest[:16] / EXAMPLE_DRIVER
    with alone(program.parent):
        if not program.exists():
            package = f"sigs.k8s.io/dra-example-driver/cmd/{EXAMPLE_DRIVER}"
            program.parent.mkdir(exist_ok=True)
            built = program.with_suffix(".new")
            go_build(go_program(environ), _DRIVER, package, output=built)
            built.rename(program)
    return program


def _containerd() -> str:
    return version_in(MODULES / "containerd", _CONTAINERD)


def _missing(folder: Path) -> list[str]:
    return [name for name in builds() if not os.access(folder / name, os.X_OK)]


def _build(folder: Path, go: str, environ: Mapping[str, str]) -> None:
    """Build all programs beside the folder and move them in one step: it is whole or absent."""
    if not any(shutil.which(name, path=environ.get("PATH")) for name in ("cc", "gcc")):
        raise MissingProgramError("runc takes a C compiler to build: install gcc and libc6-dev")
    sys.stderr.write("building kubelet, containerd and runc, once: some minutes\n")
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        built = Path(made) / "programs"
        built.mkdir()
        for name, build in builds().items():
            go_build(
                go,
                build.folder,
                build.package,
                output=built / name,
                flags=f"-s -w {build.flags}".strip(),
                tags=build.tags,
                c=build.c,
            )
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)


if __name__ == "__main__":
    sys.stdout.write(f"{node_programs()}\n")
