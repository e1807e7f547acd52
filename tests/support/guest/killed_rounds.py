"""
Our process is killed before writes of each kind, and another one finishes what it began.

Runs in the guest, as root. The Pods are the same each time, and have everything back in between.

    python -m tests.support.guest.killed_rounds FORM RELEASE SEED FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict

from agent.cpus.binder import Binder
from agent.cpus.tree import Kubepods
from agent.decide.cgroups import LISTS, CgroupFile
from ledger.domain.cpuset import parse_cpuset
from tests.support.guest.cpu_steps import EVERY, World, opened
from tests.support.guest.kubelet_tree import write

KILLS: Final = 12
"""Of binding, and as many of giving back."""
ROUNDS_MAX: Final = 5
_NO_LIMIT: Final = {"v1": "-1", "v2": "max"}


class Killed(TypedDict):
    """Before which writes it was killed, by kind, and what the next one left wrong."""

    binding: dict[str, int]
    giving_back: dict[str, int]
    wrong: list[str]
    left: list[str]


class _Mortal(Kubepods):
    """A tree of a process that takes note of its writes, and dies before one of them."""

    dies_before = -1

    def __init__(self, folder: Path, cpu: Path | None, kernel: tuple[int, int]) -> None:
        super().__init__(folder, cpu, kernel)
        self.written: list[str] = []

    def write(self, path: str, file: CgroupFile, value: str) -> None:
        """Write, or die."""
        if len(self.written) == self.dies_before:
            os.kill(os.getpid(), signal.SIGKILL)
        self.written.append(_kind(file, value))
        super().write(path, file, value)


def _kind(file: CgroupFile, value: str) -> str:
    if file in LISTS:
        many = len(parse_cpuset(value))
        value = {0: "none", len(EVERY): "all"}.get(many, "some")
    return f"{file}={value}"


def run(world: World, state: Path) -> Killed:
    """Kill at places of every kind, as it binds and as it gives back."""
    came = Killed(binding={}, giving_back={}, wrong=[], left=[])
    try:
        if world.static:
            world.add("kubelet", frozenset({1}), containers=1)
        world.add("LSE", frozenset({2, 3}), containers=2)
        world.add("LSE", frozenset({6}), containers=1)
        world.add("LSR", frozenset({4}), containers=1)
        world.add("LS", frozenset(), containers=1)
        world.add("BE", frozenset(), containers=2)
        for allowed in (True, False):  # what was written once is another thing to begin with
            _finish(world, state, allowed=allowed)
        kinds = {allowed: _finish(world, state, allowed=allowed) for allowed in (True, False)}
        killed: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        places = {allowed: _places(kinds[allowed]) for allowed in kinds}
        for number in range(max(map(len, places.values()))):
            for allowed in (True, False):
                place = places[allowed][number % len(places[allowed])]
                _die(world, state, place, allowed=allowed)
                _finish(world, state, allowed=allowed)
                what = f"before write {place}, {kinds[allowed][place]}: "
                killed[allowed][kinds[allowed][place]] += 1
                if allowed:
                    came["wrong"] += [what + each for each in (*world.wrong(), *_limited(world))]
                else:
                    came["left"] += [what + each for each in world.left()]
        came |= {"binding": dict(killed[True]), "giving_back": dict(killed[False])}
    finally:
        world.switches.end()
        world.tree.end()
    return came


def _places(kinds: list[str]) -> list[int]:
    """Return the first and the last write of each kind, and others as far apart as can be."""
    first = {kind: at for at, kind in reversed([*enumerate(kinds)])}
    last = {kind: at for at, kind in enumerate(kinds)}
    places = {*first.values(), *last.values()}
    others = [at for at in range(len(kinds)) if at not in places]
    wanted = max(0, KILLS - len(places))
    return sorted({*places, *(others[:: -(-len(others) // wanted)] if wanted and others else ())})


def _finish(world: World, state: Path, *, allowed: bool) -> list[str]:
    """Do rounds until nothing is to be written, and return the kinds of what was."""
    if allowed:
        _limit(world)
    tree = opened(world, _Mortal)
    assert isinstance(tree, _Mortal)
    made = Binder(tree=tree, state=state, clock=time.monotonic)
    for _ in range(ROUNDS_MAX):
        if not made.round(world.node(), allowed=allowed).plan.writes:
            break
    else:
        raise AssertionError(f"no end: {tree.written}")
    tree.close()
    return tree.written


def _die(world: World, state: Path, place: int, *, allowed: bool) -> None:
    """Let a process do a round, which is killed before the write of that number."""
    if allowed:
        _limit(world)
    child = os.fork()
    if child == 0:
        try:
            tree = opened(world, _Mortal)
            assert isinstance(tree, _Mortal)
            tree.dies_before = place
            made = Binder(tree=tree, state=state, clock=time.monotonic)
            made.round(world.node(), allowed=allowed)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it came to its end: {place}, {allowed}"


def _limit(world: World) -> None:
    """Write the quotas that kubelet writes, those of Pods before those of their containers."""
    for file, limit in reversed([*world.limits()]):
        write(file, limit)


def _limited(world: World) -> Iterator[str]:
    for file, _ in world.limits():
        if file.read_text().split()[0] != _NO_LIMIT[world.form]:
            yield f"{file}: {file.read_text()}"


if __name__ == "__main__":
    form, release, seed, folder = sys.argv[1:]
    major, minor = map(int, release.split("."))
    Path(folder).mkdir()
    made_world = World(form, (major, minor), int(seed), Path(folder, "claims"))
    json.dump(run(made_world, Path(folder)), sys.stdout)
