"""`make live`, small: what it shows, and that nothing of it runs on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.domain.log.events import PodBound, PodReleased
from ledger.store.open import open_ledger
from tests.support.kube.binaries import API_SERVER, PROGRAMS, programs
from tests.support.kube.bursts import DIALECTS
from tests.support.process import ROOT, environment

SECONDS_MAX = 300.0


def start(folder: Path, **extra: str) -> subprocess.Popen[str]:
    """Start it in a process group of its own, as a shell does."""
    small = ("--nodes", "2", "--each", "2")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.live", str(folder / "live"), *small],
        cwd=ROOT,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """Return what it wrote until its end; none of its group is left then."""
    try:
        said, _ = process.communicate(timeout=SECONDS_MAX)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return said


def test_it_shows_who_holds_what_and_the_release_and_stops_everything(tmp_path: Path) -> None:
    """Every Pod is bound and in the ledger that it leaves, what was deleted is released."""
    process = start(tmp_path)
    said = end(process)
    assert process.returncode == 0, said
    held, _, released = said.partition("deleted nvidia-0, koordinator-0, mgpu-0\n")
    assert f"submitted 20 Pods: 2 each of {', '.join(DIALECTS)}, a group and a gang\n" in held
    assert "all 20 Pods are bound" in held, said
    assert "2 nodes, 16 cards: " in held, said
    assert " ml/cpuset-1 " in held, said
    for name in ("nvidia-0", "koordinator-0", "mgpu-0"):
        assert f"ml/{name} holds nothing\n" in released, said
    assert released.count(", deleted\n") == 3, said
    assert "chain ok, 0 over-commits at every position, projection = fold" in released, said
    with open_ledger(f"sqlite:///{tmp_path / 'live' / 'ledger.db'}", mode="read") as ledger:
        kinds = Counter(type(one.event) for one in ledger.read_events())
    assert (kinds[PodBound], kinds[PodReleased]) == (20, 3), kinds


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        pytest.param(lambda pid: os.killpg(pid, signal.SIGINT), "SIGINT", id="Ctrl-C"),
        pytest.param(lambda pid: os.kill(pid, signal.SIGTERM), "SIGTERM", id="by process id"),
    ],
)
def test_who_stops_it_in_the_middle_leaves_no_process(
    tmp_path: Path, ask: Callable[[int], None], name: str
) -> None:
    """All four programs run when it is told to stop: at a terminal all of them are told."""
    process = start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "submitted 20 Pods" in line:
            ask(process.pid)
            break
    said = end(process)
    assert process.returncode == 130, said
    assert said.endswith(f"everything has stopped, by {name}\n")


def test_a_program_that_fails_ends_it_and_the_others(tmp_path: Path) -> None:
    """An API server that ends at once is said in one line, and etcd does not outlive it."""
    built, assets, false = programs(), tmp_path / "assets", shutil.which("false")
    assert false is not None
    assets.mkdir()
    for name in PROGRAMS:
        (assets / name).symlink_to(false if name == API_SERVER else built / name)
    process = start(tmp_path, KUBEBUILDER_ASSETS=str(assets))
    said = end(process)
    assert process.returncode == 1, said
    assert "error: kube-apiserver ended" in said
