"""
`verify` and replay against another commit's, each on the ledger that it made, in turns.

    .venv/bin/python -m benchmarks.proving ../before=/tmp/before/ledger.db .=/tmp/now/ledger.db

A tree is a folder of sources; README.md says how it and its ledger are made. Each turn is a
process of its own, measured behind its imports. Microseconds per event, lowest and median: by the
clock, of the processor, and of the second process where there is one, until its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.measure import say, say_machine

_TURN: Final = """
import json, os, resource, sys, time
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from ledger.store.open import open_ledger

def there(name):
    return find_spec(name.rpartition(".")[0]) and find_spec(name)

def module(*names):
    return import_module(next(filter(there, names)))

def spent(whose):
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime

what, url = sys.argv[1:]
verify = module("ledger.store.proving.verify", "ledger.store.verify").verify
replay = module("ledger.store.reading.read", "ledger.store.read").replay
beside = nullcontext()
if what == "verify" and there("ledger.store.proving.second") and len(os.sched_getaffinity(0)) > 1:
    beside = module("ledger.store.proving.second").second_prover(url)
began, own = time.perf_counter(), spent(resource.RUSAGE_SELF)
with beside as second, open_ledger(url, mode="read") as ledger:
    if what == "verify":
        report = verify(ledger, second=second) if second else verify(ledger)
        assert report.ok, report.findings[:3]
        events = report.events
    else:
        events = sum(1 for _ in replay(ledger.connection))
clock, own = time.perf_counter() - began, spent(resource.RUSAGE_SELF) - own
print(json.dumps([each / events * 1e6 for each in (clock, own, spent(resource.RUSAGE_CHILDREN))]))
"""


def main() -> None:
    """Measure, and print lines."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("pairs", nargs="+", metavar="TREE=LEDGER")
    arguments.add_argument("--turns", type=int, default=9)
    asked = arguments.parse_args()
    pairs = [pair.partition("=")[::2] for pair in asked.pairs]
    say_machine(turns=asked.turns)
    for what in ("verify", "replay"):
        taken: dict[str, list[list[float]]] = {tree: [] for tree, _ in pairs}
        for _ in range(asked.turns):
            for tree, ledger in pairs:
                taken[tree].append(_turn(tree, ledger, what))
        for tree, figures in taken.items():
            columns = zip(("clock", "processor", "second"), zip(*figures, strict=True), strict=True)
            told = {
                f"{name}_us": [round(min(of), 1), round(statistics.median(of), 1)]
                for name, of in columns
            }
            say(what=what, tree=tree, **told)


def _turn(tree: str, ledger: str, what: str) -> list[float]:
    """Return what one process took per event."""
    command = [sys.executable, "-P", "-c", _TURN, what, f"sqlite:///{Path(ledger).resolve()}"]
    path = {**os.environ, "PYTHONPATH": str(Path(tree).resolve())}
    done = subprocess.run(command, env=path, check=True, stdout=subprocess.PIPE, timeout=600)
    figures: list[float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    main()
