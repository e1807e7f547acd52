"""The command as users run it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = (sys.executable, "-c", "from tenure.cli import main; main()")
SECONDS_MAX: Final = 120


def environment(**extra: str) -> dict[str, str]:
    """Return an environment without anything of Tenure's, and with the checkout importable."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TENURE_")}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100", **extra}


def tenure(
    *arguments: str | Path,
    cwd: Path,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `tenure` to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
