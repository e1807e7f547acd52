"""Building the real control plane's programs: once, however many test runs want them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.kube.binaries import PROGRAMS, programs

_GO = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/built"
while [ "$1" != "-o" ]; do shift; done
sleep 0.1
touch "$2" && chmod +x "$2"
"""


def test_runs_that_start_together_build_the_programs_once(tmp_path: Path) -> None:
    """The second waits for the first and takes what it built."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(_GO)
    go.chmod(0o755)
    environ = {"PATH": str(go.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    with ThreadPoolExecutor(3) as runs:
        folders = list(runs.map(programs, [environ] * 3))

    assert len(set(folders)) == 1
    assert {path.name for path in folders[0].iterdir()} == set(PROGRAMS)
    assert len((go.parent / "built").read_text().splitlines()) == len(PROGRAMS)
