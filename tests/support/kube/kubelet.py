"""Kubelet's own answer to whether it admits a Pod: a small program around its managers, built."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.kube.binaries import MissingProgramError, go_program

_SOURCE: Final = Path(__file__).parents[2] / "kubelet"
_BUILD_SECONDS: Final = 1_500
_ASK_SECONDS: Final = 300


def admissions(questions: Iterable[Mapping[str, Any]]) -> list[bool]:
    """
    Return for each question whether kubelet admits the Pod.

    Raises:
        MissingProgramError: the program can't be built.
    """
    lines = "".join(f"{json.dumps(question)}\n" for question in questions)
    done = subprocess.run(
        [_program()],
        input=lines,
        capture_output=True,
        text=True,
        timeout=_ASK_SECONDS,
        check=True,
    )
    return [line == "true" for line in done.stdout.split()]


def _program() -> Path:
    """Return the program of exactly this source, built into the cache on first use."""
    files = sorted(path for path in _SOURCE.iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    program = Path(cache) / "tenure" / "kubelet" / digest[:16]
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as made:
            _build(Path(made) / "kubelet").rename(program)  # whole or absent
    return program


def _build(output: Path) -> Path:
    command = [go_program(os.environ), "build", "-mod=readonly", "-trimpath", "-o", str(output)]
    done = subprocess.run(
        [*command, "."],
        cwd=_SOURCE,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise MissingProgramError(f"go build failed: package=kubelet\n{done.stderr[-3_000:]}")
    return output
