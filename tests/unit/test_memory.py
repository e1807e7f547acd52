from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.memory import memory, unlock_what_dead_runs_left


def test_without_room_in_memory_files_are_on_the_disk(tmp_path: Path) -> None:
    """A container has 64 MiB of it by default, and some machines have none."""
    assert memory(tmp_path, 1) == tmp_path
    assert memory(tmp_path, 1 << 62) is None
    assert memory(tmp_path / "none", 1) is None


def test_what_a_killed_run_left_goes_with_the_next_and_no_other(tmp_path: Path) -> None:
    """Pytest keeps a locked folder for three days, in memory as well."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    words = {"1": str(ended.pid), "2": str(os.getpid()), "3": "no number"}
    for number, word in words.items():
        folder = tmp_path / "pytest-of-me" / f"pytest-{number}"
        folder.mkdir(parents=True)
        (folder / ".lock").write_text(word)

    unlock_what_dead_runs_left(tmp_path)

    assert sorted(lock.parent.name for lock in tmp_path.rglob(".lock")) == ["pytest-2", "pytest-3"]
