"""The `tenure` command: its groups, its exit codes, and nothing else."""

from __future__ import annotations

import sys

import typer

from tenure.commands import (
    ask,
    certs,
    check,
    defrag,
    demo,
    ledger,
    look,
    manifests,
    quota,
    serve,
    simulate,
    trace,
)

app = typer.Typer(
    name="tenure",
    help="Who holds which device and which CPU, since when, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode="rich",
)
for group in (
    simulate,
    check,
    ask,
    defrag,
    look,
    ledger,
    trace,
    demo,
    quota,
    serve,
    manifests,
    certs,
):
    group.register(app)


def main() -> None:
    """Run the command line: exit 0 done, 1 the answer is no, 2 wrong usage or unreadable input."""
    from tenure.exits import run

    sys.exit(run(app))
