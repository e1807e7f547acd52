"""
What admission costs, as a ratio to a minimal Go webhook with the same rules, in the same run.

    .venv/bin/python -m benchmarks.admission            # some minutes
    .venv/bin/python -m benchmarks.admission --quick    # a sample in about a minute

`tenure serve webhook` as it runs in a cluster (TLS, log, metrics, look-ups) against `peer/`:
net/http with encoding/json and the rules of the Koordinator dialect, which neither logs nor counts.
Both run on one core, the load generator (`load/`) on the other; connections are kept and the
servers take turns.
Half the requests create a Pod, half validate what became of it. Rates count the processor's time of
the server, since others use the machine too; latencies are by the clock, from the moment a request
was due.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.admission.bodies import all_different, creations, same_template
from benchmarks.admission.cases import check_alike
from benchmarks.admission.servers import Server, api, build, ours, peer, write_certificates
from benchmarks.measure import pinned, say, say_machine

RATE: Final = 500
CONNECTIONS_CLOSED: Final = 4
CONNECTIONS_OPEN: Final = 16
PODS: Final = 1_500
"""Enough that a decision about a Pod of its own kind is forgotten before the Pod comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """
    The generator with what all its turns have in common.

    Attributes:
        sent: requests that each server had; the next turn goes on from there.
    """

    program: Path
    authority: Path
    pin: list[str]
    seconds: float
    sent: Counter[str] = field(default_factory=Counter)

    def turn(self, server: Server, bodies: Path, rate: int = 0) -> dict[str, float]:
        """Return what one turn of load on a server showed."""
        connections = CONNECTIONS_OPEN if rate else CONNECTIONS_CLOSED
        command = [
            *self.pin, str(self.program), "-address", f"localhost:{server.port}",
            "-ca", str(self.authority), "-bodies", str(bodies), "-seconds", str(self.seconds),
            "-connections", str(connections), "-rate", str(rate),
            "-start", str(self.sent[server.name]),
        ]  # fmt: skip
        used, began = server.cpu_seconds(), time.perf_counter()
        environ = {**os.environ, "GOMAXPROCS": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{server.name}: {done.stderr[-2000:]}")
        wall, used = time.perf_counter() - began, server.cpu_seconds() - used
        found: dict[str, float] = json.loads(done.stdout)
        self.sent[server.name] += int(found["requests"])
        return {
            **found,
            "per_second": found["requests"] / wall,
            "per_cpu_second": found["requests"] / used,
        }


def main() -> None:
    """Compare verdicts, then measure; print one JSON object per line."""
    options = _options()
    cores = sorted(os.sched_getaffinity(0))
    say_machine()
    with tempfile.TemporaryDirectory() as name, api() as url:
        folder = Path(name)
        write_certificates(folder)
        program, generator = build(folder)
        server_pin, load_pin = (pinned(core) for core in (cores[0], cores[-1]))
        load = Load(
            program=generator,
            authority=folder / "ca.crt",
            pin=load_pin,
            seconds=options.seconds,
        )
        with ours(folder, url, server_pin) as own, peer(folder, program, server_pin) as other:
            say(verdicts_alike=check_alike([own, other], load.authority))
            for what, pods in (
                ("one ReplicaSet", same_template(PODS)),
                ("all different", all_different(PODS)),
            ):
                bodies = folder / "bodies"
                requests = creations(pods)
                _write(bodies, requests)
                size = round(statistics.mean(len(body) for _, body in requests))
                _measure(f"{what}, {size} bytes", [own, other], load, bodies, options.rounds)


def _measure(what: str, servers: list[Server], load: Load, bodies: Path, rounds: int) -> None:
    for rate in (0, RATE):
        found: dict[str, list[dict[str, float]]] = {one.name: [] for one in servers}
        for server in servers:
            load.turn(server, bodies, rate)  # not counted: everything is loaded and looked up once
        for number in range(rounds):
            for server in servers if number % 2 == 0 else reversed(servers):
                found[server.name].append(load.turn(server, bodies, rate))
        how = f"{rate} requests a second" if rate else "as fast as it goes"
        figures = {name: _medians(turns) for name, turns in found.items()}
        say(what=what, how=how, **figures, ratios=_ratios(found["ours"], found["peer"]))


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(turn[key] for turn in turns), 2) for key in turns[0]}


def _ratios(own: list[dict[str, float]], other: list[dict[str, float]]) -> dict[str, float]:
    """Return the medians of the ratios of each round."""
    keys = ("per_second", "per_cpu_second", "p50_ms", "p99_ms")
    pairs = list(zip(own, other, strict=True))
    return {
        key: round(statistics.median(one[key] / two[key] for one, two in pairs), 3) for key in keys
    }


def _write(path: Path, requests: list[tuple[str, bytes]]) -> None:
    with path.open("wb") as file:
        for hook, body in requests:
            for part in (hook.encode(), body):
                file.write(struct.pack(">I", len(part)) + part)


def _options() -> Any:  # noqa: ANN401 - argparse's namespace
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.admission", description=(__doc__ or "").split("\n", 2)[1]
    )
    parser.add_argument("--quick", action="store_true", help="a sample, about a minute")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each turn")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    return options


if __name__ == "__main__":
    main()
