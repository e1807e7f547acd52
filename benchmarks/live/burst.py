"""
Pods per second in a burst, against the least extender there can be, and against none.

    .venv/bin/python -m benchmarks.live.burst               # 100 nodes, 1,000 Pods; needs Go
    .venv/bin/python -m benchmarks.live.burst --nodes 20 --each 20 --rounds 1

etcd, kube-apiserver and kube-scheduler are real, nodes are objects without a machine. Every turn
submits the same Pods, of six dialects, then starts a kube-scheduler with the same limits of queries
that asks `ours` (`tenure serve scheduler` on SQLite), `peer` (Go: names only, binds, records
nothing) or nobody. Its rate is the Pods after the first one, by the seconds from the first Binding
seen to the last. The bar is 0.6 of the peer's rate, the aim 0.9.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Final

import yaml

from benchmarks.measure import say, say_machine
from tests.live import TEAM, make_cluster
from tests.support.kube.binaries import programs
from tests.support.kube.bursts import DIALECTS, burst
from tests.support.kube.control_plane import ADMIN, ControlPlane, control_plane
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import KUBE_SCHEDULER, Identities, extender, issue
from tests.support.manifests import kube_scheduler
from tests.support.process import tenure

SECONDS_MAX: Final = 600.0
BAR: Final = 0.6
OURS: Final = "ours"
PEER: Final = "peer"
NOBODY: Final = "nobody"
_PEER: Final = Path(__file__).parent / "peer"


def main() -> None:
    """Measure in turns; print one JSON object per line."""
    options = _options()
    say_machine(nodes=options.nodes, pods=options.each * len(DIALECTS))
    found: dict[str, list[float]] = {name: [] for name in (OURS, PEER, NOBODY)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = _build(folder)
        identities = issue(folder / "identities")
        for number in range(options.rounds):
            for who in found if number % 2 == 0 else reversed(found):
                where = folder / f"{number}-{who}"
                where.mkdir()
                found[who].append(_turn(who, where, identities, program, options))
                say(who=who, per_second=round(found[who][-1], 1))
    medians = {who: round(statistics.median(rates), 1) for who, rates in found.items()}
    ratio = statistics.median(
        mine / theirs for mine, theirs in zip(found[OURS], found[PEER], strict=True)
    )
    say(**medians, to_peer=round(ratio, 2), load=round(os.getloadavg()[0], 1))
    if options.limits and ratio < BAR:
        sys.exit(f"under the bar: {ratio:.2f} < {BAR}")


def _turn(
    who: str, folder: Path, identities: Identities, program: Path, options: argparse.Namespace
) -> float:
    """Return the Pods per second of one burst in a cluster of its own."""
    with control_plane(folder, programs()) as plane, ExitStack() as stack:
        make_cluster(plane, options.nodes)
        config = _asking(who, plane, identities, program, stack)
        pods = burst(plane, pods_in(TEAM), options.each)
        with plane.scheduler(config):
            return _rate(plane, len(pods))


def _rate(plane: ControlPlane, count: int) -> float:
    """Watch the Pods until all are bound; return how many came per second after the first."""
    bound: dict[str, float] = {}
    end = time.monotonic() + SECONDS_MAX
    while len(bound) < count and time.monotonic() < end:
        # An API server ends a watch when it likes. One that is opened again tells of all Pods.
        for pod in _watch(plane, end - time.monotonic()):
            if pod["spec"].get("nodeName"):
                bound.setdefault(pod["metadata"]["uid"], time.monotonic())
            if len(bound) == count:
                break
    times = sorted(bound.values())
    assert len(times) == count, f"not all were bound: {len(times)} of {count}"
    return (count - 1) / (times[-1] - times[0])


def _watch(plane: ControlPlane, seconds: float) -> Iterator[dict[str, dict[str, str]]]:
    """Yield every Pod that there is, then those that change, until the watch ends."""
    path = f"{pods_in(TEAM)}?watch=1&resourceVersion=0&timeoutSeconds={max(1, int(seconds))}"
    headers = {"Authorization": f"Bearer {plane.tokens[ADMIN]}"}
    request = urllib.request.Request(plane.url + path, headers=headers)  # noqa: S310 - our own
    tls = ssl.create_default_context(cafile=str(plane.ca_file))
    with (
        suppress(OSError, HTTPException),
        urllib.request.urlopen(request, timeout=seconds, context=tls) as answer,  # noqa: S310
    ):
        for line in answer:
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            yield event["object"]


# --- The processes ----------------------------------------------------------------------------


def _asking(
    who: str, plane: ControlPlane, identities: Identities, program: Path, stack: ExitStack
) -> Path:
    """Return the configuration of a kube-scheduler that asks it, started."""
    port = 0
    if who == OURS:
        ledger = f"sqlite:///{plane.folder / 'ledger.db'}"
        made = tenure("ledger", "init", "--ledger", ledger, cwd=plane.folder)
        assert made.returncode == 0, made.stderr
        port = stack.enter_context(extender(plane, ledger, identities)).port
    elif who == PEER:
        port = stack.enter_context(_peer(plane, identities, program))
    config = kube_scheduler(
        f"https://127.0.0.1:{port}",
        str(identities.client),
        str(plane.kubeconfig(KUBE_SCHEDULER)),
    )
    if who == NOBODY:
        del config["extenders"]
    path = plane.folder / "asking.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def _peer(plane: ControlPlane, identities: Identities, program: Path) -> Iterator[int]:
    token = plane.folder / "token"
    token.write_text(plane.tokens[ADMIN])
    command = [
        *(str(program), "-certificates", str(identities.server), "-api", plane.url),
        *("-api-ca", str(plane.ca_file), "-token", str(token)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None, "a pipe was asked for"
            yield int(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(20)


def _build(folder: Path) -> Path:
    go = shutil.which("go")
    if go is None:
        sys.exit("Go is needed for the peer")
    program = folder / "peer"
    subprocess.run([go, "build", "-trimpath", "-o", str(program), "."], cwd=_PEER, check=True)
    return program


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.burst")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--each", type=int, default=167, help="Pods of every dialect")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limits", action="store_true", help="exit status 1 under the bar")
    return parser.parse_args()


if __name__ == "__main__":
    main()
