"""Files that the agent reads: whole up to their bound, however large that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.durable import read_regular

STEP = 64 << 10


@pytest.mark.parametrize("size", [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP])
@pytest.mark.parametrize("bytes_max", [1, STEP, 2 * STEP + 1, 8 * STEP])
def test_so_much_of_a_file_is_read(tmp_path: Path, size: int, bytes_max: int) -> None:
    """In one piece or in two, from its first byte on."""
    content = bytes(number % 251 for number in range(size))
    (tmp_path / "file").write_bytes(content)

    assert read_regular(tmp_path / "file", bytes_max) == content[:bytes_max]
