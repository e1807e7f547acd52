"""
A writer that is killed at any moment, again and again; run as a process of its own.

One process imports everything and forks a writer for every cycle, so that a cycle costs what the
writer does and not what Python's imports cost. Prints one JSON object: how many writers were
killed, how many events were acknowledged, and what was found wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ledger.store.open import open_ledger
from ledger.store.proving.verify import verify
from tenure.progress import counting_bar
from tests.support.stores import Clock, node, released, reserved, share, start

NODES = 4
CARDS = 8
CYCLES_PER_LEDGER = 10


def write_until_killed(path: Path, cycle: int, acknowledged: int) -> None:
    """Reserve and release for ever; say which position is durable after every append."""
    rng = random.Random(cycle)
    with open_ledger(str(path), mode="write") as ledger:
        writer = start(ledger, holder=f"writer-{cycle}")
        clock = Clock(now_us=ledger.head().at_us)
        held = [
            (row.pod_name, row.node_name)
            for row in ledger.connection.exec_driver_sql(
                "SELECT pod_name, node_name FROM audit_reservations WHERE closed_position IS NULL"
            )
        ]
        ledger.connection.rollback()
        first = [node(f"n-{i}") for i in range(NODES)]
        made = 0
        batch: list[Any] = [*first, *(released(pod, node=name) for pod, name in held)]
        held = []
        while True:
            key = f"{cycle}:{made}"
            new = [clock.new(each, key=f"{key}:{i}") for i, each in enumerate(batch)]
            os.write(acknowledged, f"{writer.append(new)}\n".encode())
            batch = []
            for _ in range(rng.choice((1, 1, 1, 5, 40))):
                made += 1
                if len(held) == NODES * CARDS or (held and rng.random() < 0.4):
                    pod, name = held.pop(rng.randrange(len(held)))
                    batch.append(released(pod, node=name))
                    continue
                name = f"n-{rng.randrange(NODES)}"
                minor = rng.randrange(CARDS)
                if any(other == (name, minor) for other in _cards(held)):
                    continue
                pod = f"p{cycle}-{made}@{minor}"
                held.append((pod, name))
                batch.append(reserved(pod, share(minor, 100, node=name), node=name))


def _cards(held: list[tuple[str, str]]) -> list[tuple[str, int]]:
    return [(name, int(pod.rpartition("@")[2])) for pod, name in held]


def cycle_once(path: Path, cycle: int, rng: random.Random) -> tuple[int, list[str]]:
    """Fork a writer, kill it a random moment after its first commit; return (acked, findings)."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            write_until_killed(path, cycle, write_end)
        finally:
            os._exit(3)  # never reached: the writer is killed
    os.close(write_end)
    heard = os.read(read_end, 65_536)
    time.sleep(rng.random() * 0.06)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while more := os.read(read_end, 65_536):
        heard += more
    os.close(read_end)
    if not os.WIFSIGNALED(status):
        return 0, [f"the writer ended by itself: status={status}"]
    last = int(heard.decode().split("\n")[-2])
    with open_ledger(str(path), mode="read") as ledger:
        report = verify(ledger)
    findings = [str(finding) for finding in report.findings]
    if report.events < last:
        findings.append(f"acknowledged events are gone: acknowledged={last}, last={report.events}")
    return last, findings


def main(folder: Path, cycles: int, seed: int) -> None:
    """Kill `cycles` writers over a few ledgers in `folder`."""
    rng = random.Random(seed)
    acknowledged, found = 0, []
    path, began = folder / "none.db", time.monotonic()
    with counting_bar("kills", cycles) as bar:
        for cycle in range(cycles):
            if cycle % CYCLES_PER_LEDGER == 0:
                path = folder / f"{cycle}.db"
                open_ledger(str(path), mode="create").close()
                before = 0
            last, findings = cycle_once(path, cycle, rng)
            found += [f"cycle {cycle}: {finding}" for finding in findings]
            acknowledged += last - before
            before = last
            if bar is not None:
                bar(cycle + 1)
    answer = {
        "killed": cycles,
        "acknowledged": acknowledged,
        "seconds": round(time.monotonic() - began, 1),
        "findings": found,
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
