"""
What our plugin of NRI adds to the start of a container, on a real containerd and runc.

The same container made and started by CRI, in turns with our plugin joined and without it: blocks
of ten, so that both see the same machine. Root, as `make node`.

    .venv/bin/python -m benchmarks.nri [--blocks 20]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.support.node.cri import Sandbox, sandbox
from tests.support.node.node import runtime
from tests.support.node.nri_plugin import our_plugin
from tests.support.node.programs import node_programs
from tests.support.node.room import room

IN_BLOCK: Final = 10
UID: Final = "11111111-2222-3333-4444-555555555555"
NAME: Final = "main"


def main() -> None:
    """Measure, and print lines."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--blocks", type=int, default=20)
    blocks = arguments.parse_args().blocks
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        room(Path(folder)) as made,
        runtime(made, node_programs()),
        sandbox(made, UID) as pod,
    ):
        for number in range(2 * blocks):
            with ExitStack() as joined:
                if number % 2:
                    path = made.folder / "nri.sock"
                    joined.enter_context(our_plugin(made.folder, path, main="1")).until("on")
                seconds[bool(number % 2)] += [_start(pod) for _ in range(IN_BLOCK)]
    without, with_us = (sorted(seconds[joined]) for joined in (False, True))
    for name, of in (("without", without), ("with", with_us)):
        print(f"{name}: {_line(of)}")
    for percent in (50, 90, 99):
        added = _quantile(with_us, percent) - _quantile(without, percent)
        print(f"added p{percent}: {added * 1000:.2f} ms")


def _start(pod: Sandbox) -> float:
    begun = time.perf_counter()
    identity = pod.create(NAME)
    pod.start(identity)
    passed = time.perf_counter() - begun
    pod.remove(identity)
    return passed


def _line(seconds: Sequence[float]) -> str:
    parts = [f"p{percent} {_quantile(seconds, percent) * 1000:.1f}" for percent in (50, 90, 99)]
    mean = statistics.fmean(seconds) * 1000
    return f"{len(seconds)} starts, ms: mean {mean:.1f}, {', '.join(parts)}"


def _quantile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    main()
