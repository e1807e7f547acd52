"""The CPUs of stored claims, as dra-driver-cpu's own types read them: a small program, built."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ledger.domain.cpuset import CpuSet, parse_cpuset
from tests.support.kube.binaries import program_of

_SOURCE: Final = Path(__file__).parents[2] / "cpudriver"
_ASK_SECONDS: Final = 300


def cpus_told(claims: Iterable[Mapping[str, Any]]) -> list[dict[str, CpuSet]]:
    """
    Return for each claim which CPUs its driver is told to give, by request.

    Raises:
        MissingProgramError: the program can't be built.
    """
    done = subprocess.run(
        [program_of(_SOURCE)],
        input="".join(f"{json.dumps(claim)}\n" for claim in claims),
        capture_output=True,
        text=True,
        timeout=_ASK_SECONDS,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [each["error"] for each in answers if each["error"]]
    assert not faults, faults
    return [
        {request: parse_cpuset(cpus) for request, cpus in each["cpus"].items()} for each in answers
    ]
