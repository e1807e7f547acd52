"""
What the ledger costs, as ratios to what the same database does without it, in the same run.

    .venv/bin/python -m benchmarks.ledger                              # SQLite, some minutes
    .venv/bin/python -m benchmarks.ledger --quick                      # a sample in a minute
    .venv/bin/python -m benchmarks.ledger --postgres postgresql:///empty_database?host=/socket/dir
    .venv/bin/python -m benchmarks.ledger --sizes 10000 100000 1000000 --holdings 10000000

Appends and bare inserts take turns over several rounds and the median counts. A bare insert is the
row of one event in a table with nothing but its key, committed as durably. Half the
events are reservations of one whole GPU, half releases, over 800 cards.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.ledger import lane
from benchmarks.ledger.appends import appends
from benchmarks.ledger.growth import growth
from benchmarks.ledger.holdings import who_held
from benchmarks.measure import say_machine
from ledger.store.open import open_ledger

MANY_EVENTS = 200_000
"""A larger ledger is measured once: what it shows is how figures grow."""


def main() -> None:
    """Measure what was asked for and print one JSON object per line."""
    options = _options()
    say_machine()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        databases = [("sqlite", f"sqlite:///{where / 'append.db'}")]
        if options.postgres:
            databases.append(("postgres", options.postgres))
        for name, url in databases if options.rounds else ():
            with open_ledger(url, mode="create") as ledger:
                appends(name, ledger, rounds=options.rounds, seconds=options.seconds)
        shared = [("sqlite", f"sqlite:///{where / 'lane.db'}")]
        if options.postgres_lane:
            shared.append(("postgres", options.postgres_lane))
        for name, url in shared if options.rounds else ():
            lane.measure(name, url, rounds=options.rounds, seconds=options.seconds)
        for size in options.sizes:
            path = where / f"{size}.db"
            growth(path, size, rounds=3 if size <= MANY_EVENTS else 1)
            path.unlink()
        if options.holdings:
            who_held(where / "holdings.db", options.holdings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ledger", description=(__doc__ or "").split("\n", 2)[1]
    )
    parser.add_argument("--quick", action="store_true", help="a bounded sample, about a minute")
    parser.add_argument("--postgres", help="URL of an empty database", default="")
    parser.add_argument(
        "--postgres-lane", help="URL of another one, for clients at once", default=""
    )
    parser.add_argument("--rounds", type=int, help="of appends; 0 leaves them out")
    parser.add_argument("--seconds", type=float, help="of each turn")
    parser.add_argument("--sizes", type=int, nargs="*", help="of a ledger, in events")
    parser.add_argument("--holdings", type=int, help="rows for `who held it then`; 0 leaves it out")
    options = parser.parse_args()
    usual = {"rounds": 5, "seconds": 1.0, "sizes": [10_000, 100_000], "holdings": 1_000_000}
    quick = {"rounds": 3, "seconds": 0.5, "sizes": [10_000, 30_000], "holdings": 200_000}
    for name, value in (quick if options.quick else usual).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    main()
