"""The `tenure` command: its groups, its exit codes, and nothing else."""

from __future__ import annotations

import gc
import sys

import typer

from tenure import demo
from tenure.admin import ledger, verify
from tenure.check import options as check
from tenure.check import quota
from tenure.live import release
from tenure.query import drift, status, top, usage, who, why
from tenure.report import map as fleet_map
from tenure.report import report
from tenure.serving import certs, manifests, serve
from tenure.simulate import options as simulate
from tenure.simulate.trace import generate
from tenure.whatif import defrag

app = typer.Typer(
    name="tenure",
    help="Who holds which device and which CPU, since when, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode="rich",
)
for verb in (
    simulate,
    check,
    who,
    why,
    usage,
    verify,
    status,
    top,
    drift,
    release,
    defrag,
    fleet_map,
    report,
    ledger,
    generate,
    demo,
    quota,
    serve,
    manifests,
    certs,
):
    verb.register(app)


def main() -> None:
    """Run the command line: exit 0 done, 1 the answer is no, 2 wrong usage or unreadable input."""
    from tenure.exits import run

    gc.set_threshold(50_000, 20, 100)  # what we keep is no cycles: a tenth of `verify` and `replay`
    sys.exit(run(app))
