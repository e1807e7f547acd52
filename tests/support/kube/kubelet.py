"""Kubelet's own answer to whether it admits a Pod: a small program around its managers, built."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.kube.binaries import program_of

_SOURCE: Final = Path(__file__).parents[2] / "kubelet"
_ASK_SECONDS: Final = 300


def admissions(questions: Iterable[Mapping[str, Any]]) -> list[bool]:
    """
    Return for each question whether kubelet admits the Pod.

    Raises:
        MissingProgramError: the program can't be built.
    """
    lines = "".join(f"{json.dumps(question)}\n" for question in questions)
    done = subprocess.run(
        [program_of(_SOURCE)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=_ASK_SECONDS,
        check=True,
    )
    return [line == "true" for line in done.stdout.split()]
