"""
`verify` and replay against another commit's, each on the ledger that it made, in turns.

    .venv/bin/python -m benchmarks.proving ../before=/tmp/before/ledger.db .=/tmp/now/ledger.db

A tree is a folder of sources; README.md says how it and its ledger are made. Each turn is a
process of its own, measured behind its imports. Microseconds per event, lowest and median: by the
clock, and of the processor.
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
import json, sys, time
from importlib import import_module
from importlib.util import find_spec
from ledger.store.open import open_ledger

def there(name):
    return find_spec(name.rpartition(".")[0]) and find_spec(name)

def module(*names):
    return import_module(next(filter(there, names)))

what, url = sys.argv[1:]
verify = module("ledger.store.proving.verify", "ledger.store.verify").verify
replay = module("ledger.store.reading.read", "ledger.store.read").replay
began, own = time.perf_counter(), time.process_time()
with open_ledger(url, mode="read") as ledger:
    if what == "verify":
        report = verify(ledger)
        assert report.ok, report.findings[:3]
        events = report.events
    else:
        events = sum(1 for _ in replay(ledger.connection))
clock, own = time.perf_counter() - began, time.process_time() - own
print(json.dumps([each / events * 1e6 for each in (clock, own)]))
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
            columns = zip(("clock", "processor"), zip(*figures, strict=True), strict=True)
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
