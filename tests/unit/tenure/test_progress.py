from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tenure.exits import stderr
from tenure.progress import bar_after


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Someone watches."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stderr.cache_clear()
    yield
    stderr.cache_clear()


@pytest.mark.usefixtures("terminal")
def test_what_takes_longer_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A bar appears beside the work, and goes with it."""
    shown = ""
    with bar_after(0.0, "looking at ml/big"):
        for _ in range(1000):
            shown += capsys.readouterr().err
            if "looking at ml/big" in shown:
                break
            time.sleep(0.02)

    assert "looking at ml/big" in shown


@pytest.mark.usefixtures("terminal")
def test_what_is_done_sooner_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it appear afterwards."""
    with bar_after(3600.0, "looking at ml/big"):
        pass

    assert capsys.readouterr().err == ""


def test_nobody_watches_what_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """cli.md, Common: no progress bar off a terminal."""
    stderr.cache_clear()
    with bar_after(0.0, "looking at ml/big"):
        time.sleep(0.05)

    assert capsys.readouterr() == ("", "")
