"""A cluster in which nothing happens, on etcd's default flags."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.schedulers import Identities, extender
from tests.support.process import tenure

QUIET_SECONDS: Final = 360


@pytest.mark.slow
def test_six_quiet_minutes_are_ready_ones(
    plane: ControlPlane, identities: Identities, tmp_path: Path
) -> None:
    """The API server sends no event and no bookmark: its watches end in order at their timeout."""
    url = f"sqlite:///{tmp_path / 'quiet.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    answers: Counter[str] = Counter()
    with extender(plane, url, identities) as served:
        until = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < until:
            answers[served.probe("readyz")] += 1
            time.sleep(1)
    assert set(answers) == {"ok\n"}, answers
