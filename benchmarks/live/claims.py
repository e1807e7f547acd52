"""
What the gate costs a Pod with a claim: a stock kube-scheduler by itself and with it, in turn.

    python -m benchmarks.live.claims --turns 3 --pods 80

A real etcd, kube-apiserver, kube-scheduler and controller of claims; the service runs in both
turns, and its configuration is there in every second one. A burst tells Pods per second, Pods one
after the other the median from a Pod's creation to its node. Of the burst also the processor time
for a Pod, process by process, which says more on a machine that others use; what the service takes
without its configuration is for what its watches tell.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import Final

from tests.support.kube.binaries import programs
from tests.support.kube.control_plane import ControlPlane, control_plane, free_port
from tests.support.kube.dra import (
    DRIVER,
    SCHEDULERS,
    WHOLE,
    add_claim_node,
    add_class,
    add_templates,
    asked,
    bound_in,
    claiming,
    remove_claims,
    stock_schedulers,
    submit,
)
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import extender, issue
from tests.support.kube.webhooks import NAMESPACE
from tests.support.process import tenure

NODES: Final = 12
SINGLE: Final = 20
WHERE: Final = "bench"
_PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-scheduler", "service")


def main() -> None:
    """Measure, and print one line for each turn and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--pods", type=int, default=80)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "plane").mkdir()
        with control_plane(folder / "plane", programs()) as plane:
            _measure(plane, folder, options.turns, options.pods)


def _measure(plane: ControlPlane, folder: Path, turns: int, pods: int) -> None:
    for name in (NAMESPACE, WHERE):
        assert plane.api().create("/api/v1/namespaces", {"metadata": {"name": name}}).ok
    add_class(plane)
    add_templates(plane, WHERE)
    for number in range(NODES):
        add_claim_node(plane, f"card-{number}")
    identities, ledger, port = issue(folder / "ids"), f"sqlite:///{folder / 'l.db'}", free_port()
    done = tenure("ledger", "init", "--ledger", ledger, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    with (
        stock_schedulers(plane, SCHEDULERS[:1]) as schedulers,
        extender(plane, ledger, identities, gate=port, drivers=[DRIVER]) as served,
    ):
        running = [one.process for one in (plane.etcd, plane.server, *schedulers)]
        pids = [one.pid for one in (*running, served.process) if isinstance(one, Popen)]
        _burst(plane, 8)  # nobody's first call counts
        for _ in range(turns):
            for is_gated in (False, True):
                if is_gated:
                    with asked(plane, identities, port):
                        time.sleep(2)  # the API server learns of its own object a moment later
                        _burst(plane, 1)
                        before = _cpu(pids)
                        rate, after = _burst(plane, pods), _cpu(pids)
                        wait = _single(plane)
                else:
                    before = _cpu(pids)
                    rate, after = _burst(plane, pods), _cpu(pids)
                    wait = _single(plane)
                found["rate", is_gated].append(rate)
                found["wait", is_gated].append(wait)
                for name, past, now in zip(_PROGRAMS, before, after, strict=True):
                    found[name, is_gated].append((now - past) * 1e3 / pods)
                words = "with the gate" if is_gated else "without"
                sys.stdout.write(f"{words}: {rate:.1f} Pods/s, p50 {wait * 1e3:.0f} ms\n")
    medians = {key: statistics.median(values) for key, values in found.items()}
    sys.stdout.write(
        f"ratio: Pods/s {medians['rate', True] / medians['rate', False]:.2f},"
        f" p50 {medians['wait', False] / medians['wait', True]:.2f}\n"
    )
    for is_gated in (False, True):
        each = ", ".join(f"{name} {medians[name, is_gated]:.1f}" for name in _PROGRAMS)
        sys.stdout.write(f"processor ms a Pod {'with' if is_gated else 'without'}: {each}\n")


def _cpu(pids: Sequence[int]) -> list[float]:
    """Return the processor seconds that processes have used."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return [(int(fields[11]) + int(fields[12])) / ticks for fields in stats]


def _burst(plane: ControlPlane, count: int) -> float:
    """Return Pods per second from the first creation to the last one's node."""
    started = time.monotonic()
    submit(plane, WHERE, [claiming(f"p-{each}", template=WHOLE) for each in range(count)])
    while len(bound_in(plane.api(), WHERE)) < count:
        time.sleep(0.02)
    took = time.monotonic() - started
    remove_claims(plane, WHERE)
    return count / took


def _single(plane: ControlPlane) -> float:
    """Return the median of seconds from a Pod's creation to its node, one after the other."""
    waits, api = [], plane.api()
    for number in range(SINGLE):
        started = time.monotonic()
        submit(plane, WHERE, [claiming(f"s-{number}", template=WHOLE)])
        while not api.get(f"{pods_in(WHERE)}/s-{number}").body["spec"].get("nodeName"):
            time.sleep(0.002)
        waits.append(time.monotonic() - started)
    remove_claims(plane, WHERE)
    return statistics.median(waits)


if __name__ == "__main__":
    main()
