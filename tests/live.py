"""
Tenure at work, from nothing: a control plane, the live scheduler, and a burst of Pods.

    make live

etcd, kube-apiserver, kube-scheduler and `tenure serve scheduler` are real, nodes are objects
without a machine. Everything listens on the loopback and has ended when this ends, also by Ctrl-C
or an error. The folder keeps the ledger, to be asked, and what each program logged.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from tests.support.kube.binaries import MissingProgramError, kubernetes_version, programs
from tests.support.kube.bursts import DIALECTS, GROUPED, burst, eventually, remove_pods, settled
from tests.support.kube.control_plane import ControlPlane, control_plane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import add_gpu_node, asking, extender, issue
from tests.support.kube.webhooks import NAMESPACE
from tests.support.process import tenure

TEAM: Final = "ml"
DELETED: Final = 3
INTERRUPTED: Final = 130  # what a shell says of a command that Ctrl-C ended
_began: Final = time.monotonic()


def show(folder: Path, *, nodes: int, each: int) -> None:
    """
    Place `each` Pods of every dialect on that many nodes, and tell what happens.

    Raises:
        AssertionError: something did not start or did not come about; with the end of its log.
        OSError: the folder is there already, or can't be made.
        MissingProgramError: there is no control plane and none can be built.
    """
    built = programs()
    folder.mkdir()
    ledger, where = f"sqlite:///{folder / 'ledger.db'}", pods_in(TEAM)
    ask("ledger", "init", ledger=ledger, folder=folder)
    say(f"starting etcd and kube-apiserver {kubernetes_version()}")
    with control_plane(folder, built) as plane:
        make_cluster(plane, nodes)
        identities = issue(folder / "identities")
        say("starting tenure serve scheduler, and a kube-scheduler that asks it")
        with (
            extender(plane, ledger, identities) as served,
            plane.scheduler(asking(plane, served, identities)),
        ):
            pods = burst(plane, where, each, GROUPED)
            dialects, shown = ", ".join(DIALECTS), pods[each * len(DIALECTS) - 1]
            say(f"submitted {len(pods)} Pods: {each} each of {dialects}, a group and a gang")
            bound = settled(plane, where, len(pods))
            missing = set(pods) - {one["metadata"]["name"] for one in bound}
            assert not missing, f"not bound: {', '.join(sorted(missing))}\n{served.words()}"
            say(f"all {len(bound)} Pods are bound; who holds what, by the ledger:")
            [node] = {one["spec"]["nodeName"] for one in bound if one["metadata"]["name"] == shown}
            for question in (["map"], ["who", node]):
                ask(*question, ledger=ledger, folder=folder)
            remove_pods(plane, where, pods[:DELETED])
            say(f"deleted {', '.join(pods[:DELETED])}")
            for name in pods[:DELETED]:
                eventually(partial(holds_nothing, f"{TEAM}/{name}", ledger=ledger, folder=folder))
            say("all of them are released:")
            for name in pods[:DELETED]:
                ask("who", f"{TEAM}/{name}", ledger=ledger, folder=folder)
            ask("verify", ledger=ledger, folder=folder)
            say("stopping")
    kept = Path(os.path.relpath(folder)) / "ledger.db"
    say(f"everything has stopped; ask on: tenure why {TEAM}/{shown} --ledger {kept}")


def make_cluster(plane: ControlPlane, count: int) -> None:
    """Make the namespaces and that many nodes of eight cards."""
    for name in (NAMESPACE, TEAM):
        made = plane.api().create("/api/v1/namespaces", {"metadata": {"name": name}})
        assert made.ok, made.message
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for number in range(1, count + 1):
        add_gpu_node(plane, f"node-{number:02}")
    say(f"made {count} nodes of 8 cards and 64 CPUs: Node, Device, NodeResourceTopology")


def holds_nothing(name: str, *, ledger: str, folder: Path) -> bool:
    """Tell whether a Pod holds nothing by the ledger."""
    answer = tenure("who", name, "-o", "json", "--ledger", ledger, cwd=folder)
    assert answer.returncode == 0, answer.stderr
    return not json.loads(answer.stdout)["holders"]


def ask(*question: str, ledger: str, folder: Path) -> None:
    """Show a command and what it answers, which must not be a failure."""
    answer = tenure(*question, "--ledger", ledger, cwd=folder)
    sys.stdout.write(f"$ tenure {' '.join(question)}\n{answer.stdout}")
    assert answer.returncode == 0, answer.stderr


def say(line: str) -> None:
    """Tell how far it is, with the seconds since the beginning."""
    sys.stdout.write(f"[{time.monotonic() - _began:5.1f} s] {line}\n")
    sys.stdout.flush()


def stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave every block, which ends what runs in it; who asks twice does not disturb that."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    """Run it, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.live", description="Tenure at work.")
    parser.add_argument("folder", type=Path, help="a new folder for the ledger and the logs")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--each", type=int, default=20, help="Pods of every dialect")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        show(asked.folder.resolve(), nodes=asked.nodes, each=asked.each)
    except KeyboardInterrupt as interrupt:
        say(f"everything has stopped, by {interrupt}")
        return INTERRUPTED
    except (AssertionError, MissingProgramError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
