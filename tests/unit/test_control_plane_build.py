"""Building the real control plane's and node's programs: once, however many runs want them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kube.binaries import PROGRAMS, MissingProgramError, programs
from tests.support.node.programs import builds, example_driver, node_programs

_GO = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/built"
while [ "$1" != "-o" ]; do shift; done
sleep 0.1
output=$2 && shift 2
for package; do
    if [ -d "$output" ]; then made=$output/${package##*/}; else made=$output; fi
    touch "$made" && chmod +x "$made"
done
"""


def test_runs_that_start_together_build_the_programs_once(tmp_path: Path) -> None:
    """The second waits for the first and takes what it built."""
    environ = _machine(tmp_path, "go")

    with ThreadPoolExecutor(3) as runs:
        folders = list(runs.map(programs, [environ] * 3))

    assert len(set(folders)) == 1
    assert {path.name for path in folders[0].iterdir()} == set(PROGRAMS)
    assert len((tmp_path / "bin" / "built").read_text().splitlines()) == 2, (
        "one call for each module"
    )


def test_a_nodes_programs_are_built_once(tmp_path: Path) -> None:
    """A second call finds them, of exactly these module files."""
    environ = _machine(tmp_path, "go", "cc")

    folder = node_programs(environ)

    assert node_programs(environ) == folder
    assert {path.name for path in folder.iterdir()} == set(builds())
    assert len((tmp_path / "bin" / "built").read_text().splitlines()) == len(builds())


def test_the_example_driver_is_built_once(tmp_path: Path) -> None:
    """A second call finds it, of exactly this module file."""
    environ = _machine(tmp_path, "go")

    program = example_driver(environ)

    assert example_driver(environ) == program
    assert [path.name for path in program.parent.iterdir()] == [program.name]
    assert len((tmp_path / "bin" / "built").read_text().splitlines()) == 1


def test_a_node_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    """Nothing is skipped, and nothing half built is left."""
    environ = _machine(tmp_path, "go")

    with pytest.raises(MissingProgramError, match="install gcc"):
        node_programs(environ)

    assert not list(tmp_path.glob("cache/tenure/node/*/*"))


def _machine(folder: Path, *tools: str) -> dict[str, str]:
    """Return the environment of a machine that has these tools and nothing else."""
    for tool in tools:
        path = folder / "bin" / tool
        path.parent.mkdir(exist_ok=True)
        path.write_text(_GO)
        path.chmod(0o755)
    return {"PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache")}
