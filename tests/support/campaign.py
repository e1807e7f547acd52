"""How a campaign is run: a process of its own, a bar where someone watches, figures at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.exits import note

ROOT = Path(__file__).parents[2]


def run_campaign(
    module: str, *arguments: object, seconds_max: float | None = None
) -> dict[str, Any]:
    """
    Run a module of `tests.support` and return the JSON object that it prints.

    Its stderr is ours: pytest shows it with a failure, and `pytest -s` shows its progress bar.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds_max,
        check=False,
    )
    assert done.returncode == 0, f"the campaign ended otherwise: status={done.returncode}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def print_figures(what: str, figures: Mapping[str, object]) -> None:
    """Print what a campaign did, one line on stderr."""
    said = (f"{value:,}" if isinstance(value, int) else str(value) for value in figures.values())
    pairs = zip(said, figures, strict=True)
    note(f"{what}: " + ", ".join(f"{value} {name}" for value, name in pairs))
