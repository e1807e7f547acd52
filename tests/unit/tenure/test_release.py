"""`tenure release --force`: what is asked for before a service is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import CommandLine

LIVE = ("--server", "https://127.0.0.1:1", "--token-file", "token")
WHY = ("--reason", "its node is burnt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ml/train", *WHY, *LIVE), "--force"),
        (("ml/train", "--force", "--reason", " ", *LIVE), "say who made sure"),
        (("gpu-a", "--force", *WHY, *LIVE), "expected NAMESPACE/NAME"),
        (("ml/train", "--force", *WHY), "only the service that runs can do it"),
    ],
)
def test_an_order_that_is_not_whole_is_sent_nowhere(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not forced, without a reason, about no Pod, or to nobody: exit 2, and what to do."""
    answer = CommandLine(tmp_path / "none.db", capsys).run("release", *arguments)
    assert answer.code == 2
    assert words in answer.err
